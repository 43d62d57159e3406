# SPDX-License-Identifier: Apache-2.0
"""Options that a verb cannot heed are refused, not ignored."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from forklab import ForkLab, core

CORE_PATH = "python/calc/core.py"


@pytest.mark.parametrize(
    "words",
    [
        ("check", "--together", ""),
        ("submit", "calc", "--onto", "main", "--branch", ""),
        ("lock", "--add", ""),
        ("export", ""),
        ("apply", "--release", ""),
        ("tree", "calc", "--output", ""),
    ],
)
def test_an_empty_value_is_refused(lab: ForkLab, words: tuple[str, ...]) -> None:
    with pytest.raises(SystemExit) as stop:
        lab.run(*words)
    assert stop.value.code == 2
    assert lab.capsys and "the value is empty" in lab.capsys.readouterr().err


@pytest.mark.parametrize(
    "later", [("--continue",), ("--skip", "why"), ("--accept", "why"), ("--abort",), ("--status",)]
)
@pytest.mark.parametrize(
    ("words", "named"),
    [
        (("2.0",), "VERSION"),
        (("--from", "1.0"), "--from"),
        (("--existing", "keep"), "--existing"),
        (("--tag", "v2.0"), "--tag"),
    ],
)
def test_a_rebase_under_way_is_not_begun_again(
    lab: ForkLab, words: tuple[str, ...], named: str, later: tuple[str, ...]
) -> None:
    done = lab.run("rebase", "calc", *words, *later)
    assert done.code == 2
    assert f"{named} begins a rebase, and {later[0]} is for" in done.err


def test_a_new_fork_is_reported_as_json(lab: ForkLab, tmp_path: Path) -> None:
    root = tmp_path / "new"
    root.mkdir()
    fork = ForkLab(root, lab.home, lab.repo, lab.capsys)
    report = fork.ok("init", str(lab.repo.path), "--name", "calc", "--json", "-").json
    assert (report["name"], report["executable"]) == ("calc", [])


def test_a_fork_in_a_folder_whose_name_is_not_text(lab: ForkLab) -> None:
    root = Path(os.fsdecode(os.fsencode(lab.root.parent) + b"/f\xff"))
    lab.root.rename(root)
    lab.root = root
    lab.change("turn.patch", {CORE_PATH: core(sub="b - a")}, subject="Turn")
    lab.ok("record")
    lab.ok("apply")
    assert lab.ok("export", "--check").out == "calc 1.0: 1 patch, unchanged\n"
    assert "1 finding\n" in lab.run("check").out  # the test of the patch does not exist


def test_an_upstream_in_a_folder_whose_name_is_not_text(lab: ForkLab, tmp_path: Path) -> None:
    upstream = Path(os.fsdecode(os.fsencode(tmp_path) + b"/u\xff"))
    lab.repo.path.rename(upstream)
    (tmp_path / "new").mkdir()
    fork = ForkLab(tmp_path / "new", lab.home, lab.repo, lab.capsys)
    done = fork.run("init", str(upstream), "--name", "calc")
    assert done.code == 2 and "it is not UTF-8" in done.err
    assert not (fork.root / "VERSIONS.lock").exists()
    lab.edit_lock("optional = false", "optional = true")
    lab.forget()
    lab.ok("apply", "--mirror", f"calc={upstream}")
    lab.forget(mirrors=False)
    (upstream / ".git/objects").rename(tmp_path / "objects")
    (upstream / ".git/objects").mkdir()
    lab.ok("apply", "--discard", "--source", "calc=git")
    assert "u\\udcff" in (lab.root / ".work/calc-1.0.missing").read_text()
