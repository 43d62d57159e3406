# SPDX-License-Identifier: Apache-2.0
"""Ctrl-C while a command still loads its modules: a word and exit code 130, no traceback."""

from __future__ import annotations

import subprocess
import sys

import pytest

INTERRUPTED_AT = """
import runpy, sys

class Finder:
    def find_spec(self, name, path, target=None):
        if name == {module!r}:
            raise KeyboardInterrupt

sys.meta_path.insert(0, Finder())
runpy.run_module({package!r}, run_name="__main__")
"""


@pytest.mark.parametrize(
    ("package", "module"),
    [
        ("forkpatch", "forkpatch.cli.options"),
        ("costmodel", "costmodel.cli"),
        ("accelerator", "accelerator.cli"),
    ],
)
def test_it_ends_as_an_interrupted_command_does(package: str, module: str) -> None:
    program = INTERRUPTED_AT.format(module=module, package=package)
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 130
    assert done.stderr.splitlines()[-1].endswith("interrupted: run it again to go on")
    assert "Traceback" not in done.stderr
