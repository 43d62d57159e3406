# SPDX-License-Identifier: Apache-2.0
"""Parsers of options: lists that are given several times, names, and options without effect."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import pytest

from groundwork.command_line import Parser, output_file, output_folder


def parser(**fields: object) -> Parser:
    made = Parser(prog="make")
    made.add_argument("verb")
    made.add_argument_group("lists").add_argument("--rows", type=int, nargs="+", **fields)
    made.add_argument("--name", default="x")
    return made


@pytest.mark.parametrize("default", [None, [], (7, 8), [7]])
def test_a_list_that_is_given_twice_has_the_values_of_both(default: object) -> None:
    assert parser(default=default).parse_args(["all"]).rows == default
    given = parser(default=default).parse_args(
        ["all", "--rows", "1", "2", "--name=y", "--rows", "3"]
    )
    assert given.rows == [1, 2, 3]


def test_lists_of_two_runs_are_apart() -> None:
    one = parser(default=[])
    assert one.parse_args(["all", "--rows", "1"]).rows == [1]
    assert one.parse_args(["all", "--rows", "2"]).rows == [2]


def test_a_part_of_a_name_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        parser().parse_args(["all", "--row", "1"])
    assert ended.value.code == 2
    assert "did you mean --rows?" in capsys.readouterr().err


def test_an_option_without_effect_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    one = parser()
    one.refuse_unused(one.parse_args(["all", "--name", "x"]), {"rows"}, "all")
    one.refuse_unused(one.parse_args(["all", "--rows", "1"]), {"rows"}, "all")
    with pytest.raises(SystemExit) as ended:
        one.refuse_unused(one.parse_args(["all", "--name", "y"]), {"rows"}, "all")
    assert ended.value.code == 2
    assert "make: --name has no effect with all; leave it out" in capsys.readouterr().err


def test_a_file_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    assert output_file(str(tmp_path / "new" / "x.json")) == tmp_path / "new" / "x.json"
    (tmp_path / "file").touch()
    for word, said in (
        (tmp_path, "is a folder"),
        (tmp_path / "file" / "x", "no file can be written in"),
        (tmp_path / ("x" * 300), "File name too long"),
    ):
        with pytest.raises(argparse.ArgumentTypeError, match=said):
            output_file(str(word))


def test_a_folder_that_cannot_be_written_to_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    new = tmp_path / "new" / "folder"
    assert (output_folder(str(tmp_path)), output_folder(str(new))) == (tmp_path, new)
    (tmp_path / "file").touch()
    for word, said in (
        (tmp_path / "file", "is not a folder"),
        (tmp_path / "file" / "x", "no file can be written in"),
        (tmp_path / ("x" * 300), "File name too long"),
    ):
        with pytest.raises(argparse.ArgumentTypeError, match=said):
            output_folder(str(word))
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(argparse.ArgumentTypeError, match="no file can be written in"):
        output_folder(str(tmp_path))


def test_an_open_file_needs_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Standard output may be a file in a folder that the user cannot write to."""
    monkeypatch.setattr(os, "access", lambda *_: False)
    (tmp_path / "file").touch()
    with pytest.raises(argparse.ArgumentTypeError, match="no file can be written in"):
        output_file(str(tmp_path / "file"))
    with (tmp_path / "file").open("w") as stream:
        word = f"/dev/fd/{stream.fileno()}"
        assert output_file(word) == Path(word)
