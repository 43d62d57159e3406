# SPDX-License-Identifier: Apache-2.0
"""A conflict that was resolved once is resolved alike when it comes again, elsewhere."""

from __future__ import annotations

import shutil
from contextlib import suppress
from pathlib import Path

import pytest
from forklab import CORE, ForkLab, core, git, message

from forkpatch.rebase import resolution

PATH = "python/calc/core.py"
RESOLVED = core(sub="abs(b - a)")


@pytest.fixture
def branches(lab: ForkLab) -> ForkLab:
    """A patch of sub; 2.0 and 2.1, on two branches of upstream's, change the same line."""
    lab.ok("apply")
    (lab.tree / PATH).write_bytes(core(sub="b - a"))
    git(lab.tree, "commit", "-qam", message("Turn sub"))
    lab.ok("export")
    for version, head in (("2.0", b""), ("2.1", b"import os\n\n\n")):
        git(lab.repo.path, "checkout", "-q", "-B", "next", "v1.0")
        lab.repo.commit({PATH: head + core(sub="abs(a - b)")}, version)
        git(lab.repo.path, "tag", f"v{version}")
        lab.ok("lock", "--add", f"calc={version}")
    return lab


def resolve(lab: ForkLab) -> None:
    assert lab.run("rebase", "calc", "2.0").code == 1
    (lab.root / ".work/rebase/calc/tree" / PATH).write_bytes(RESOLVED)
    assert "resolved by hand" in lab.ok("rebase", "calc", "--continue").out


def test_recorded_resolution_serves_another_branch_and_another_clone(branches: ForkLab) -> None:
    resolve(branches)
    kept = sorted(path.name for path in (branches.patches.parent / "resolutions").glob("*/*"))
    assert kept == ["0.postimage", "0.preimage", "resolution.json"]
    shutil.rmtree(branches.root / ".work")
    done = branches.ok("rebase", "calc", "2.1", "--from", "1.0")
    assert "turn-sub.patch: adapted: conflict: resolved as recorded" in done.out
    assert "+    return abs(b - a)" in done.out  # it is shown, for a person to look over
    branches.edit_lock('calc = "1.0"', 'calc = "2.1"')
    branches.ok("apply")
    assert (branches.tree / PATH).read_bytes() == b"import os\n\n\n" + RESOLVED


def test_a_run_that_ends_before_a_resolution_is_recorded_records_it_again(
    branches: ForkLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ended(*_: object) -> None:
        raise KeyboardInterrupt

    assert branches.run("rebase", "calc", "2.0").code == 1
    (branches.root / ".work/rebase/calc/tree" / PATH).write_bytes(RESOLVED)
    with monkeypatch.context() as patch:
        patch.setattr(resolution, "remember", ended)
        with suppress(KeyboardInterrupt):
            branches.run("rebase", "calc", "--continue")
    branches.ok("rebase", "calc", "--continue")
    assert [*(branches.patches.parent / "resolutions").glob("*/resolution.json")] != []


@pytest.mark.parametrize("case", ["renamed", "renamed back", "another change"])
def test_recorded_resolution_serves_a_renamed_file(branches: ForkLab, case: str) -> None:
    renamed = "python/calc/kernel.py"
    git(branches.repo.path, "checkout", "-q", "-B", "next", "v1.0")
    line = "a - b + 1" if case == "another change" else "abs(a - b)"
    branches.repo.commit({PATH: None, renamed: core(sub=line)}, "3.0")
    git(branches.repo.path, "tag", "v3.0")
    branches.ok("lock", "--add", "calc=3.0")
    (first, old), (second, new) = ("2.0", PATH), ("3.0", renamed)
    if case == "renamed back":
        first, old, second, new = second, new, first, old
    assert branches.run("rebase", "calc", first).code == 1
    (branches.root / ".work/rebase/calc/tree" / old).write_bytes(RESOLVED)
    assert "resolved by hand" in branches.ok("rebase", "calc", "--continue").out
    done = branches.run("rebase", "calc", second, "--from", "1.0")
    if case == "another change":
        assert done.code == 1 and "resolved as recorded" not in done.out
        return
    assert "turn-sub.patch: adapted: conflict: resolved as recorded" in done.out, done.err
    branches.edit_lock('calc = "1.0"', f'calc = "{second}"')
    branches.ok("apply")
    assert (branches.tree / new).read_bytes() == RESOLVED
    assert not (branches.tree / old).exists()


def test_without_the_record_or_in_another_conflict_a_person_is_asked(branches: ForkLab) -> None:
    resolve(branches)
    for path in (branches.patches.parent / "resolutions").glob("*/0.postimage"):
        path.unlink()
    done = branches.run("rebase", "calc", "2.1", "--from", "1.0")
    assert done.code == 1
    assert "is not used: 0.postimage is missing; remove it" in done.err
    branches.ok("rebase", "calc", "--abort")
    git(branches.repo.path, "checkout", "-q", "-B", "next", "v1.0")
    branches.repo.commit({PATH: CORE.replace(b"return a - b", b"return int(a - b)")}, "3.0")
    git(branches.repo.path, "tag", "v3.0")
    branches.ok("lock", "--add", "calc=3.0")
    assert branches.run("rebase", "calc", "3.0").code == 1


@pytest.mark.parametrize("name", ["0.postimage", "0.preimage", "resolution.json"])
def test_a_linked_file_of_a_resolution_is_not_read(
    branches: ForkLab, tmp_path: Path, name: str
) -> None:
    resolve(branches)
    (path,) = (branches.patches.parent / "resolutions").glob(f"*/{name}")
    path.rename(tmp_path / "mine")
    path.symlink_to(tmp_path / "mine")
    done = branches.run("rebase", "calc", "2.1", "--from", "1.0")
    assert done.code == 1 and "resolved as recorded" not in done.out
    assert f"is not used: {path} is a symbolic link, not a file" in done.err


OLD, NEW = PATH, "python/calc/minus.py"
START, END = CORE.index(b"def sub"), CORE.index(b"def mul")
REST, MOVED = CORE[:START] + CORE[END:], CORE[START:END].rstrip() + b"\n"
TURNED = MOVED.replace(b"a - b", b"b - a")


@pytest.fixture
def moved(lab: ForkLab) -> ForkLab:
    """A patch of sub and mul; in 2.0, 2.1, 2.2 sub is in a file of its own, in 2.1 as another."""
    lab.ok("apply")
    (lab.tree / OLD).write_bytes(core(sub="b - a", mul="0"))
    git(lab.tree, "commit", "-qam", message("Turn sub"))
    lab.ok("export")
    for version, new in (("2.0", MOVED), ("2.1", MOVED + b"\n"), ("2.2", MOVED)):
        git(lab.repo.path, "checkout", "-q", "-B", "next", "v1.0")
        license = f"{version}\n".encode()
        lab.repo.commit({OLD: REST, NEW: new, "LICENSE": license}, version)
        git(lab.repo.path, "tag", f"v{version}")
        lab.ok("lock", "--add", f"calc={version}")
    assert lab.run("rebase", "calc", "2.0").code == 1
    tree = lab.root / ".work/rebase/calc/tree"
    (tree / OLD).write_bytes(REST.replace(b"a * b", b"0"))
    (tree / NEW).write_bytes(TURNED)
    assert "resolved by hand" in lab.ok("rebase", "calc", "--continue").out
    shutil.rmtree(lab.root / ".work")
    return lab


def test_resolution_in_a_file_without_conflict_is_not_lost(moved: ForkLab) -> None:
    series = moved.root / "patches/calc"
    resolved = (series / "2.0/turn-sub.patch").read_bytes()
    assert b"return b - a" in resolved and b"return 0" in resolved
    done = moved.ok("rebase", "calc", "2.2", "--from", "1.0")
    assert "turn-sub.patch: adapted: symbol moved: resolved as recorded" in done.out
    moved.edit_lock('calc = "1.0"', 'calc = "2.2"')
    moved.ok("apply")
    assert (moved.tree / NEW).read_bytes() == TURNED
    assert (moved.tree / OLD).read_bytes() == REST.replace(b"a * b", b"0")


def test_resolution_that_applies_in_part_is_not_used(moved: ForkLab) -> None:
    done = moved.run("rebase", "calc", "2.1", "--from", "1.0")
    assert done.code == 1
    assert f"is not used: {NEW} is not the same as when it was resolved" in done.err
    tree = moved.root / ".work/rebase/calc/tree"
    assert b"<<<<<<<" in (tree / OLD).read_bytes()
    assert (tree / NEW).read_bytes() == MOVED + b"\n"
    moved.ok("rebase", "calc", "--abort")


def test_resolution_that_gives_another_patch_is_not_used(moved: ForkLab) -> None:
    # The merge goes through: the recorded postimage alone is another, as after an edit of it.
    (kept,) = (moved.root / "patches/calc/resolutions").iterdir()
    for path in kept.glob("*.postimage"):
        path.write_bytes(path.read_bytes().replace(b"b - a", b"a - b"))
    done = moved.run("rebase", "calc", "2.2", "--from", "1.0")
    assert done.code == 1
    assert "is not used: the patch would differ from the resolved one" in done.err
    assert b"<<<<<<<" in (moved.root / ".work/rebase/calc/tree" / OLD).read_bytes()
