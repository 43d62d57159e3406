# SPDX-License-Identifier: Apache-2.0
"""Merge programs at a conflict of a rebase: git mergetool, and mergiraf."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from forklab import ForkLab, core, git, message

CORE_PATH = "python/calc/core.py"
VERSION = """
[upstreams.calc.versions."2.0"]
commit = "{commit}"
include = ["python/calc", "src", "LICENSE"]
exclude = ["src/*.cu"]
tree = ""
"""
BOTH = core(sub="b - a, 2")


@pytest.fixture
def stopped(lab: ForkLab, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ForkLab:
    """A fork whose one patch conflicts with version 2.0; PATH begins with a folder of the test."""
    patch = lab.repo.patch({CORE_PATH: core(sub="b - a")}, message("Turn"))
    lab.add_patch("turn.patch", patch)
    git(lab.repo.path, "checkout", "-q", "--detach", "v1.0")
    lab.repo.commit({CORE_PATH: core(sub="a - b, 2")}, "Second")
    with (lab.root / "VERSIONS.lock").open("a") as lock:
        lock.write(VERSION.format(commit=lab.repo.head))
    lab.ok("lock")
    (tmp_path / "bin").mkdir()
    # No program of this machine's by that name, and git and the shell where they are.
    for name in ("git", "sh", "cp", "cat", "sed"):
        (tmp_path / "bin" / name).symlink_to(shutil.which(name) or "/bin/false")
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/lib/git-core:/usr/bin:/bin")
    return lab


def configure(lab: ForkLab, command: str) -> None:
    """Set the user's merge tool."""
    (lab.home / ".gitconfig").write_text(
        f'[merge]\n\ttool = mine\n[mergetool]\n\tprompt = false\n[mergetool "mine"]\n'
        f"\tcmd = {command}\n\ttrustExitCode = true\n"
    )


def program(folder: Path, text: str) -> None:
    """A program that stands for mergiraf: its calling convention, and a result that is given."""
    path = folder / "bin/mergiraf"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


def result(lab: ForkLab) -> str:
    return (lab.root / "patches/calc/2.0/turn.patch").read_text()


def test_the_users_merge_tool_resolves_the_conflict(stopped: ForkLab, tmp_path: Path) -> None:
    done = stopped.run("rebase", "calc", "2.0")
    assert done.code == 1
    assert "or in your merge tool: forkpatch rebase calc --mergetool" in done.out
    (tmp_path / "resolved").write_bytes(BOTH)
    configure(stopped, f"cp {tmp_path}/resolved $MERGED")
    done = stopped.ok("rebase", "calc", "--mergetool")
    assert "turn.patch: adapted: conflict: resolved by hand" in done.out
    assert "+    return b - a, 2" in result(stopped)
    assert "taken into" not in done.err and "ignored by git" not in done.err


def test_a_tool_that_fails_leaves_the_conflict(stopped: ForkLab) -> None:
    stopped.run("rebase", "calc", "2.0")
    configure(stopped, "false")
    done = stopped.run("rebase", "calc", "--mergetool")
    assert done.code == 1 and f"{CORE_PATH}: the merge tool left conflicts" in done.err
    status = stopped.ok("rebase", "calc", "--status", "--json", "-").json
    assert status["conflicts"][0]["path"] == CORE_PATH
    git(stopped.root / ".work/rebase/calc/tree", "add", "-A")
    done = stopped.run("rebase", "calc", "--mergetool")
    assert done.code == 2 and "no file has a conflict that a merge tool can show" in done.err


def test_a_result_by_syntax_is_used_proved_and_recorded(stopped: ForkLab, tmp_path: Path) -> None:
    (tmp_path / "resolved").write_bytes(BOTH)
    program(
        tmp_path,
        f'test "$1 $5 $6" = "merge --path-name {CORE_PATH}" || exit 9\n'
        "grep -q 'return a - b$' $2 && grep -q 'a - b, 2' $3 && grep -q 'return b - a$' $4"
        f' || exit 8\ntest "$7" = --output && cat {tmp_path}/resolved > "$8"',
    )
    done = stopped.ok("rebase", "calc", "2.0")
    assert "turn.patch: adapted: conflict: merged by mergiraf" in done.out
    assert "+    return b - a, 2" in done.out and "+    return b - a, 2" in result(stopped)
    (tmp_path / "bin/mergiraf").unlink()
    shutil.rmtree(stopped.root / "patches/calc/2.0")
    assert "conflict: resolved as recorded" in stopped.ok("rebase", "calc", "2.0").out


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (core(sub="a - b, 2", mul="b - a, 2"), "the merge by mergiraf is not used: "),
        (core(sub="a - b, 2"), "sub lacks its change"),
    ],
)
def test_a_result_in_the_wrong_place_is_not_used(
    stopped: ForkLab, tmp_path: Path, body: bytes, said: str
) -> None:
    (tmp_path / "resolved").write_bytes(body)
    program(tmp_path, f"cat {tmp_path}/resolved > $8")
    done = stopped.run("rebase", "calc", "2.0")
    assert done.code == 1 and said in done.err
    assert f"turn.patch: {CORE_PATH}:10-16: conflict" in done.out
    assert "<<<<<<<" in (stopped.root / ".work/rebase/calc/tree" / CORE_PATH).read_text()


@pytest.mark.parametrize("text", ["exit 1", "exit 255", "kill -9 $$"])
def test_a_program_that_does_not_resolve_leaves_gits_conflict(
    stopped: ForkLab, tmp_path: Path, text: str
) -> None:
    program(tmp_path, f"cat $2 > $8\n{text}")
    done = stopped.run("rebase", "calc", "2.0")
    assert done.code == 1 and "mergiraf" not in done.err
    assert "resolve it in" in done.out


@pytest.mark.skipif(shutil.which("mergiraf") is None, reason="mergiraf is not installed")
def test_mergiraf_itself_resolves_two_additions_to_one_line(lab: ForkLab) -> None:
    """Both sides add a name to one import, which is a conflict of lines and none of syntax."""
    path = "python/calc/__init__.py"
    patch = lab.repo.patch({path: b"from calc.core import add, div, mul, sub\n"}, message("Div"))
    lab.add_patch("div.patch", patch)
    git(lab.repo.path, "checkout", "-q", "--detach", "v1.0")
    lab.repo.commit({path: b"from calc.core import add, mul, neg, sub\n"}, "Second")
    with (lab.root / "VERSIONS.lock").open("a") as lock:
        lock.write(VERSION.format(commit=lab.repo.head))
    lab.ok("lock")
    assert "div.patch: adapted: conflict: merged by mergiraf" in lab.ok("rebase", "calc", "2.0").out
    lab.ok("record", "--check")
