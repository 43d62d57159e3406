# SPDX-License-Identifier: Apache-2.0
"""Exact and atomic application of patches; overlays; the stamp."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from forklab import CORE, EXECUTABLE, FILES, ForkLab, core, git, message

from forkpatch.tree import swap


def test_tree_holds_the_included_files_and_nothing_else(lab: ForkLab) -> None:
    lab.ok("apply")
    found = {
        path.relative_to(lab.tree).as_posix()
        for path in lab.tree.rglob("*")
        if path.is_file() and ".git" not in path.parts
    }
    assert found == set(FILES) - {"README.md", "src/gpu.cu"}
    assert (lab.tree / "python/calc/dos.py").read_bytes() == FILES["python/calc/dos.py"]
    assert (lab.tree / EXECUTABLE).stat().st_mode & 0o100


def test_series_becomes_one_commit_a_patch(lab: ForkLab) -> None:
    lab.change("first.patch", {"python/calc/core.py": core(sub="b - a")}, subject="Turn sub")
    lab.change("second.patch", {"python/calc/core.py": core(sub="b - a", mul="0")}, subject="Zero")
    lab.overlays.mkdir(parents=True)
    (lab.overlays / "extra.py").write_text("NEW = 1\n")
    run = lab.ok("apply", "--json", "-").json
    (one,) = run["upstreams"]
    assert (one["state"], one["patches"]) == ("applied", ["first.patch", "second.patch"])
    assert one["overlays"] == ["extra.py"]
    assert (lab.tree / "python/calc/core.py").read_bytes() == core(sub="b - a", mul="0")
    assert (lab.tree / "extra.py").read_text() == "NEW = 1\n"
    log = git(lab.tree, "log", "--format=%s|%an|%ad", "--date=iso")
    assert log.splitlines() == [
        "Zero|Ada|2026-01-02 03:04:05 +0200",
        "Turn sub|Ada|2026-01-02 03:04:05 +0200",
        "Overlays|forkpatch|1970-01-01 00:00:00 +0000",
        "calc 1.0|forkpatch|1970-01-01 00:00:00 +0000",
    ]
    assert git(lab.tree, "status", "--porcelain") == ""
    assert git(lab.tree, "rev-parse", "HEAD^{tree}") == one["tree"]


def test_unchanged_inputs_leave_the_tree_alone(lab: ForkLab) -> None:
    lab.change("a.patch", {"python/calc/core.py": core(add="a")})
    lab.ok("apply")
    before = (lab.tree / ".git/forkpatch.json").stat()
    done = lab.ok("apply")
    assert "nothing changed, nothing done" in done.out
    after = (lab.tree / ".git/forkpatch.json").stat()
    assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


@pytest.mark.parametrize("what", ["patch", "overlay", "order"])
def test_any_changed_input_makes_the_tree_stale(lab: ForkLab, what: str) -> None:
    lab.change("a.patch", {"python/calc/core.py": core(add="a")})
    lab.change("b.patch", {"src/run.c": b"int run(void)\n{\n    return 1;\n}\n"})
    lab.ok("apply")
    if what == "patch":
        path = lab.patches / "b.patch"
        path.write_bytes(path.read_bytes().replace(b"return 1", b"return 2"))
    elif what == "overlay":
        lab.overlays.mkdir(parents=True)
        (lab.overlays / "new.py").write_text("")
    else:
        (lab.patches / "series").write_text("b.patch\na.patch\n")
    (tree,) = lab.ok("status", "--json", "-").json["upstreams"]
    expected = {
        "patch": "patch b.patch changed",
        "overlay": "new overlay new.py",
        "order": "the order of the series changed",
    }
    assert (tree["state"], tree["reasons"]) == ("stale", [expected[what]])
    assert "applied" in lab.ok("apply").out
    (tree,) = lab.ok("status", "--json", "-").json["upstreams"]
    assert (tree["state"], tree["reasons"]) == ("applied", [])


def test_hunk_one_line_off_is_refused_and_the_old_tree_stays(lab: ForkLab) -> None:
    lab.ok("apply")
    data = lab.repo.patch({"python/calc/core.py": core(sub="b - a")}, message("Turn"))
    # The same three lines of context exist at the stated place of another function.
    lab.add_patch("off.patch", data.replace(b"@@ -7,7 +7,7 @@", b"@@ -8,7 +8,7 @@"))
    done = lab.run("apply")
    assert done.code == 2
    assert "off.patch:15" in done.err
    assert "does not apply to line 8 of python/calc/core.py" in done.err
    assert (lab.tree / "python/calc/core.py").read_bytes() == CORE
    (tree,) = lab.ok("status", "--json", "-").json["upstreams"]
    assert tree["state"] == "stale"


def test_second_patch_failing_writes_nothing_of_the_first(lab: ForkLab) -> None:
    lab.ok("apply")
    lab.change("good.patch", {"python/calc/core.py": core(add="a")})
    data = lab.repo.patch({"python/calc/core.py": core(add="a", mul="b")}, message("Bad"))
    lab.add_patch("bad.patch", data.replace(b"-    return a * b", b"-    return a / b"))
    assert lab.run("apply").code == 2
    assert (lab.tree / "python/calc/core.py").read_bytes() == CORE


def test_new_removed_renamed_and_mode_changed_files(lab: ForkLab) -> None:
    lab.change("make.patch", {"python/calc/né w.py": b"N = 1\n"})
    lab.change("drop.patch", {"src/run.c": None})
    (lab.repo.path / "python/calc/tail.py").rename(lab.repo.path / "python/calc/end.py")
    lab.change("move.patch", {"python/calc/né w.py": b"N = 1\nM = 2\n"})
    (lab.repo.path / "python/calc/core.py").chmod(0o755)
    lab.change("mode.patch", {})
    lab.ok("apply")
    assert (lab.tree / "python/calc/né w.py").read_bytes() == b"N = 1\nM = 2\n"
    assert not (lab.tree / "src/run.c").exists()
    assert (lab.tree / "python/calc/end.py").read_bytes() == FILES["python/calc/tail.py"]
    assert not (lab.tree / "python/calc/tail.py").exists()
    assert (lab.tree / "python/calc/core.py").stat().st_mode & 0o100
    expected = git(lab.repo.path, "rev-parse", "HEAD:python")
    assert git(lab.tree, "rev-parse", "HEAD:python") == expected


def new_file(path: str) -> bytes:
    mail = "From: A <a@b.c>\nDate: Fri, 2 Jan 2026 03:04:05 +0200\nSubject: [PATCH] New\n\n---\n"
    head = f"diff --git a/{path} b/{path}\nnew file mode 100644\n--- /dev/null\n+++ b/{path}\n"
    return f"{mail}{head}@@ -0,0 +1 @@\n+int n;\n".encode()


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("src/run.c/x.c", "src/run.c is a file"),
        ("src", "it is the folder of src/run.c"),
        ("new/a.c/x", "new/a.c is a file"),
    ],
)
def test_file_in_the_place_of_a_folder_or_below_a_file_is_refused(
    lab: ForkLab, path: str, reason: str
) -> None:
    lab.add_patch("first.patch", new_file("new/a.c"))
    lab.ok("apply")
    lab.add_patch("a.patch", new_file(path))
    done = lab.run("apply")
    assert done.code == 2
    assert f"a.patch:6: {path} cannot be created: {reason}" in done.err
    assert (lab.tree / "src/run.c").is_file() and (lab.tree / "new/a.c").is_file()


def test_file_gives_way_to_a_folder_and_a_folder_to_a_file(lab: ForkLab) -> None:
    run = FILES["src/run.c"]
    lab.change("a.patch", {"src/run.c": None, "lib/run.c": run})
    git(lab.repo.path, "rm", "-q", "-r", "lib")
    (lab.repo.path / "lib").write_bytes(b"one file\n")
    (lab.repo.path / "src/run.c").mkdir(parents=True)
    lab.change("b.patch", {"src/run.c/x.c": run})
    lab.ok("record")
    lab.ok("apply")
    assert (lab.tree / "lib").read_bytes() == b"one file\n"
    assert (lab.tree / "src/run.c/x.c").read_bytes() == run
    assert lab.ok("export", "--check").out == "calc 1.0: 2 patches, unchanged\n"
    done = lab.run("tree", "calc", "--only", "b.patch", "--output", str(lab.root / "out"))
    assert done.code == 2 and "b.patch cannot be without a patch" in done.err


@pytest.mark.parametrize(("overlay", "path"), [("new/a.c", "new"), ("new", "new/a.c")])
def test_overlay_and_patch_that_exclude_each_other_are_named(
    lab: ForkLab, overlay: str, path: str
) -> None:
    (lab.overlays / overlay).parent.mkdir(parents=True)
    (lab.overlays / overlay).write_bytes(b"x\n")
    lab.add_patch("a.patch", new_file(path))
    done = lab.run("apply")
    assert done.code == 2
    assert f"collides with the patch a.patch, which touches {path}" in done.err


def test_carriage_returns_and_a_missing_last_newline_survive(lab: ForkLab) -> None:
    edits = {
        "python/calc/dos.py": b"A = 1\r\nB = 3\r\nC = 3\r\n",
        "python/calc/tail.py": b"X = 1\nY = 2\nZ = 3",
    }
    lab.change("ends.patch", edits)
    lab.ok("apply")
    for path, data in edits.items():
        assert (lab.tree / path).read_bytes() == data


@pytest.mark.parametrize(
    ("path", "blocker"),
    [
        ("python/calc/core.py", "the file python/calc/core.py"),
        ("python/calc", "the folder python/calc/"),
        ("LICENSE/extra", "the file LICENSE"),
    ],
)
def test_overlay_over_an_upstream_file_names_both(lab: ForkLab, path: str, blocker: str) -> None:
    target = lab.overlays / path
    target.parent.mkdir(parents=True)
    target.write_text("mine\n")
    done = lab.run("apply")
    assert done.code == 2
    assert f"overlay {target} collides with {blocker} of calc 1.0" in done.err
    assert not lab.tree.exists()


def test_overlay_and_patch_that_make_the_same_file_are_named(lab: ForkLab) -> None:
    lab.change("make.patch", {"python/calc/new.py": b"1\n"})
    (lab.overlays / "python/calc").mkdir(parents=True)
    (lab.overlays / "python/calc/new.py").write_text("2\n")
    done = lab.run("apply")
    assert done.code == 2
    assert "new.py collides with the patch make.patch" in done.err


def test_work_done_in_the_tree_is_not_thrown_away_unasked(lab: ForkLab) -> None:
    lab.ok("apply")
    edited = lab.tree / "python/calc/core.py"
    edited.write_bytes(b"mine\n")
    (lab.tree / "notes.txt").write_text("mine too\n")
    (tree,) = lab.ok("status", "--json", "-").json["upstreams"]
    assert tree["state"] == "edited"
    assert tree["reasons"] == ["changed: python/calc/core.py", "new file: notes.txt"]
    done = lab.run("apply")
    assert done.code == 2
    assert "python/calc/core.py" in done.err and "--discard" in done.err
    assert edited.read_bytes() == b"mine\n"
    lab.ok("apply", "--discard")
    assert edited.read_bytes() == CORE


def test_advice_is_about_the_release_whose_tree_has_the_work(lab: ForkLab) -> None:
    lab.edit_lock("[releases.r1]", '[releases.r2]\ncalc = "1.0"\n[releases.r1]')
    tree = lab.root / ".work/r2/calc"
    said = lab.run("export", "calc", "--release", "r2").err
    assert "type: forkpatch edit calc --release r2" in said
    assert "up to date: forkpatch apply --release r2\n" in lab.ok("status", "--release", "r2").out
    for release in ("r1", "r2"):
        lab.ok("apply", "--release", release)
    (tree / "LICENSE").write_text("mine\n")
    said = lab.run("apply", "--release", "r2").err
    assert "forkpatch export calc --release r2" in said
    assert "forkpatch apply --discard --release r2" in said
    assert "forkpatch absorb calc --release r2" in lab.run("export", "--release", "r2").err
    assert "forkpatch export calc --release r2\n" in lab.ok("status", "--release", "r2").out
    (lab.tree / "LICENSE").write_text("mine\n")
    assert "forkpatch apply --discard\n" in lab.run("apply").err


def test_a_shallow_fetch_and_settings_of_the_tree_outlast_it(lab: ForkLab) -> None:
    for subject in ("older", "newer"):
        lab.repo.commit({"README.md": subject.encode()}, subject)
    lab.ok("apply")
    source = f"file://{lab.repo.path}"
    git(lab.tree, "fetch", "-q", "--depth=1", source, "HEAD:refs/heads/newer")
    git(lab.tree, "config", "extensions.worktreeConfig", "true")
    git(lab.tree, "config", "--worktree", "user.nickname", "kept")
    lab.change("a.patch", {"python/calc/core.py": core(add="a")})
    assert "applied" in lab.ok("apply").out
    assert git(lab.tree, "log", "--format=%s", "newer") == "newer"
    assert git(lab.tree, "config", "user.nickname") == "kept"


def test_a_change_of_an_overlay_that_the_tree_has_too_is_no_work_to_lose(lab: ForkLab) -> None:
    lab.overlays.mkdir(parents=True)
    for name in ("changed.py", "deleted.py"):
        (lab.overlays / name).write_text("A = 1\n")
    lab.ok("apply")
    for folder in (lab.overlays, lab.tree):
        (folder / "changed.py").write_text("A = 2\n")
        (folder / "new.py").write_text("B = 1\n")
        (folder / "deleted.py").unlink()
    assert lab.ok("status", "--json", "-").json["upstreams"][0]["state"] == "stale"
    (lab.tree / "new.py").write_text("B = 2\n")
    done = lab.run("apply")
    assert done.code == 2 and "was worked in: new file: new.py\n" in done.err
    (lab.tree / "new.py").write_text("B = 1\n")
    assert "applied" in lab.ok("apply").out
    assert git(lab.tree, "status", "--porcelain") == ""
    assert (lab.tree / "changed.py").read_text() == "A = 2\n"


def test_traces_of_running_the_tree_are_no_work_done_in_it(lab: ForkLab) -> None:
    lab.ok("apply")
    traces = lab.tree / "python/calc/__pycache__"
    traces.mkdir()
    (traces / "core.pyc").write_bytes(b"\0")
    assert "nothing changed" in lab.ok("apply").out


def test_swap_in_two_steps_where_names_cannot_be_exchanged(
    lab: ForkLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(swap.sys, "platform", "other")
    lab.ok("apply")
    lab.change("a.patch", {"python/calc/core.py": core(add="a")})
    lab.ok("apply")
    assert (lab.tree / "python/calc/core.py").read_bytes() == core(add="a")
    assert [path.name for path in lab.tree.parent.iterdir() if path.is_dir()] == ["calc"]


def test_tree_put_aside_by_a_killed_swap_comes_back(lab: ForkLab) -> None:
    lab.ok("apply")
    lab.tree.rename(lab.tree.parent / ".forkpatch-old-calc")
    (lab.tree.parent / ".forkpatch-new-abc/python").mkdir(parents=True)
    (tree,) = lab.ok("status", "--json", "-").json["upstreams"]
    assert tree["state"] == "applied"
    assert [path.name for path in lab.tree.parent.iterdir() if path.is_dir()] == ["calc"]


def test_user_mistakes_exit_2_with_a_remedy(lab: ForkLab, tmp_path: Path) -> None:
    lab.ok("apply")  # a tree that is up to date asks no mirror, and a mistake is one all the same
    for args, words in (
        (("apply", "--release", "r9"), ("no release 'r9'", "releases: r1")),
        (("apply", "--mirror", "calc"), ("NAME=VALUE",)),
        (("apply", "--mirror", f"calc={tmp_path}/no"), ("there is no such folder",)),
        (("apply", "--mirror", "calc=/no", "--offline"), ("=/no: there is no", "give a folder")),
        (("apply", "--mirror", f"calc={tmp_path}"), (f"{tmp_path}: it is not a git repo",)),
        (("apply", "--source", "calc=ftp"), ("sources: wheel, git",)),
        (("apply", "--require", "nope"), ("no upstream 'nope'", "upstreams: calc")),
        (("tree", "nope", "--output", "x"), ("no upstream 'nope'",)),
        (("tree", "calc", "--without", "n", "--output", "x"), ("no patch 'n'",)),
    ):
        done = lab.run(*args)
        assert done.code == 2, args
        assert all(word in done.err for word in words), done.err
        assert "Traceback" not in done.err


@pytest.mark.parametrize("harm", ["stamp", "objects"])
def test_damaged_tree_is_called_broken_and_can_be_built_anew(lab: ForkLab, harm: str) -> None:
    lab.ok("apply")
    if harm == "stamp":
        (lab.tree / ".git/forkpatch.json").write_text("{")
    else:
        shutil.rmtree(lab.tree / ".git/objects")
    (tree,) = lab.ok("status", "--json", "-").json["upstreams"]
    assert tree["state"] == "broken"
    lab.ok("apply", "--discard")
    (tree,) = lab.ok("status", "--json", "-").json["upstreams"]
    assert (tree["state"], tree["reasons"]) == ("applied", [])


def test_table_in_a_file_has_no_broken_path(lab: ForkLab, monkeypatch: pytest.MonkeyPatch) -> None:
    name = f"a{'-long' * 20}-name"
    lab.edit_lock('"r1"', f'"{name}"')
    lab.edit_lock("releases.r1", f"releases.{name}")
    monkeypatch.delenv("COLUMNS")
    assert f".work/{name}/calc" in lab.ok("apply").out


@pytest.mark.parametrize("harm", ["stamp", "objects"])
def test_work_in_a_damaged_tree_is_not_thrown_away_unasked(lab: ForkLab, harm: str) -> None:
    lab.ok("apply")
    (lab.tree / "mine.py").write_text("A = 1\n")
    if harm == "stamp":
        (lab.tree / ".git/forkpatch.json").unlink()
    else:
        shutil.rmtree(lab.tree / ".git/objects")
    for verb in (["apply"], ["edit", "calc"]):
        done = lab.run(*verb)
        assert done.code == 2 and "apply --discard" in done.err
        assert (lab.tree / "mine.py").read_text() == "A = 1\n"
    shutil.rmtree(lab.tree)
    lab.tree.mkdir()
    lab.ok("apply")
