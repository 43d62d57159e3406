# SPDX-License-Identifier: Apache-2.0
"""The verbs ``absorb`` and ``split``: commits of a patched tree written again."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from forklab import CORE, ForkLab, core, git

CORE_PATH = "python/calc/core.py"
TAIL = "python/calc/tail.py"


@pytest.fixture
def two(lab: ForkLab) -> ForkLab:
    """A fork with two patches to one file, the second also to another, applied."""
    lab.change("turn.patch", {CORE_PATH: core(sub="b - a")}, subject="Turn sub")
    files = {CORE_PATH: core(sub="b - a", mul="0"), TAIL: b"X = 1\nY = 3"}
    lab.change("zero.patch", files, subject="Zero mul")
    lab.ok("record")
    lab.ok("apply")
    return lab


def at(lab: ForkLab, commit: str, path: str = CORE_PATH) -> bytes:
    return (git(lab.tree, "show", f"{commit}:{path}") + "\n").encode()


def edit(lab: ForkLab, path: str, *changes: tuple[str, str]) -> None:
    text = (lab.tree / path).read_text()
    for old, new in changes:
        assert text.count(old) == 1
        text = text.replace(old, new)
    (lab.tree / path).write_text(text)


def test_each_fixup_goes_into_the_patch_whose_lines_it_touches(two: ForkLab) -> None:
    edit(two, CORE_PATH, ("return b - a", "return b - a - 1"), ("return 0", "log()\n    return 0"))
    wanted = (two.tree / CORE_PATH).read_bytes()
    done = two.ok("absorb", "calc")
    assert f"{CORE_PATH}:10: into turn.patch" in done.out
    assert f"{CORE_PATH}:16: into zero.patch" in done.out
    assert (two.tree / CORE_PATH).read_bytes() == wanted == at(two, "HEAD")
    assert at(two, "HEAD~1") == core(sub="b - a - 1")
    assert git(two.tree, "status", "--porcelain") == ""
    report = two.ok("export").out
    assert "turn.patch: changed" in report and "zero.patch: changed" in report
    assert "2 patches, written" in report
    two.ok("record", "--check")


def test_a_change_of_no_patch_or_of_two_is_left_and_named(two: ForkLab) -> None:
    edit(two, CORE_PATH, ("return a + b", "return b + a"), ("return b - a", "return b - 2"))
    edit(two, TAIL, ("X = 1\nY = 3", "X = 2\nY = 4"))
    (two.tree / "src/new.c").write_text("int x;\n")
    (two.tree / "LICENSE").unlink()
    (two.tree / "python/calc/tool.sh").chmod(0o644)
    done = two.run("absorb", "calc")
    assert done.code == 1
    for line in (
        f"{CORE_PATH}:4: left: it touches the lines of no patch",
        f"{CORE_PATH}:10: into turn.patch",
        f"{TAIL}:1: into zero.patch",
        "src/new.c: left: it is a new file",
        "LICENSE: left: it is a removed file",
        "python/calc/tool.sh: left: its mode changes to 100644",
        "4 changes left in",
    ):
        assert line in done.out
    assert "return b + a" in git(two.tree, "diff") and "return b - 2" not in git(two.tree, "diff")
    git(two.tree, "stash", "-q", "-u")
    assert (two.tree / CORE_PATH).read_bytes() == core(sub="b - 2", mul="0")


def test_a_line_between_those_of_two_patches_is_left(lab: ForkLab) -> None:
    lab.change("one.patch", {CORE_PATH: b"import one\n" + CORE})
    lab.change("two.patch", {CORE_PATH: b"import one\nimport two\n" + CORE})
    lab.ok("apply")
    edit(lab, CORE_PATH, ("import two", "import more\nimport two"))
    done = lab.run("absorb", "calc")
    assert done.code == 1 and "left: it touches one.patch and two.patch" in done.out
    edit(lab, CORE_PATH, ("import more\n", ""), ("import one", "import ones"))
    assert lab.ok("absorb", "calc").out.startswith(f"{CORE_PATH}:1: into one.patch")
    assert at(lab, "HEAD~1") == b"import ones\n" + CORE


def test_commits_that_are_not_exported_yet_absorb_too(two: ForkLab) -> None:
    edit(two, "src/run.c", ("return 0;", "return 1;"))
    git(two.tree, "commit", "-qam", "Run one")
    edit(two, "src/run.c", ("return 1;", "return 2;"))
    assert "src/run.c:3: into run-one.patch" in two.ok("absorb", "calc").out
    assert "run-one.patch: new" in two.ok("export").out


def test_a_patch_that_would_be_empty_and_a_tree_without_changes(two: ForkLab) -> None:
    assert "no change that is in no commit" in two.ok("absorb", "calc").out
    before = git(two.tree, "rev-parse", "HEAD")
    edit(two, CORE_PATH, ("return b - a", "return a - b"))
    done = two.run("absorb", "calc")
    assert done.code == 2 and "turn.patch would change nothing any more" in done.err
    assert git(two.tree, "rev-parse", "HEAD") == before
    assert git(two.tree, "diff", "--cached") == ""


def test_a_renamed_file_does_not_say_whose_its_lines_are(lab: ForkLab) -> None:
    lab.change("turn.patch", {CORE_PATH: core(sub="b - a")})
    git(lab.repo.path, "mv", CORE_PATH, "python/calc/kern.py")
    lab.change("move.patch", {})
    lab.ok("apply")
    edit(lab, "python/calc/kern.py", ("return b - a", "return b - 1"))
    done = lab.run("absorb", "calc")
    assert done.code == 1 and "left: move.patch renames the file" in done.out


@pytest.mark.parametrize("seed", range(8))
def test_absorbed_commits_give_the_tree_and_change_nothing_else(lab: ForkLab, seed: int) -> None:
    """Random patches and fixups: the commits and what is left give the files that were there."""
    chance = random.Random(seed)
    lines = [f"line {number}\n" for number in range(40)]
    git(lab.repo.path, "checkout", "-q", "--detach", "v1.0")
    for number in range(4):
        for _ in range(3):
            place = chance.randrange(len(lines))
            lines[place : place + chance.randrange(3)] = [f"patch {number} {chance.random()}\n"] * 2
        lab.change(f"p{number}.patch", {TAIL: "".join(lines).encode()})
    lab.ok("apply")
    before = git(lab.tree, "rev-parse", "HEAD")
    for _ in range(8):
        place = chance.randrange(len(lines))
        lines[place : place + chance.randrange(3)] = [f"fix {chance.random()}\n"]
    (lab.tree / TAIL).write_text("".join(lines))
    found = lab.run("absorb", "calc", "--json", "-").json
    assert (lab.tree / TAIL).read_text() == "".join(lines)
    taken = [one for one in found if one["patch"]]
    assert taken and (git(lab.tree, "rev-parse", "HEAD") != before)
    left = git(lab.tree, "diff", "-U0", "HEAD")
    assert left.count("\n@@ ") == len(found) - len(taken)
    git(lab.tree, "checkout", "-q", "--", ".")
    lab.ok("export", "--force")
    assert "nothing changed" in lab.ok("apply").out


def test_split_by_files_makes_a_patch_of_each(two: ForkLab) -> None:
    before = git(two.tree, "rev-parse", "HEAD^{tree}")
    (two.tree / "LICENSE").write_text("being edited\n")
    done = two.ok("split", "calc", "zero")
    assert f"zero.patch: {CORE_PATH}\nzero-2.patch: {TAIL}\n" in done.out
    assert git(two.tree, "rev-parse", "HEAD^{tree}") == before
    assert git(two.tree, "log", "-2", "--format=%s") == "Zero mul (2/2)\nZero mul (1/2)"
    assert git(two.tree, "diff", "--name-only") == "LICENSE"
    git(two.tree, "checkout", "-q", "LICENSE")
    assert "zero-2.patch: new" in two.ok("export").out
    assert (two.patches / "series").read_text() == "turn.patch\nzero.patch\nzero-2.patch\n"


@pytest.fixture
def hunks(lab: ForkLab) -> ForkLab:
    """A patch with three hunks, in files that grow and shrink, and with a new file."""
    body = CORE.replace(b"def add", b"import os\n\n\ndef add").replace(b"    return a * b\n", b"")
    files = {CORE_PATH: body, "python/calc/new.py": b"A = 1\n", TAIL: b"X = 1\n"}
    lab.change("all.patch", files, subject="All")
    lab.ok("apply")
    return lab


def test_split_by_hunks_and_by_name(hunks: ForkLab) -> None:
    before = git(hunks.tree, "rev-parse", "HEAD^{tree}")
    done = hunks.ok("split", "calc", "all.patch", "--take", f"{CORE_PATH}:2", TAIL)
    assert f"all.patch: {CORE_PATH}:1, python/calc/new.py\n" in done.out
    assert f"all-2.patch: {CORE_PATH}:2, {TAIL}:1\n" in done.out
    assert git(hunks.tree, "rev-parse", "HEAD^{tree}") == before
    assert at(hunks, "HEAD~1") == CORE.replace(b"def add", b"import os\n\n\ndef add")
    hunks.ok("export")
    hunks.ok("apply")
    hunks.ok("split", "calc", "all-2", "--hunks")
    hunks.ok("export")
    names = (hunks.patches / "series").read_text().split()
    assert names == ["all.patch", "all-2.patch", "all-2-2.patch"]
    assert git(hunks.tree, "rev-parse", "HEAD^{tree}") == before


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("turn",), "turn.patch cannot be split so: it has python/calc/core.py"),
        (("turn", "--take", CORE_PATH), "cannot be split so"),
        (("zero", "--take", "LICENSE"), "zero.patch does not change LICENSE"),
        (("zero", "--take", f"{CORE_PATH}:7"), f"zero.patch does not change {CORE_PATH}:7"),
        (("none",), "the series has no patch 'none'"),
    ],
)
def test_a_split_into_nothing_is_refused(two: ForkLab, words: tuple[str, ...], said: str) -> None:
    before = git(two.tree, "rev-parse", "HEAD")
    done = two.run("split", "calc", *words)
    assert done.code == 2 and said in done.err
    assert git(two.tree, "rev-parse", "HEAD") == before


def test_a_tree_that_is_not_there_names_the_verb_that_makes_it(
    lab: ForkLab, tmp_path: Path
) -> None:
    assert not (tmp_path / "fork/.work/r1").exists()
    for words in (("absorb", "calc"), ("split", "calc", "x")):
        done = lab.run(*words)
        assert done.code == 2 and "forkpatch edit calc" in done.err
