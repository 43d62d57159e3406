# SPDX-License-Identifier: Apache-2.0
"""The applicability map: of a small upstream, and of this repository's own series."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from forklab import CORE, FILES, ForkLab, core, git, make_wheel

from forkpatch.errors import ForkError
from forkpatch.inspect.probe import SHADOW, Fit, map_fork
from forkpatch.model.settings import load_settings
from forkpatch.sources.obtain import SourceOptions
from forkpatch.tree.fork import open_fork

ROOT = Path(__file__).resolve().parents[4]
CORE_PATH, RUN = "python/calc/core.py", "src/run.c"
START, END = CORE.index(b"def sub"), CORE.index(b"def mul")
GONE, MOVED = CORE[:START] + CORE[END:], CORE[START:END]
FIELDS = {
    *("upstream", "version", "commit", "source", "set", "patch", "outcome", "symbol_drift"),
    *("detail", "first_bad_commit", "first_good_commit"),
}


@pytest.fixture
def world(lab: ForkLab, tmp_path: Path) -> tuple[ForkLab, dict[str, str]]:
    """Sets for 1.0 and 2.0 of an upstream with tags from 0.8 to 3.0, and a wheel 1.5."""
    git(lab.repo.path, "checkout", "-q", "--orphan", "line")
    commits = {}
    for tag, files in (
        ("v0.8", {**FILES, CORE_PATH: GONE}),
        ("v0.9", {CORE_PATH: CORE}),
        ("v1.0", {"LICENSE": b"free\nstill\n"}),
        (
            "v1.5",
            {CORE_PATH: b"import os\n\n" + CORE.replace(b"    return a - b", b"    return -b")},
        ),
        ("v2.0", {CORE_PATH: GONE, "python/calc/tail.py": MOVED}),
        ("v3.0", {RUN: None}),
    ):
        commits[tag] = lab.repo.commit(files, f"Upstream {tag}")
        git(lab.repo.path, "tag", "-f", tag)
    git(lab.repo.path, "checkout", "-q", "v1.0")
    wheel = make_wheel(tmp_path / "wheels", {**FILES, "LICENSE": b"free\nstill\n"})
    lab.locked(wheel=wheel)
    lab.change("turn.patch", {CORE_PATH: core(sub="b - a")}, subject="Turn")
    lab.change("run.patch", {RUN: FILES[RUN].replace(b"0", b"1")}, subject="Run")
    lab.ok("lock")
    lab.ok("lock", "--add", "calc=2.0", "--no-wheel")
    folder = lab.root / "patches/calc/2.0"
    folder.mkdir(parents=True)
    git(lab.repo.path, "checkout", "-q", "v2.0")
    turned = MOVED.replace(b"a - b", b"b - a")
    data = lab.repo.patch({"python/calc/tail.py": turned}, "Turn\n\nBecause.\n")
    (folder / "turn.patch").write_bytes(data)
    (folder / "series").write_text("turn.patch\n")
    lab.ok("lock")
    (lab.root / "pyproject.toml").write_text(
        "[tool.forkpatch.map.upstreams.calc]\n"
        f'from = "0.8"\nuntil = "{commits["v3.0"]}"\nwheels = ["1.0", "1.5"]\n'
    )
    newer = {**FILES, CORE_PATH: core(add="a")}
    make_wheel(tmp_path / "wheels", newer, "calc-1.5-py3-none-any.whl")
    return lab, commits


def test_every_set_is_looked_at_on_every_version(world: tuple[ForkLab, dict[str, str]]) -> None:
    lab, commits = world
    found = lab.ok("probe", "--json", "-").json
    assert all(set(row) == FIELDS for row in found["rows"])

    def column(chosen: str, patch: str) -> dict[str, tuple[Any, ...]]:
        return {
            f"{row['source']} {row['version']}": (row["outcome"], row["symbol_drift"])
            for row in found["rows"]
            if (row["set"], row["patch"]) == (chosen, patch)
        }

    last = f"git {commits['v3.0'][:12]}"
    assert column("1.0", "turn.patch") == {
        "git v0.8": ("conflict", "gone"),
        "git v0.9": ("applies", "unchanged"),
        "git v1.0": ("applies", "unchanged"),
        "git v1.5": ("conflict", "body changed"),
        "git v2.0": ("conflict", "moved"),
        "git v3.0": ("conflict", "moved"),
        last: ("conflict", "moved"),
        "wheel 1.0": ("applies", "unchanged"),
        "wheel 1.5": ("applies", "unchanged"),
    }
    assert column("1.0", "run.patch")["git v3.0"] == ("file missing", "gone")
    assert column("2.0", "turn.patch")["git v1.0"] == ("conflict", "moved")
    assert column("2.0", "turn.patch")["git v3.0"] == ("applies", "unchanged")


def test_commits_at_which_it_turns_are_named(world: tuple[ForkLab, dict[str, str]]) -> None:
    lab, commits = world
    found = lab.ok("probe", "--json", "-").json
    turns = {(one["set"], t["patch"], t["broke"]): t for one in found["sets"] for t in one["turns"]}
    assert {key: turn["commit"] for key, turn in turns.items()} == {
        ("1.0", "turn.patch", False): commits["v0.9"],
        ("1.0", "turn.patch", True): commits["v1.5"],
        ("1.0", "run.patch", True): commits["v3.0"],
        ("2.0", "turn.patch", False): commits["v2.0"],
    }
    assert turns["1.0", "run.patch", True]["subject"] == "Upstream v3.0"
    blame = {
        (row["version"], row["patch"]): (row["first_bad_commit"], row["first_good_commit"])
        for row in found["rows"]
        if row["set"] == "1.0"
    }
    assert blame["v2.0", "turn.patch"] == (commits["v1.5"], "")
    assert blame["v0.8", "turn.patch"] == ("", commits["v0.9"])
    assert blame["v1.0", "turn.patch"] == ("", "")


def test_later_commits_change_nothing(world: tuple[ForkLab, dict[str, str]]) -> None:
    lab, commits = world
    before = lab.ok("probe").out
    assert "calc 1.0:\n" in before and "calc 2.0:\n" in before
    assert f"run.patch: file missing since {commits['v3.0'][:12]} Upstream v3.0" in before
    lab.repo.commit({"LICENSE": b"later\n"}, "Later")
    # The wheels' files are kept, so that neither index nor network is asked again.
    assert lab.ok("probe", "--offline").out == before


def test_shadowed_symbols_are_part_of_it(world: tuple[ForkLab, dict[str, str]]) -> None:
    lab, _ = world
    lab.overlays.mkdir(parents=True)
    (lab.overlays / "shadows.toml").write_text(
        f'[[shadow]]\npath = "{CORE_PATH}"\nsymbol = "sub"\nby = "x.py"\nwhy = "speed"\n'
    )
    lab.ok("lock")
    found = lab.ok("probe", "--json", "-").json
    drifts = {
        row["version"]: row["symbol_drift"]
        for row in found["rows"]
        if (row["set"], row["patch"]) == ("1.0", "overlay")
    }
    assert drifts["v1.5"] == "body changed"
    assert drifts["v2.0"] == "moved"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "configures no upstream for the map"),
        ("[tool.forkpatch.map.upstreams.calc]\nform = 1\n", "unknown keys: form"),
        ('[tool.forkpatch.map.upstreams.calc]\nuntil = "abc"\n', "not a full object id"),
        ("[tool.forkpatch.map.upstreams.calc]\nuntil = 2026\n", "until = 2026 is not a string"),
        ('[tool.forkpatch.map.upstreams.calc]\nfrom = "x"\n', "from = 'x' is not a version"),
        ('[tool.forkpatch.map.upstreams.calc]\nwheels = "1.1"\n', "is not a list of strings"),
        ('[tool.forkpatch.map.upstreams]\ncalc = "x"\n', "upstreams.calc] is not a table"),
        ('[tool.forkpatch.map]\nupstreams = "x"\n', "upstreams = 'x' is not a table"),
        ("[tool.forkpatch.map.upstreams.other]\n", "no upstream 'other'"),
        (f'[tool.forkpatch.map.upstreams.calc]\nuntil = "{"1" * 40}"\n', "no mirror of calc"),
        ('[tool.forkpatch.map.upstreams.calc]\nwheels = ["9.9"]\n', "the lock pins no wheel of it"),
    ],
)
def test_what_cannot_be_mapped_is_the_users_to_put_right(
    lab: ForkLab, text: str, said: str
) -> None:
    lab.change("turn.patch", {CORE_PATH: core(sub="b - a")}, subject="Turn")
    (lab.root / "pyproject.toml").write_text(text)
    done = lab.run("probe")
    assert done.code == 2 and said in done.err


@pytest.mark.slow
def test_every_patch_of_this_repository_applies_on_its_own_base() -> None:
    fork = open_fork(load_settings(ROOT))
    try:
        found = map_fork(fork, SourceOptions(offline=True))
    except ForkError as error:
        pytest.skip(f"the upstreams' histories or wheels are not at hand: {error.what}")
    bases = {(one.upstream, one.set): one.base for one in found.sets}
    for row in found.rows:
        base = bases[row.upstream, row.set]
        if row.patch != SHADOW and (row.version == row.set or (base and row.commit == base)):
            assert (row.patch, row.outcome) == (row.patch, Fit.APPLIES)
