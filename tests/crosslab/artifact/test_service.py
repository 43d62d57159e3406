# SPDX-License-Identifier: Apache-2.0
"""The service of an artefact: its unit, and run.sh install on a stand-in systemctl."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from crosslab.artifact.dist import RUN, SERVICE

SYSTEMCTL = '#!/bin/sh\nshift\necho "$@" >>"$CALLS"\n[ "$1" != "${FAILS-}" ]\n'


class Board:
    """A folder with run.sh and the unit, and a home."""

    def __init__(self, at: Path, name: str) -> None:
        self.folder, self.home, self.tools = at / name, at / "home", at / "tools"
        for folder in (self.folder, self.home, self.tools):
            folder.mkdir()
        shutil.copy(RUN, self.folder)
        shutil.copy(SERVICE, self.folder)
        self.calls = at / "calls"
        self.unit = self.home / ".config/systemd/user/mlc-rvv.service"

    def with_systemd(self) -> Board:
        for name in ("systemctl", "journalctl", "loginctl"):
            (self.tools / name).write_text(SYSTEMCTL)
            (self.tools / name).chmod(0o755)
        return self

    def run(self, *words: str, **more: str) -> subprocess.CompletedProcess[str]:
        tools = ("sh", "sed", "cat", "id", "mkdir", "mv", "rm", "grep", "readlink")
        for tool in tools:
            found = shutil.which(tool)
            assert found
            if not (self.tools / tool).exists():
                (self.tools / tool).symlink_to(found)
        about = {"PATH": str(self.tools), "HOME": str(self.home), "CALLS": str(self.calls), **more}
        command = [self.folder / "run.sh", *words]
        return subprocess.run(
            command, cwd=self.home, env=about, capture_output=True, text=True, check=False
        )


@pytest.fixture
def board(tmp_path: Path) -> Board:
    return Board(tmp_path, 'a "folder" 100% $HOME').with_systemd()


def command_of(unit: Path) -> list[str]:
    """The words of ExecStart, as systemd.service(5) reads them."""
    (line,) = (x for x in unit.read_text().splitlines() if x.startswith("ExecStart="))
    plain = line.removeprefix("ExecStart=").replace("%%", "%").replace("$$", "$")
    return shlex.split(plain)


def test_install_writes_the_real_path_and_the_options(board: Board, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(board.folder)
    done = board.run(
        *("install", "--user", "--port", "80", "--map-params", "mapped"),
        *("--api-key-file", "my keys", "--name", "a%b"),
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "loginctl enable-linger" in done.stdout
    own = ["/bin/sh", str(board.folder / "run.sh"), "serve"]
    options = ["--port", "80", "--map-params", str(board.home / "mapped")]
    options += ["--api-key-file", str(board.home / "my keys"), "--name", "a%b"]
    assert command_of(board.unit) == [*own, *options]
    assert board.unit.read_text().count("\n") == SERVICE.read_text().count("\n")
    words = [line.split()[0] for line in board.calls.read_text().splitlines()]
    assert words == ["show-environment", "daemon-reload", "enable", "restart", *words[4:]]
    assert [p.name for p in board.unit.parent.iterdir()] == [board.unit.name]
    assert board.run("uninstall", "--user").returncode == 0
    assert not board.unit.exists()
    assert "nothing to remove" in board.run("uninstall", "--user").stderr


def test_a_service_that_does_not_start_is_reported(board: Board) -> None:
    done = board.run("install", "--user", FAILS="restart")
    assert done.returncode == 1
    assert "the service does not start" in done.stderr


def test_uninstall_leaves_the_service_of_another_folder(board: Board) -> None:
    assert board.run("install", "--user").returncode == 0
    board.unit.write_text(board.unit.read_text().replace("folder", "other"))
    done = board.run("uninstall", "--user")
    assert done.returncode == 1
    assert "serves another folder" in done.stderr
    assert board.unit.exists()


@pytest.mark.parametrize(
    ("words", "more", "code", "said"),
    [
        (["install"], {}, 2, "type ./run.sh install --user"),
        (["uninstall", "--user", "x"], {}, 2, "remove 'x'"),
        (["install", "--user"], {"FAILS": "show-environment"}, 1, "log in as"),
        (["install", "--user"], {"MLC_RVV_EMULATOR": "qemu"}, 2, "needs a riscv64 computer"),
        (["install", "--user", "--name", "a\nb"], {}, 2, "line break"),
    ],
)
def test_wrong_calls(
    board: Board, words: list[str], more: dict[str, str], code: int, said: str
) -> None:
    done = board.run(*words, **more)
    assert (done.returncode, said in done.stderr) == (code, True), done.stderr
    assert not board.unit.exists()


def test_a_board_without_systemd_is_refused(tmp_path: Path) -> None:
    done = Board(tmp_path, "model").run("install", "--user")
    assert done.returncode == 1
    assert "no systemd" in done.stderr
    assert "./run.sh serve" in done.stderr


def test_systemd_accepts_the_unit(board: Board, tmp_path: Path) -> None:
    systemd = shutil.which("systemd-analyze")
    if systemd is None:
        pytest.skip("no systemd-analyze: apt-get install systemd")
    assert board.run("install", "--user", "--port", "80").returncode == 0
    about = {**os.environ, "XDG_RUNTIME_DIR": str(tmp_path)}
    command = [systemd, "--user", "--recursive-errors=no", "verify", board.unit]
    done = subprocess.run(command, env=about, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
