# SPDX-License-Identifier: Apache-2.0
"""The verbs probe and watch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from forklab import CORE, FILES, ForkLab, core, git, make_wheel

CORE_PATH = "python/calc/core.py"
RUN = "src/run.c"
START, END = CORE.index(b"def sub"), CORE.index(b"def mul")
GONE = CORE[:START] + CORE[END:]
DRIFTED = CORE.replace(b"def sub(a, b):\n    check(a)\n", b"def sub(a, b, c=0):\n    check(a)\n")


def fits_of(report: dict[str, Any], patch: str) -> dict[str, str]:
    """The fit of a patch by version."""
    return {row["version"]: row["outcome"] for row in report["rows"] if row["patch"] == patch}


@pytest.fixture
def upstream(lab: ForkLab) -> tuple[ForkLab, list[str]]:
    """A fork with two patches whose upstream went on: drift, loss, return, and the same change."""
    lab.change("turn.patch", {CORE_PATH: core(sub="b - a")}, subject="Turn sub")
    lab.change("run.patch", {RUN: FILES[RUN].replace(b"return 0", b"return 1")}, subject="Run")
    git(lab.repo.path, "checkout", "-q", "-B", "main", "v1.0")
    commits = []
    for tag, files in (
        ("v1.1", {CORE_PATH: b"import os\n\n" + CORE}),
        ("v1.2", {CORE_PATH: DRIFTED.replace(b"return a - b", b"return a - b ")}),
        ("v1.3", {CORE_PATH: GONE}),
        ("v1.4", {CORE_PATH: CORE, RUN: None}),
        ("v2.0", {CORE_PATH: core(sub="b - a"), RUN: FILES[RUN]}),
    ):
        commits.append(lab.repo.commit(files, f"Upstream {tag}"))
        git(lab.repo.path, "tag", tag)
    return lab, commits


def test_probe_maps_versions_and_names_the_commit_that_broke(
    upstream: tuple[ForkLab, list[str]],
) -> None:
    lab, commits = upstream
    report = lab.ok("probe", "calc", "--json", "-").json
    assert fits_of(report, "turn.patch") == {
        "v1.0": "applies",
        "v1.1": "applies",
        "v1.2": "conflict",
        "v1.3": "conflict",
        "v1.4": "applies",
        "v2.0": "already upstream",
    }
    assert fits_of(report, "run.patch") == {
        "v1.0": "applies",
        "v1.1": "applies",
        "v1.2": "applies",
        "v1.3": "applies",
        "v1.4": "file missing",
        "v2.0": "applies",
    }
    (one,) = report["sets"]
    assert all(turn["broke"] for turn in one["turns"])
    found = {turn["patch"]: (turn["commit"], turn["fit"], turn["again"]) for turn in one["turns"]}
    assert found == {
        "turn.patch": (commits[1], "conflict", True),
        "run.patch": (commits[3], "file missing", True),
    }
    assert one["commits"] == 5
    said = lab.ok("probe", "calc").out
    assert f"run.patch: file missing since {commits[3][:12]} Upstream v1.4" in said


def test_probe_tells_drift_and_misplacement_apart(lab: ForkLab) -> None:
    lab.change("turn.patch", {CORE_PATH: core(sub="b - a")}, subject="Turn sub")
    git(lab.repo.path, "checkout", "-q", "-B", "main", "v1.0")
    longer = CORE.replace(b"    return a - b\n", b"    return a - b\n\n\n").replace(
        b"def sub(a, b):\n", b"def sub(a, b):\n    start()\n    more()\n    go()\n"
    )
    cases = {
        "drift": CORE.replace(b"def sub(a, b):", b"@cached\ndef sub(a, b):"),
        "renamed": CORE.replace(b"def sub(a, b):", b"def minus(a, b):"),
        "elsewhere": CORE.replace(b"def sub(a, b):", b"def minus(a, b):")
        + CORE[CORE.index(b"def sub") : CORE.index(b"\n\ndef mul")],
        "lost": longer.replace(b"return a - b", b"return -b + a"),
    }
    for name, data in cases.items():
        lab.repo.commit({CORE_PATH: data}, name)
        git(lab.repo.path, "tag", name)
    # Its context names the function: without it the hunk would fit the other one.
    patch = lab.patches / "turn.patch"
    text = patch.read_bytes().replace(b"@@ -7,7 +7,7 @@", b"@@ -8,4 +8,4 @@")
    text = text.replace(b" def sub(a, b):\n", b"").replace(b" \n def mul(a, b):\n", b"")
    patch.write_bytes(text)
    report = lab.ok("probe", "calc", "--versions", *cases, "--json", "-").json
    fits = fits_of(report, "turn.patch")
    assert fits == {
        "drift": "body changed",
        "renamed": "body changed",
        "elsewhere": "misplaced",
        "lost": "conflict",
    }


def test_probe_reads_a_wheel_that_no_commit_is_known_for(lab: ForkLab, tmp_path: Path) -> None:
    lab.locked(wheel=make_wheel(tmp_path / "wheels", FILES))
    lab.change("turn.patch", {CORE_PATH: core(sub="b - a")}, subject="Turn sub")
    newer = {**FILES, CORE_PATH: GONE}
    make_wheel(tmp_path / "wheels", newer, "calc-2.5-py3-none-any.whl")
    report = lab.ok("probe", "calc", "--versions", "v1.0", "2.5", "--json", "-").json
    fits = fits_of(report, "turn.patch")
    assert fits == {"v1.0": "applies", "2.5": "conflict"}
    assert lab.run("probe", "calc", "--versions", "9.9").code in (1, 2)


def test_probe_of_a_mirror_without_contents_says_so(lab: ForkLab, tmp_path: Path) -> None:
    lab.change("turn.patch", {CORE_PATH: core(sub="b - a")}, subject="Turn sub")
    mirror = tmp_path / "mirror"
    git(tmp_path, "clone", "-q", "--no-local", "--bare", str(lab.repo.path), str(mirror))
    pack = next((mirror / "objects/pack").glob("*.pack")).rename(tmp_path / "pack")
    for other in (mirror / "objects/pack").iterdir():
        other.unlink()
    git(mirror, "unpack-objects", "-q", stdin=pack.read_bytes())
    oid = git(mirror, "rev-parse", f"v1.0:{CORE_PATH}")
    (mirror / "objects" / oid[:2] / oid[2:]).unlink()
    found = lab.ok("probe", "calc", "--mirror", f"calc={mirror}", "--json", "-").json
    assert fits_of(found, "turn.patch") == {"v1.0": "not known"}


def test_watch_names_newer_tags_wheels_and_commits(
    upstream: tuple[ForkLab, list[str]], tmp_path: Path
) -> None:
    lab, commits = upstream
    wheel = make_wheel(tmp_path / "wheels", FILES)
    git(lab.repo.path, "checkout", "-q", "v1.0")
    lab.locked(wheel=wheel)
    git(lab.repo.path, "checkout", "-q", "main")
    make_wheel(tmp_path / "wheels", FILES, "calc-1.5-py3-none-any.whl")
    (one,) = lab.ok("watch", "--json", "-").json
    assert one["tags"] == ["v1.1", "v1.2", "v1.3", "v1.4", "v2.0"]
    assert (one["wheels"], one["head"]) == (["1.5"], "")
    assert "2.0" in lab.ok("watch").out
    lab.edit_lock('tag = "v1.0"\n', "")
    (one,) = lab.ok("watch", "--offline", "--json", "-").json
    assert one["head"] == commits[-1]


def test_watch_that_can_ask_nobody_says_so(lab: ForkLab, tmp_path: Path) -> None:
    lab.edit_lock(f'url = "{lab.repo.path}"', f'url = "{tmp_path}/nowhere"')
    lab.forget()
    for marker in (None, b"gitdir: \xff\n", b"gitdir: \0\n"):
        if marker:
            (tmp_path / "nowhere").mkdir(exist_ok=True)
            (tmp_path / "nowhere/.git").write_bytes(marker)
        done = lab.ok("watch")
        assert f"calc: not asked: {tmp_path}/nowhere is not a git repository" in done.out


def test_many_versions_are_shown_as_ranges(upstream: tuple[ForkLab, list[str]]) -> None:
    lab, _ = upstream
    lab.repo.commit({"LICENSE": b"new\n"}, "3.0")
    for tag in ("v3.0rc1", "v3.0", "v3.1.dev1"):
        git(lab.repo.path, "tag", tag)
    text = lab.ok("probe", "calc").out
    assert "conflict: v1.2 to v1.3" in text and "applies: v1.4 " in text
    watched = lab.ok("watch").out
    assert "v1.2, v1.3, v1.4, v2.0, v3.0 and 3 more (--json lists them)" in watched


def test_a_commit_that_the_history_lacks_is_refused(
    upstream: tuple[ForkLab, list[str]], tmp_path: Path
) -> None:
    lab, commits = upstream
    done = lab.run("probe", "calc", "--to", "nowhere")
    assert done.code == 2 and "has no commit 'nowhere'" in done.err and "--to REF" in done.err
    assert lab.ok("probe", "calc", "--to", commits[0]).code == 0
    done = lab.run("probe", "--to", commits[0])
    assert done.code == 2 and "--to is about one upstream" in done.err
    lab.locked(wheel=make_wheel(tmp_path / "wheels", FILES))
    lab.edit_lock('tag = "v1.0"\n', "")
    lab.edit_lock(f'commit = "{git(lab.repo.path, "rev-parse", "v1.0^{commit}")}"\n', "")
    done = lab.run("probe", "calc", "--versions", "1.0", "--to", "main")
    assert done.code == 2 and "--to main: no commits of calc 1.0 can be scanned" in done.err


def test_newest_commit_is_that_of_the_url(upstream: tuple[ForkLab, list[str]]) -> None:
    lab, commits = upstream
    lab.edit_lock('tag = "v1.0"\n', "")
    mirror = lab.root.parent / "mirror"
    git(lab.root, "clone", "-q", str(lab.repo.path), str(mirror))
    lab.edit_lock(git(lab.repo.path, "rev-parse", "v1.0^{commit}"), lab.repo.head)
    git(mirror, "reset", "-q", "--hard", commits[0])
    (one,) = lab.ok("watch", "--mirror", f"calc={mirror}", "--json", "-").json
    assert one["head"] == ""
    git(lab.repo.path, "reset", "-q", "--hard", commits[1])
    (one,) = lab.ok("watch", "--json", "-").json
    assert one["head"] == commits[1]
