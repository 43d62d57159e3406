# SPDX-License-Identifier: Apache-2.0
"""Atomic writes: a file is replaced whole or not at all."""

import os
from pathlib import Path

import pytest

from groundwork.files import atomic_path, atomic_write


def test_new_file_gets_its_folder_and_is_readable_by_all(tmp_path: Path) -> None:
    path = tmp_path / "new" / "ü.txt"
    before = os.umask(0o077)
    try:
        atomic_write(path, "ä\n")
    finally:
        os.umask(before)
    assert path.read_text(encoding="utf-8") == "ä\n"
    assert path.stat().st_mode & 0o777 == 0o644
    assert list(path.parent.iterdir()) == [path]


def test_existing_file_keeps_its_mode(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("old")
    path.chmod(0o600)
    atomic_write(path, b"new\r\n")
    assert path.read_bytes() == b"new\r\n"
    assert path.stat().st_mode & 0o777 == 0o600


def test_old_content_stays_when_the_text_has_no_utf8(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("old")
    with pytest.raises(UnicodeEncodeError):
        atomic_write(path, "\ud800")  # half a surrogate pair
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_old_content_stays_when_writing_is_interrupted(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("old")
    with pytest.raises(KeyboardInterrupt), atomic_path(path) as scratch:
        scratch.write_text("half")
        raise KeyboardInterrupt
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_pipe_is_written_to_and_not_replaced(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        atomic_write(pipe, "told")
        assert os.read(reader, 100) == b"told"
    finally:
        os.close(reader)
    assert pipe.is_fifo()
