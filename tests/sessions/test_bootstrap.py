# SPDX-License-Identifier: Apache-2.0
"""The bootstrap hands over to nox, and Ctrl-C ends it in one line with everything it started."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from groundwork import locks

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"
# Answers Ctrl-C as nox does: it ends with 130.
FAKE_NOX = f"""#!{sys.executable}
import sys, time
try:
    print("begun", *sys.argv[1:], flush=True)
    time.sleep(60 if "slow" in sys.argv else 0)
except KeyboardInterrupt:
    print("nox > Interrupted...", file=sys.stderr)
    sys.exit(130)
sys.exit(7)
"""
NOXFILE = "\n".join(f"@session\ndef {name}(): ..." for name in ("tests", "slow", "build_it"))


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A checkout whose private environment is made already, with another nox."""
    scripts, home = tmp_path / "scripts", tmp_path / ".bootstrap"
    scripts.mkdir()
    (home / "bin").mkdir(parents=True)
    for name in ("bootstrap.py", "bootstrap.txt"):
        shutil.copy(SCRIPTS / name, scripts)
    (scripts / "sessions").symlink_to(SCRIPTS / "sessions")
    (tmp_path / "packages").symlink_to(SCRIPTS.parent / "packages")
    pinned = (scripts / "bootstrap.txt").read_text(encoding="utf-8")
    (home / "requirements").write_text(f"{pinned}on {sys.version}", encoding="utf-8")
    (tmp_path / "noxfile.py").write_text(NOXFILE, encoding="utf-8")
    (home / "bin" / "nox").write_text(FAKE_NOX, encoding="utf-8")
    (home / "bin" / "nox").chmod(0o755)
    return tmp_path


def started(checkout: Path, *arguments: str) -> subprocess.Popen[str]:
    """The bootstrap in a process group of its own, as a shell starts it."""
    environment = {k: v for k, v in os.environ.items() if k != "MLC_RVV_RUN"}
    return subprocess.Popen(
        [sys.executable, str(checkout / "scripts" / "bootstrap.py"), *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
        start_new_session=True,
    )


def test_the_exit_code_is_that_of_nox(checkout: Path) -> None:
    run = started(checkout, "tests", "--", "-k", "one")
    said, _ = run.communicate(timeout=60)
    assert run.returncode == 7
    assert said.split() == f"begun -f {checkout}/noxfile.py -s tests -- -k one".split()


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("build-it", "did you mean: python3 scripts/bootstrap.py build_it"),
        ("xyzzy", "python3 scripts/bootstrap.py lists the sessions"),
    ],
)
def test_a_session_that_is_not_there(checkout: Path, name: str, advice: str) -> None:
    run = started(checkout, name)
    _, said = run.communicate(timeout=60)
    assert (run.returncode, said) == (2, f"bootstrap: there is no session {name}\n  {advice}\n")


def test_help_says_how_to_list_sessions_and_options(checkout: Path) -> None:
    run = started(checkout, "--help")
    said, _ = run.communicate(timeout=60)
    assert run.returncode == 0
    assert said.startswith("usage: ") and "lists the sessions" in said and "-- --help" in said


@pytest.mark.parametrize("whole_group", [True, False])
def test_control_c_is_answered_by_nox_alone(checkout: Path, whole_group: bool) -> None:
    """From a terminal, which tells the whole group, and from ``kill -INT``."""
    run = started(checkout, "slow")
    assert run.stdout is not None
    assert run.stdout.readline().startswith("begun")
    with pytest.raises(BlockingIOError):
        locks.acquire(checkout / ".run.lock", "checkout", wait=False)
    (os.killpg if whole_group else os.kill)(run.pid, signal.SIGINT)
    _, said = run.communicate(timeout=60)
    assert (run.returncode, said) == (130, "nox > Interrupted...\n")
    locks.acquire(checkout / ".run.lock", "checkout", wait=False).close()
    with pytest.raises(ProcessLookupError):
        os.killpg(run.pid, 0)


def test_control_c_before_nox_ends_in_one_line(checkout: Path) -> None:
    with locks.acquire(checkout / ".run.lock", "checkout"):
        run = started(checkout, "slow")
        assert run.stderr is not None
        assert run.stderr.readline().startswith("waiting: ")
        os.killpg(run.pid, signal.SIGINT)
        _, said = run.communicate(timeout=60)
    assert (run.returncode, said) == (130, "bootstrap: interrupted\n")
