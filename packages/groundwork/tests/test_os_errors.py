# SPDX-License-Identifier: Apache-2.0
"""Errors of the operating system as messages with a remedy."""

import errno
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from groundwork.errors import CommandError

SCRIPT = """
import sys
from groundwork.errors import CommandError, exit_code_of
sys.exit(exit_code_of(lambda: print("hello"), CommandError, "verb"))
"""


class MistakeError(CommandError):
    exit_code = 2


def test_an_os_error_names_the_path_and_the_remedy() -> None:
    error = MistakeError.from_os_error(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "/full"))
    assert str(error) == (
        "/full: No space left on device\n  free some space there, then type the same command again"
    )
    assert (error.exit_code, type(error)) == (2, MistakeError)


def test_a_full_disk_is_the_target_of_a_copy() -> None:
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "/cache/pack", None, "/full/pack")
    assert MistakeError.from_os_error(full).what == "/full/pack: No space left on device"
    gone = OSError(errno.ENOENT, os.strerror(errno.ENOENT), "/cache/pack", None, "/full/pack")
    assert MistakeError.from_os_error(gone).what == "/cache/pack: No such file or directory"


def test_an_error_of_copying_a_tree_names_the_target(tmp_path: Path) -> None:
    (tmp_path / "from").mkdir()
    (tmp_path / "from" / "gone").symlink_to("nowhere")
    with pytest.raises(shutil.Error) as caught:
        shutil.copytree(tmp_path / "from", tmp_path / "to")
    error = CommandError.from_os_error(caught.value)
    assert str(error).startswith(f"{tmp_path}/to/gone: ")
    assert "type the same command again" in error.remedy
    assert error.exit_code == 1


def test_an_exit_code_of_its_own_and_no_remedy() -> None:
    error = CommandError("it broke", exit_code=7)
    assert (str(error), error.exit_code, CommandError.exit_code) == ("it broke", 7, 1)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
def test_a_standard_output_that_is_full_is_named() -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    environment.pop("PYTHONUNBUFFERED", None)
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-c", SCRIPT],
            env=environment,
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert done.returncode == 1
    lines = done.stderr.splitlines()
    assert lines[0] == "verb: standard output: No space left on device" and len(lines) == 2
