# SPDX-License-Identifier: Apache-2.0
"""Patches with conditions: one series for several platforms and options."""

from __future__ import annotations

import pytest
from forklab import CORE, ForkLab, core, git

CORE_PATH = "python/calc/core.py"
HEAD = b"import os\n\n\n"


@pytest.fixture
def options(lab: ForkLab) -> ForkLab:
    """Three patches of one file: for linux or bsd, for all, and without windows."""
    lab.change("os.patch", {CORE_PATH: HEAD + CORE})
    lab.change("turn.patch", {CORE_PATH: HEAD + core(sub="b - a")})
    lab.change("zero.patch", {CORE_PATH: HEAD + core(sub="b - a", mul="0")})
    series(lab, "os.patch [linux bsd]  # for them", "turn.patch", "zero.patch [!windows]")
    lab.ok("record")
    return lab


def series(lab: ForkLab, *lines: str) -> None:
    (lab.patches / "series").write_text("".join(f"{line}\n" for line in lines))


@pytest.mark.parametrize(
    ("chosen", "left", "body"),
    [
        ((), "os.patch [linux bsd]", core(sub="b - a", mul="0")),
        (("bsd",), "", HEAD + core(sub="b - a", mul="0")),
        (("windows",), "os.patch [linux bsd], zero.patch [!windows]", core(sub="b - a")),
        (("linux", "windows"), "zero.patch [!windows]", HEAD + core(sub="b - a")),
        (("all",), "", HEAD + core(sub="b - a", mul="0")),
    ],
)
def test_options_choose_patches_of_a_tree(
    options: ForkLab, chosen: tuple[str, ...], left: str, body: bytes
) -> None:
    words = ("--with", *chosen) if chosen else ()
    done = options.ok("apply", *words)
    assert (options.tree / CORE_PATH).read_bytes() == body
    assert (f"calc: left out: {left}\n" in done.out) is bool(left)
    assert "nothing changed" in options.ok("apply", *words).out
    (tree,) = options.ok("status", "--json", "-").json["upstreams"]
    assert tree["state"] == "applied"
    assert len(git(options.tree, "log", "--format=%s").splitlines()) == 4 - len(
        [one for one in left.split(",") if one]
    )


def test_an_edited_condition_makes_the_tree_stale(options: ForkLab) -> None:
    options.ok("apply")
    series(options, "os.patch", "turn.patch", "zero.patch [!windows]")
    assert "stale" in options.ok("status").out
    options.ok("apply")
    assert (options.tree / CORE_PATH).read_bytes().startswith(HEAD)
    series(options, "os.patch", "turn.patch", "zero.patch [!windows !bsd]")
    assert "condition of zero.patch changed" in options.ok("status").out


def test_edit_opens_every_patch_and_export_keeps_the_conditions(options: ForkLab) -> None:
    before = (options.patches / "series").read_text()
    options.ok("edit", "calc")
    assert options.ok("export", "--check").out == "calc 1.0: 3 patches, unchanged\n"
    text = "free\n\nForkpatch-Name: free.patch [bsd]\n"
    (options.tree / "LICENSE").write_text("ours\n")
    git(options.tree, "commit", "-q", "-a", "-m", text)
    options.ok("export")
    assert (options.patches / "series").read_text() == f"{before}free.patch [bsd]\n"
    assert "Forkpatch-Name" not in (options.patches / "free.patch").read_text()
    assert "left out: os.patch [linux bsd], free.patch [bsd]" in options.ok("apply").out


def test_a_tree_without_some_patches_is_exported_with_them(options: ForkLab) -> None:
    before = {path.name: path.read_bytes() for path in options.patches.iterdir()}
    options.ok("apply")
    assert options.ok("export", "--check").out == "calc 1.0: 3 patches, unchanged\n"
    body = core(sub="b - a", mul="0", add="a + b + 1")
    (options.tree / CORE_PATH).write_bytes(body)
    git(options.tree, "commit", "-q", "-a", "-m", "One more")
    done = options.ok("export")
    assert "one-more.patch: new" in done.out and "turn.patch" not in done.out
    assert (options.tree / CORE_PATH).read_bytes() == body
    assert "applied" in options.ok("status").out
    series = (options.patches / "series").read_text().splitlines()
    assert series[0] == "os.patch [linux bsd]  # for them" and series[-1] == "one-more.patch"
    assert {n: (options.patches / n).read_bytes() for n in before if n.endswith(".patch")} == {
        n: data for n, data in before.items() if n.endswith(".patch")
    }
    options.ok("apply", "--with", "all")
    assert (options.tree / CORE_PATH).read_bytes() == HEAD + body


def test_fixups_of_a_tree_without_some_patches(options: ForkLab) -> None:
    options.ok("apply")
    (options.tree / CORE_PATH).write_bytes(core(sub="b - a - 1", mul="0"))
    assert "into turn.patch" in options.ok("absorb", "calc").out
    options.ok("export")
    options.ok("apply", "--with", "linux")
    assert (options.tree / CORE_PATH).read_bytes() == HEAD + core(sub="b - a - 1", mul="0")


def test_a_commit_that_does_not_go_with_a_patch_that_is_not_there(options: ForkLab) -> None:
    before = {path.name: path.read_bytes() for path in options.patches.iterdir()}
    options.ok("apply")
    (options.tree / CORE_PATH).write_bytes(b"import sys\n\n\n" + core(sub="b - a", mul="0"))
    git(options.tree, "commit", "-q", "-a", "-m", "Begin otherwise")
    head = git(options.tree, "rev-parse", "HEAD~1")
    done = options.run("export")
    assert done.code == 2 and "was made without os.patch, which does not go with" in done.err
    assert f"begin-otherwise.patch: it conflicts with {CORE_PATH}" in done.err
    assert f"cherry-pick {head[:12]}..refs/forkpatch/previous" in done.err
    assert {path.name: path.read_bytes() for path in options.patches.iterdir()} == before
    options.ok("apply", "--with", "all", "--discard")
    git(options.tree, "cherry-pick", "-X", "theirs", f"{head}..refs/forkpatch/previous")
    assert "begin-otherwise.patch: new" in options.ok("export").out


def test_a_rebase_takes_the_conditions_along(options: ForkLab) -> None:
    git(options.repo.path, "checkout", "-q", "--detach", "v1.0")
    commit = options.repo.commit({CORE_PATH: b"# new\n" + CORE}, "Second")
    with (options.root / "VERSIONS.lock").open("a") as lock:
        lock.write(
            f'\n[upstreams.calc.versions."2.0"]\ncommit = "{commit}"\n'
            'include = ["python/calc", "src", "LICENSE"]\nexclude = ["src/*.cu"]\n'
        )
    options.ok("lock")
    done = options.run("rebase", "calc", "2.0")
    if done.code:  # both begin the file with lines of their own
        path = options.root / ".work/rebase/calc/tree" / CORE_PATH
        path.write_bytes(b"# new\n" + HEAD + CORE)
        options.ok("rebase", "calc", "--continue")
    text = (options.root / "patches/calc/2.0/series").read_text()
    names = [line.rpartition("/")[2] for line in text.splitlines()]
    assert names == ["os.patch [linux bsd]", "turn.patch", "zero.patch [!windows]"]


def test_check_tries_the_combinations_that_are_named(options: ForkLab) -> None:
    said = options.run("check").out
    assert "needs" not in said
    assert "each of bsd, linux, windows was tried by itself, and no combination" in said
    options.change("more.patch", {CORE_PATH: HEAD + core(sub="b - a", mul="0 + 0")})
    options.ok("record")
    finding = "more.patch needs zero.patch [!windows], which is left out with windows"
    said = options.run("check").out
    assert f"patches/calc/1.0/series: {finding}" in said
    (options.root / "pyproject.toml").write_text('[tool.forkpatch]\nwith = ["linux", "bsd linux"]')
    said = options.run("check").out
    assert finding not in said and "was tried by itself" not in said
    done = options.run("apply", "--with", "windows")
    assert done.code == 2 and finding in done.err


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("os.patch []", "[] is not a condition"),
        ("os.patch [linux", "[linux is not a condition"),
        ("os.patch [linux !bsd]", "[linux !bsd] is not a condition"),
        ("os.patch [all]", "all is not an option"),
        ("os.patch [a/b]", "option 'a/b' is not a plain name"),
        ("os.patch linux", "'os.patch linux' is not a plain name"),
    ],
)
def test_a_wrong_condition_is_refused_with_its_line(lab: ForkLab, line: str, said: str) -> None:
    lab.change("os.patch", {CORE_PATH: HEAD + CORE})
    series(lab, "# one", line)
    done = lab.run("apply")
    assert done.code == 2 and said in done.err and "series:2" in done.err


def test_an_option_that_no_condition_names_is_refused(options: ForkLab) -> None:
    done = options.run("apply", "--with", "linus")
    assert done.code == 2 and "no patch has a condition on 'linus'" in done.err
    assert "bsd, linux, windows" in done.err


def test_a_shared_patch_has_a_condition_in_each_series(options: ForkLab) -> None:
    text = (options.root / "VERSIONS.lock").read_text()
    part = text[text.index('[upstreams.calc.versions."1.0"]') :].replace('"1.0"]', '"1.1"]', 1)
    (options.root / "VERSIONS.lock").write_text(
        text.replace("[releases.r1]", '[releases.r2]\ncalc = "1.1"\n[releases.r1]') + part
    )
    options.ok("edit", "calc")
    (options.tree / "LICENSE").write_text("ours\n")
    git(options.tree, "commit", "-q", "-a", "-m", "Free\n\nForkpatch-Name: free.patch [bsd]\n")
    options.ok("export", "calc", "--also", "r2")
    assert (options.root / "patches/calc/1.1/series").read_text() == "../1.0/free.patch [bsd]\n"
    done = options.ok("apply", "--release", "r2")
    assert "left out: free.patch [bsd]" in done.out
