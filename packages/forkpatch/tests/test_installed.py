# SPDX-License-Identifier: Apache-2.0
"""Installation of forkpatch by itself, into an empty environment, and a patch carried with it."""

from __future__ import annotations

import os
import subprocess
import venv
from dataclasses import dataclass
from pathlib import Path

import pytest
from forklab import CORE, FILES, PACKAGE, ForkLab, Repo, core, git, message

from forkpatch.sources.wheels import pip_command

pytestmark = [pytest.mark.slow, pytest.mark.thorough]
CORE_PATH = "python/calc/core.py"


@dataclass(frozen=True)
class Installed:
    """An environment that holds forkpatch and what it depends on; ``fork`` is its user's."""

    folder: Path
    fork: ForkLab

    def run(self, program: str, *args: str) -> str:
        """The output of a program of the environment, which sees nothing else of this machine."""
        environment = {
            "HOME": str(self.fork.home),
            "XDG_CACHE_HOME": str(self.fork.home / "cache"),
            "PATH": f"{self.folder / 'bin'}:{os.environ['PATH']}",
            "COLUMNS": "160",
        }
        done = subprocess.run(
            [str(self.folder / "bin" / program), *args],
            cwd=self.fork.root,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout


def pip(*args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*pip_command(), *args], capture_output=True, text=True, check=False)


@pytest.fixture
def installed(tmp_path: Path) -> Installed:
    wanted = ("download", "--quiet", "--no-deps", "--dest", str(tmp_path / "reached"))
    if (reached := pip(*wanted, "hatchling")).returncode:
        pytest.skip(f"pip reaches no index: {reached.stderr.strip().splitlines()[-1]}")
    folder = tmp_path / "environment"
    venv.create(folder, symlinks=True)
    packages = [str(PACKAGE.with_name("groundwork")), str(PACKAGE)]
    done = pip("--python", str(folder / "bin/python"), "install", "--quiet", *packages)
    assert done.returncode == 0, done.stderr
    repo = Repo.create(tmp_path / "upstream", FILES)
    git(repo.path, "tag", "v1.0")
    fork = ForkLab(tmp_path / "fork", tmp_path / "home", repo)
    fork.root.mkdir()
    fork.write_lock()
    return Installed(folder, fork)


def test_installed_command_carries_a_patch_to_a_new_version(installed: Installed) -> None:
    fork, repo = installed.fork, installed.fork.repo
    where = installed.run("python", "-c", "import forkpatch; print(*forkpatch.__path__)")
    assert Path(where.strip()).is_relative_to(installed.folder)

    installed.run("forkpatch", "lock", "--mirror", f"calc={repo.path}")
    installed.run("forkpatch", "apply")
    assert (fork.tree / CORE_PATH).read_bytes() == CORE

    installed.run("forkpatch", "edit", "calc")
    (fork.tree / CORE_PATH).write_bytes(core(sub="b - a"))
    git(fork.tree, "commit", "-qam", message("Turn sub"))
    installed.run("forkpatch", "export", "calc")
    assert (fork.patches / "series").read_text() == "turn-sub.patch\n"
    (fork.root / "tests").mkdir()
    (fork.root / "tests/test_x.py").write_text("def test_x() -> None: ...\n")
    installed.run("forkpatch", "lock")
    assert installed.run("forkpatch", "check") == "no findings\n"

    newer = b'"""Numbers."""\n\n\n'
    repo.commit({CORE_PATH: newer + CORE}, "Version 2.0")
    git(repo.path, "tag", "v2.0")
    installed.run("forkpatch", "lock", "--add", "calc=2.0")
    assert "turn-sub.patch: clean" in installed.run("forkpatch", "rebase", "calc", "2.0")
    fork.edit_lock('calc = "1.0"', 'calc = "2.0"')
    installed.run("forkpatch", "apply")
    assert (fork.tree / CORE_PATH).read_bytes() == newer + core(sub="b - a")
