# SPDX-License-Identifier: Apache-2.0
"""A conflict that was resolved once is resolved alike when it comes again, elsewhere."""

from __future__ import annotations

import shutil

import pytest
from forklab import CORE, ForkLab, core, git, message

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
    assert kept == ["postimage", "preimage"]
    shutil.rmtree(branches.root / ".work")
    done = branches.ok("rebase", "calc", "2.1")
    assert "turn-sub.patch: adapted: conflict: resolved as recorded" in done.out
    assert "+    return abs(b - a)" in done.out  # it is shown, for a person to look over
    branches.edit_lock('calc = "1.0"', 'calc = "2.1"')
    branches.ok("apply")
    assert (branches.tree / PATH).read_bytes() == b"import os\n\n\n" + RESOLVED


def test_without_the_record_or_in_another_conflict_a_person_is_asked(branches: ForkLab) -> None:
    resolve(branches)
    for path in (branches.patches.parent / "resolutions").glob("*/postimage"):
        path.unlink()
    assert branches.run("rebase", "calc", "2.1").code == 1
    branches.ok("rebase", "calc", "--abort")
    git(branches.repo.path, "checkout", "-q", "-B", "next", "v1.0")
    branches.repo.commit({PATH: CORE.replace(b"return a - b", b"return int(a - b)")}, "3.0")
    git(branches.repo.path, "tag", "v3.0")
    branches.ok("lock", "--add", "calc=3.0")
    assert branches.run("rebase", "calc", "3.0").code == 1
