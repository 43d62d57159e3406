# SPDX-License-Identifier: Apache-2.0
"""Layers whose weights stay in a file's blocks: matrices beyond 32-bit indices are refused."""

from __future__ import annotations

from types import ModuleType

import pytest

from crosslab.compile.overlaypass import load_pass

WIDE = 2**16


@pytest.mark.parametrize("rows", [WIDE // 2, "outputs"])
def test_a_matrix_beyond_32_bit_indices_is_refused(tvm: ModuleType, rows: int | str) -> None:
    nn = tvm.relax.frontend.nn
    configuration, store = load_pass("configuration"), load_pass("stored_layers").store_layers

    class Model(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            self.up = nn.Linear(WIDE, rows, bias=False)

    part = configuration.StoredPart("quants", WIDE, 1)

    def segments(count: int) -> dict[str, object]:
        return {"up.weight": (configuration.StoredSegment(count, "q8_0", 32, (part,)),)}

    with pytest.raises(ValueError, match=r"weights of .* elements are beyond 32-bit indices"):
        store(Model(), segments(WIDE // 2))
    if isinstance(rows, str):
        store(Model(), segments(WIDE // 2 - 1))
