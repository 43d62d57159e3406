# SPDX-License-Identifier: Apache-2.0
"""A model whose outputs are tables, as one whose outputs are tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

Made = tuple[nn.Module, dict[str, torch.Tensor] | tuple[torch.Tensor, ...]]
Factory = Callable[[], Made]


class Outputs(nn.Module):  # type: ignore[misc]
    """A model that is called by name, and outputs of it, by name.

    Attributes:
        model: gives a table.
        names: of the outputs.
        fixed: arguments that are no inputs.
    """

    def __init__(self, model: nn.Module, *names: str, **fixed: Any) -> None:
        super().__init__()
        self.model, self.names, self.fixed = model, names, fixed

    def forward(self, **inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """The named outputs."""
        made = self.model(**inputs, **self.fixed)
        return tuple(made[name] for name in self.names)


class First(nn.Module):  # type: ignore[misc]
    """A model whose first output alone is a tensor."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The first output."""
        made: torch.Tensor = self.model(x)[0]
        return made


def tokens(length: int = 12, most: int = 90) -> torch.Tensor:
    """Token ids [1, length]."""
    return torch.randint(3, most, (1, length))


def image(size: int = 32, channels: int = 3) -> torch.Tensor:
    """An image [1, channels, size, size]."""
    return torch.randn(1, channels, size, size)
