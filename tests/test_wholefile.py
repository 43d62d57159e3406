# SPDX-License-Identifier: Apache-2.0
"""Files are written whole or not at all; each wing has its own writer, held to the same here."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

import crosslab.wholefile
import forkpatch.wholefile

Writer = Callable[[Path, str], None]
both = pytest.mark.parametrize(
    "write", [crosslab.wholefile.write_text, forkpatch.wholefile.write_text]
)


@both
def test_a_file_appears_with_its_folder_and_is_readable_by_all(
    write: Writer, tmp_path: Path
) -> None:
    path = tmp_path / "new" / "ü.txt"
    before = os.umask(0o077)
    try:
        write(path, "ä\n")
    finally:
        os.umask(before)
    assert path.read_text(encoding="utf-8") == "ä\n"
    assert path.stat().st_mode & 0o777 == 0o644
    assert list(path.parent.iterdir()) == [path]


@both
def test_a_file_that_is_there_keeps_its_mode(write: Writer, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("old")
    path.chmod(0o600)
    write(path, "new")
    assert path.read_text() == "new"
    assert path.stat().st_mode & 0o777 == 0o600


@both
def test_what_was_there_stays_when_writing_fails(write: Writer, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("old")
    with pytest.raises(UnicodeEncodeError):
        write(path, "\ud800")  # half a surrogate pair: no UTF-8 for it
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


@both
def test_a_pipe_is_written_into_and_not_replaced(write: Writer, tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        write(pipe, "told")
        assert os.read(reader, 100) == b"told"
    finally:
        os.close(reader)
    assert pipe.is_fifo()
