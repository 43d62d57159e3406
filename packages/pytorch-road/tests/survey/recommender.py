# SPDX-License-Identifier: Apache-2.0
"""A recommender with bags of embeddings, such as DLRM."""

from __future__ import annotations

import torch
from outputs import Made
from torch import Tensor, nn

WIDTH, ROWS = 8, 20


class Recommender(nn.Module):  # type: ignore[misc]
    """A model of scores from dense features and two bags of sparse features, by their products."""

    def __init__(self) -> None:
        super().__init__()
        self.dense = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, WIDTH), nn.ReLU())
        modes = ("sum", "mean")
        self.bags = nn.ModuleList(nn.EmbeddingBag(ROWS, WIDTH, mode=mode) for mode in modes)
        self.top = nn.Sequential(nn.Linear(WIDTH + 3, 16), nn.ReLU(), nn.Linear(16, 1))

    def forward(self, dense: Tensor, sparse: Tensor, offsets: Tensor) -> Tensor:
        """Return scores [batch, 1].

        Args:
            dense: [batch, 6].
            sparse: row indices of the tables, bag after bag.
            offsets: position in ``sparse`` of each bag's first row, [batch].
        """
        dense_vector = self.dense(dense)
        vectors = torch.stack([dense_vector, *(bag(sparse, offsets) for bag in self.bags)], 1)
        products = torch.bmm(vectors, vectors.transpose(1, 2))
        first, second = torch.triu_indices(3, 3, 1).unbind()
        crossed = products[:, first, second]
        return torch.sigmoid(self.top(torch.cat([dense_vector, crossed], 1)))


def recommender() -> Made:
    """Return a recommender with inputs for two examples, with bags of three and four rows."""
    inputs = (torch.randn(2, 6), torch.randint(ROWS, (7,)), torch.tensor([0, 3]))
    return Recommender(), inputs
