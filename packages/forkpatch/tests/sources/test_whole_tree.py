# SPDX-License-Identifier: Apache-2.0
"""Whole trees, tags without a commit, submodules, and pins that are looked up a second time."""

from __future__ import annotations

from pathlib import Path

import pytest
from forklab import CORE, FILES, FORMAT, ForkLab, Repo, core, git, message

INCLUDE = 'include = ["python/calc", "src", "LICENSE"]\nexclude = ["src/*.cu"]\n'


def test_without_include_the_tree_is_the_commits(lab: ForkLab) -> None:
    lab.write_lock()
    lab.edit_lock(INCLUDE, "")
    lab.ok("lock", "--offline")
    tree = git(lab.repo.path, "rev-parse", "HEAD^{tree}")
    assert f'tree = "{tree}"' in (lab.root / "VERSIONS.lock").read_text()
    lab.ok("apply")
    assert (lab.tree / "README.md").read_bytes() == FILES["README.md"]
    lab.edit_lock('tree = "', 'include = ["."]\ntree = "')
    assert "up to date" in lab.ok("lock", "--check", "--offline").out


def test_tag_is_pin_enough(lab: ForkLab) -> None:
    commit = lab.repo.head
    lab.write_lock()
    lab.edit_lock(f'commit = "{commit}"\n', "")
    done = lab.run("apply")
    assert done.code == 2 and "type: forkpatch lock" in done.err
    assert f"commit {commit}; the lock had none" in lab.ok("lock").out
    assert f'commit = "{commit}"' in (lab.root / "VERSIONS.lock").read_text()
    lab.ok("apply")


def test_tag_that_is_nowhere_is_an_error_until_it_is_pinned(lab: ForkLab) -> None:
    lab.write_lock(tag="v9.9")
    lab.edit_lock(f'commit = "{lab.repo.head}"\n', "")
    before = (lab.root / "VERSIONS.lock").read_text()
    done = lab.run("lock", "--offline")
    assert done.code == 1
    assert "calc 1.0 could not be pinned" in done.err and "no tag v9.9" in done.err
    assert (lab.root / "VERSIONS.lock").read_text() == before


def test_lock_with_nothing_changed_reads_no_file_again(lab: ForkLab) -> None:
    lab.locked()
    blob = git(lab.repo.path, "rev-parse", "HEAD:src/run.c")
    (lab.repo.path / ".git/objects" / blob[:2] / blob[2:]).unlink()
    done = lab.ok("lock", "--offline")
    assert done.out == "VERSIONS.lock: up to date\n"
    lab.forget(mirrors=False)
    assert "lacks the file src/run.c" in lab.ok("lock", "--offline").out


@pytest.fixture
def nested(lab: ForkLab, tmp_path: Path) -> ForkLab:
    """The upstream has a submodule src/third, and that one a submodule deep/x y."""
    inner = Repo.create(tmp_path / "inner", {"leaf.txt": b"leaf\n"})
    third = Repo.create(tmp_path / "third", {"third.c": b"int third;\n", "third.cu": b"gpu\n"})
    git(third.path, "submodule", "--quiet", "add", str(inner.path), "deep/x y")
    git(third.path, "commit", "-qm", "Inner")
    git(lab.repo.path, "submodule", "--quiet", "add", "../third", "src/third")
    lab.repo.commit({}, "Third")
    lab.write_lock(tag="")
    return lab


def test_submodule_is_left_out_and_named_or_part_of_the_tree(nested: ForkLab) -> None:
    done = nested.ok("lock")
    assert 'the submodule src/third: submodules = ["src/third"] brings it in' in done.err
    nested.ok("apply")
    assert not (nested.tree / "src/third").exists()
    nested.edit_lock("include = ", 'submodules = ["src/third"]\ninclude = ')
    done = nested.ok("lock")
    assert 'the submodule src/third/deep/x y: submodules = ["src/third/deep/x y"]' in done.err
    nested.ok("apply")
    assert (nested.tree / "src/third/third.c").read_bytes() == b"int third;\n"
    assert not (nested.tree / "src/third/third.cu").exists()  # as the lock excludes it
    nested.edit_lock('["src/third"]', '["*"]')
    nested.ok("lock")
    nested.forget()
    nested.ok("apply")
    assert (nested.tree / "src/third/deep/x y/leaf.txt").read_bytes() == b"leaf\n"
    (nested.tree / "src/third/third.c").write_bytes(b"int ours;\n")
    git(nested.tree, "commit", "-qam", message("Third is ours"))
    nested.ok("export")
    nested.ok("apply")
    assert (nested.tree / "src/third/third.c").read_bytes() == b"int ours;\n"
    git(nested.repo.path, "tag", "v2.0")
    assert "left out" not in nested.ok("lock", "--add", "calc=2.0").err
    nested.ok("rebase", "calc", "2.0")


def test_submodule_is_taken_from_a_mirror_of_its_own(nested: ForkLab, tmp_path: Path) -> None:
    nested.edit_lock("include = ", 'submodules = ["src/third"]\ninclude = ')
    clone, third = tmp_path / "clone", tmp_path / "elsewhere"
    git(tmp_path, "clone", "-q", "--bare", str(nested.repo.path), str(clone))
    (tmp_path / "third").rename(third)
    (nested.repo.path / "src/third").rename(tmp_path / "work-tree")
    (nested.repo.path / ".git/modules").rename(tmp_path / "modules")
    done = nested.run("lock", "--offline", "--mirror", f"calc={clone}")
    assert "the submodule calc/src/third" in done.out + done.err
    assert "--mirror calc/src/third=PATH_OR_URL" in done.out + done.err
    nested.ok("lock", "--offline", "--mirror", f"calc/src/third={third}")
    nested.ok("apply", "--offline")
    assert (nested.tree / "src/third/third.c").is_file()


def test_submodule_that_is_not_there_and_a_patch_of_a_pin_are_refused(nested: ForkLab) -> None:
    nested.edit_lock("include = ", 'submodules = ["src/fourth"]\ninclude = ')
    done = nested.run("lock")
    assert done.code == 1 and "has no submodule src/fourth" in done.err
    git(nested.repo.path, "rm", "-q", "--cached", "src/third")
    git(nested.repo.path, "commit", "-qm", "Third goes")
    out = git(nested.repo.path, "format-patch", *FORMAT, "-1", "--stdout")
    nested.add_patch("pin.patch", out.encode())
    done = nested.run("check")
    assert "is a submodule: change its pin in the lock instead" in done.out


def test_whole_tree_carries_a_patch_to_the_next_version(lab: ForkLab) -> None:
    lab.write_lock()
    lab.edit_lock(INCLUDE, "")
    lab.ok("lock")
    lab.ok("apply")
    (lab.tree / "python/calc/core.py").write_bytes(core(sub="b - a"))
    git(lab.tree, "commit", "-qam", message("Turn sub"))
    lab.ok("export")
    lab.repo.commit({"python/calc/core.py": b"# more\n" + CORE, "docs/x.md": b"x\n"}, "Two")
    git(lab.repo.path, "tag", "v2.0")
    lab.ok("lock", "--add", "calc=2.0")
    lab.ok("rebase", "calc", "2.0")
    lab.edit_lock('calc = "1.0"', 'calc = "2.0"')
    lab.ok("apply")
    assert (lab.tree / "docs/x.md").is_file()
    assert (lab.tree / "python/calc/core.py").read_bytes() == b"# more\n" + core(sub="b - a")
