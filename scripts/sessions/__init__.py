# SPDX-License-Identifier: Apache-2.0
"""Environments, patched trees and locks of the nox sessions.

Python 2.7 can read this file, which is imported first and says which Python is needed.
"""

import os
import subprocess
import sys

OLDEST = (3, 11)
NEWEST = 30

#: pip's options for a requirements file: install only listed packages, and build no package.
PIP_OPTIONS = ("--no-deps", "--require-hashes", "--only-binary=:all:")

_TOO_OLD = """{name}: Python {needed} or newer is needed; this is Python {found} ({path})
  {hint}
"""
_HINT = """Debian 12, Ubuntu 24.04 or newer: {sudo}apt-get install python3 python3-pip
  Ubuntu 22.04: {sudo}apt-get install python3.11-venv; then type: python3.11 {program}
  any Linux, with uv (https://docs.astral.sh/uv/): uv run --no-project --python 3.11 {program}"""


def need_python(name, words):
    # type: (str, list[str]) -> None
    """End with exit code 2 if this Python is too old, and print how to get another Python.

    Args:
        name: name of the command, with which the message begins.
        words: words after ``python3`` that run the command.
    """
    if sys.version_info >= OLDEST:
        return
    program = subprocess.list2cmdline(words)
    newer = [n for n in range(OLDEST[1], NEWEST) if _is_there("python3.{}".format(n))]
    sudo = "sudo " if os.geteuid() and _is_there("sudo") else ""
    hint = _HINT.format(program=program, sudo=sudo)
    if newer:
        hint = "type: python3.{} {}".format(newer[0], program)
    needed, present = (".".join(map(str, v[:3])) for v in (OLDEST, sys.version_info))
    sys.stderr.write(
        _TOO_OLD.format(name=name, needed=needed, found=present, path=sys.executable, hint=hint)
    )
    sys.exit(2)


def _is_there(program):
    # type: (str) -> bool
    """Return True when PATH has an executable program of this name."""
    folders = os.environ.get("PATH", "").split(os.pathsep)
    return any(os.access(os.path.join(folder, program), os.X_OK) for folder in folders)
