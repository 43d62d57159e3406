# SPDX-License-Identifier: Apache-2.0
"""Atomic writes: a file is replaced whole or not at all."""

import os
import subprocess
import sys
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


@pytest.mark.parametrize("there", [True, False])
def test_a_link_stays_and_its_target_is_written(tmp_path: Path, there: bool) -> None:
    target, link = tmp_path / "folder" / "file", tmp_path / "link"
    if there:
        target.parent.mkdir()
        target.write_text("old")
    (tmp_path / "middle").symlink_to(Path("folder") / "file")
    link.symlink_to("middle")
    atomic_write(link, "new")
    assert link.is_symlink() and target.read_text() == "new"
    assert list(target.parent.iterdir()) == [target]


def test_a_circle_of_links_is_an_error_of_the_system(tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to("link")
    atomic_write(link, "new")
    assert link.read_text() == "new"


def test_output_of_the_process_stays_around_the_content(tmp_path: Path) -> None:
    program = """if True:
        import sys
        from pathlib import Path
        from groundwork.files import atomic_write
        print("before")
        atomic_write(Path("/dev/stdout"), "new\\n")
        print("after")
        atomic_write(Path("/proc/thread-self/fd/1"), "last\\n")
    """
    path = tmp_path / "file"
    with path.open("w") as file:
        subprocess.run([sys.executable, "-c", program], stdout=file, check=True)
    assert path.read_text() == "before\nnew\nafter\nlast\n"


def test_an_open_file_of_another_process_gets_the_content_at_its_end(tmp_path: Path) -> None:
    path = tmp_path / "file"
    with path.open("w") as file:
        file.write("before\n")
        file.flush()
        program = f"""if True:
            from pathlib import Path
            from groundwork.files import atomic_write
            atomic_write(Path("/proc/{os.getpid()}/fd/{file.fileno()}"), "new\\n")
        """
        subprocess.run([sys.executable, "-c", program], check=True)
    assert path.read_text() == "before\nnew\n"


@pytest.mark.parametrize("number", ["9999", "x"])
def test_a_missing_open_file_is_an_error_of_the_system(number: str) -> None:
    with pytest.raises(OSError, match=f"/fd/{number}"):
        atomic_write(Path(f"/dev/fd/{number}"), "new")


@pytest.mark.parametrize("through_a_link", [True, False])
def test_an_open_file_gets_the_content_after_its_own(tmp_path: Path, through_a_link: bool) -> None:
    path, link = tmp_path / "file", tmp_path / "link"
    with path.open("w") as file:
        file.write("before\n")
        file.flush()
        opened = Path(f"/dev/fd/{file.fileno()}")
        link.symlink_to(opened)
        atomic_write(link if through_a_link else opened, "new\n")
    assert path.read_text() == "before\nnew\n" and link.readlink() == opened
    assert sorted(tmp_path.iterdir()) == [path, link]
