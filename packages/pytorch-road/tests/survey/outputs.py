# SPDX-License-Identifier: Apache-2.0
"""Wrappers of models whose outputs are tables, as models whose outputs are tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

Made = tuple[nn.Module, dict[str, torch.Tensor] | tuple[torch.Tensor, ...]]
Factory = Callable[[], Made]


class Outputs(nn.Module):  # type: ignore[misc]
    """A model that is called with named inputs, and returns a tuple of named outputs.

    Attributes:
        model: returns a table.
        names: of the outputs.
        fixed: further arguments that are not inputs.
    """

    def __init__(self, model: nn.Module, *names: str, **fixed: Any) -> None:
        super().__init__()
        self.model, self.names, self.fixed = model, names, fixed

    def forward(self, **inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Return the named outputs."""
        table = self.model(**inputs, **self.fixed)
        return tuple(table[name] for name in self.names)


class First(nn.Module):  # type: ignore[misc]
    """A model whose only returned output is the wrapped model's first output."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the first output."""
        output: torch.Tensor = self.model(x)[0]
        return output


def tokens(length: int = 12, most: int = 90) -> torch.Tensor:
    """Return random token ids [1, length]."""
    return torch.randint(3, most, (1, length))


def image(size: int = 32, channels: int = 3) -> torch.Tensor:
    """Return a random image [1, channels, size, size]."""
    return torch.randn(1, channels, size, size)
