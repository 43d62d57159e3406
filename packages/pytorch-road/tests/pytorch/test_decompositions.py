# SPDX-License-Identifier: Apache-2.0
"""Decompositions give torch's numbers at the edges of their inputs."""

from __future__ import annotations

import math
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("tvm")

from torchroad.conversion.decompositions import decompositions  # noqa: E402

aten = torch.ops.aten
INFINITE = torch.tensor([[math.inf, 1.0], [3.0, -math.inf], [3.0, 4.0], [0.0, 0.0]])
CASES = {
    "hypot": (aten.hypot.default, (INFINITE[:, 0], INFINITE[:, 1])),
    "dist": (aten.dist.default, (INFINITE[0], torch.zeros(2))),
    "equal elements": (aten.histc.default, (torch.full((4,), 2.0), 4)),
    "equal bounds": (aten.histc.default, (torch.tensor([1.0, 2.0, 4.0]), 3, 5, 5)),
    "loss of a row": (
        aten.multi_margin_loss.default,
        (torch.tensor([0.5, 2.0, 1.0]), torch.tensor(2), 1, 1, None, 0),
    ),
    "bounds": (aten.histc.default, (torch.tensor([1.0, 2.0, 4.0, 9.0]), 3, 1, 4)),
}


@pytest.mark.parametrize("name", CASES)
def test_a_decomposition_equals_torch(name: str) -> None:
    operator, inputs = CASES[name]
    decompose: Any = decompositions()[operator]
    torch.testing.assert_close(decompose(*inputs), operator(*inputs))
