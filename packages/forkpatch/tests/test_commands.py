# SPDX-License-Identifier: Apache-2.0
"""Commands in messages begin as their reader types them."""

import argparse
import ast
import re
import sys
from pathlib import Path

import pytest
from forklab import ForkLab

import forkpatch
from forkpatch.cli.options import Verb
from forkpatch.command import typed

SOURCES = sorted(Path(forkpatch.__file__).parent.rglob("*.py"))


@pytest.mark.parametrize(
    ("variables", "argv", "expected"),
    [
        ({}, "/home/ada/bin/forkpatch", "forkpatch export calc"),
        ({}, "/site-packages/forkpatch/__main__.py", "python -m forkpatch export calc"),
        ({"UV_RUN_RECURSION_DEPTH": "1"}, "forkpatch", "uv run forkpatch export calc"),
        (
            {"UV_RUN_RECURSION_DEPTH": "1", "FORKPATCH_COMMAND": "nox -s patches --"},
            "__main__.py",
            "nox -s patches -- export calc",
        ),
    ],
)
def test_a_command_is_named_as_the_user_types_the_program(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], argv: str, expected: str
) -> None:
    for name in ("UV_RUN_RECURSION_DEPTH", "FORKPATCH_COMMAND"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys, "argv", [argv])
    assert typed("export calc") == expected


def test_a_remedy_names_the_session_that_runs_forkpatch(
    lab: ForkLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORKPATCH_COMMAND", "nox -s patches --")
    done = lab.run("rebase", "calc", "--continue")
    assert (done.code, "begin one: nox -s patches -- rebase calc VERSION" in done.err) == (2, True)


def test_no_message_has_a_command_of_its_own() -> None:
    raw = re.compile(r"\bforkpatch [a-z]|\bnox -s |\buv run ")
    found = []
    for path in SOURCES:
        tree = ast.parse(path.read_text(encoding="utf-8"))
        docstrings = {
            id(node.body[0].value)
            for node in ast.walk(tree)
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef)
            and node.body
            and isinstance(node.body[0], ast.Expr)
        }
        found += [
            f"{path.name}:{node.lineno}: {node.value}"
            for node in ast.walk(tree)
            if isinstance(node, ast.Constant) and isinstance(node.value, str)
            if id(node) not in docstrings and raw.search(node.value)
        ]
    # A page that is kept in the repository names the verb that made it, however that was typed.
    kept = ("Made by `forkpatch probe`", "uv run forkpatch")
    assert [line for line in found if not any(one in line for one in kept)] == []


def test_only_the_report_must_be_a_file_that_can_be_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(*_: object) -> tuple[object, int]:
        """Read a file."""
        return None, 0

    parser = argparse.ArgumentParser()
    Verb("read", run, "--from FILE  a file to read\nFILE").add_to(parser.add_subparsers())
    (tmp_path / "plain").touch()
    below = str(tmp_path / "plain/below")  # where no file can be written
    options = parser.parse_args(["read", "--from", below, str(tmp_path)])
    assert (options.from_, options.file) == (below, str(tmp_path))
    with pytest.raises(SystemExit):
        parser.parse_args(["read", "--json", below, below])
    assert "no file can be written" in capsys.readouterr().err
