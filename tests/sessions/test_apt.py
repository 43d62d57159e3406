# SPDX-License-Identifier: Apache-2.0
"""System packages: installed by apt-get where that is allowed, refused in one line elsewhere."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from crosslab.host import optional_tools
from crosslab.host.toolchain import clang_version
from groundwork import apt, offline

AS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="apt-get installs as root only")


def script(folder: Path, name: str, text: str) -> None:
    (folder / name).write_text(f"#!/bin/sh\n{text}\n", encoding="utf-8")
    (folder / name).chmod(0o755)


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty folder that is all of PATH but for `env`."""
    (tmp_path / "env").symlink_to("/usr/bin/env")
    monkeypatch.setenv("PATH", str(tmp_path))
    yield tmp_path
    clang_version.cache_clear()


def test_nothing_is_installed_without_apt(path: Path) -> None:
    assert apt.refusal() == "there is no apt-get here"
    assert not apt.update() and not apt.install(["git"]) and not apt.install([])
    assert apt.command_line(["git"]) == "install these packages of Debian: git"


def test_nothing_is_installed_by_other_users_than_root(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    script(path, "apt-get", f"/usr/bin/touch {path}/called")
    script(path, "sudo", "exit 1")
    assert apt.refusal() == "this is not root, and sudo asks for a password"
    assert apt.command_line(["git"]) == "type: sudo apt-get update && sudo apt-get install git"
    assert not apt.install(["git"])
    (path / "sudo").unlink()
    assert apt.refusal() == "this is not root, and there is no sudo"
    assert apt.command_line(["git"]) == "type as root: apt-get update && apt-get install git"
    assert not (path / "called").exists()


@AS_ROOT
def test_a_failure_of_apt_is_reported_with_its_last_lines(
    path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script(path, "apt-get", "echo 'E: Unable to locate package'; exit 100")
    assert not apt.install(["nonsense"])
    said = capsys.readouterr().err
    assert "install -y --no-install-recommends nonsense" in said
    assert "E: Unable to locate package" in said and "exit code 100" in said


#: Lists what it would download, of two packages, or notes what it installs.
APT_GET = """case "$*" in
*--print-uris*) echo "'http://archive/a.deb' a.deb 7000000 SHA256:0
'http://archive/b.deb' b.deb 5400000 SHA256:0";;
*) echo "$@" >>"$(/usr/bin/dirname "$0")/called";;
esac"""


def installed(path: Path) -> list[str]:
    """Packages that the script of apt-get was told to install."""
    called = path / "called"
    calls = called.read_text(encoding="utf-8").splitlines() if called.is_file() else []
    return [call.split()[-1] for call in calls if " install " in call]


@AS_ROOT
def test_tools_of_tests_are_announced_with_their_sizes(
    path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script(path, "apt-cache", '[ "$3" = qemu-system-misc ] && echo "Package: $3"')
    script(path, "apt-get", APT_GET)
    optional_tools.prepare()
    called = (path / "called").read_text(encoding="utf-8")
    assert "update" in called
    assert "qemu-system-misc" in called and "qemu-system-riscv " not in f"{called} "
    announced, installed = capsys.readouterr().err.split("install -y", 1)
    assert "  chromium: pages in a browser, 12 MB to download\n" in announced
    assert "chromium" in installed


@AS_ROOT
@pytest.mark.parametrize(
    ("options", "packages"),
    [
        (["packages/forkpatch/tests/foreign/test_formats.py"], ["g++", "dpkg-dev"]),
        (["--nonsense"], []),
    ],
)
def test_tools_are_installed_for_the_selected_tests_alone(
    path: Path, options: list[str], packages: list[str]
) -> None:
    script(path, "apt-get", APT_GET)
    optional_tools.prepare(options)
    assert installed(path) == packages


@AS_ROOT
def test_tests_that_cannot_be_collected_get_every_tool(
    path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script(path, "apt-get", APT_GET)
    test = tmp_path / "test_broken.py"
    test.write_text("import no_such_module\n", encoding="utf-8")
    optional_tools.prepare([str(test)])
    assert "chromium" in installed(path)
    said = capsys.readouterr().err
    assert "pytest cannot collect these tests" in said and "no_such_module" in said


def test_one_line_says_what_tests_go_without(
    path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    optional_tools.prepare()
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("not installed, so their tests skip: ")
    assert "chromium (pages in a browser)" in line
    assert line.endswith(
        "there is no apt-get here; install these packages of Debian: "
        "g++ dpkg-dev chromium curl qemu-system-misc"
    )


def test_nothing_is_installed_offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(offline.MARK, "1")
    assert apt.download("http://archive/a.deb", "0" * 64, tmp_path) == "--offline downloads nothing"
    assert apt.refusal() in ("--offline installs nothing", "there is no apt-get here")


def test_the_bootstrap_names_all_missing_tools_at_once(path: Path) -> None:
    bootstrap = Path(__file__).resolve().parents[2] / "scripts" / "bootstrap.py"
    command = [sys.executable, str(bootstrap), "tests"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    what, remedy = done.stderr.splitlines()
    assert what.startswith("nox -s tests: missing tools: git, qemu-riscv64, clang, lld")
    assert what.endswith("there is no apt-get here")
    assert remedy.startswith("  install these packages of Debian: git qemu-user clang-19 lld-19")
