# SPDX-License-Identifier: Apache-2.0
"""The table of counted kernels is written whole, or not at all."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from crosslab.bench import board_kernels
from crosslab.cores.core import core_list
from crosslab.errors import LabError


def test_the_table_is_kept_if_our_kernels_do_not_compile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise LabError("clang++ failed: gguf.c")

    monkeypatch.setattr(board_kernels, "_program", lambda _: tmp_path / "program")
    monkeypatch.setattr(board_kernels, "_count", lambda *_: ())
    monkeypatch.setattr(board_kernels, "build", fail)
    table = tmp_path / "kernels.csv"
    table.write_text("from before\n")
    with pytest.raises(LabError, match=r"gguf\.c"):
        board_kernels.count_kernels(core_list("spacemit-x60"), tmp_path, table)
    assert table.read_text() == "from before\n"
