# SPDX-License-Identifier: Apache-2.0
"""A series moved to another version of its upstream."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import pytest
from forklab import CORE, FILES, ForkLab, copy_of, core, git, message
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from forkpatch.git.calls import init_repository
from forkpatch.git.objects import Commit, TreeFile, write_commits
from forkpatch.rebase.workspace import files_at

CORE_PATH = "python/calc/core.py"
VERSION = """
[upstreams.calc.versions."2.0"]
commit = "{commit}"
include = ["python/calc", "src", "LICENSE"]
exclude = ["src/*.cu"]
tree = ""
"""


def upstream_moves(lab: ForkLab, *steps: dict[str, bytes | None]) -> list[str]:
    """Commit changes on top of 1.0 and pin the last as version 2.0."""
    git(lab.repo.path, "checkout", "-q", "--detach", "v1.0")
    commits = [lab.repo.commit(files, f"Upstream step {n}") for n, files in enumerate(steps)]
    with (lab.root / "VERSIONS.lock").open("a") as lock:
        lock.write(VERSION.format(commit=lab.repo.head))
    lab.ok("lock")
    return commits


def new_tree(lab: ForkLab) -> dict[str, bytes]:
    """The files of the tree that the new series gives."""
    text = (lab.root / "VERSIONS.lock").read_text()
    (lab.root / "VERSIONS.lock").write_text(text.replace('calc = "1.0"', 'calc = "2.0"'))
    lab.ok("apply", "--discard")
    return {
        path.relative_to(lab.tree).as_posix(): path.read_bytes()
        for path in lab.tree.rglob("*")
        if path.is_file() and ".git" not in path.parts
    }


@pytest.fixture
def one(lab: ForkLab) -> ForkLab:
    """A fork with one patch, on the middle one of three near-identical functions."""
    lab.change("turn.patch", {CORE_PATH: core(sub="b - a")}, subject="Turn sub")
    return lab


def test_drift_around_the_middle_function_is_followed(one: ForkLab) -> None:
    drifted = CORE.replace(b"def add(a, b):\n", b"def add(a, b):\n    log(a)\n").replace(
        b"def sub(a, b):\n    check(a)\n", b"def sub(a, b):\n    check(a)  # first\n"
    )
    upstream_moves(one, {CORE_PATH: drifted})
    done = one.ok("rebase", "calc", "2.0")
    assert "turn.patch: clean" in done.out
    assert new_tree(one)[CORE_PATH] == drifted.replace(b"return a - b", b"return b - a")
    assert "turn.patch" in (one.patches / "series").read_text()


def test_stop_says_that_the_new_version_has_the_commit_of_a_backport(one: ForkLab) -> None:
    git(one.repo.path, "checkout", "-q", "--detach", "v1.0")
    commit = one.repo.commit({CORE_PATH: core(sub="(b) - (a)")}, "Turn sub")
    patch = one.patches / "turn.patch"
    patch.write_text(patch.read_text().replace("Pending", f"Backport [{commit[:9]}]"))
    lock = one.root / "VERSIONS.lock"
    before = lock.read_text()
    refused = one.run("rebase", "calc", "main", "--commit", commit[:9])
    assert refused.code == 2 and lock.read_text() == before
    done = one.run("rebase", "calc", "main", "--commit", commit)
    assert done.code == 1 and f"VERSIONS.lock: calc main added, commit {commit[:12]}" in done.out
    assert f"a backport of {commit[:9]}, which calc main has" in done.out
    done = one.run("rebase", "calc", "main", "--commit", commit)
    assert done.code == 2 and "the lock has calc main already" in done.err


def moved_away() -> tuple[bytes, bytes]:
    """CORE without its middle function, and the file that this went to."""
    start, end = CORE.index(b"def sub"), CORE.index(b"def mul")
    return CORE[:start] + CORE[end:], CORE[start:end]


def test_next_step_after_a_rebase_can_be_typed(one: ForkLab) -> None:
    one.change("logo.patch", {"python/calc/logo.png": b"\0logo"})
    upstream_moves(one, {CORE_PATH: b"import os\n" + CORE})
    done = one.ok("rebase", "calc", "2.0")
    assert "have no names" not in done.out, "a binary file has no functions"
    step = done.out.splitlines()[-1].partition("next: forkpatch ")[2]
    one.ok(*step.split())
    assert (one.root / ".work/2.0/calc/python/calc/logo.png").read_bytes() == b"\0logo"


def test_middle_function_moved_away_is_an_honest_conflict(one: ForkLab) -> None:
    rest, moved = moved_away()
    commits = upstream_moves(one, {"LICENSE": b"2\n"}, {CORE_PATH: rest, "python/calc/s.py": moved})
    done = one.run("rebase", "calc", "2.0", "--json", "-")
    assert done.code == 1
    (conflict,) = done.json["plan"]["conflicts"]
    assert (conflict["patch"], conflict["path"]) == ("turn.patch", CORE_PATH)
    assert conflict["kind"] == "symbol moved"
    assert conflict["detail"] == "sub is now in python/calc/s.py: sub"
    assert conflict["breaking_commit"] == f"{commits[1][:12]} Upstream step 1"
    ((first, last),) = conflict["lines"]
    tree = one.root / ".work/rebase/calc/tree"
    lines = (tree / CORE_PATH).read_bytes().split(b"\n")
    assert lines[first - 1].startswith(b"<<<<<<<") and lines[last - 1].startswith(b">>>>>>>")
    assert not (one.root / "patches/calc/2.0").exists()
    refused = one.run("rebase", "calc", "--continue")
    assert refused.code == 2 and "still has conflict markers" in refused.err
    (tree / CORE_PATH).write_bytes(rest)
    refused = one.run("rebase", "calc", "--continue")
    assert refused.code == 2 and "nothing is left of turn.patch" in refused.err
    (tree / "python/calc/s.py").write_bytes(moved.replace(b"a - b", b"b - a"))
    done = one.ok("rebase", "calc", "--continue")
    assert "turn.patch: adapted: symbol moved: resolved by hand (2 lines)" in done.out
    assert "-diff --git a/python/calc/core.py" in done.out
    assert "+diff --git a/python/calc/s.py" in done.out
    files = new_tree(one)
    assert files["python/calc/s.py"] == moved.replace(b"a - b", b"b - a")
    assert files[CORE_PATH] == rest


@pytest.mark.parametrize("what", ["repository", "overlay"])
def test_resolution_that_cannot_be_a_patch_is_refused_and_can_be_corrected(
    one: ForkLab, what: str
) -> None:
    upstream_moves(one, {CORE_PATH: core(sub="c - a")})
    if what == "overlay":
        one.overlays.mkdir(parents=True)
        (one.overlays / "mine.py").write_text("A = 1\n")
    assert one.run("rebase", "calc", "2.0").code == 1
    tree = one.root / ".work/rebase/calc/tree"
    (tree / CORE_PATH).write_bytes(core(sub="c - b - a"))
    mine = tree / "mine.py"
    if what == "repository":
        git(tree, "init", "-q", str(mine))
        git(mine, "commit", "-q", "--allow-empty", "-m", "Begin")
    else:
        mine.write_text("A = 2\n")
    done = one.run("rebase", "calc", "--continue")
    assert done.code == 2 and "turn.patch: the resolution cannot be a patch" in done.err
    assert ("submodule" if what == "repository" else "mine.py") in done.err
    assert not (one.root / "patches/calc/resolutions").exists()
    shutil.rmtree(mine) if mine.is_dir() else mine.unlink()
    one.ok("rebase", "calc", "--continue")
    assert new_tree(one)[CORE_PATH] == core(sub="c - b - a")


def test_resolution_by_hand_in_another_function_is_refused(one: ForkLab) -> None:
    upstream_moves(one, {CORE_PATH: core(sub="a - b + 0")})
    assert one.run("rebase", "calc", "2.0").code == 1
    file = one.root / ".work/rebase/calc/tree" / CORE_PATH
    file.write_bytes(core(sub="a - b + 0", mul="b * a"))
    refused = one.run("rebase", "calc", "--continue")
    assert (
        refused.code == 2 and "the resolution changes mul, and the patch changes sub" in refused.err
    )
    file.write_bytes(core(sub="b - a + 0"))
    assert "resolved by hand" in one.ok("rebase", "calc", "--continue").out


def test_change_that_upstream_has_is_not_made_twice(one: ForkLab) -> None:
    upstream_moves(one, {CORE_PATH: core(sub="b - a")})
    done = one.ok("rebase", "calc", "2.0", "--json", "-")
    (patch,) = done.json["patches"]
    assert patch["outcome"] == "dropped"
    assert patch["reason"] == f"already upstream: {CORE_PATH}: sub"
    assert new_tree(one)[CORE_PATH] == core(sub="b - a")


def test_change_that_upstream_has_where_it_moved_the_function_is_a_person_s_to_drop(
    one: ForkLab,
) -> None:
    rest, moved = moved_away()
    turned = moved.replace(b"a - b", b"b - a").rstrip() + b"\n"
    upstream_moves(one, {CORE_PATH: rest, "python/calc/s.py": turned})
    (conflict,) = one.run("rebase", "calc", "2.0", "--json", "-").json["plan"]["conflicts"]
    assert conflict["detail"] == "sub is now in python/calc/s.py: sub"


def test_change_that_git_puts_into_another_function_stops_the_rebase(one: ForkLab) -> None:
    # The middle function is renamed, and a new one takes its name elsewhere: git cannot know.
    end = CORE[CORE.index(b"def sub") : CORE.index(b"def mul")]
    renamed = CORE.replace(b"def sub(a, b):", b"def minus(a, b):") + b"\n\n" + end.rstrip() + b"\n"
    upstream_moves(one, {CORE_PATH: renamed})
    done = one.run("rebase", "calc", "2.0", "--json", "-")
    assert done.code == 1
    (conflict,) = done.json["plan"]["conflicts"]
    assert conflict["kind"] == "misplaced"
    assert conflict["detail"] == (
        "it changes minus now, and changed sub before,"
        f" and line 27 of {CORE_PATH} fits as well, for 'sub'"
    )
    # Going on without a look at it is refused; that it is right there has to be said.
    refused = one.run("rebase", "calc", "--continue")
    assert refused.code == 2
    assert "misplaced still: it changes minus now, and changed sub before" in refused.err
    assert "--accept 'REASON'" in refused.err
    assert one.run("rebase", "calc", "--accept", " ").code == 2
    done = one.ok("rebase", "calc", "--accept", "minus is its new name")
    assert "turn.patch: adapted: misplaced: accepted: minus is its new name" in done.out
    assert new_tree(one)[CORE_PATH] == renamed.replace(b"return a - b", b"return b - a", 1)


def test_renamed_and_removed_files(one: ForkLab) -> None:
    one.change("run.patch", {"src/run.c": FILES["src/run.c"].replace(b"return 0", b"return 1")})
    upstream_moves(one, {CORE_PATH: None, "python/calc/kernel.py": CORE, "src/run.c": None})
    done = one.run("rebase", "calc", "2.0", "--json", "-")
    assert done.code == 1
    (conflict,) = done.json["plan"]["conflicts"]
    assert (conflict["patch"], conflict["kind"]) == ("run.patch", "file gone")
    status = one.ok("rebase", "calc", "--status")
    assert "1 patch done, 1 to come" in status.out
    assert one.run("rebase", "calc", "--skip", " ").code == 2
    done = one.ok("rebase", "calc", "--skip", "the file is gone for good")
    assert "turn.patch: adapted: merged by git" in done.out
    assert "run.patch: dropped: the file is gone for good" in done.out
    assert new_tree(one)["python/calc/kernel.py"] == core(sub="b - a")


def test_file_that_git_leaves_of_the_old_version_is_not_added_to_the_new(one: ForkLab) -> None:
    changed = FILES["src/run.c"].replace(b"return 0", b"return 1")
    one.change("run.patch", {"src/run.c": changed})
    one.change("again.patch", {"src/run.c": changed.replace(b"return 1", b"return 2")})
    upstream_moves(one, {"src/run.c": None, "src/main.c": b"int run(void) { return 0; }\n"})
    done = one.run("rebase", "calc", "2.0", "--json", "-")
    assert [conflict["kind"] for conflict in done.json["plan"]["conflicts"]] == ["file gone"]
    tree = one.root / ".work/rebase/calc/tree"
    assert (tree / "src/run.c").read_bytes() == changed  # for reference
    (tree / "src/main.c").write_bytes(b"int run(void) { return 1; }\n")
    done = one.run("rebase", "calc", "--continue", "--json", "-")
    left_out = "run.patch: its change of src/run.c is left out: the file is gone upstream"
    assert left_out in done.err
    (conflict,) = done.json["plan"]["conflicts"]
    assert (conflict["patch"], conflict["kind"]) == ("again.patch", "file gone")
    # What the user makes of the file is kept, since it is no leftover.
    (tree / "src/run.c").write_bytes(b"int again(void) { return 2; }\n")
    one.ok("rebase", "calc", "--continue")
    files = new_tree(one)
    assert files["src/main.c"] == b"int run(void) { return 1; }\n"
    assert files["src/run.c"] == b"int again(void) { return 2; }\n"


def test_deleted_file_is_no_resolution_of_its_conflicts(one: ForkLab) -> None:
    one.change("both.patch", {CORE_PATH: core(sub="b - a - 1"), "src/run.c": b"int run;\n"})
    moved = CORE.replace(b"return a - b", b"return minus(a, b)")
    upstream_moves(one, {CORE_PATH: moved, "src/run.c": FILES["src/run.c"]})
    assert one.run("rebase", "calc", "2.0").code == 1
    tree = one.root / ".work/rebase/calc/tree"
    (tree / CORE_PATH).write_bytes(moved.replace(b"minus(a, b)", b"minus(b, a)"))
    assert one.run("rebase", "calc", "--continue").code == 1  # the second patch's conflicts
    (tree / CORE_PATH).unlink()
    refused = one.run("rebase", "calc", "--continue")
    assert refused.code == 2 and f"{CORE_PATH} had conflicts, and is gone" in refused.err
    # The first command of the remedy puts the conflicts back, the second one says what is meant.
    git(tree, "checkout", "--merge", CORE_PATH)
    assert b"<<<<<<<" in (tree / CORE_PATH).read_bytes()
    assert "still has conflict markers" in one.run("rebase", "calc", "--continue").err
    git(tree, "rm", "-q", CORE_PATH)
    (tree / "stray.txt").write_text("a note\n")
    done = one.ok("rebase", "calc", "--continue")
    assert "taken into both.patch: stray.txt" in done.err
    assert CORE_PATH not in new_tree(one)


def test_abort_leaves_everything_as_before(one: ForkLab) -> None:
    rest, _ = moved_away()
    upstream_moves(one, {CORE_PATH: rest})
    one.ok("apply")
    before = {path: path.read_bytes() for path in one.root.rglob("*") if path.is_file()}
    told = "a rebase of calc from 1.0 to 2.0 is under way: forkpatch rebase calc --status"
    assert told not in one.ok("status").out
    assert one.run("rebase", "calc", "2.0").code == 1
    assert told in one.ok("status").out
    assert one.run("rebase", "calc", "2.0").code == 2
    one.ok("rebase", "calc", "--abort")
    after = {path: path.read_bytes() for path in one.root.rglob("*") if path.is_file()}
    assert {p for p in set(after) ^ set(before) if p.name != ".forkpatch.lock"} == set()
    assert {p for p in before if before[p] != after[p] and p.name != ".forkpatch.lock"} == set()
    assert one.ok("rebase", "calc", "--status").out == "no rebase of calc is under way\n"


def test_reformatted_upstream_and_longer_series(lab: ForkLab) -> None:
    lab.change("a.patch", {CORE_PATH: core(sub="b - a")})
    lab.change("b.patch", {CORE_PATH: core(sub="b - a", mul="0")})
    lab.change("c.patch", {"python/calc/dos.py": b"A = 1\r\nB = 2\r\nC = 4\r\n"})
    reformatted = b"# head\r\n" + FILES["python/calc/dos.py"]
    upstream_moves(lab, {CORE_PATH: b'"""Doc."""\n\n' + CORE, "python/calc/dos.py": reformatted})
    done = lab.ok("rebase", "calc", "2.0", "--json", "-").json
    assert [(one["patch"], one["outcome"]) for one in done["patches"]] == [
        ("a.patch", "clean"),
        ("b.patch", "clean"),
        ("c.patch", "clean"),
    ]
    tree = new_tree(lab)
    assert tree["python/calc/dos.py"] == b"# head\r\nA = 1\r\nB = 2\r\nC = 4\r\n"
    assert tree[CORE_PATH] == b'"""Doc."""\n\n' + core(sub="b - a", mul="0")
    assert lab.ok("export", "--check").code == 0


def test_overlay_that_the_new_version_has_itself_is_named(one: ForkLab) -> None:
    one.overlays.mkdir(parents=True)
    (one.overlays / "src").mkdir()
    (one.overlays / "src/fast.c").write_text("mine\n")
    git(one.repo.path, "checkout", "-q", "--detach", "v1.0")
    one.repo.commit({"src/fast.c": b"theirs\n"}, "Grow")
    with (one.root / "VERSIONS.lock").open("a") as lock:
        lock.write(VERSION.format(commit=one.repo.head))
    done = one.run("lock")
    assert done.code == 2
    assert "src/fast.c collides with the file src/fast.c of calc 2.0" in done.err


FAST = b"int fast(void)\n{\n    int x = 3;\n    x += 4;\n    return x;\n}\n"


@pytest.mark.parametrize(
    ("moves", "note"),
    [
        (
            {"src/run.c": None, "python/calc/run.c": FILES["src/run.c"]},
            "upstream renamed its folder; is python/calc/fast.c its place?",
        ),
        ({"python/calc/fast.c": b"\n"}, "upstream adds python/calc/fast.c; is the overlay needed?"),
        ({"python/calc/x.c": FAST}, "upstream adds python/calc/x.c; is the overlay needed?"),
        ({"python/calc/x.c": FILES["src/run.c"]}, ""),
    ],
    ids=["renamed folder", "same name", "same lines", "other file"],
)
def test_overlay_that_may_belong_elsewhere_is_named(
    one: ForkLab, moves: dict[str, bytes | None], note: str
) -> None:
    (one.overlays / "src").mkdir(parents=True)
    (one.overlays / "src/fast.c").write_bytes(FAST)
    upstream_moves(one, moves)
    notes = one.ok("rebase", "calc", "2.0", "--json", "-").json["notes"]
    assert notes == ([f"overlay {one.overlays / 'src/fast.c'}: {note}"] if note else [])


def kept(lab: ForkLab) -> dict[str, bytes]:
    """The files of the series."""
    return {path.name: path.read_bytes() for path in lab.patches.iterdir()}


def back_to_the_first(lab: ForkLab) -> None:
    """Move the series of 2.0 to 1.0, where its patches come from, as files of their own."""
    lab.edit_lock('calc = "1.0"', 'calc = "2.0"')
    lab.ok("apply", "--discard")
    lab.ok("export", "--own")
    shutil.rmtree(lab.patches)
    lab.ok("rebase", "calc", "1.0", "--from", "2.0")
    lab.edit_lock('calc = "2.0"', 'calc = "1.0"')
    lab.ok("apply", "--discard")
    lab.ok("export", "--own")


def test_rebase_there_and_back_gives_the_first_tree(lab: ForkLab) -> None:
    lab.change("a.patch", {CORE_PATH: core(sub="b - a")}, subject="a")
    lab.change("b.patch", {"src/run.c": b"int run(void)\n{\n    return 4;\n}\n"}, subject="b")
    lab.ok("record")
    first = kept(lab)
    upstream_moves(lab, {CORE_PATH: b"import os\n" + CORE})
    lab.ok("rebase", "calc", "2.0")
    back_to_the_first(lab)
    assert kept(lab) == first


def test_message_and_author_survive_a_resolution(lab: ForkLab) -> None:
    text = message("Türn sub").replace("matters", "mätters")
    lab.add_patch("turn.patch", lab.repo.patch({CORE_PATH: core(sub="b - a")}, text))
    upstream_moves(lab, {CORE_PATH: core(sub="a - b - 0")})
    assert lab.run("rebase", "calc", "2.0").code == 1
    (lab.root / ".work/rebase/calc/tree" / CORE_PATH).write_bytes(core(sub="b - a - 0"))
    lab.ok("rebase", "calc", "--continue")
    old, new = (lab.root / f"patches/calc/{v}/turn.patch" for v in ("1.0", "2.0"))
    head = old.read_bytes().partition(b"diff --git")[0]
    assert new.read_bytes().partition(b"diff --git")[0] == head


def test_lines_that_were_there_before_do_not_pass_for_the_patch(lab: ForkLab) -> None:
    # Both halves of the function read alike after the patch; upstream rewrites the patched one.
    half = "    start(a)\n    {0}    step(a)\n    stop(a)\n\n\n\n"
    head = "def run(a):\n    begin()\n\n\n\n"
    before = (head + half.format("log(a)\n") + half.format("")).encode() + CORE
    patched = (head + half.format("log(a)\n") * 2).encode() + CORE
    lab.repo.commit({CORE_PATH: before}, "Base")
    git(lab.repo.path, "tag", "-f", "v1.0")
    lab.locked(tag="")
    lab.change("log.patch", {CORE_PATH: patched})
    upstream_moves(lab, {CORE_PATH: (head + half.format("log(a)\n")).encode() + CORE})
    done = lab.run("rebase", "calc", "2.0", "--json", "-")
    assert done.code == 1
    assert done.json["plan"]["conflicts"][0]["kind"] == "conflict"


BODIES = {"add": "0 + a + b", "sub": "b - a", "mul": "a * b * 1"}


@settings(max_examples=6, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    series=st.permutations(sorted(BODIES)).flatmap(
        lambda names: st.integers(1, 3).map(lambda count: list(names)[:count])
    ),
    drift=st.lists(st.tuples(st.integers(0, 19), st.integers(1, 3)), min_size=1, max_size=3),
)
def test_random_series_there_and_back(
    template: Path, series: list[str], drift: list[tuple[int, int]]
) -> None:
    lines = CORE.splitlines(keepends=True)
    for at, count in sorted(drift, reverse=True):
        lines[at:at] = [b"# drift\n"] * count
    with tempfile.TemporaryDirectory() as name, pytest.MonkeyPatch.context() as patch:
        lab = copy_of(template, Path(name), patch)
        bodies: dict[str, str] = {}
        for function in series:
            bodies[function] = BODIES[function]
            lab.change(f"{function}.patch", {CORE_PATH: core(**bodies)}, subject=function)
        lab.ok("record")
        first = kept(lab)
        upstream_moves(lab, {CORE_PATH: b"".join(lines)})
        if lab.run("rebase", "calc", "2.0").code:
            # A conflict, where the drift touches what a patch changes: told, and nothing written.
            lab.ok("rebase", "calc", "--abort")
            assert not (lab.root / "patches/calc/2.0").exists()
            assert first == kept(lab)
            return
        back_to_the_first(lab)
        assert first == kept(lab)


def test_old_series_that_changed_meanwhile_is_named(lab: ForkLab) -> None:
    lab.change("run.patch", {"src/run.c": FILES["src/run.c"].replace(b"return 0", b"return 1")})
    lab.change("turn.patch", {CORE_PATH: core(sub="b - a")})
    upstream_moves(lab, {CORE_PATH: core(sub="a - b - 0")})
    assert lab.run("rebase", "calc", "2.0").code == 1
    (lab.root / ".work/rebase/calc/tree" / CORE_PATH).write_bytes(core(sub="b - a - 0"))
    series = lab.patches / "series"
    for text, word in (
        ("turn.patch\n", "patch run.patch is gone"),
        ("turn.patch\nrun.patch\n", "the patches are in another order"),
        ("run.patch\nturn.patch\nmore.patch\n", "new patch more.patch"),
    ):
        if "more" in text:
            made = FILES["src/run.c"].replace(b"return 0", b"return 2")
            lab.change("more.patch", {"src/run.c": made})
            # Made on upstream's present tree: only its name matters here.
            data = (lab.patches / "turn.patch").read_bytes().replace(CORE_PATH.encode(), b"src/x")
            (lab.patches / "more.patch").write_bytes(data)
        series.write_text(text)
        done = lab.run("rebase", "calc", "--continue")
        assert done.code == 2 and f"the rebase of calc began: {word}" in done.err
        assert "forkpatch rebase calc --abort" in done.err
    series.write_text("run.patch\nturn.patch\n")
    for patch in ("run.patch", "turn.patch"):  # one that is done, and the one with conflicts
        data = (lab.patches / patch).read_bytes()
        (lab.patches / patch).write_bytes(data.replace(b"Subject: ", b"Subject: Please "))
        done = lab.run("rebase", "calc", "--continue")
        assert done.code == 2 and f"began: patch {patch} changed" in done.err
        (lab.patches / patch).write_bytes(data)
    done = lab.ok("rebase", "calc", "--continue")
    assert "resolved by hand" in done.out


def test_rebase_whose_series_changed_can_be_abandoned(one: ForkLab) -> None:
    upstream_moves(one, {CORE_PATH: core(sub="a - b - 0")})
    assert one.run("rebase", "calc", "2.0").code == 1
    (one.patches / "series").write_text("")
    assert "everything is as before" in one.ok("rebase", "calc", "--abort").out
    assert not (one.root / ".work/rebase/calc").exists()


def test_an_abandoned_rebase_takes_its_version_out_of_the_lock(one: ForkLab) -> None:
    git(one.repo.path, "checkout", "-q", "--detach", "v1.0")
    one.repo.commit({CORE_PATH: core(sub="a - b - 0")}, "2.0 \x1b[31mred\r")
    git(one.repo.path, "tag", "v2.0")
    before = (one.root / "VERSIONS.lock").read_bytes()
    stopped = one.run("rebase", "calc", "2.0")
    assert stopped.code == 1 and "\x1b" not in stopped.out and "\r" not in stopped.out
    assert "2.0 \\x1b[31mred" in stopped.out
    pinned = (one.root / "VERSIONS.lock").read_bytes()
    assert pinned != before
    one.ok("rebase", "calc", "--abort")
    assert (one.root / "VERSIONS.lock").read_bytes() == before
    assert one.run("rebase", "calc", "2.0").code == 1
    with (one.root / "VERSIONS.lock").open("ab") as lock:
        lock.write(b"# later\n")
    assert "keeps the new version" in one.ok("rebase", "calc", "--abort").out
    assert (one.root / "VERSIONS.lock").read_bytes() == pinned + b"# later\n"


def test_lock_is_as_before_if_the_rebase_cannot_start(one: ForkLab) -> None:
    git(one.repo.path, "checkout", "-q", "--detach", "v1.0")
    commit = one.repo.commit({"LICENSE": b"2\n"}, "2.0")
    before = (one.root / "VERSIONS.lock").read_bytes()
    refused = one.run("rebase", "calc", "main", "--commit", commit, "--existing", "keep")
    assert refused.code == 2 and "calc main has no series yet" in refused.err
    assert "added" not in refused.out
    assert (one.root / "VERSIONS.lock").read_bytes() == before
    one.ok("rebase", "calc", "main", "--commit", commit)


@pytest.mark.parametrize("is_pinned", [True, False])
def test_abort_takes_back_the_release_of_a_rebase_that_cannot_finish(
    one: ForkLab, *, is_pinned: bool
) -> None:
    git(one.repo.path, "checkout", "-q", "--detach", "v1.0")
    one.repo.commit({CORE_PATH: core(sub="a - b - 0")}, "2.0")
    git(one.repo.path, "tag", "v2.0")
    if is_pinned:
        one.ok("lock", "--add", "calc=2.0")
    before = (one.root / "VERSIONS.lock").read_bytes()
    assert one.run("rebase", "calc", "2.0").code == 1
    tree = one.root / ".work/rebase/calc/tree"
    (tree / CORE_PATH).write_bytes(core(sub="b - a - 0"))
    (one.root / "patches/calc/2.0").mkdir()
    (one.root / "patches/calc/2.0/series").write_text("# mine\n")
    for _ in range(2):  # the second one finds the release
        refused = one.run("rebase", "calc", "--continue")
        assert refused.code == 2 and "changed since the rebase began" in refused.err
    assert (one.root / "VERSIONS.lock").read_bytes() != before
    assert "everything is as before" in one.ok("rebase", "calc", "--abort").out
    assert (one.root / "VERSIONS.lock").read_bytes() == before


def test_first_line_of_a_rebase_says_from_where_to_where(one: ForkLab) -> None:
    upstream_moves(one, {"LICENSE": b"2\n"})
    first = one.ok("rebase", "calc", "2.0").out.splitlines()[0]
    assert first == "calc: from 1.0 to 2.0"
    one.repo.commit({"LICENSE": b"3\n"}, "3.0")
    git(one.repo.path, "tag", "v3.0")
    one.ok("lock", "--add", "calc=3.0")
    first = one.ok("rebase", "calc", "3.0").out.splitlines()[0]
    assert first == "calc: from 2.0 to 3.0; from another: --from 1.0"
    shutil.rmtree(one.root / "patches/calc/3.0")
    first = one.ok("rebase", "calc", "3.0", "--from", "1.0").out.splitlines()[0]
    assert first == "calc: from 1.0 to 3.0"
    one.repo.commit({"LICENSE": b"1.5\n"}, "1.5")
    git(one.repo.path, "tag", "v1.5")
    first = one.ok("rebase", "calc", "1.5").out.splitlines()
    assert "calc: from 1.0 to 1.5; from another: --from 2.0 | 3.0" in first


def test_files_are_read_at_paths_that_are_no_text(tmp_path: Path) -> None:
    repository, odd = init_repository(tmp_path / "x.git"), "a \udcff.c"
    changes = {odd: TreeFile("100644", b"1"), "b": TreeFile("100644", b"2")}
    commits = write_commits(repository, "refs/heads/x", [Commit(b"x", changes=changes)])
    assert files_at(repository, commits, ["b", "lacking", odd]) == [{"b": b"2", odd: b"1"}]
    assert files_at(repository, commits, []) == [{}]
