# SPDX-License-Identifier: Apache-2.0
"""A search reports that all boards have ended, and counts those that lived."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("tornado")
pytest.importorskip("tvm")

from boardfarm.processes import FarmProcess, FarmState, JoinedBoard
from boardfarm.tune import cli
from boardfarm.tune.watch import BoardWatch
from crosslab.address import Address
from crosslab.errors import UserError


def test_boards_that_end_and_come_back_are_reported_once() -> None:
    counts, said = iter([2, 2, 1, 0, 0, 0, 0, 1, 1]), list[str]()
    watch = BoardWatch(lambda: next(counts), said.append)
    for _ in range(3):
        watch.look()
    # A restarted tracker is empty for a moment.
    assert said == []
    for _ in range(3):
        watch.look()
    (waits,) = said
    assert "none is left" in waits and "nox -s farm -- up" in waits
    watch.look()
    watch.look()
    assert said[1:] == ["boards: 1 joined again; the search continues"]
    assert str(watch) == "1 board (2 at the start)"


def test_boards_that_stay_are_counted_without_a_word() -> None:
    said = list[str]()
    watch = BoardWatch(lambda: 2, said.append)
    watch.look()
    assert (str(watch), said) == ("2 boards", [])


def test_the_core_of_the_boards_is_accepted_and_another_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    board = FarmProcess(1, "", "board.log")
    state = FarmState(Address("127.0.0.1", 1), "rvv256", "cycles", 256, None, (board,))
    monkeypatch.setattr(cli, "_use_tree", lambda *_: None)
    monkeypatch.setattr(cli.FarmState, "read", lambda _: state)
    joined = [JoinedBoard("cycles", "spacemit-x60")]
    monkeypatch.setattr(cli, "joined_boards", lambda *_: joined)
    words = [str(tmp_path / "none.py"), "--tvm-tree", str(tmp_path)]
    with pytest.raises(UserError, match=r"cannot read .*none.py"):
        cli.main([*words, "--core", "spacemit-x60"])
    with pytest.raises(UserError, match="the boards measure for spacemit-x60"):
        cli.main([*words, "--core", "spacemit-x100"])
    with pytest.raises(UserError, match="--vlen 512: the boards have vector registers of 256 bits"):
        cli.main([*words, "--vlen", "512"])


@pytest.mark.parametrize(
    "board",
    [
        JoinedBoard("cycles", "../../x"),
        JoinedBoard("cycles", "/x"),
        JoinedBoard("cycles", ""),
        JoinedBoard("", "x60"),
        JoinedBoard("cycles\n", "x60"),
    ],
)
def test_a_board_whose_database_cannot_be_a_folder_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, board: JoinedBoard
) -> None:
    state = FarmState(Address("127.0.0.1", 1), "rvv256", "cycles", 256, None, ())
    monkeypatch.setattr(cli, "_use_tree", lambda *_: None)
    monkeypatch.setattr(cli.FarmState, "read", lambda _: state)
    monkeypatch.setattr(cli, "joined_boards", lambda *_: [JoinedBoard("cycles", "x60"), board])
    with pytest.raises(UserError, match="cannot name a folder") as refused:
        cli.main([str(tmp_path / "none.py"), "--tvm-tree", str(tmp_path)])
    assert repr(board.core) in refused.value.what
