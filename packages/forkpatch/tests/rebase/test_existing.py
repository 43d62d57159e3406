# SPDX-License-Identifier: Apache-2.0
"""A rebase onto a version that has a series already."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from forklab import CORE, ForkLab, core, git, message

CORE_PATH = "python/calc/core.py"
DRIFT = b"import os\n\n\n"
THEIRS = core(sub="b - a - 0")


@pytest.fixture
def both(lab: ForkLab) -> ForkLab:
    """Version 1.0 with the patches ``turn`` and ``twice``; 2.0 with another ``turn``, and ``run``.

    Returns:
        The fork; release r2 is of version 2.0, whose lines stand three lower.
    """
    lab.change("turn.patch", {CORE_PATH: core(sub="b - a")}, subject="Turn")
    lab.change("twice.patch", {CORE_PATH: core(sub="b - a", mul="2 * a")}, subject="Twice")
    git(lab.repo.path, "checkout", "-q", "v1.0")
    lab.repo.commit({CORE_PATH: DRIFT + CORE}, "Drift")
    git(lab.repo.path, "tag", "v2.0")
    lab.ok("lock", "--add", "calc=2.0")
    lab.edit_lock("[releases.r1]", '[releases.r2]\ncalc = "2.0"\n[releases.r1]')
    place = series(lab)
    place.mkdir()
    other = message("Turn").replace("Because it matters", "On 2.0 for another reason")
    (place / "turn.patch").write_bytes(lab.repo.patch({CORE_PATH: DRIFT + THEIRS}, other))
    run = {"src/run.c": b"int run(void)\n{\n    return 3;\n}\n"}
    (place / "run.patch").write_bytes(lab.repo.patch(run, message("Run")))
    (place / "series").write_text("# of 2.0\nturn.patch\nrun.patch  # kept\n")
    (place / "NOTES").write_text("by hand\n")
    lab.ok("record")
    return lab


def series(lab: ForkLab) -> Path:
    return lab.patches.parent / "2.0"


def texts(lab: ForkLab) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in series(lab).iterdir()}


def tree(lab: ForkLab, path: str) -> bytes:
    lab.ok("apply", "--release", "r2", "--discard")
    return (lab.root / ".work/r2/calc" / path).read_bytes()


def test_nothing_is_chosen_for_the_user(both: ForkLab) -> None:
    before = texts(both)
    refused = both.run("rebase", "calc", "2.0")
    assert refused.code == 2
    assert f"calc 2.0 has a series already: {series(both)}" in refused.err
    assert "forkpatch rebase calc 2.0 --from 1.0 --existing keep" in refused.err
    assert texts(both) == before
    git(both.repo.path, "tag", "v3.0", "v2.0")
    both.ok("lock", "--add", "calc=3.0")
    refused = both.run("rebase", "calc", "3.0", "--existing", "keep")
    assert refused.code == 2 and "calc 3.0 has no series yet" in refused.err


def test_kept_patches_stay_byte_for_byte_and_those_that_lack_are_added(both: ForkLab) -> None:
    before = texts(both)
    done = both.ok("rebase", "calc", "2.0", "--existing", "keep")
    assert "turn.patch: kept: 1.0's was not taken\n" in done.out
    assert "--- 2.0\n" in done.out and "+++ 1.0\n" in done.out
    assert "++    return b - a\n" in done.out and "-+    return b - a - 0\n" in done.out
    assert "-On 2.0 for another reason." in done.out
    assert "run.patch: kept\n" in done.out
    assert "twice.patch: clean" in done.out
    after = texts(both)
    for name in ("turn.patch", "run.patch", "NOTES"):
        assert after[name] == before[name]
    assert after["series"] == b"# of 2.0\nturn.patch\nrun.patch  # kept\n../1.0/twice.patch\n"
    assert tree(both, CORE_PATH) == DRIFT + core(sub="b - a - 0", mul="2 * a")
    assert b"return 3" in tree(both, "src/run.c")
    assert both.ok("export", "--check", "--release", "r2").code == 0
    both.ok("record", "--check")


def test_every_patch_that_is_replaced_or_removed_is_named(both: ForkLab) -> None:
    done = both.ok("rebase", "calc", "2.0", "--existing", "replace")
    assert "turn.patch: replaced: by 1.0's\n" in done.out
    assert "-On 2.0 for another reason." in done.out
    assert "run.patch: removed: 1.0 has no patch of that name\n" in done.out
    after = texts(both)
    assert sorted(after) == ["NOTES", "derived.json", "series"]
    assert after["series"] == b"# of 2.0\n../1.0/turn.patch\n../1.0/twice.patch\n"
    assert tree(both, CORE_PATH) == DRIFT + core(sub="b - a", mul="2 * a")
    report = json.loads((both.root / ".work/rebase-calc-1.0-to-2.0.json").read_text())
    found = [(one["patch"], one["outcome"]) for one in report["existing"]]
    assert found == [("turn.patch", "replaced"), ("run.patch", "removed")]


def test_added_patch_that_conflicts_with_a_kept_one_stops_and_goes_on(both: ForkLab) -> None:
    git(both.repo.path, "checkout", "-q", "--detach", "v1.0")
    both.repo.commit({CORE_PATH: core(sub="b - a", mul="2 * a")}, "Both")
    both.change("less.patch", {CORE_PATH: core(sub="b - a - 1", mul="2 * a")})
    both.ok("record")
    before = texts(both)
    stopped = both.run("rebase", "calc", "2.0", "--existing", "keep")
    assert stopped.code == 1 and "less.patch: " in stopped.out
    assert "turn.patch: kept" in both.ok("rebase", "calc", "--status").out
    assert texts(both) == before
    both.ok("rebase", "calc", "--skip", "2.0 has its own")
    assert tree(both, CORE_PATH) == DRIFT + core(sub="b - a - 0", mul="2 * a")


def test_series_that_changed_meanwhile_is_not_written_over(both: ForkLab) -> None:
    path = both.patches / "twice.patch"
    path.write_bytes(path.read_bytes().replace(b"matters", b"counts"))
    git(both.repo.path, "checkout", "-q", "--detach", "v2.0")
    both.repo.commit({CORE_PATH: DRIFT + core(mul="3 * a")}, "Take mul")
    git(both.repo.path, "tag", "v3.0")
    both.ok("lock", "--add", "calc=3.0")
    assert both.run("rebase", "calc", "3.0", "--from", "1.0").code == 1
    place = both.patches.parent / "3.0"
    place.mkdir()
    (place / "series").write_text("")
    tree_file = both.root / ".work/rebase/calc/tree" / CORE_PATH
    tree_file.write_bytes(DRIFT + core(sub="b - a", mul="2 * a * 3"))
    refused = both.run("rebase", "calc", "--continue")
    assert refused.code == 2 and f"{place} changed since the rebase began" in refused.err
    assert (place / "series").read_text() == ""
    (place / "series").unlink()
    place.rmdir()
    both.ok("rebase", "calc", "--continue")
    assert "twice.patch" in (place / "series").read_text()


def test_patch_that_another_version_names_is_not_removed(both: ForkLab) -> None:
    third = both.patches.parent / "3.0"
    git(both.repo.path, "tag", "v3.0", "v2.0")
    both.ok("lock", "--add", "calc=3.0")
    third.mkdir()
    (third / "series").write_text("../2.0/run.patch\n")
    both.ok("record")
    before = texts(both)
    refused = both.run("rebase", "calc", "2.0", "--existing", "replace")
    assert refused.code == 2
    assert "calc 3.0 name run.patch, which would be gone" in refused.err
    assert texts(both) == before
    both.ok("rebase", "calc", "--abort")


def test_versions_never_name_patches_of_each_other(both: ForkLab) -> None:
    # 1.0 has run.patch from 2.0, so that what goes to 2.0 becomes files of its own.
    with (both.patches / "series").open("a") as listed:
        listed.write("../2.0/run.patch\n")
    both.ok("record")
    run = texts(both)["run.patch"]
    both.ok("rebase", "calc", "2.0", "--existing", "replace")
    assert (series(both) / "series").read_text().splitlines()[1:] == [
        "turn.patch",
        "twice.patch",
        "run.patch  # kept",
    ]
    assert texts(both)["run.patch"] == run
    assert tree(both, CORE_PATH) == DRIFT + core(sub="b - a", mul="2 * a")
    assert both.ok("record", "--check").code == 0
