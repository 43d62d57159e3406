# SPDX-License-Identifier: Apache-2.0
"""The verb ``bisect``: the patch since which a command fails."""

from __future__ import annotations

from pathlib import Path

import pytest
from forklab import CORE, ForkLab, core, git

CORE_PATH = "python/calc/core.py"


@pytest.fixture
def series(lab: ForkLab) -> ForkLab:
    """Six patches that each add a line to a file; the fourth also breaks ``mul``."""
    body = CORE
    for number in range(6):
        body = b"# %d\n" % number + body
        if number == 3:
            body = body.replace(b"return a * b", b"return 0")
        lab.change(f"p{number}.patch", {CORE_PATH: body})
    return lab


def test_the_patch_that_breaks_a_command_is_named(series: ForkLab) -> None:
    series.ok("apply")
    (series.tree / CORE_PATH).write_bytes(b"being edited\n")
    head = git(series.tree, "rev-parse", "HEAD")
    done = series.ok("bisect", "calc", "--", "grep", "-q", "a [*] b", CORE_PATH)
    assert "calc 1.0: it fails since p3.patch\n" in done.out
    lines = done.out.splitlines()
    assert lines[0] == "with 6 of 6 patches, up to p5.patch: the command fails"
    assert lines[1] == "with 0 of 6 patches: the command passes"
    assert len(lines) == 2 + 2 + 1
    assert (series.tree / CORE_PATH).read_bytes() == b"being edited\n"
    assert git(series.tree, "rev-parse", "HEAD") == head
    assert not list((series.root / ".work").glob(".forkpatch-new-*"))


def test_the_command_has_the_trees_and_what_it_built(series: ForkLab, tmp_path: Path) -> None:
    log = tmp_path / "log"
    script = (
        f'test -d "$FORKPATCH_TREES/calc" && test "$PWD" = "$FORKPATCH_TREES/calc" || exit 9;'
        f" stat -c %Y LICENSE >>{log}; test -e built && echo again >>{log}; touch built;"
        f" head -1 {CORE_PATH} | grep -q '# 3' && exit 125; ! grep -q 'return 0' {CORE_PATH}"
    )
    done = series.run("bisect", "calc", "--json", "-", "--", "sh", "-c", script)
    assert done.code == 1, done.err
    assert done.json["suspects"] == ["p3.patch", "p4.patch"]
    assert {"count": 4, "outcome": "cannot tell"} in done.json["trials"]
    lines = log.read_text().split()
    assert lines.count("again") == len(done.json["trials"]) - 1
    assert len(set(lines) - {"again"}) == 1  # a file that no patch changes keeps its time


@pytest.mark.parametrize(
    ("command", "said"),
    [("true", "it passes with every patch"), ("false", "it fails with no patch")],
)
def test_a_command_that_no_patch_breaks(series: ForkLab, command: str, said: str) -> None:
    done = series.run("bisect", "calc", "--", command)
    assert done.code == 1 and f"calc 1.0: no patch breaks it: {said}\n" in done.out
    assert len(done.out.splitlines()) == (2 if command == "true" else 3)


@pytest.mark.parametrize("words", [["sh", "-"], ["--", "sh", "-"], ["--", "sh", "-", "--"]])
def test_the_command_gets_its_own_separators(lab: ForkLab, words: list[str]) -> None:
    lab.change("turn.patch", {CORE_PATH: core(sub="b - a")})
    (lab.root / "log").mkdir()
    script = lab.root / "script"
    script.write_text(f'#!/bin/sh\nprintf "%s." "$@" >{lab.root}/log/said\n')
    script.chmod(0o755)
    given = [str(script) if word == "sh" else word for word in words]
    lab.run("bisect", "calc", *given, "--", "b", "--")
    expected = [*words[words.index("sh") + 1 :], "--", "b", "--"]
    assert (lab.root / "log/said").read_text() == "".join(f"{word}." for word in expected)


@pytest.mark.parametrize("words", [[], ["--"], ["--release", "r1", "--"]])
def test_a_missing_command_is_said(lab: ForkLab, words: list[str]) -> None:
    done = lab.run("bisect", "calc", *words)
    assert done.code == 2 and "no command was given" in done.err


def test_other_upstreams_are_there_too_and_a_program_that_is_not(lab: ForkLab) -> None:
    lab.change("turn.patch", {CORE_PATH: core(sub="b - a")})
    done = lab.run("bisect", "calc", "--", "no-such-program", "--flag")
    assert done.code == 2 and "no-such-program cannot be run in the tree" in done.err
    text = (lab.root / "VERSIONS.lock").read_text()
    part = text[text.index("[upstreams.calc]") :].replace("upstreams.calc", "upstreams.more")
    text = text.replace('calc = "1.0"\n', 'calc = "1.0"\nmore = "1.0"\n', 1) + f"\n{part}"
    (lab.root / "VERSIONS.lock").write_text(text)
    done = lab.ok("bisect", "calc", "--", "cmp", CORE_PATH, f"../more/{CORE_PATH}")
    assert "it fails since turn.patch" in done.out
    assert not list((lab.root / ".work").glob(".forkpatch-new-*"))


@pytest.mark.parametrize("options", [(), ("--release", "r1")])
def test_the_command_keeps_its_own_two_dashes(
    series: ForkLab, tmp_path: Path, options: tuple[str, ...]
) -> None:
    log = tmp_path / "log"
    script = f'printf "%s " "$@" >>{log}'
    series.run("bisect", "calc", *options, "--", "sh", "-c", script, "sh", "a", "--", "b")
    assert log.read_text() == "a -- b "
