# SPDX-License-Identifier: Apache-2.0
"""The options of the session upstream_tests, in nox that the bootstrap did not start."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from groundwork.errors import CommandError
from sessions import environments, options, upstream_tests


@pytest.fixture(autouse=True)
def _new_nox(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(options.LOOKED, raising=False)
    monkeypatch.setattr(environments, "_looked", set())


def session_in(folder: Path, *words: str) -> Any:
    about = {"name": "upstream_tests", "posargs": [*words], "invoked_from": str(folder)}
    return SimpleNamespace(**about, warn=print)


def test_a_mistake_is_answered_without_a_traceback(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        upstream_tests.run(session_in(tmp_path, "--release", "2026"))
    assert ended.value.code == 2
    said = "nox -s upstream_tests: --release 2026: there is no such release\n  did you mean:"
    assert capfd.readouterr().err.startswith(said)


def test_a_relative_mirror_begins_in_the_users_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = list[list[str]]()

    def apply(_: Any, words: list[str]) -> None:
        given.append(words)
        raise CommandError("enough", exit_code=2)

    monkeypatch.setattr(upstream_tests, "first_look", lambda _: None)
    monkeypatch.setattr(upstream_tests, "install", lambda *_, **__: None)
    monkeypatch.setattr(upstream_tests, "install_torch", lambda *_, **__: None)
    monkeypatch.setattr(upstream_tests, "apply", apply)
    (tmp_path / "clone").mkdir()
    words = ("--mirror", "tvm=clone", "--mirror", "mlc-llm=https://example.org/mlc-llm")
    with pytest.raises(SystemExit):
        upstream_tests.run(session_in(tmp_path, *words))
    mirrors = [word for word in given[0] if "=" in word]
    assert mirrors == [f"tvm={tmp_path}/clone", "mlc-llm=https://example.org/mlc-llm"]
