# SPDX-License-Identifier: Apache-2.0
"""``check --together``: two pending changes of a series, each good by itself."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
from forklab import CORE, ForkLab, core, git, message

CORE_PATH = "python/calc/core.py"
HEAD = b"import os\n\n\n"


@pytest.fixture
def pair(lab: ForkLab) -> ForkLab:
    """A fork in git, with one patch, and the branches ``mine`` and ``theirs`` at one commit."""
    lab.change("turn.patch", {CORE_PATH: core(sub="b - a")})
    lab.ok("record")
    git(lab.root, "init", "-q")
    save(lab, "Begin")
    git(lab.root, "branch", "theirs")
    git(lab.root, "checkout", "-q", "-b", "mine")
    return lab


def save(lab: ForkLab, subject: str) -> None:
    git(lab.root, "add", "-A", "--", "VERSIONS.lock", "patches")
    if (lab.root / "overlays").exists():
        git(lab.root, "add", "-A", "--", "overlays")
    git(lab.root, "commit", "-q", "-m", subject)


def change(lab: ForkLab, branch: str, name: str, files: Mapping[str, bytes | None]) -> None:
    """Add a patch on a branch of the fork, on top of ``turn.patch``, or change that."""
    git(lab.root, "checkout", "-q", branch)
    if name == "turn.patch":
        git(lab.repo.path, "checkout", "-q", "--detach", "v1.0")
        (lab.patches / name).write_bytes(lab.repo.patch(files, message("turn.patch")))
    else:
        git(lab.repo.path, "checkout", "-q", "--detach", "v1.0")
        lab.repo.commit({CORE_PATH: core(sub="b - a")}, "turn.patch")
        lab.change(name, files)
    lab.ok("record")
    save(lab, name)
    git(lab.root, "checkout", "-q", "mine")


def together(lab: ForkLab) -> tuple[int, str]:
    done = lab.run("check", "--together", "theirs")
    return done.code, done.out + done.err


def test_changes_of_other_files_and_of_one_side_go_together(pair: ForkLab) -> None:
    change(pair, "theirs", "free.patch", {"LICENSE": b"ours\n"})
    said = "theirs and the changes here apply together"
    assert together(pair) == (0, f"{said}; no series is changed on both sides\n")
    change(pair, "mine", "zero.patch", {CORE_PATH: core(sub="b - a", mul="0")})
    order = "turn.patch, zero.patch, free.patch"
    assert together(pair) == (0, f"{said}\n  calc 1.0: {order}\n")
    git(pair.root, "merge", "-q", "-X", "ours", "theirs")
    (pair.patches / "series").write_text("turn.patch\nzero.patch\nfree.patch\n")
    pair.ok("record")
    pair.ok("apply")


def test_changes_of_the_same_lines_are_a_conflict(pair: ForkLab) -> None:
    change(pair, "theirs", "none.patch", {CORE_PATH: core(sub="b - a", mul="None")})
    change(pair, "mine", "zero.patch", {CORE_PATH: core(sub="b - a", mul="0")})
    code, said = together(pair)
    assert code == 1
    name = f"calc 1.0: none.patch: it conflicts with {CORE_PATH}, which zero.patch changes too"
    assert said == f"{name}\n"
    report = pair.run("check", "--together", "theirs", "--json", "-").json
    assert report["orders"] == {"calc 1.0": []} and report["clashes"][0]["conflict"] is True


def test_the_order_in_which_both_apply_is_named(pair: ForkLab) -> None:
    change(pair, "theirs", "zero.patch", {CORE_PATH: core(sub="b - a", mul="0")})
    change(pair, "mine", "os.patch", {CORE_PATH: HEAD + core(sub="b - a")})
    assert together(pair)[1].endswith("calc 1.0: turn.patch, zero.patch, os.patch\n")


def test_a_patch_whose_lines_move_has_to_be_written_again(pair: ForkLab) -> None:
    tail = b"\n\nEND = 1\n"
    change(pair, "theirs", "tail.patch", {CORE_PATH: HEAD + core(sub="b - a")})
    git(pair.root, "checkout", "-q", "theirs")
    pair.change("end.patch", {CORE_PATH: HEAD + core(sub="b - a") + tail})
    save(pair, "End")
    git(pair.root, "checkout", "-q", "mine")
    both = core(sub="b - a", add="b + a").replace(b"def check", b"# more\n\n\ndef check")
    change(pair, "mine", "wide.patch", {CORE_PATH: both})
    code, said = together(pair)
    assert code == 1
    assert "calc 1.0: tail.patch: " not in said and "has other lines than it needs: " in said
    assert "git -C TREE am -3 FILE" in said
    pair.ok("apply")
    for name in ("tail", "end"):
        text = git(pair.root, "show", f"theirs:patches/calc/1.0/{name}.patch") + "\n"
        git(pair.tree, "am", "-q", "-3", stdin=text.encode())
    assert "end-patch.patch: new" in pair.ok("export").out
    pair.ok("apply")
    assert (pair.tree / CORE_PATH).read_bytes() == HEAD + both + tail


def test_a_patch_that_both_change_remove_or_repeat(pair: ForkLab) -> None:
    change(pair, "theirs", "turn.patch", {CORE_PATH: core(sub="b - 1")})
    change(pair, "mine", "turn.patch", {CORE_PATH: core(sub="b - 2")})
    assert together(pair) == (1, "calc 1.0: turn.patch: theirs changes it as well\n")
    (pair.patches / "turn.patch").unlink()
    (pair.patches / "series").write_text("")
    save(pair, "Remove")
    said = "calc 1.0: turn.patch: it is removed here and changed on the other side\n"
    assert together(pair)[1] == said


def test_a_change_that_both_make_under_two_names(pair: ForkLab) -> None:
    files = {CORE_PATH: core(sub="b - a", mul="0")}
    change(pair, "theirs", "nothing.patch", files)
    change(pair, "mine", "zero.patch", files)
    assert "nothing.patch: it changes nothing any more after the other change" in together(pair)[1]
    change(pair, "theirs", "zero.patch", {"LICENSE": b"ours\n"})
    assert "zero.patch: theirs has another of that name" in together(pair)[1]


def test_a_change_that_would_land_in_a_twin_is_a_conflict(pair: ForkLab) -> None:
    """Mine moves the function elsewhere, and a like one stays: a merge of lines is content."""
    twin = core(sub="b - a").replace(b"def mul", b"def old_mul")
    change(pair, "theirs", "zero.patch", {CORE_PATH: core(sub="b - a", mul="0")})
    moved = CORE[CORE.index(b"def mul") : CORE.index(b"def check")]
    change(pair, "mine", "move.patch", {CORE_PATH: twin + b"\n\n" + moved})
    code, said = together(pair)
    assert code == 1 and "zero.patch: " in said and "misplaced" in said


def test_overlays_of_both_sides(pair: ForkLab) -> None:
    place = pair.overlays / "python/calc/new.py"
    for branch in ("theirs", "mine"):
        git(pair.root, "checkout", "-q", branch)
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(f"# {branch}\n")
        save(pair, "Overlay")
    assert together(pair) == (1, "calc 1.0: python/calc/new.py: theirs has another\n")
    change(pair, "theirs", "made.patch", {"python/calc/made.py": b"A = 1\n"})
    place.write_text("# theirs\n")
    (place.parent / "made.py").write_text("B = 1\n")
    code, said = together(pair)
    assert code == 1 and "calc 1.0: overlays: " in said and "python/calc/made.py" in said


def series(lab: ForkLab, branch: str, text: str) -> None:
    """Write the series of a branch."""
    git(lab.root, "checkout", "-q", branch)
    (lab.patches / "series").write_text(text)
    save(lab, "Series")
    git(lab.root, "checkout", "-q", "mine")


def test_overlay_that_one_side_makes_a_patch_is_no_collision(pair: ForkLab) -> None:
    place = pair.overlays / "python/calc/new.py"
    for branch in ("theirs", "mine"):
        git(pair.root, "checkout", "-q", branch)
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text("A = 1\n")
        if branch == "theirs":
            save(pair, "Overlay")
            git(pair.root, "branch", "-f", "mine")
    place.unlink()
    save(pair, "No overlay")
    change(pair, "mine", "new.patch", {"python/calc/new.py": b"A = 1\n"})
    change(pair, "theirs", "free.patch", {"LICENSE": b"ours\n"})
    order = "turn.patch, new.patch, free.patch"
    assert together(pair)[1].endswith(f"apply together\n  calc 1.0: {order}\n")
    git(pair.root, "checkout", "-q", "theirs")
    assert pair.run("check", "--together", "mine").code == 0


def test_condition_of_one_side_is_merged_with_the_text_of_the_other(pair: ForkLab) -> None:
    series(pair, "mine", "turn.patch [linux]\n")
    change(pair, "theirs", "turn.patch", {CORE_PATH: core(sub="b - 1")})
    assert together(pair)[0] == 0
    series(pair, "theirs", "turn.patch [bsd]\n")
    said = "calc 1.0: turn.patch: theirs has another condition of it\n"
    assert together(pair) == (1, said)


@pytest.mark.parametrize("named", [False, True])
def test_patch_that_needs_one_with_a_condition_of_the_other_side_is_a_conflict(
    pair: ForkLab, *, named: bool
) -> None:
    series(pair, "mine", "turn.patch [linux]\n")
    change(pair, "theirs", "again.patch", {CORE_PATH: core(sub="b - a - 1")})
    if named:  # only what is built is checked
        (pair.root / "pyproject.toml").write_text('[tool.forkpatch]\nwith = ["linux"]\n')
        assert together(pair)[0] == 0
        return
    needs = "again.patch needs turn.patch [linux], which is left out with no option"
    assert together(pair) == (1, f"calc 1.0: series: {needs}\n")


def test_shared_patch_whose_lines_both_sides_move_is_placed_by_both(pair: ForkLab) -> None:
    """The series of 2.0 has turn.patch of 1.0, behind a patch of its own on each side."""
    git(pair.repo.path, "tag", "v2.0", "v1.0")
    pair.ok("lock", "--add", "calc=2.0")
    folder = pair.patches.parent / "2.0"
    folder.mkdir()
    (folder / "series").write_text("../1.0/turn.patch\n")
    pair.ok("record")
    save(pair, "2.0")
    git(pair.root, "branch", "-f", "theirs")
    inside = CORE.replace(b"    return a + b", b"    # the sum\n    return a + b")
    for branch, data in {"mine": HEAD + CORE, "theirs": inside}.items():
        git(pair.root, "checkout", "-q", branch)
        git(pair.repo.path, "checkout", "-q", "--detach", "v1.0")
        (folder / f"{branch}.patch").write_bytes(
            pair.repo.patch({CORE_PATH: data}, message(branch))
        )
        (folder / "series").write_text(f"{branch}.patch\n../1.0/turn.patch\n")
        pair.ok("record")
        save(pair, branch)
    git(pair.root, "checkout", "-q", "mine")
    order = ["theirs.patch", "mine.patch", "turn.patch"]
    assert together(pair)[1].endswith(f"calc 2.0: {', '.join(order)}\n")
    git(pair.root, "merge", "-q", "-X", "ours", "theirs")
    (folder / "series").write_text("theirs.patch\nmine.patch\n../1.0/turn.patch\n")
    pair.ok("record")


def test_what_cannot_be_compared_is_named(pair: ForkLab) -> None:
    done = pair.run("check", "--together", "nowhere")
    assert done.code == 2 and "is not in a git repository that has nowhere" in done.err
    git(pair.root, "checkout", "-q", "theirs")
    (pair.patches / "turn.patch").write_text("broken\n")
    save(pair, "Break")
    git(pair.root, "checkout", "-q", "mine")
    done = pair.run("check", "--together", "theirs")
    assert done.code == 2 and "theirs:patches/calc/1.0/turn.patch: no 'diff --git'" in done.err


def test_upstream_that_no_source_gives_is_named_with_the_command(
    pair: ForkLab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for branch in ("theirs", "mine"):
        change(pair, branch, f"{branch}.patch", {"LICENSE": f"{branch}\n".encode()})
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "empty"))
    pair.repo.path.rename(tmp_path / "away")
    code, said = together(pair)
    assert code == 1 and "not compared: calc 1.0: " in said
    assert "apply --mirror calc=CLONE" in said and "as far as they were compared" in said
