# SPDX-License-Identifier: Apache-2.0
"""Conflicts without markers: a person must say what becomes of what git left."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
from forklab import ForkLab, Link, core, git

CORE_PATH = "python/calc/core.py"
LINES = b"".join(b"line %d of the file\n" % number for number in range(30))
PATCHED = LINES.replace(b"line 5 of", b"line five of")
#: The other change of each patch, so that something is left of it.
REST = {CORE_PATH: core(sub="b - a")}


def stopped(
    lab: ForkLab,
    old: Mapping[str, bytes],
    ours: Mapping[str, bytes | None],
    theirs: Mapping[str, bytes | None],
) -> Path:
    """Stop a rebase at a conflict of the patch with 2.0; return the working tree."""
    lab.repo.commit(old, "Grow")
    git(lab.repo.path, "tag", "-f", "v1.0")
    lab.locked(tag="")
    lab.change("x.patch", {**ours, **REST})
    git(lab.repo.path, "checkout", "-q", "--detach", "v1.0")
    lab.repo.commit(theirs, "Go on")
    git(lab.repo.path, "tag", "v2.0")
    lab.ok("lock", "--add", "calc=2.0")
    assert lab.run("rebase", "calc", "2.0").code == 1
    return lab.root / ".work/rebase/calc/tree"


def refused(lab: ForkLab) -> str:
    """Return the error of a --continue that is refused, and keeps nothing."""
    done = lab.run("rebase", "calc", "--continue")
    assert done.code == 2, done.out
    assert not (lab.root / "patches/calc/resolutions").exists()
    return done.err


def new_patch(lab: ForkLab) -> str:
    """Go on, and return the new patch."""
    lab.ok("rebase", "calc", "--continue")
    return (lab.root / "patches/calc/2.0/x.patch").read_text()


def wide(text: bytes) -> bytes:
    return text.decode().encode("utf-16")


@pytest.mark.parametrize(
    ("old", "ours", "theirs"),
    [
        pytest.param(b"\0one", b"\0mine", b"\0theirs", id="binary"),
        pytest.param(wide(b"one\n"), wide(b"mine\n"), wide(b"theirs\n"), id="UTF-16"),
        pytest.param(Link(b"a.c"), Link(b"b.c"), Link(b"c.c"), id="link"),
        pytest.param(LINES, None, b"more\n" + LINES, id="removed by the patch"),
    ],
)
def test_file_of_which_git_left_upstreams_side_must_be_added(
    lab: ForkLab, old: bytes, ours: bytes | None, theirs: bytes
) -> None:
    files = dict.fromkeys(("src/a.c", "src/b.c", "src/c.c"), b"int x;\n")
    tree = stopped(lab, {**files, "src/x": old}, {"src/x": ours}, {"src/x": theirs})
    said = refused(lab)
    assert "x.patch: src/x has a conflict, and is as git left it" in said
    assert f"git -C {tree} add src/x" in said
    git(tree, "add", "src/x")
    assert "src/x" not in new_patch(lab)


def test_other_side_that_was_checked_out_is_taken(lab: ForkLab) -> None:
    tree = stopped(lab, {"src/x": b"\0one"}, {"src/x": b"\0mine"}, {"src/x": b"\0theirs"})
    git(tree, "checkout", "--theirs", "src/x")
    assert "GIT binary patch" in new_patch(lab)


@pytest.mark.parametrize("side", ["patch", "upstream"])
def test_name_that_git_gave_one_side_is_not_added_to_the_patch(lab: ForkLab, side: str) -> None:
    """One side edits the file, and the other makes it a link."""
    edit, link = {"src/x": PATCHED}, {"src/x": Link(b"run.c")}
    ours, theirs = (link, edit) if side == "patch" else (edit, link)
    tree = stopped(lab, {"src/x": LINES}, ours, theirs)
    (name,) = (path.name for path in (tree / "src").glob("x~*"))
    assert f"x.patch: src/{name} is git's name for one side of src/x" in refused(lab)
    git(tree, "rm", "-q", f"src/{name}")
    assert "src/x has a conflict, and is as git left it" in refused(lab)
    git(tree, "add", "src/x")
    text = new_patch(lab)
    assert name not in text and ("120000" in text) is (side == "patch")


def test_file_that_both_renamed_needs_a_name(lab: ForkLab) -> None:
    ours, theirs = ({"src/old.c": None, f"src/{name}.c": LINES} for name in ("mine", "theirs"))
    tree = stopped(lab, {"src/old.c": LINES}, ours, theirs)
    assert "src/mine.c has a conflict, and is as git left it" in refused(lab)
    git(tree, "add", "src/mine.c")
    assert "src/theirs.c has a conflict, and is as git left it" in refused(lab)
    git(tree, "rm", "-q", "src/theirs.c", "src/old.c")
    text = new_patch(lab)
    assert "rename from src/theirs.c\nrename to src/mine.c\n" in text


#: 45 % of its lines are old ones: forkpatch takes the file for renamed, and git's merge does not.
RENAMED = b"".join(
    b"line %d of the file\n" % row if row < 14 else b"wholly other %d text\n" % (row**2 * 7)
    for row in range(30)
)


@pytest.mark.parametrize("is_renamed", [True, False])
@pytest.mark.parametrize("is_kept", [True, False])
def test_file_that_git_leaves_of_the_old_version_is_kept_if_a_person_adds_it(
    lab: ForkLab, *, is_renamed: bool, is_kept: bool
) -> None:
    there = {"src/new.c": RENAMED} if is_renamed else {}
    tree = stopped(lab, {"src/old.c": LINES}, {"src/old.c": PATCHED}, {"src/old.c": None, **there})
    kind = "file renamed" if is_renamed else "file gone"
    assert f"src/old.c: {kind}" in lab.ok("rebase", "calc", "--status").out
    assert (tree / "src/old.c").read_bytes() == PATCHED
    if is_kept:
        git(tree, "add", "src/old.c")
    done = lab.ok("rebase", "calc", "--continue")
    why = "upstream renamed it to src/new.c" if is_renamed else "the file is gone upstream"
    left_out = f"x.patch: its change of src/old.c is left out: {why}"
    assert (left_out in done.err) is not is_kept
    text = (lab.root / "patches/calc/2.0/x.patch").read_text()
    assert ("src/old.c" in text) is is_kept and CORE_PATH in text


def test_link_to_a_file_with_markers_has_none_itself(lab: ForkLab) -> None:
    other = LINES.replace(b"line 5 of", b"line cinq of")
    tree = stopped(
        lab,
        {"src/text.c": LINES, "src/x": Link(b"run.c")},
        {"src/text.c": PATCHED, "src/x": Link(b"../LICENSE")},
        {"src/text.c": other, "src/x": Link(b"text.c")},
    )
    assert b"<<<<<<<" in (tree / "src/x").read_bytes()
    (tree / "src/text.c").write_bytes(other)
    assert "src/x has a conflict, and is as git left it" in refused(lab)
