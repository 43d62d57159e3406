# SPDX-License-Identifier: Apache-2.0
"""The bootstrap hands over to nox, and Ctrl-C ends it in one line with everything it started."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

from groundwork import locks
from groundwork.errors import CommandError
from groundwork.ramdisk import mounting
from sessions import machine

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"
# Answers Ctrl-C as nox does: it ends with 130.
FAKE_NOX = f"""#!{sys.executable}
import os, sys, time
try:
    print("begun", os.getcwd(), *sys.argv[1:], flush=True)
    time.sleep(60 if "slow" in sys.argv else 0)
except KeyboardInterrupt:
    print("nox > Interrupted...", file=sys.stderr)
    sys.exit(130)
sys.exit(7)
"""
NOXFILE = "\n".join(f"@session\ndef {name}(): ..." for name in ("quick", "slow", "build_it"))


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A checkout whose private environment is made already, with another nox."""
    scripts, home = tmp_path / "scripts", tmp_path / ".bootstrap"
    scripts.mkdir()
    (home / "bin").mkdir(parents=True)
    for name in ("bootstrap.py", "bootstrap.txt"):
        shutil.copy(SCRIPTS / name, scripts)
    shutil.copytree(SCRIPTS / "sessions", scripts / "sessions")
    (tmp_path / "packages").symlink_to(SCRIPTS.parent / "packages")
    pinned = (scripts / "bootstrap.txt").read_text(encoding="utf-8")
    (home / "requirements").write_text(f"{pinned}on {sys.version}\nin {home}", encoding="utf-8")
    (tmp_path / "noxfile.py").write_text(NOXFILE, encoding="utf-8")
    (home / "bin" / "nox").write_text(FAKE_NOX, encoding="utf-8")
    (home / "bin" / "nox").chmod(0o755)
    return tmp_path


def started(
    checkout: Path, *arguments: str, cwd: Path | None = None, **variables: str
) -> subprocess.Popen[str]:
    """The bootstrap in a process group of its own, as a shell starts it."""
    own = ("MLC_RVV_RUN", "MLC_RVV_LOOKED")
    environment = {k: v for k, v in os.environ.items() if k not in own} | variables
    return subprocess.Popen(
        [sys.executable, str(checkout / "scripts" / "bootstrap.py"), *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
        cwd=cwd,
        start_new_session=True,
    )


def test_the_exit_code_is_that_of_nox_and_the_folder_the_callers(checkout: Path) -> None:
    (here := checkout / "models").mkdir()
    run = started(checkout, "quick", "--", "-k", "one", cwd=here)
    said, _ = run.communicate(timeout=60)
    assert run.returncode == 7
    assert said.split() == f"begun {here} -f {checkout}/noxfile.py -s quick -- -k one".split()


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


def test_cmake_calls_the_bootstrap_with_words_that_it_accepts(checkout: Path) -> None:
    root = SCRIPTS.parent
    shutil.copy(root / "noxfile.py", checkout)
    texts = [path.read_text(encoding="utf-8") for path in (root / "runner/cmake").glob("*.cmake")]
    calls = [call for text in texts for call in re.findall(r"bootstrap\.py((?: [-a-z_]+)*)", text)]
    assert len(calls) > 1
    for words in calls:
        run = started(checkout, *words.split())
        _, said = run.communicate(timeout=60)
        assert run.returncode == 7, (words, said)


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
    assert (run.returncode, said) == (130, "bootstrap: interrupted: run it again to go on\n")


class Index(ThreadingHTTPServer):
    """A package index that has nothing, and notes each request."""

    asked: list[str]


class Answer(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.server.asked.append(self.path)  # type: ignore[attr-defined]
        self.send_error(404)

    def log_message(self, *_: object) -> None: ...


@pytest.mark.parametrize("offline", [True, False])
def test_a_cold_environment_asks_the_index_unless_offline(checkout: Path, offline: bool) -> None:
    (checkout / ".bootstrap" / "requirements").unlink()
    with Index(("127.0.0.1", 0), Answer) as index:
        index.asked = []
        Thread(target=index.serve_forever, daemon=True).start()
        variables = {"PIP_INDEX_URL": f"http://127.0.0.1:{index.server_port}/simple"}
        variables |= {"PIP_CONFIG_FILE": os.devnull, "PIP_RETRIES": "0"}
        run = started(checkout, "quick", *["--", "--offline"] * offline, **variables)
        _, said = run.communicate(timeout=60)
        index.shutdown()
    first, *rest = said.splitlines()
    assert first.startswith("bootstrap: installing nox==")
    if not offline:
        assert run.returncode == 1 and index.asked
        assert "pip cannot install nox==" in rest[0] and "check the network" in rest[1]
        return
    assert (run.returncode, index.asked) == (2, [])
    assert "does not have nox==" in rest[0] and rest[0].endswith("--offline downloads nothing")
    assert rest[1:] == ["  type the same command once without --offline"]


def test_a_full_disk_is_named_where_pip_fails(checkout: Path, tmp_path: Path) -> None:
    (checkout / ".bootstrap" / "requirements").unlink()
    with mounting(tmp_path / "disk", pytest.skip) as mount:
        full = mount("64k").path
        run = started(checkout, "quick", TMPDIR=str(full), PIP_NO_INDEX="1")
        _, said = run.communicate(timeout=60)
    assert run.returncode == 2
    assert f"no space is left on the disk of {full}" in said and "free some space" in said


def test_a_checkout_that_cannot_be_written(checkout: Path, tmp_path: Path) -> None:
    with mounting(tmp_path / "a disk", pytest.skip) as mount:
        disk = mount("1g")  # none of it is used
        shutil.copytree(checkout, disk.path / "p", symlinks=True, ignore=lambda *_: ["a disk"])
        disk.freeze()
        run = started(disk.path / "p", "quick")
        _, said = run.communicate(timeout=60)
    what, remedy = said.splitlines()
    assert run.returncode == 2
    assert what == f"bootstrap: {disk.path}/p/.run.lock cannot be written: Read-only file system"
    assert f"git clone '{disk.path}/p' ~/mlc-rvv" in remedy


def test_a_first_run_looks_at_the_free_space(tmp_path: Path) -> None:
    with mounting(tmp_path / "disk", pytest.skip) as mount:
        disk = mount("1m").path
        with pytest.raises(CommandError, match=r"0\.0 GB free; the first run of x needs") as told:
            machine.check_room(disk, "x", lab=False)
        (disk / ".nox" / "x").mkdir(parents=True)
        machine.check_room(disk, "x", lab=False)
    assert told.value.exit_code == 2 and "free some space" in told.value.remedy
