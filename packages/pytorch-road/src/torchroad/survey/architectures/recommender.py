# SPDX-License-Identifier: Apache-2.0
"""A recommender with bags of embeddings, such as DLRM."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from torchroad.survey.architectures.outputs import Made

WIDTH, ROWS = 8, 20


class Recommender(nn.Module):  # type: ignore[misc]
    """Scores of dense features and of two bags of sparse ones, from their products."""

    def __init__(self) -> None:
        super().__init__()
        self.dense = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, WIDTH), nn.ReLU())
        modes = ("sum", "mean")
        self.bags = nn.ModuleList(nn.EmbeddingBag(ROWS, WIDTH, mode=mode) for mode in modes)
        self.top = nn.Sequential(nn.Linear(WIDTH + 3, 16), nn.ReLU(), nn.Linear(16, 1))

    def forward(self, dense: Tensor, sparse: Tensor, offsets: Tensor) -> Tensor:
        """Scores [batch, 1].

        Args:
            dense: [batch, 6].
            sparse: rows of the tables, one bag after the other.
            offsets: first place of each bag, [batch].
        """
        given = self.dense(dense)
        vectors = torch.stack([given, *(bag(sparse, offsets) for bag in self.bags)], 1)
        products = torch.bmm(vectors, vectors.transpose(1, 2))
        first, second = torch.triu_indices(3, 3, 1).unbind()
        crossed = products[:, first, second]
        return torch.sigmoid(self.top(torch.cat([given, crossed], 1)))


def recommender() -> Made:
    """Two examples, with bags of three and of four."""
    given = (torch.randn(2, 6), torch.randint(ROWS, (7,)), torch.tensor([0, 3]))
    return Recommender(), given
