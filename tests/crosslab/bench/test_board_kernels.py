# SPDX-License-Identifier: Apache-2.0
"""The table of counted kernels is written whole, or not at all."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from crosslab.bench import board_kernels
from crosslab.cores.core import core_list
from crosslab.cores.cycles import Cycles
from crosslab.errors import LabError, UserError

TABLE = """core,kernel,pipeline,serial,vec-serial
spacemit-x60,gemm q4_0,1,2,3
spacemit-x60,gone,1,2,3
xuantie-c920,gemm q4_0,4,5,6
"""


def test_the_table_is_kept_if_our_kernels_do_not_compile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise LabError("clang++ failed: gguf.c")

    monkeypatch.setattr(board_kernels, "_program", lambda _: tmp_path / "program")
    monkeypatch.setattr(board_kernels, "_count", lambda *_: ())
    monkeypatch.setattr(board_kernels, "build", fail)
    table = tmp_path / "kernels.csv"
    table.write_text(TABLE)
    with pytest.raises(LabError, match=r"gguf\.c"):
        board_kernels.count_kernels(core_list("spacemit-x60"), tmp_path, table)
    assert table.read_text() == TABLE


def test_rows_of_other_cores_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    units = {"scalar": 15, "vector memory": 8, "vector arithmetic": 12}
    counted = [("gemm q4_0", Cycles(30, units, (), (), {}, {}, pipeline=10), 100)]
    monkeypatch.setattr(board_kernels, "_program", lambda _: tmp_path / "program")
    monkeypatch.setattr(board_kernels, "_count", lambda *_: counted)
    monkeypatch.setattr(board_kernels, "_ours", lambda *_: ())
    table = tmp_path / "kernels.csv"
    table.write_text(TABLE)
    board_kernels.count_kernels(core_list("spacemit-x60"), tmp_path, table)
    header, first, _, other = TABLE.splitlines()
    assert first.startswith("spacemit-x60,gemm q4_0,")
    assert table.read_text().splitlines() == [header, "spacemit-x60,gemm q4_0,0.1,0.3,0.2", other]


def test_another_file_is_not_overwritten(tmp_path: Path) -> None:
    table = tmp_path / "kernels.csv"
    table.write_text("core,kernel\n")
    with pytest.raises(UserError, match="is not a table of kernels"):
        board_kernels.count_kernels(core_list("spacemit-x60"), tmp_path, table)
