# SPDX-License-Identifier: Apache-2.0
"""``crosslab VERB``: a verb that is not there, or not here, comes with what to type next."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

from crosslab import __main__ as command
from crosslab.errors import UserError


def refusal(*words: str) -> UserError:
    with pytest.raises(UserError) as caught:
        command.run(words)
    assert caught.value.exit_code == 2
    return caught.value


def test_a_misspelt_verb_names_the_nearest() -> None:
    assert refusal("build_and_test").remedy == "did you mean: crosslab build-and-test"
    assert refusal("modle").remedy == "did you mean: crosslab model"
    assert refusal("xyzzy").remedy.startswith("verbs: doctor, ")


def test_a_companions_verb_names_the_whole_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "entry_points", lambda **_: [])
    typed = "uv run --package mlc-rvv-board-farm crosslab farm"
    assert refusal("farm").remedy.endswith(typed)


@pytest.mark.parametrize(
    ("verb", "advice"),
    [
        ("host-bench", "nox -s host_bench -- --threads 2"),
        ("int8-error", ".nox/bench/bin/python -m crosslab int8-error --threads 2"),
    ],
)
def test_a_package_of_the_sessions_is_missing(
    verb: str, advice: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def main(_: object) -> int:
        raise ModuleNotFoundError("No module named 'tvm'", name="tvm")

    module = next(one.module for one in command.VERBS if one.name == verb)
    monkeypatch.setitem(sys.modules, module, SimpleNamespace(main=main))  # type: ignore[arg-type]
    error = refusal(verb, "--threads", "2")
    assert "needs the package tvm" in error.what
    assert advice in error.remedy


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["zoo", "--vlen", "128 300"], "choose from 128, 256, 512, 1024"),
        (["kernel-bench", "--vlen", "128,"], "choose from 128, 256, 512, 1024"),
        (["torch", "--vlen", "128,256"], "names several lengths; give one"),
    ],
)
def test_lengths_of_registers_are_read_alike(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        command.run(words)
    assert ended.value.code == 2
    assert said in capsys.readouterr().err
