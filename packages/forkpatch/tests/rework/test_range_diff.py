# SPDX-License-Identifier: Apache-2.0
"""The verb ``range-diff``: the series of two versions, patch by patch."""

from __future__ import annotations

from forklab import CORE, ForkLab, core, git, message

CORE_PATH = "python/calc/core.py"
DRIFT = b"import os\n\n\n"


def second_version(lab: ForkLab, files: dict[str, bytes]) -> None:
    """Pin a version 2.0 with these files."""
    git(lab.repo.path, "checkout", "-q", "--detach", "v1.0")
    commit = lab.repo.commit(files, "Second")
    with (lab.root / "VERSIONS.lock").open("a") as lock:
        lock.write(
            f'\n[upstreams.calc.versions."2.0"]\ncommit = "{commit}"\n'
            'include = ["python/calc", "src", "LICENSE"]\nexclude = ["src/*.cu"]\n'
        )
    lab.ok("lock")


def test_each_patch_is_unchanged_changed_gone_or_new(lab: ForkLab) -> None:
    lab.change("turn.patch", {CORE_PATH: core(sub="b - a")}, subject="Turn")
    lab.change("free.patch", {"LICENSE": b"ours\n"}, subject="Free")
    lab.change("tail.patch", {"python/calc/tail.py": b"X = 1\nY = 3"}, subject="Tail")
    second_version(lab, {CORE_PATH: DRIFT + CORE})
    lab.ok("rebase", "calc", "2.0")
    series = lab.root / "patches/calc/2.0/series"
    series.write_text("../1.0/turn.patch\nfree.patch\nmore.patch\n")
    adapted = lab.repo.patch({"LICENSE": b"theirs, and a text\nthat is another\n"}, message("Free"))
    (series.parent / "free.patch").write_bytes(adapted)
    more = lab.repo.patch({"src/run.c": b"int run(void);\n"}, message("More"))
    (series.parent / "more.patch").write_bytes(more)
    pairs = lab.ok("range-diff", "calc", "1.0", "2.0", "--json", "-").json
    assert [(pair["old"], pair["new"], pair["fate"]) for pair in pairs] == [
        ("turn.patch", "turn.patch", "unchanged"),
        ("tail.patch", "", "only in the old series"),
        ("free.patch", "free.patch", "changed"),
        ("", "more.patch", "only in the new series"),
    ]
    assert "-+ours" in pairs[2]["diff"] and "++that is another" in pairs[2]["diff"]
    said = lab.ok("range-diff", "calc", "1.0", "2.0").out.splitlines()
    assert said[0] == "turn.patch: unchanged" and said[-1] == "more.patch: only in the new series"


def test_renamed_patch_is_paired_by_what_it_changes(lab: ForkLab) -> None:
    lab.change("turn.patch", {CORE_PATH: core(sub="b - a")}, subject="Turn")
    second_version(lab, {"LICENSE": b"other\n"})
    lab.ok("rebase", "calc", "2.0")
    folder = lab.root / "patches/calc/2.0"
    (folder / "rotate.patch").write_bytes((lab.patches / "turn.patch").read_bytes())
    (folder / "series").write_text("rotate.patch\n")
    said = lab.ok("range-diff", "calc", "1.0", "2.0").out
    assert said.startswith("turn.patch -> rotate.patch: changed\n")
    assert "-    Forkpatch-Name: turn.patch" in said


def test_series_without_patches_is_compared(lab: ForkLab) -> None:
    lab.change("turn.patch", {CORE_PATH: core(sub="b - a")})
    second_version(lab, {"LICENSE": b"other\n"})
    said = lab.ok("range-diff", "calc", "1.0", "2.0").out
    assert said == "turn.patch: only in the old series\n"


def test_unknown_version_is_a_user_mistake(lab: ForkLab) -> None:
    done = lab.run("range-diff", "calc", "1.0", "9.0")
    assert done.code == 2 and "9.0" in done.err


def test_a_series_is_compared_with_that_of_another_commit(lab: ForkLab) -> None:
    lab.change("turn.patch", {CORE_PATH: core(sub="b - a")})
    git(lab.root, "init", "-q")
    git(lab.root, "add", "VERSIONS.lock", "patches")
    git(lab.root, "commit", "-q", "-m", "Begin")
    git(lab.repo.path, "checkout", "-q", "--detach", "v1.0")
    text = lab.repo.patch({CORE_PATH: core(sub="b - 1")}, message("turn.patch"))
    (lab.patches / "turn.patch").write_bytes(text)
    said = lab.ok("range-diff", "calc", "HEAD:1.0", "1.0").out
    assert said.startswith("turn.patch: changed\n") and "-+    return b - a" in said
    assert lab.ok("range-diff", "calc", "HEAD:1.0", "HEAD:1.0").out == "turn.patch: unchanged\n"
