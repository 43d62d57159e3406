# SPDX-License-Identifier: Apache-2.0
"""Killed at any moment, a run leaves the old tree or the new one, and `status` tells which."""

from __future__ import annotations

import fcntl
import random
import time

from forklab import ForkLab, core, git

KILLS = 50


def test_killed_apply_leaves_the_old_or_the_new_tree_whole(lab: ForkLab) -> None:
    bodies = (core(add="a"), core(add="b"))
    lab.change("a.patch", {"python/calc/core.py": bodies[0]})
    one = (lab.patches / "a.patch").read_bytes()
    other = one.replace(b"+    return a\n", b"+    return b\n")
    began = time.monotonic()
    lab.ok("apply")
    (lab.patches / "a.patch").write_bytes(other)
    process = lab.spawn("apply")
    process.communicate()
    span = time.monotonic() - began
    chance = random.Random(20261121)
    seen = set()
    for turn in range(KILLS):
        patch = (one, other)[turn % 2]
        (lab.patches / "a.patch").write_bytes(patch)
        process = lab.spawn("apply")
        time.sleep(chance.uniform(0, span))
        process.kill()
        process.communicate()
        (tree,) = lab.ok("status", "--json", "-").json["upstreams"]
        assert tree["state"] in ("applied", "stale"), tree
        assert git(lab.tree, "status", "--porcelain") == ""
        content = (lab.tree / "python/calc/core.py").read_bytes()
        assert content in bodies
        is_new = content == bodies[turn % 2]
        assert is_new == (tree["state"] == "applied")
        seen.add(tree["state"])
    lab.ok("apply")
    left = [path.name for path in lab.tree.parent.iterdir()]
    assert sorted(left) == [".forkpatch.lock", "calc"]
    assert seen == {"applied", "stale"}


def test_second_run_on_one_work_folder_waits_and_says_so(lab: ForkLab) -> None:
    lab.ok("apply")
    lock = lab.root / ".work/r1/.forkpatch.lock"
    with lock.open("r+") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        process = lab.spawn("apply")
        assert process.stderr is not None
        line = process.stderr.readline().decode()
        assert "waiting" in line and "in use by process" in line
        assert process.poll() is None
        (tree,) = lab.ok("status", "--json", "-").json["upstreams"]
        assert tree["state"] == "applied"
    process.communicate(timeout=60)
    assert process.returncode == 0
