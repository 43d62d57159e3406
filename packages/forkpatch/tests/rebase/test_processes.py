# SPDX-License-Identifier: Apache-2.0
"""The number of processes that a rebase starts, of which each costs some milliseconds."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from forklab import ForkLab, git

COUNT = 8


def text_of(number: int, *, new: str = "", value: int = 0) -> bytes:
    lines = "".join(f"    a += {n};\n" for n in range(9))
    body = f"{new}int f{number}(int a)\n{{\n{lines}    return a * {value};\n}}\n"
    return body.encode()


def test_clean_rebase_starts_two_git_processes_a_patch_and_parses_no_file_twice(
    lab: ForkLab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [f"src/f{number}.c" for number in range(COUNT)]
    first = lab.repo.commit({name: text_of(n) for n, name in enumerate(names)}, "Files")
    git(lab.repo.path, "tag", "-f", "v1.0")
    lab.locked()
    for number, name in enumerate(names):
        lab.change(f"p{number}.patch", {name: text_of(number, value=1)}, subject=f"Patch {number}")
    git(lab.repo.path, "reset", "-q", "--hard", first)
    lab.repo.commit({name: text_of(n, new="/* new */\n") for n, name in enumerate(names)}, "Two")
    git(lab.repo.path, "tag", "v2.0")
    lab.ok("lock", "--add", "calc=2.0", "--no-wheel")
    log, program = tmp_path / "calls", tmp_path / "bin/git"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\necho x >> {log}\nexec {shutil.which("git")} "$@"\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    parsed: list[bytes] = []
    from forkpatch.symbols import grammars  # noqa: PLC0415 - as the rebase has it

    parse = grammars.Grammar.parse

    def counting(grammar: grammars.Grammar, data: bytes) -> object:
        parsed.append(data)
        return parse(grammar, data)

    monkeypatch.setattr(grammars.Grammar, "parse", counting)
    done = lab.ok("rebase", "calc", "2.0")
    assert done.out.count(": clean\n") == COUNT
    assert len(parsed) == len(set(parsed)) > 0
    assert len(log.read_text().splitlines()) <= 2 * COUNT + 32
