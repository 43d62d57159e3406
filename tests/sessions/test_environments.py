# SPDX-License-Identifier: Apache-2.0
"""The environment in which sessions run our modules."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("nox")
from sessions import environments


class DirectSession:
    """Runs commands with this Python, as a session does with its own."""

    invoked_from = "/"

    stdout = None

    def run(self, *command: str, env: dict[str, str], **_: Any) -> None:
        command = (sys.executable, *command[1:])
        subprocess.run(command, env={**os.environ, **env}, stdout=self.stdout, check=True)


def test_compiled_python_is_kept_but_not_beside_sources(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    modules, kept = tmp_path / "modules", tmp_path / ".work" / "pycache"
    modules.mkdir()
    (modules / "first.py").write_text("import second\n")
    (modules / "second.py").write_text("")
    monkeypatch.setattr(environments, "ROOT", tmp_path)
    monkeypatch.delenv("PYTHONPYCACHEPREFIX", raising=False)
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    session: Any = DirectSession()
    environments.run_module(session, "first", PYTHONPATH=str(modules))
    assert sorted(path.name for path in modules.iterdir()) == ["first.py", "second.py"]
    assert list(kept.rglob("second.*.pyc"))


def test_a_path_is_the_callers(tmp_path: Path) -> None:
    """Of a command it begins where nox was started; pytest runs at the project's root."""
    (tmp_path / "say.py").write_text("import os, sys; open(sys.argv[1], 'w').write(os.getcwd())")
    (here := tmp_path / "models").mkdir()
    (here / "test_it.py").touch()
    session: Any = DirectSession()
    session.invoked_from = str(here)
    environments.run_module(session, "say", "told", PYTHONPATH=str(tmp_path))
    assert (here / "told").read_text() == str(here)
    (tmp_path / "pytest.py").write_text("import os, sys; print(os.getcwd(), *sys.argv[1:])")
    said = here / "said"
    with said.open("w") as session.stdout:
        words = ("-k", "told", "test_it.py::test_one", "-x", "--junitxml", "a.xml")
        words += ("--ignore=test_it.py", "--junit-xml=b.xml", "--color=yes")
        environments.run_pytest(session, *words, PYTHONPATH=str(tmp_path))
    assert said.read_text().split() == [
        *(str(environments.ROOT), "-k", "told", f"{here}/test_it.py::test_one", "-x"),
        *("--junitxml", f"{here}/a.xml", f"--ignore={here}/test_it.py"),
        *(f"--junit-xml={here}/b.xml", "--color=yes"),
    ]


def test_who_did_not_ask_keeps_pythons_own_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "first.py").write_text("import second\n")
    (tmp_path / "second.py").write_text("")
    monkeypatch.setattr(environments, "ROOT", tmp_path)
    for name in ("PYTHONPYCACHEPREFIX", "PYTHONDONTWRITEBYTECODE"):
        monkeypatch.delenv(name, raising=False)
    session: Any = DirectSession()
    environments.run_module(session, "first", PYTHONPATH=str(tmp_path))
    assert list((tmp_path / "__pycache__").glob("second.*.pyc"))


class Installing:
    """A session whose environment is a folder; it counts installations."""

    def __init__(self, folder: Path) -> None:
        self.virtualenv = SimpleNamespace(location=str(folder))
        self.commands: list[tuple[str, ...]] = []

    def create_tmp(self) -> str:
        return str(self.virtualenv.location)

    def run(self, *command: str, **_: Any) -> None:
        self.commands.append(command)


def test_packages_of_another_lock_are_installed_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as after the checkout of an older commit."""
    monkeypatch.setattr(environments, "ROOT", tmp_path)
    monkeypatch.setattr(environments, "pip_settings", lambda _: {})
    monkeypatch.setattr(environments, "uv_sources", lambda _: ((), {}))
    (tmp_path / "VERSIONS.lock").touch()
    session: Any = Installing(tmp_path)

    def installed(lock: str, wanted: str) -> bool:
        (tmp_path / "uv.lock").write_text(lock)
        return environments._is_installed(session, wanted, environments.ANY)

    for lock in ("old", "new"):
        assert not installed(lock, f"numpy=={lock}")
        environments._install_pinned(session, f"numpy=={lock}", environments.ANY)
        environments._install_pinned(session, "torch==1", environments.ANY)
        assert installed(lock, f"numpy=={lock}")
        assert installed(lock, "torch==1")
    assert not installed("old", "numpy==old")


def test_a_copied_checkout_installs_its_own_packages(tmp_path: Path) -> None:
    session: Any = Installing(tmp_path)
    for place in ("first", "second", "second"):
        (tmp_path / place).mkdir(exist_ok=True)
        (tmp_path / place / "pyproject.toml").touch()
        package: Any = SimpleNamespace(name="crosslab", folder=tmp_path / place)
        environments._install_editable(session, [package])
    assert [command[-1] for command in session.commands] == [
        *(str(tmp_path / "first"), str(tmp_path / "second"))
    ]


def test_a_copied_or_moved_environment_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The programs of its packages start the Python of the first place."""
    for name in ("lint", "docs"):
        (folder := tmp_path / "first" / ".nox" / name).mkdir(parents=True)
        session: Any = Installing(folder)
        environments._write_stamp(session, ["one any"])
    shutil.copytree(tmp_path / "first", tmp_path / "second")
    (tmp_path / "link").symlink_to("first")
    for place, left in (("first", 2), ("link", 2), ("second", 0)):
        monkeypatch.setattr(environments, "ROOT", tmp_path / place)
        environments.remove_moved()
        assert len(list((tmp_path / place).glob(".nox/*/*"))) == left
    again: Any = Installing(tmp_path / "first" / ".nox" / "lint")
    environments._write_stamp(again, environments._stamp_lines(again))
    assert len(environments._stamp_lines(again)) == 2


@pytest.mark.parametrize(
    ("words", "locks"), [("-l", False), ("-s tests -- -l", True), ("-s tests", True)]
)
def test_a_list_of_the_sessions_takes_no_lock(
    words: str, locks: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken: list[Path] = []
    monkeypatch.setattr(sys, "argv", ["nox", *words.split()])
    monkeypatch.setattr(environments.checkout_lock, "acquire", taken.append)
    environments.lock_checkout()
    assert bool(taken) == locks
