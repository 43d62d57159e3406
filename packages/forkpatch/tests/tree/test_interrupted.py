# SPDX-License-Identifier: Apache-2.0
"""Runs killed at random moments: each leaves the old state or the new one, as `status` reports.

``FORKPATCH_KILLS`` sets how often each verb is killed. A run is a fork of the test's process, so
that it is killed at work and not while Python starts.
"""

from __future__ import annotations

import fcntl
import os
import random
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from forklab import CORE, ForkLab, core, git, start, wait_for_git

pytestmark = pytest.mark.slow
APPLY_KILLS = int(os.environ.get("FORKPATCH_KILLS", "50"))
OTHER_KILLS = int(os.environ.get("FORKPATCH_KILLS", "12"))
SEED = 20261121
CORE_PATH = "python/calc/core.py"


def kills(lab: ForkLab, count: int, span: float, *args: str) -> Iterator[int]:
    """Start the verb and kill it after a random part of ``span`` seconds; yields the turn."""
    chance = random.Random(SEED)
    for turn in range(count):
        pid = start(lab.root, *args)
        time.sleep(chance.uniform(0.02, 1.1) * span)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        wait_for_git(lab.root)
        yield turn


def duration(lab: ForkLab, *args: str) -> float:
    began = time.monotonic()
    _, code = os.waitpid(start(lab.root, *args), 0)
    assert code == 0
    return time.monotonic() - began


def status(lab: ForkLab) -> str:
    (tree,) = lab.ok("status", "--json", "-").json["upstreams"]
    return str(tree["state"])


def content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_killed_apply_leaves_the_old_or_the_new_tree_whole(lab: ForkLab) -> None:
    bodies = (core(add="a"), core(add="b"))
    lab.change("a.patch", {CORE_PATH: bodies[0]})
    one = (lab.patches / "a.patch").read_bytes()
    patches = (one, one.replace(b"+    return a\n", b"+    return b\n"))
    lab.ok("apply")
    (lab.patches / "a.patch").write_bytes(patches[1])
    span = duration(lab, "apply")
    (lab.patches / "a.patch").write_bytes(patches[0])
    seen = set()
    for turn in kills(lab, APPLY_KILLS, span, "apply"):
        state = status(lab)
        assert state in ("applied", "stale")
        assert git(lab.tree, "status", "--porcelain") == ""
        found = (lab.tree / CORE_PATH).read_bytes()
        assert found in bodies
        assert (found == bodies[turn % 2]) == (state == "applied")
        seen.add(state)
        (lab.patches / "a.patch").write_bytes(patches[(turn + 1) % 2])
    lab.ok("apply")
    left = [path.name for path in lab.tree.parent.iterdir()]
    assert left == ["calc"]
    assert seen == {"applied", "stale"}


def test_killed_export_leaves_the_old_or_the_new_series_whole(lab: ForkLab) -> None:
    lab.change("a.patch", {CORE_PATH: core(add="a")})
    lab.ok("record")
    lab.ok("apply")
    old = content(lab.patches)
    (lab.tree / CORE_PATH).write_bytes(core(add="a", mul="0"))
    git(lab.tree, "commit", "-qam", "Second")
    more = git(lab.tree, "rev-parse", "HEAD")
    span = duration(lab, "export")
    new = content(lab.patches)
    assert old != new
    less = git(lab.tree, "rev-parse", "HEAD~1")
    git(lab.tree, "reset", "-q", "--hard", less)
    wanted, other, target = old, new, less
    for _ in kills(lab, OTHER_KILLS, span, "export"):
        assert status(lab) in ("applied", "edited", "stale")
        assert content(lab.patches) in (old, new)
        lab.ok("export")
        assert content(lab.patches) == wanted
        assert status(lab) == "applied"
        wanted, other = other, wanted
        target = more if wanted == new else less
        git(lab.tree, "reset", "-q", "--hard", target)
    assert [path.name for path in lab.patches.parent.iterdir()] == ["1.0"]


def test_killed_rebase_goes_on_or_is_given_up(lab: ForkLab) -> None:
    lab.change("a.patch", {CORE_PATH: core(sub="b - a")})
    lab.change("b.patch", {CORE_PATH: core(sub="b - a", mul="0")})
    git(lab.repo.path, "checkout", "-q", "--detach", "v1.0")
    commit = lab.repo.commit({CORE_PATH: b"import os\n" + CORE}, "Move on")
    with (lab.root / "VERSIONS.lock").open("a") as lock:
        lock.write(
            f'\n[upstreams.calc.versions."2.0"]\ncommit = "{commit}"\n'
            'include = ["python/calc", "src", "LICENSE"]\nexclude = ["src/*.cu"]\n'
        )
    lab.ok("lock")
    old = content(lab.patches)
    target = lab.root / "patches/calc/2.0"
    span = duration(lab, "rebase", "calc", "2.0")
    new = content(target)
    remove(target)
    for turn in kills(lab, OTHER_KILLS, span, "rebase", "calc", "2.0"):
        assert content(lab.patches) == old
        under_way = lab.ok("rebase", "calc", "--status", "--json", "-").json
        if under_way and turn % 2:
            lab.ok("rebase", "calc", "--continue")
        elif under_way:
            lab.ok("rebase", "calc", "--abort")
        if target.exists():
            assert content(target) == new
            remove(target)
        assert lab.ok("rebase", "calc", "--status", "--json", "-").json is None
    lab.ok("rebase", "calc", "2.0")
    assert content(target) == new


def remove(folder: Path) -> None:
    for path in folder.iterdir():
        path.unlink()
    folder.rmdir()


def test_second_run_on_one_work_folder_waits_and_says_so(lab: ForkLab) -> None:
    lab.ok("apply")
    lock = lab.root / ".work/.forkpatch.lock"
    with lock.open("r+") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        process = lab.spawn("apply")
        assert process.stderr is not None
        line = process.stderr.readline().decode()
        assert "waiting" in line and "in use by process" in line
        assert process.poll() is None
        assert status(lab) == "applied"
    process.communicate(timeout=60)
    assert process.returncode == 0
