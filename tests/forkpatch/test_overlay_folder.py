# SPDX-License-Identifier: Apache-2.0
"""A version of an upstream that has a folder of overlays of its own."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest
from forklab import FILES, ForkLab, core, git, make_wheel

SHADOW = '[[shadow]]\npath = "python/calc/core.py"\nsymbol = "{}"\nby = "x.py"\nwhy = "speed"\n'


def overlay(folder: Path, text: str, shadowed: str) -> None:
    (folder / "python/calc").mkdir(parents=True)
    (folder / "python/calc/fast.py").write_text(text)
    (folder / "shadows.toml").write_text(SHADOW.format(shadowed))


@pytest.fixture
def two(lab: ForkLab) -> ForkLab:
    """Releases r1 (calc 1.0) and r2 (calc 2.0), the second with overlays of its own."""
    overlay(lab.overlays, "DIALECT = 1\n", "add")
    overlay(lab.root / "overlays/calc-2", "DIALECT = 2\n", "mul")
    lab.repo.commit({"python/calc/core.py": core(sub="b - a")}, "Turn")
    git(lab.repo.path, "tag", "v2.0")
    lab.ok("lock", "--add", "calc=2.0", "--overlays", "overlays/calc-2")
    lab.edit_lock("[releases.r1]", '[releases.r2]\ncalc = "2.0"\n[releases.r1]')
    return lab


def test_each_version_gets_its_own_overlays(two: ForkLab) -> None:
    for release, dialect in (("r1", 1), ("r2", 2)):
        two.ok("apply", "--release", release)
        tree = two.root / ".work" / release / "calc"
        assert (tree / "python/calc/fast.py").read_text() == f"DIALECT = {dialect}\n"


def test_only_the_release_whose_overlay_changed_is_stale(two: ForkLab) -> None:
    for release in ("r1", "r2"):
        two.ok("apply", "--release", release)
    (two.root / "overlays/calc-2/python/calc/fast.py").write_text("DIALECT = 22\n")
    states = [
        two.ok("status", "--release", release, "--json", "-").json["upstreams"][0]["state"]
        for release in ("r1", "r2")
    ]
    assert states == ["applied", "stale"]


def test_symbols_and_pins_follow_the_shadows_of_that_folder(two: ForkLab) -> None:
    two.ok("symbols", "calc", "--version", "2.0")
    record = json.loads((two.root / "patches/calc/2.0/symbols.json").read_text())
    assert [place["symbol"] for place in record["shadows"]] == ["mul"]
    lock = tomllib.loads((two.root / "VERSIONS.lock").read_text())
    entry = lock["upstreams"]["calc"]["versions"]["2.0"]
    assert entry["overlays"] == "overlays/calc-2"
    assert list(entry["blobs"]) == ["python/calc/core.py"]
    assert "overlays" not in lock["upstreams"]["calc"]["versions"]["1.0"]


def test_rebase_looks_at_the_overlays_of_the_new_version(lab: ForkLab) -> None:
    overlay(lab.overlays, "DIALECT = 1\n", "add")
    overlay(lab.root / "overlays/calc-2", "DIALECT = 2\n", "add")
    (lab.root / "overlays/calc-2/python/calc/fast.py").rename(
        lab.root / "overlays/calc-2/python/calc/faster.py"
    )
    lab.change("one.patch", {"python/calc/core.py": core(add="b + a")})
    git(lab.repo.path, "checkout", "-q", "--detach", "v1.0")
    lab.repo.commit({"python/calc/fast.py": b"theirs\n"}, "Grow")
    git(lab.repo.path, "tag", "v2.0")
    done = lab.run("lock", "--add", "calc=2.0")
    assert done.code == 2 and "fast.py collides with the file" in done.err
    lab.edit_lock('tag = "v2.0"\n', 'tag = "v2.0"\noverlays = "overlays/calc-2"\n')
    lab.ok("lock")
    lab.ok("rebase", "calc", "2.0")
    lab.edit_lock('calc = "1.0"', 'calc = "2.0"')
    lab.ok("apply")
    assert (lab.tree / "python/calc/fast.py").read_text() == "theirs\n"
    assert (lab.tree / "python/calc/faster.py").read_text() == "DIALECT = 2\n"


def test_folder_that_is_not_there_is_the_users_mistake(lab: ForkLab) -> None:
    before = (lab.root / "VERSIONS.lock").read_text()
    done = lab.run("lock", "--add", "calc=next", "--commit", "1" * 40, "--overlays", "overlays/no")
    assert done.code == 2 and "there is no folder overlays/no" in done.err
    assert (lab.root / "VERSIONS.lock").read_text() == before
    lab.edit_lock('tag = "v1.0"\n', 'tag = "v1.0"\noverlays = "overlays/no"\n')
    done = lab.run("apply")
    assert done.code == 2 and "there is no folder overlays/no" in done.err


@pytest.mark.parametrize("folder", ["../elsewhere", "/etc", ".git/x"])
def test_folder_outside_the_fork_is_refused(lab: ForkLab, folder: str) -> None:
    lab.edit_lock('tag = "v1.0"\n', f'tag = "v1.0"\noverlays = "{folder}"\n')
    done = lab.run("status")
    assert done.code != 0 and "refused path" in done.err


def test_version_that_is_in_git_only_says_so(lab: ForkLab, tmp_path: Path) -> None:
    lab.locked(wheel=make_wheel(tmp_path / "wheels", FILES))
    lab.repo.commit({"python/calc/core.py": core(add="a")}, "Move")
    git(lab.repo.path, "tag", "v0.9")
    lab.ok("lock", "--add", "calc=0.9", "--no-wheel")
    lock = tomllib.loads((lab.root / "VERSIONS.lock").read_text())
    assert "wheel" not in lock["upstreams"]["calc"]["versions"]["0.9"]
    lab.edit_lock('calc = "1.0"', 'calc = "0.9"')
    lab.forget()
    lab.edit_lock(f'url = "{lab.repo.path}"', f'url = "{tmp_path}/nowhere"')
    done = lab.run("apply")
    assert done.code == 2
    assert "wheel: the lock pins none: this version is to be had from git only" in done.err
    assert f"supply it with --mirror calc=PATH_OR_URL: a clone of {tmp_path}/nowhere" in done.err
