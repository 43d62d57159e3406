# SPDX-License-Identifier: Apache-2.0
"""The environment in which sessions run our modules."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
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
        words = ("-k", "told", "test_it.py::test_one", "-x")
        environments.run_pytest(session, *words, PYTHONPATH=str(tmp_path))
    assert said.read_text().split() == [
        *(str(environments.ROOT), "-k", "told", f"{here}/test_it.py::test_one", "-x")
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
