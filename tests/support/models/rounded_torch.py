# SPDX-License-Identifier: Apache-2.0
"""Logits of a torch model whose products round activations to int8, as kernels for blocks do."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from crosslab.models.roundings import round_to_int8
from crosslab.models.weights_file import F32

PRODUCTS = (torch.nn.functional.linear, torch.Tensor.matmul, torch.Tensor.__matmul__)


class RoundedProducts(TorchFunctionMode):
    """Products of activations and weights, except by weights whose names match a pattern."""

    def __init__(self, model: torch.nn.Module, exact: str) -> None:
        super().__init__()
        weights = dict(model.named_parameters())
        self.exact = {w.data_ptr() for name, w in weights.items() if re.search(exact, name)}

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        """Round the first argument of a product with a matrix."""
        if func in PRODUCTS and args[1].ndim == 2 and args[1].data_ptr() not in self.exact:
            x = args[0].reshape(-1, args[0].shape[-1]).numpy()
            near = torch.from_numpy(round_to_int8(x)).reshape(args[0].shape)
            args = near, *args[1:]
        return func(*args, **(kwargs or {}))


def rounded_logits(model: Any, tokens: Sequence[int], first: int, exact: str) -> F32:
    """Return the logits after each token from number ``first``, rounded except by ``exact``."""
    model.set_experts_implementation("eager")
    with torch.no_grad(), RoundedProducts(model, exact):
        rows = model(torch.tensor([tokens]), use_cache=False).logits[0]
    logits: F32 = rows[first:].numpy()
    return logits


def snap_experts(model: Any, values: Sequence[int], tile: int = 32) -> None:
    """Replace the whole numbers 0 to 7 in the zoo's tiles of experts' weights by other ones."""
    table = torch.tensor(values, dtype=torch.float32)
    for name, weight in model.named_parameters():
        if ".experts." in name and weight.ndim > 2:
            lead, rows, columns = weight.shape
            tiles = weight.reshape(lead, rows // tile, tile, columns // tile, tile)
            scale = tiles.abs().amax(dim=(2, 4), keepdim=True) / (len(values) - 1)
            whole = (tiles / scale).round()
            weight.copy_((table[whole.abs().long()] * whole.sign() * scale).reshape(weight.shape))
