# SPDX-License-Identifier: Apache-2.0
"""Leftovers of runs that failed or were killed: nobody has to remove them by hand."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from forklab import ForkLab, core, git

from forkpatch.rebase import resolution, result
from forkpatch.series import mailbox
from forkpatch.tree import swap
from forkpatch.tree.swap import remove_tree
from groundwork.files import atomic_path
from groundwork.locks import folder_locked

CORE_PATH = "python/calc/core.py"
DEEP = 2500


def make_deep(folder: Path, name: str) -> None:
    """Folders in folders, deeper than any path can name, with a file at the bottom."""
    handle = os.open(folder, os.O_RDONLY)
    for _ in range(DEEP):
        os.mkdir(name, dir_fd=handle)
        inner = os.open(name, os.O_RDONLY, dir_fd=handle)
        os.close(handle)
        handle = inner
    os.close(os.open("file", os.O_CREAT | os.O_WRONLY, dir_fd=handle))
    os.close(handle)


def test_folder_of_any_depth_is_removed(tmp_path: Path) -> None:
    folder = tmp_path / "tree"
    (folder / "beside").mkdir(parents=True)
    (folder / "link").symlink_to(tmp_path)
    make_deep(folder, "d")
    remove_tree(folder)
    assert list(tmp_path.iterdir()) == []


def test_path_of_2500_folders_is_refused_and_leaves_nothing(lab: ForkLab) -> None:
    lab.change("a.patch", {CORE_PATH: core(add="a")})
    lab.ok("apply")
    series = (lab.patches / "series").read_text()
    path = "d/" * DEEP + "x"
    head = "From: A <a@b.c>\nDate: Fri, 2 Jan 2026 03:04:05 +0200\nSubject: [PATCH] Deep\n\n"
    diff = f"diff --git a/{path} b/{path}\nnew file mode 100644\n--- /dev/null\n+++ b/{path}\n"
    lab.add_patch("deep.patch", f"{head}{diff}@@ -0,0 +1 @@\n+x\n".encode())
    done = lab.run("apply")
    assert done.code == 2 and "deep.patch" in done.err and "longer than" in done.err
    assert len(done.err) < 1000
    # As an earlier version left it.
    (lab.tree.parent / ".forkpatch-new-x").mkdir()
    make_deep(lab.tree.parent / ".forkpatch-new-x", "d")
    (lab.patches / "series").write_text(series)
    lab.ok("apply")
    assert [path.name for path in lab.tree.parent.iterdir()] == ["calc"]


def test_file_half_written_by_a_killed_run_is_removed(lab: ForkLab) -> None:
    lab.change("a.patch", {CORE_PATH: core(add="a")})
    if (child := os.fork()) == 0:
        with atomic_path(lab.patches / "derived.json") as scratch:
            scratch.write_text("{")
            os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(child, 0)
    report = lab.root / ".work/.rebase-calc.json.new-abcdefgh"
    report.touch()
    mine = lab.patches / ".notes.new"
    mine.write_text("")
    assert len(list(lab.patches.glob(".derived.json*"))) == 1
    lab.ok("record")
    assert not list(lab.patches.glob(".derived.json*")) and not report.exists()
    assert mine.exists()


def test_file_half_written_to_the_cache_is_removed_when_it_is_old(lab: ForkLab) -> None:
    """Other forks use the cache at the same time, so that no lock tells a killed run's."""
    lab.forget(mirrors=False)
    old, new = (lab.cache / f".seen.json.new-{name}" for name in ("abcdefgh", "ijklmnop"))
    old.touch()
    new.touch()
    os.utime(old, (0, 0))
    lab.ok("lock")
    assert new.exists() and not old.exists()


@pytest.fixture
def stopped(lab: ForkLab) -> ForkLab:
    """A rebase that has stopped at a conflict."""
    lab.change("a.patch", {CORE_PATH: core(sub="b - a")})
    lab.change("b.patch", {"LICENSE": b"ours\n"})
    git(lab.repo.path, "checkout", "-q", "--detach", "v1.0")
    commit = lab.repo.commit({CORE_PATH: core(sub="a + 1")}, "Move on")
    with (lab.root / "VERSIONS.lock").open("a") as lock:
        lock.write(
            f'\n[upstreams.calc.versions."2.0"]\ncommit = "{commit}"\n'
            'include = ["python/calc", "src", "LICENSE"]\nexclude = ["src/*.cu"]\n'
        )
    lab.ok("lock")
    assert lab.run("rebase", "calc", "2.0").code == 1
    return lab


def test_locks_of_a_git_killed_with_its_rebase_are_removed(stopped: ForkLab) -> None:
    folder = stopped.root / ".work/rebase/calc"
    lock = folder / "tree/.git/index.lock"
    lock.touch()
    (folder / "tree" / CORE_PATH).write_bytes(core(sub="b - 1"))
    done = stopped.run("rebase", "calc", "--continue")
    assert done.code == 1 and f"remove {lock}" in done.err, "a git of the user's may be at work"
    (folder / "running").touch()
    done = stopped.run("rebase", "calc", "--continue")
    assert done.code == 0, done.err
    assert (stopped.root / "patches/calc/2.0/series").is_file()


def test_resolution_outlives_a_continue_that_is_killed(
    stopped: ForkLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing but the working tree has it while its lines are counted."""
    tree = stopped.root / ".work/rebase/calc/tree"
    (tree / CORE_PATH).write_bytes(core(sub="b - 1"))

    with monkeypatch.context() as patch:
        patch.setattr(resolution, "_lines_by_hand", lambda *_: os.kill(os.getpid(), signal.SIGKILL))
        pid = os.fork()
        if not pid:
            stopped.run("rebase", "calc", "--continue")
            os._exit(0)
        assert os.WIFSIGNALED(os.waitpid(pid, 0)[1])
    assert (tree / CORE_PATH).read_bytes() == core(sub="b - 1")
    stopped.ok("rebase", "calc", "--continue")
    assert b"+    return b - 1\n" in (stopped.root / "patches/calc/2.0/a.patch").read_bytes()


def test_rebase_killed_after_its_series_was_written_can_go_on(
    stopped: ForkLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    (stopped.root / ".work/rebase/calc/tree" / CORE_PATH).write_bytes(core(sub="b - 1"))
    with monkeypatch.context() as patch:
        patch.setattr(result, "remove_tree", lambda _: os.kill(os.getpid(), signal.SIGKILL))
        pid = os.fork()
        if not pid:
            stopped.run("rebase", "calc", "--continue")
            os._exit(0)
        assert os.WIFSIGNALED(os.waitpid(pid, 0)[1])
    written = (stopped.root / "patches/calc/2.0/series").read_text()
    assert written == "a.patch\n../1.0/b.patch\n"
    stopped.ok("rebase", "calc", "--continue")
    assert (stopped.root / "patches/calc/2.0/series").read_text() == written
    assert not (stopped.root / ".work/rebase/calc").exists()


def test_killed_import_leaves_no_upstream_among_the_patches(
    lab: ForkLab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    diff = f"--- a/{CORE_PATH}\n+++ b/{CORE_PATH}\n@@ -2,1 +2,2 @@\n     check(a)\n+    log(a)\n"
    (tmp_path / "q").mkdir()
    (tmp_path / "q/log.patch").write_text(diff)
    (tmp_path / "q/series").write_text("log.patch\n")
    monkeypatch.setattr(mailbox, "_exported", lambda *_: os.kill(os.getpid(), signal.SIGKILL))
    pid = os.fork()
    if not pid:
        lab.run("import-series", "calc", str(tmp_path / "q"))
        os._exit(0)
    _, code = os.waitpid(pid, 0)
    monkeypatch.undo()
    monkeypatch.setenv("XDG_CACHE_HOME", str(lab.home / "cache"))
    assert os.WIFSIGNALED(code)
    assert not (lab.root / "patches").exists()
    lab.ok("import-series", "calc", str(tmp_path / "q"))
    assert (lab.root / "patches/calc/1.0/series").read_text() == "log.patch\n"
    assert not list((lab.root / ".work").glob(".forkpatch-new-*"))


@pytest.mark.parametrize(
    "words",
    [
        ("tree", "calc", "--pristine"),
        ("submit", "calc", "--onto", "v1.0"),
        ("export", "calc", "--format", "quilt"),
    ],
    ids=lambda words: words[0],
)
def test_next_run_to_the_same_output_removes_what_a_killed_one_left(
    lab: ForkLab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    lab.change("a.patch", {CORE_PATH: core(sub="b - a")})
    place = tmp_path / "place"
    command = (*words, "--output", str(place / "out"))

    def left() -> list[Path]:
        return sorted(place.glob(".forkpatch-new-*"))

    with monkeypatch.context() as patch:
        patch.setattr(swap, "sync_tree", lambda _: os.kill(os.getpid(), signal.SIGKILL))
        pid = os.fork()
        if not pid:
            lab.run(*command)
            os._exit(0)
        assert os.WIFSIGNALED(os.waitpid(pid, 0)[1])
    (killed,) = left()
    # Those of other outputs, and of a run that is at work, are none of its business.
    other, living = place / ".forkpatch-new-x", place / f"{killed.name}x"
    other.mkdir()
    living.mkdir()
    with folder_locked(living):
        lab.ok(*command)
    assert left() == sorted([other, living])
    assert any((place / "out").iterdir())
    # Nor does one stay when the output is there already, from a run beside it.
    done = lab.run(*command)
    assert done.code == 2 and "exists and is not empty" in done.err
    assert left() == [other]


def test_scratch_of_an_output_in_the_fork_outlives_the_verbs_beside_it(lab: ForkLab) -> None:
    lab.ok("apply")
    living, dead = (lab.root / f".work/.forkpatch-new-{name}" for name in ("living", "dead"))
    living.mkdir()
    dead.mkdir()
    with folder_locked(living):
        lab.ok("apply")
    assert living.is_dir() and not dead.exists()
    lab.ok("apply")
    assert not living.exists()
