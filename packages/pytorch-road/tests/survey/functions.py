# SPDX-License-Identifier: Apache-2.0
"""A model of functions of one number, which test_ulp.py measures. The file needs torch alone."""

from __future__ import annotations

import torch
from torch.nn import functional as f

FUNCTIONS = {
    "exp": torch.exp,
    "expm1": torch.expm1,
    "log": torch.log,
    "log1p": torch.log1p,
    "sigmoid": torch.sigmoid,
    "silu": f.silu,
    "tanh": torch.tanh,
    "gelu": f.gelu,
    "elu": f.elu,
    "softplus": f.softplus,
    "erf": torch.erf,
    "sin": torch.sin,
    "cos": torch.cos,
}
# Float32 numbers: a number of every STRIDE bit patterns.
STRIDE = 16381


class Functions(torch.nn.Module):  # type: ignore[misc]
    """Computes every function of its input."""

    def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
        """Return the functions of each number."""
        return [function(x) for function in FUNCTIONS.values()]


def sample() -> torch.Tensor:
    """Return float32 numbers of all sizes, of both signs, without NaN."""
    bits = torch.arange(-(1 << 31), 1 << 31, STRIDE).to(torch.int32)
    numbers = bits.view(torch.float32)
    return numbers[~numbers.isnan()]


def exact(name: str, x: torch.Tensor) -> torch.Tensor:
    """Return a function of float32 numbers, computed in float64."""
    wide = x.double()
    if name == "gelu":  # torch's own cancels far below zero, in float64 too
        return wide * torch.erfc(-wide * 0.5**0.5) / 2
    return FUNCTIONS[name](wide)


def functions() -> tuple[torch.nn.Module, tuple[torch.Tensor, ...]]:
    """Return the model and the numbers."""
    return Functions(), (sample(),)
