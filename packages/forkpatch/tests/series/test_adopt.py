# SPDX-License-Identifier: Apache-2.0
"""The verbs init and adopt: a fork begun, and a branch taken over as series and overlays."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from forklab import CORE, FILES, ForkLab, Repo, core, git

from forkpatch.cli.main import main

INCLUDE = 'include = ["python/calc", "src", "LICENSE"]\nexclude = ["src/*.cu"]\n'
CORE_PATH = "python/calc/core.py"


@pytest.fixture
def branch(lab: ForkLab) -> ForkLab:
    """An existing fork: a branch of five commits on 1.0, upstream goes on beside it."""
    lab.edit_lock(INCLUDE, "")
    lab.ok("lock")
    repo, src = lab.repo, lab.repo.path / "src"
    git(repo.path, "checkout", "-q", "-b", "ours")
    repo.commit({CORE_PATH: core(sub="b - a")}, "Turn sub\n\nOur boards do.\n\nFixes: #7")
    repo.commit({"src/fast ü.c": b"int fast;\n", "src/logo.bin": b"\0\1"}, "Add a kernel")
    git(repo.path, "mv", "README.md", "READ ME.md")
    (src / "link").symlink_to("run.c")
    repo.commit({CORE_PATH: core(sub="b - a", mul="fast(a, b)")}, "Hook it up")
    repo.commit({"src/fast ü.c": b"int faster;\n", "tool.sh": b"#!/bin/sh\n"}, "Faster")
    (repo.path / "tool.sh").chmod(0o755)
    git(repo.path, "commit", "-q", "-a", "--amend", "--no-edit")
    git(repo.path, "commit", "-q", "--allow-empty", "-m", "Nothing")
    git(repo.path, "checkout", "-q", "main")
    repo.commit({"docs/news": b"2.0\n"}, "Upstream goes on")
    git(repo.path, "tag", "v2.0")
    return lab


def tree_of(lab: ForkLab) -> str:
    return git(lab.tree, "rev-parse", "HEAD^{tree}")


def test_branch_becomes_series_and_overlays(branch: ForkLab) -> None:
    done = branch.ok("adopt", "calc", str(branch.repo.path), "ours")
    assert (branch.patches / "series").read_text() == "turn-sub.patch\nhook-it-up.patch\n"
    names = ("src/fast ü.c", "src/logo.bin", "tool.sh")
    found = {line.split(":")[0] for line in done.out.splitlines()[:3]}
    assert found == {f"overlay {name}" for name in names}
    assert "Add a kernel: it is in the overlays" in done.out
    assert "Nothing: it changes nothing" in done.out
    branch.ok("apply")
    assert tree_of(branch) == git(branch.repo.path, "rev-parse", "ours^{tree}")
    assert branch.ok("export", "--check").out == "calc 1.0: 2 patches, unchanged\n"
    text = (branch.patches / "turn-sub.patch").read_text()
    assert "From: Ada <ada@example.org>" in text and "Our boards do.\n\nFixes: #7\n" in text
    branch.ok("lock", "--add", "calc=2.0")
    branch.ok("rebase", "calc", "2.0")


def test_new_file_that_would_be_no_overlay_stays_in_its_patch(branch: ForkLab) -> None:
    names = ("src/x.orig", "src/__pycache__/x.py", "shadows.toml")
    git(branch.repo.path, "checkout", "-q", "ours")
    branch.repo.commit(dict.fromkeys(names, b"1\n"), "Samples")
    done = branch.ok("adopt", "calc", str(branch.repo.path), "ours")
    assert "3 patches" in done.out and not any(f"overlay {name}" in done.out for name in names)
    branch.ok("apply")
    assert tree_of(branch) == git(branch.repo.path, "rev-parse", "ours^{tree}")


def test_new_files_may_stay_in_patches_and_all_be_one(branch: ForkLab) -> None:
    branch.ok("adopt", "calc", str(branch.repo.path), "ours", "--no-overlays")
    assert len((branch.patches / "series").read_text().split()) == 4
    branch.ok("apply")
    assert tree_of(branch) == git(branch.repo.path, "rev-parse", "ours^{tree}")
    again = branch.run("adopt", "calc", str(branch.repo.path), "ours")
    assert again.code == 2 and "exists" in again.err


def test_message_with_a_line_that_would_end_it_is_kept(branch: ForkLab) -> None:
    repo = branch.repo
    git(repo.path, "checkout", "-q", "ours")
    body = (
        "Before.\n\n---\n\nAfter.\n\ndiff --git a/x b/x\nIndex: x\n ---\n\nUpstream-Status: Pending"
    )
    repo.commit({"src/run.c": b"int run;\n"}, f"Run\n\n{body}")
    git(repo.path, "checkout", "-q", "main")
    done = branch.ok("adopt", "calc", str(repo.path), "ours")
    label = git(repo.path, "show", "--no-patch", "--format=%h %s", "ours")
    assert f"message of {label}: a line that would end it in a patch file is indented" in done.out
    branch.ok("apply")
    message = git(branch.tree, "show", "--no-patch", "--format=%B", "HEAD")
    said = "\n".join(
        f" {line}" if line[:3] in ("---", "dif", "Ind") else line for line in body.split("\n")
    )
    assert message.startswith(f"Run\n\n{said}\n")
    assert tree_of(branch) == git(repo.path, "rev-parse", "ours^{tree}")
    assert branch.ok("export", "--check").out.endswith("unchanged\n")


def test_branch_with_merges_is_made_straight_or_refused(branch: ForkLab) -> None:
    repo = branch.repo
    git(repo.path, "checkout", "-q", "-b", "side", "ours~3")
    repo.commit({"src/run.c": b"int run;\n"}, "Side")
    git(repo.path, "checkout", "-q", "ours")
    git(repo.path, "merge", "-q", "--no-commit", "side")
    (repo.path / "LICENSE").write_bytes(b"freer\n")
    git(repo.path, "add", "-A")
    git(repo.path, "commit", "-q", "-m", "Merge side")
    git(repo.path, "checkout", "-q", "main")
    branch.ok("adopt", "calc", str(repo.path), "ours")
    names = (branch.patches / "series").read_text().split()
    assert {"side.patch", "resolutions-of-merges.patch"} <= set(names)
    branch.ok("apply")
    assert tree_of(branch) == git(repo.path, "rev-parse", "ours^{tree}")


def test_merge_that_resolved_a_conflict_needs_a_squash(branch: ForkLab) -> None:
    repo = branch.repo
    git(repo.path, "checkout", "-q", "-b", "side", "v1.0")
    repo.commit({CORE_PATH: core(sub="abs(a - b)")}, "Other sub")
    git(repo.path, "checkout", "-q", "ours")
    git(repo.path, "merge", "-q", "-s", "ours", "-m", "Merge side", "side")
    git(repo.path, "checkout", "-q", "main")
    done = branch.run("adopt", "calc", str(repo.path), "ours")
    assert done.code == 2
    assert "has conflicts without them" in done.err and "--squash SUBJECT" in done.err
    assert not branch.patches.exists() and not branch.overlays.exists()
    branch.ok("adopt", "calc", str(repo.path), "ours", "--squash", "All of ours")
    assert (branch.patches / "series").read_text() == "all-of-ours.patch\n"
    branch.ok("apply")
    assert tree_of(branch) == git(repo.path, "rev-parse", "ours^{tree}")


def test_changes_that_cannot_be_kept_are_named(branch: ForkLab, tmp_path: Path) -> None:
    repo = branch.repo
    other = Repo.create(tmp_path / "other", {"x": b"x\n"})
    git(repo.path, "checkout", "-q", "-b", "pinned", "ours")
    git(repo.path, "submodule", "--quiet", "add", str(other.path), "third")
    git(repo.path, "commit", "-qm", "Pin third")
    done = branch.run("adopt", "calc", str(repo.path), "pinned")
    assert done.code == 2 and "changes the submodule third" in done.err
    done = branch.run("adopt", "calc", str(repo.path), "nowhere")
    assert done.code == 2 and "nowhere" in done.err
    branch.edit_lock("tree =", f"{INCLUDE}tree =")
    branch.ok("lock")
    done = branch.run("adopt", "calc", str(repo.path), "ours")
    assert done.code == 2 and "READ ME.md, README.md, tool.sh" in done.err
    done = branch.ok("adopt", "calc", str(repo.path), "ours", "--leave-out")
    assert "calc 1.0: 2 patches" in done.out


def test_branch_without_a_pinned_base_says_what_to_pin(branch: ForkLab, tmp_path: Path) -> None:
    git(branch.repo.path, "checkout", "-q", "--orphan", "else")
    branch.repo.commit({"x": b"x\n"}, "Else")
    done = branch.run("adopt", "calc", str(branch.repo.path), "else")
    assert done.code == 2
    assert "contains the commit of no pinned version of calc (1.0)" in done.err
    assert "forkpatch lock --add" in done.err


def test_a_new_upstream_has_the_name_of_its_repository(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = Repo.create(tmp_path / "calc-sources/repo", FILES).path
    git(place, "tag", "v1.0")
    (tmp_path / "fork").mkdir()
    assert main(["--root", str(tmp_path / "fork"), "init", str(place)]) == 0
    (name,) = tomllib.loads((tmp_path / "fork/VERSIONS.lock").read_text())["upstreams"]
    assert name == "calc-sources"
    git(place, "config", "remote.origin.url", "git@example.org:group/calc.git")
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(place.parent)
    assert main(["--root", str(tmp_path / "other"), "init", place.name]) == 0
    (name,) = tomllib.loads((tmp_path / "other/VERSIONS.lock").read_text())["upstreams"]
    assert name == "calc"


def test_fork_is_begun_and_found_from_below(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    repo = Repo.create(tmp_path / "up stream.git", FILES)
    for tag in ("v0.9", "v0.10.0", "v1.0rc1", "nightly"):
        git(repo.path, "tag", tag)
    root = tmp_path / "fork"
    root.mkdir()
    git(root, "init", "-q")
    monkeypatch.chdir(root)
    assert main(["init", str(repo.path)]) == 2  # a name with a blank
    assert not (root / "VERSIONS.lock").exists()
    assert main(["init", str(repo.path), "--name", "calc"]) == 0
    assert "calc 0.10.0" in capsys.readouterr().out
    assert main(["init", str(repo.path), "--name", "calc"]) == 2
    assert "this folder is a fork already" in capsys.readouterr().err
    (root / "docs").mkdir()
    monkeypatch.chdir(root / "docs")
    assert main(["apply"]) == 0
    tree = root / ".work/0.10.0/calc"
    assert (tree / CORE_PATH).read_bytes() == CORE
    assert git(tree, "rev-parse", "HEAD^{tree}") == git(repo.path, "rev-parse", "HEAD^{tree}")
    assert git(root, "status", "--porcelain") == "?? VERSIONS.lock"


@pytest.mark.parametrize(
    ("options", "word"),
    [
        (["--tag", "v7"], "has no tag v7"),
        (["--commit", "HEAD"], "not a full object id"),
        (["--commit", "12" * 20], "it lacks commit 1212"),
        (["--include", "nothing/here"], "none of the included paths"),
        ([], "--commit "),
    ],
)
def test_fork_that_cannot_be_begun_leaves_nothing(
    home: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    options: list[str],
    word: str,
) -> None:
    repo = Repo.create(tmp_path / "calc", FILES)
    if options[:1] in (["--include"], ["--tag"]):
        git(repo.path, "tag", "v1.0")
    (tmp_path / "fork").mkdir()
    for root in (tmp_path / "fork", tmp_path / "not/there"):
        assert main(["--root", str(root), "init", str(repo.path), *options]) == 2
        said = capsys.readouterr().err
        assert word in said
        assert options[:1] != ["--tag"] or "--tag v1.0" in said
    assert not (tmp_path / "not").exists()
    assert not any((tmp_path / "fork").iterdir())


def test_version_is_the_packages(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as leaving:
        main(["--version"])
    assert leaving.value.code == 0
    assert capsys.readouterr().out.startswith("forkpatch 0.")


@pytest.mark.parametrize(
    ("author", "word"),
    [("A\0B <a@b.c> 1000", "holds a NUL"), ("A <a@b.c> -1000", "has a date before 1970")],
)
def test_author_that_git_cannot_write_is_named(lab: ForkLab, author: str, word: str) -> None:
    lab.repo.commit({"LICENSE": b"freer\n"}, "Free")
    raw = git(lab.repo.path, "cat-file", "commit", "HEAD").encode()
    head, _, rest = raw.partition(b"\nauthor ")
    bad = head + b"\nauthor " + author.encode() + b" +0000\n" + rest.partition(b"\n")[2]
    command = ("hash-object", "-t", "commit", "-w", "--stdin", "--literally")
    commit = git(lab.repo.path, *command, stdin=bad)
    git(lab.repo.path, "branch", "odd", commit)
    done = lab.run("adopt", "calc", str(lab.repo.path), "odd")
    assert done.code == 2
    assert f"commit {commit[:12]}" in done.err and word in done.err
    assert not lab.patches.exists()
