# SPDX-License-Identifier: Apache-2.0
"""A patch that stands with one version of an upstream and serves others."""

from __future__ import annotations

import json
import shutil
import tomllib
from pathlib import Path

import pytest
from forklab import CORE, ForkLab, core, git

CORE_PATH = "python/calc/core.py"
DRIFT = b"import os\n\n\n"


@pytest.fixture
def two(lab: ForkLab) -> ForkLab:
    """Releases r1 (calc 1.0) and r2 (2.0, whose lines stand three lower); two patches on r1."""
    lab.change("turn.patch", {CORE_PATH: core(sub="b - a")}, subject="Turn")
    lab.change("twice.patch", {CORE_PATH: core(sub="b - a", mul="2 * a")}, subject="Twice")
    lab.ok("record")
    git(lab.repo.path, "checkout", "-q", "v1.0")
    lab.repo.commit({CORE_PATH: DRIFT + CORE}, "Drift")
    git(lab.repo.path, "tag", "v2.0")
    lab.ok("lock", "--add", "calc=2.0")
    lab.edit_lock("[releases.r1]", '[releases.r2]\ncalc = "2.0"\n[releases.r1]')
    return lab


@pytest.fixture
def shared(two: ForkLab) -> ForkLab:
    """The same, and a series for 2.0 that names the patches of 1.0."""
    folder(two).mkdir()
    (folder(two) / "series").write_text("# ours\n../1.0/turn.patch\n../1.0/twice.patch\n")
    two.ok("record")
    return two


def folder(lab: ForkLab) -> Path:
    return lab.patches.parent / "2.0"


def tree(lab: ForkLab) -> Path:
    return lab.root / ".work/r2/calc"


def derived(lab: ForkLab) -> dict[str, dict[str, dict[str, list[int]]]]:
    patches: dict[str, dict[str, dict[str, list[int]]]]
    patches = json.loads((folder(lab) / "derived.json").read_text())["patches"]
    return patches


def snapshot(path: Path) -> dict[str, bytes]:
    return {one.name: one.read_bytes() for one in path.iterdir()}


def test_shared_patches_land_exactly_where_they_are_recorded(shared: ForkLab) -> None:
    assert [derived(shared)[name]["at"] for name in ("turn.patch", "twice.patch")] == [
        {CORE_PATH: [10]},
        {CORE_PATH: [16]},
    ]
    shared.ok("apply", "--release", "r2")
    assert (tree(shared) / CORE_PATH).read_bytes() == DRIFT + core(sub="b - a", mul="2 * a")
    shared.ok("apply", "--release", "r1")
    assert (shared.tree / CORE_PATH).read_bytes() == core(sub="b - a", mul="2 * a")
    before = snapshot(folder(shared)), snapshot(shared.patches)
    assert shared.ok("export", "--release", "r2").out == "calc 2.0: 2 patches, unchanged\n"
    assert (snapshot(folder(shared)), snapshot(shared.patches)) == before
    assert shared.ok("status", "--release", "r2", "--json", "-").json["upstreams"][0]["state"] == (
        "applied"
    )


def test_changed_patch_is_refused_until_its_lines_are_recorded_anew(shared: ForkLab) -> None:
    path = shared.patches / "turn.patch"
    path.write_bytes(path.read_bytes().replace(b"Because", b"Since"))
    done = shared.run("apply", "--release", "r2")
    assert done.code == 2 and not tree(shared).exists()
    assert "turn.patch of 1.0 changed since its lines were recorded" in done.err
    assert "forkpatch record calc --version 2.0" in done.err
    assert "forkpatch record calc --version 2.0" in shared.run("check").out
    shared.ok("record")
    shared.ok("apply", "--release", "r2")


@pytest.mark.parametrize("at", [[11], [7], [9000], [10, 20], []])
def test_hunk_that_is_not_at_its_recorded_line_is_refused(shared: ForkLab, at: list[int]) -> None:
    path = folder(shared) / "derived.json"
    record = json.loads(path.read_text())
    record["patches"]["turn.patch"]["at"][CORE_PATH] = at
    path.write_text(json.dumps(record))
    done = shared.run("apply", "--release", "r2")
    assert done.code == 2 and "turn.patch" in done.err and "derived.json" in done.err
    assert "forkpatch record calc --version 2.0" in done.err
    assert not tree(shared).exists()
    assert "derived.json" in shared.run("check").out


def test_other_recorded_lines_make_the_tree_stale(shared: ForkLab) -> None:
    shared.ok("apply", "--release", "r2")
    path = folder(shared) / "derived.json"
    path.write_text(path.read_text().replace("[10]", "[11]"))
    state = shared.ok("status", "--release", "r2", "--json", "-").json["upstreams"][0]
    assert state["state"] == "stale"
    assert state["reasons"] == ["a patch of another version stands at other lines"]


@pytest.mark.parametrize(
    ("files", "reason"),
    [
        (core(sub="a - b - 0"), "it conflicts with python/calc/core.py"),
        (
            CORE.replace(b"sub(a, b):\n    check(a)", b"sub(a, b):\n    check(0)"),
            "its hunks of python/calc/core.py have other lines there",
        ),
        (None, "python/calc/core.py is not in its tree"),
    ],
)
def test_patch_that_does_not_fit_cannot_be_shared(
    two: ForkLab, files: bytes | None, reason: str
) -> None:
    two.repo.commit({CORE_PATH: files}, "Other")
    git(two.repo.path, "tag", "v3.0")
    two.ok("lock", "--add", "calc=3.0")
    target = two.patches.parent / "3.0"
    target.mkdir()
    (target / "series").write_text("../1.0/turn.patch\n")
    done = two.run("record")
    assert done.code == 2 and f"turn.patch cannot serve calc 3.0: {reason}" in done.err
    assert [path.name for path in target.iterdir()] == ["series"]


def test_patch_that_lands_in_another_function_cannot_be_shared(lab: ForkLab) -> None:
    run = b"def run(a):\n" + b"".join(b"    step(%d)\n" % n for n in range(9)) + b"\n\n"
    lab.repo.commit({CORE_PATH: run + CORE}, "Grow")
    lab.locked(tag="")
    lab.change("step.patch", {CORE_PATH: run.replace(b"step(8)", b"step(88)") + CORE})
    lab.ok("record")
    walk = run.replace(b"def run(a)", b"def walk(a)")
    lab.repo.commit({CORE_PATH: walk + CORE + b"\n\n" + run}, "Rename, and take the name")
    git(lab.repo.path, "tag", "v2.0")
    lab.ok("lock", "--add", "calc=2.0")
    folder(lab).mkdir()
    (folder(lab) / "series").write_text("../1.0/step.patch\n")
    done = lab.run("record")
    assert done.code == 2
    assert "python/calc/core.py: misplaced: it changes walk now, and changed run before" in done.err


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("../1.0/ghost.patch", "has no patch of its own"),
        ("../2.0/turn.patch", "is in this very folder"),
        ("../1.0/../turn.patch", "is not a plain name"),
        ("../../x/turn.patch", "is not a plain name"),
        ("../1.0/turn.patch\nturn.patch", "is listed twice"),
    ],
)
def test_line_that_names_no_patch_of_another_version_is_refused(
    two: ForkLab, line: str, reason: str
) -> None:
    folder(two).mkdir()
    (folder(two) / "series").write_text(f"{line}\n")
    for verb in (("apply", "--release", "r2"), ("record",)):
        done = two.run(*verb)
        assert done.code == 2 and reason in done.err, done.err
    assert two.run("check").code == 1


def test_edit_that_changes_lines_makes_a_copy_and_says_so(shared: ForkLab) -> None:
    shared.ok("edit", "calc", "--release", "r2")
    home = snapshot(shared.patches)
    path = tree(shared) / CORE_PATH
    path.write_bytes(DRIFT + core(sub="b - a", mul="3 * a"))
    git(tree(shared), "commit", "-q", "-a", "--amend", "-C", "HEAD")
    done = shared.ok("export", "--release", "r2")
    assert "twice.patch: new: its lines differ from those of ../1.0/twice.patch now" in done.out
    assert (folder(shared) / "series").read_text() == "# ours\n../1.0/turn.patch\ntwice.patch\n"
    assert b"+    return 3 * a" in (folder(shared) / "twice.patch").read_bytes()
    assert snapshot(shared.patches) == home
    assert shared.ok("export", "--release", "r2", "--check").out.endswith("unchanged\n")
    assert "record" not in shared.run("check").out


def test_edit_of_the_message_is_written_back_to_its_home(shared: ForkLab) -> None:
    shared.ok("edit", "calc", "--release", "r2")
    text = git(tree(shared), "log", "-1", "--format=%B").replace("Because", "Since")
    git(tree(shared), "commit", "-q", "--amend", "-F", "-", stdin=text.encode())
    home = (shared.patches / "twice.patch").read_bytes()
    assert "../1.0/twice.patch: changed" in shared.run("export", "--release", "r2", "--check").out
    assert (shared.patches / "twice.patch").read_bytes() == home
    assert "calc: ../1.0/twice.patch: changed" in shared.ok("export", "--release", "r2").out
    assert (shared.patches / "twice.patch").read_bytes() == home.replace(b"Because", b"Since")
    assert sorted(snapshot(folder(shared))) == ["derived.json", "series"]
    for release in ("r1", "r2"):
        shared.ok("apply", "--release", release)
    assert "up to date" in shared.ok("record", "--check").out


def test_export_of_the_home_records_the_versions_that_share_its_patches(shared: ForkLab) -> None:
    shared.ok("edit", "calc")
    git(shared.tree, "reset", "-q", "--hard", "HEAD~1")
    done = shared.run("export")
    assert done.code == 2 and "calc 2.0 name twice.patch, which would be gone" in done.err
    git(shared.tree, "reset", "-q", "--hard", "ORIG_HEAD")
    amend(shared, mul="3 * a")
    assert "calc: ../2.0/derived.json: changed\n" in shared.ok("export").out
    shared.ok("apply", "--release", "r2")
    assert (tree(shared) / CORE_PATH).read_bytes() == DRIFT + core(sub="b - a", mul="3 * a")
    assert shared.run("record", "--check").code == 0


def test_export_tells_who_has_to_record_when_a_tree_is_not_at_hand(shared: ForkLab) -> None:
    shared.ok("edit", "calc")
    amend(shared, mul="3 * a")
    shutil.rmtree(shared.cache / f"trees/{pinned(shared, '2.0')}.git")
    done = shared.ok("export")
    assert "2.0 shares patches that changed: the tree of calc 2.0 is not in the cache" in done.out
    assert "type: forkpatch record calc --version 2.0" in done.out
    assert shared.run("apply", "--release", "r2").code == 2
    shared.ok("record")
    shared.ok("apply", "--release", "r2")


def test_one_command_adds_a_patch_to_two_releases(shared: ForkLab) -> None:
    """The patch, a line of each series, and the derived data: nothing else is touched."""
    before = snapshot(shared.patches), snapshot(folder(shared))
    shared.ok("edit", "calc")
    (shared.tree / "src/run.c").write_bytes(b"int run(void)\n{\n    return 5;\n}\n")
    git(shared.tree, "commit", "-q", "-a", "-m", "Run five")
    out = shared.ok("export", "calc", "--also", "r2").out
    assert "calc: ../2.0/series: changed\ncalc: ../2.0/derived.json: changed\n" in out
    after = snapshot(shared.patches), snapshot(folder(shared))
    assert after[0].keys() - before[0].keys() == {"run-five.patch"}
    assert after[1].keys() == before[1].keys()
    assert after[0]["series"] == before[0]["series"] + b"run-five.patch\n"
    assert after[1]["series"] == before[1]["series"] + b"../1.0/run-five.patch\n"
    assert all(after[0][name] == before[0][name] for name in ("turn.patch", "twice.patch"))
    assert shared.run("record", "--check").code == 0
    for release in ("r1", "r2"):
        shared.ok("apply", "--release", release)
    assert b"return 5" in (tree(shared) / "src/run.c").read_bytes()


def test_new_patch_goes_behind_the_one_that_it_follows(shared: ForkLab) -> None:
    series = folder(shared) / "series"
    series.write_text(series.read_text().removesuffix("\n"))
    shared.ok("edit", "calc")
    shared.ok("export", "calc")
    git(shared.tree, "reset", "-q", "--hard", "HEAD~1")
    (shared.tree / "LICENSE").write_bytes(b"freer\n")
    git(shared.tree, "commit", "-q", "-a", "-m", "Free")
    git(shared.tree, "cherry-pick", "ORIG_HEAD")
    shared.ok("export", "calc", "--also", "r2")
    lines = (folder(shared) / "series").read_text().splitlines()
    assert lines == ["# ours", "../1.0/turn.patch", "../1.0/free.patch", "../1.0/twice.patch"]


def test_new_patch_that_does_not_fit_the_other_release_leaves_that_as_it_was(
    shared: ForkLab,
) -> None:
    before = snapshot(folder(shared))
    shared.ok("edit", "calc")
    changed = core(sub="b - a", mul="2 * a").replace(b"import os", b"import sys")
    (shared.tree / CORE_PATH).write_bytes(b"# one\n" + changed)
    git(shared.tree, "commit", "-q", "-a", "-m", "Head")
    done = shared.run("export", "calc", "--also", "r2")
    assert done.code == 2 and "../1.0/head.patch cannot serve calc 2.0" in done.err
    assert snapshot(folder(shared)) == before
    assert (shared.patches / "head.patch").is_file()


def amend(lab: ForkLab, mul: str) -> None:
    (lab.tree / CORE_PATH).write_bytes(core(sub="b - a", mul=mul))
    git(lab.tree, "commit", "-q", "-a", "--amend", "-C", "HEAD")


def pinned(lab: ForkLab, version: str) -> str:
    lock = tomllib.loads((lab.root / "VERSIONS.lock").read_text())
    return str(lock["upstreams"]["calc"]["versions"][version]["tree"])


def test_rebase_shares_what_it_moves_unchanged_and_own_undoes_it(two: ForkLab) -> None:
    two.ok("rebase", "calc", "2.0")
    assert (folder(two) / "series").read_text() == "../1.0/turn.patch\n../1.0/twice.patch\n"
    assert sorted(snapshot(folder(two))) == ["derived.json", "series"]
    assert "up to date" in two.ok("record", "--check").out
    two.ok("apply", "--release", "r2")
    two.ok("export", "--release", "r2", "--own")
    assert (folder(two) / "series").read_text() == "turn.patch\ntwice.patch\n"
    assert b"@@ -10,7 +10,7 @@" in (folder(two) / "turn.patch").read_bytes()
    assert two.ok("export", "--release", "r2", "--check").code == 0


def test_versions_that_name_patches_of_each_other_are_refused(shared: ForkLab) -> None:
    with (shared.patches / "series").open("a") as series:
        series.write("../2.0/other.patch\n")
    done = shared.run("record")
    assert done.code == 2 and "name patches of each other" in done.err
