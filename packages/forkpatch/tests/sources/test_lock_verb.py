# SPDX-License-Identifier: Apache-2.0
"""The verb ``lock``: every pin is looked up again."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from forklab import FILES, ForkLab, core, git, make_wheel

from forkpatch.errors import UserError
from forkpatch.model.lock import write_lock
from groundwork.hashing import sha256_of


def read(lab: ForkLab) -> dict[str, object]:
    return tomllib.loads((lab.root / "VERSIONS.lock").read_text())


def test_lock_fills_in_what_it_can_look_up(lab: ForkLab, tmp_path: Path) -> None:
    lab.change("a.patch", {"python/calc/core.py": core(add="a")})
    git(lab.repo.path, "checkout", "-q", "v1.0")
    lab.locked(wheel=make_wheel(tmp_path / "wheels", FILES))
    entry = read(lab)["upstreams"]["calc"]["versions"]["1.0"]  # type: ignore[index]
    assert entry["commit"] == lab.repo.head
    assert entry["executable"] == ["python/calc/tool.sh"]
    assert lab.ok("lock", "--check").out.splitlines() == ["VERSIONS.lock: up to date"]


def test_lock_keeps_what_is_not_its_own(lab: ForkLab) -> None:
    text = (lab.root / "VERSIONS.lock").read_text()
    assert text.startswith("# kept comment\n")
    assert read(lab)["python"] == {"pins": ["x==1"]}
    before = (lab.root / "VERSIONS.lock").read_bytes()
    assert lab.ok("lock").out.splitlines() == ["VERSIONS.lock: up to date"]
    assert (lab.root / "VERSIONS.lock").read_bytes() == before


def test_check_names_each_difference_and_changes_nothing(lab: ForkLab) -> None:
    old = lab.repo.head
    new = lab.repo.commit({"python/calc/core.py": core(add="a")}, "Move")
    git(lab.repo.path, "tag", "-f", "-a", "-m", "two", "v1.0")
    before = (lab.root / "VERSIONS.lock").read_bytes()
    done = lab.run("lock", "--check", "--json", "-")
    assert done.code == 1
    first, second = done.json["differences"]
    assert first == f"calc 1.0: commit {new}; the lock had {old}"
    assert second.startswith("calc 1.0: tree ")
    assert (lab.root / "VERSIONS.lock").read_bytes() == before


def test_check_without_any_source_says_what_it_could_not_check(
    lab: ForkLab, tmp_path: Path
) -> None:
    lab.edit_lock(f'url = "{lab.repo.path}"', f'url = "{tmp_path}/nowhere"')
    lab.forget()
    done = lab.run("lock", "--check", "--offline")
    assert done.code == 1
    assert "not checked: calc 1.0: the tag v1.0 was not looked up" in done.out
    assert "not checked: calc 1.0: its git tree was not looked up" in done.out
    assert "no difference in what was looked up; not looked up: 2\n" in done.out


def test_overlay_that_upstream_has_outside_the_included_paths_is_named(lab: ForkLab) -> None:
    lab.overlays.mkdir(parents=True)
    (lab.overlays / "README.md").write_text("mine\n")
    done = lab.run("lock")
    assert done.code == 2
    assert "README.md collides with the file README.md of calc 1.0" in done.err


def test_lock_without_a_tree_is_to_be_filled_in(lab: ForkLab) -> None:
    lab.write_lock()
    done = lab.run("apply")
    assert done.code == 2
    assert "forkpatch lock" in done.err


def test_version_is_added_like_the_one_before(lab: ForkLab, tmp_path: Path) -> None:
    lab.locked(wheel=make_wheel(tmp_path / "wheels", FILES))
    newer = {**FILES, "python/calc/core.py": core(add="a")}
    commit = lab.repo.commit({"python/calc/core.py": core(add="a")}, "Move")
    git(lab.repo.path, "tag", "v1.5")
    wheel = make_wheel(tmp_path / "wheels", newer, "calc-1.5-py3-none-any.whl")
    before = (lab.root / "VERSIONS.lock").read_text()
    lab.ok("lock", "--add", "calc=1.5")
    text = (lab.root / "VERSIONS.lock").read_text()
    assert text.startswith(before)
    entry = read(lab)["upstreams"]["calc"]["versions"]["1.5"]  # type: ignore[index]
    assert (entry["tag"], entry["commit"]) == ("v1.5", commit)
    assert entry["wheel"]["files"] == [{"name": wheel.name, "sha256": sha256_of(wheel)}]
    assert lab.ok("lock", "--check").code == 0
    assert lab.run("lock", "--add", "calc=1.5").code == 2
    assert "NAME=VERSION" in lab.run("lock", "--add", "calc").err
    done = lab.run("lock", "--add", "calc=9.9")
    assert done.code == 2 and "no tag v9.9 or 9.9 of calc was found" in done.err
    before = (lab.root / "VERSIONS.lock").read_bytes()
    assert lab.run("lock", "--add", "calc=next", "--commit", "1" * 40).code in (1, 2)
    assert (lab.root / "VERSIONS.lock").read_bytes() == before
    lab.ok("lock", "--add", "calc=next", "--commit", commit)
    entry = read(lab)["upstreams"]["calc"]["versions"]["next"]  # type: ignore[index]
    assert "wheel" not in entry and entry["tree"]


def test_version_may_be_known_as_a_wheel_only(lab: ForkLab, tmp_path: Path) -> None:
    lab.change("a.patch", {"python/calc/core.py": core(sub="b - a")})
    git(lab.repo.path, "checkout", "-q", "v1.0")
    lab.locked(wheel=make_wheel(tmp_path / "wheels", FILES))
    newer = {**FILES, "python/calc/core.py": core(add="a")}
    wheel = make_wheel(tmp_path / "wheels", newer, "calc-1.5.post1-py3-none-any.whl")
    refused = lab.run("lock", "--add", "calc=next", "--wheel-only")
    assert refused.code == 2 and "cannot be pinned as a wheel only" in refused.err
    lab.ok("lock", "--add", "calc=1.5.post1", "--wheel-only")
    entry = read(lab)["upstreams"]["calc"]["versions"]["1.5.post1"]  # type: ignore[index]
    assert not {"tag", "commit"} & entry.keys()
    assert entry["executable"] == ["python/calc/tool.sh"]
    assert entry["wheel"]["files"] == [{"name": wheel.name, "sha256": sha256_of(wheel)}]
    assert lab.ok("lock", "--check").out.splitlines() == ["VERSIONS.lock: up to date"]
    assert "a.patch: clean" in lab.ok("rebase", "calc", "1.5.post1").out
    lab.edit_lock('calc = "1.0"', 'calc = "1.5.post1"')
    (one,) = lab.ok("apply", "--json", "-").json["upstreams"]
    assert one["source"] == "cache (wheel)"
    assert (lab.tree / "python/calc/core.py").read_bytes() == core(add="a", sub="b - a")
    lab.ok("status")
    lab.forget(mirrors=False)  # a mirror has no answer for what is known as a wheel only
    done = lab.run("apply", "--discard", "--source", "calc=git")
    assert done.code == 2
    assert "the lock pins a wheel, and no commit" in done.err
    assert "let pip reach an index that has calc 1.5.post1" in done.err


def test_wheels_of_one_version_must_agree(lab: ForkLab, tmp_path: Path) -> None:
    names = [f"calc-1.0-py3-none-{platform}.whl" for platform in ("linux_x86_64", "any")]
    other = {**FILES, "python/calc/core.py": core(add="a")}
    wheels = [
        make_wheel(tmp_path / f"wheels{at}", files, names[at])
        for at, files in enumerate((other, FILES))
    ]
    lab.locked(wheel=wheels[1])
    pinned = f'{{ name = "{names[1]}", sha256 = "{sha256_of(wheels[1])}" }}'
    second = f'{{ name = "{names[0]}", sha256 = "{sha256_of(wheels[0])}" }}'
    lab.edit_lock(pinned, f"{second}, {pinned}")
    for wheel in wheels:
        kept = lab.cache / "wheels" / sha256_of(wheel)
        kept.mkdir(parents=True, exist_ok=True)
        (kept / wheel.name).write_bytes(wheel.read_bytes())
    done = lab.run("lock", "--check")
    assert done.code == 1
    assert "two wheels give different trees" in done.err
    assert "python/calc/core.py differs" in done.err


def test_version_that_is_in_git_only_says_so(lab: ForkLab, tmp_path: Path) -> None:
    lab.locked(wheel=make_wheel(tmp_path / "wheels", FILES))
    lab.repo.commit({"python/calc/core.py": core(add="a")}, "Move")
    git(lab.repo.path, "tag", "v0.9")
    lab.ok("lock", "--add", "calc=0.9", "--no-wheel")
    lock = read(lab)
    assert "wheel" not in lock["upstreams"]["calc"]["versions"]["0.9"]  # type: ignore[index]
    lab.edit_lock('calc = "1.0"', 'calc = "0.9"')
    lab.forget()
    lab.edit_lock(f'url = "{lab.repo.path}"', f'url = "{tmp_path}/nowhere"')
    done = lab.run("apply")
    assert done.code == 2
    assert "wheel: the lock pins none: this version is available from git only" in done.err
    assert f"supply it with --mirror calc=PATH_OR_URL, a clone of {tmp_path}/nowhere" in done.err


def test_hash_of_a_damaged_wheel_is_not_pinned(lab: ForkLab, tmp_path: Path) -> None:
    lab.locked(wheel=make_wheel(tmp_path / "wheels", FILES))
    before = (lab.root / "VERSIONS.lock").read_bytes()
    (kept,) = lab.cache.glob("wheels/*/*.whl")
    kept.write_bytes(kept.read_bytes() + b"\0")
    assert f"{kept.name} is damaged in the cache" in lab.ok("lock").err
    assert (lab.root / "VERSIONS.lock").read_bytes() == before


def test_name_that_no_wheel_has_is_refused(lab: ForkLab, tmp_path: Path) -> None:
    wheel = make_wheel(tmp_path / "wheels", FILES)
    lab.locked(wheel=wheel)
    lab.edit_lock(wheel.name, "calc.whl")
    done = lab.run("lock")
    assert done.code == 2 and "'calc.whl' is not the name of a wheel file" in done.err


@pytest.mark.parametrize(
    "words", [("--tag", "v1.0"), ("--commit", "1" * 40), ("--wheel-only",), ("--no-wheel",)]
)
def test_options_of_add_are_refused_without_it(lab: ForkLab, words: tuple[str, ...]) -> None:
    done = lab.run("lock", *words)
    assert done.code == 2 and f"{words[0]} is for --add" in done.err


def test_a_lock_with_releases_on_one_line_gets_a_release(lab: ForkLab) -> None:
    lab.change("a.patch", {"src/run.c": b"int run(void)\n{\n    return 1;\n}\n"})
    git(lab.repo.path, "checkout", "-q", "--detach", "v1.0")
    lab.repo.commit({"LICENSE": b"free\nstill\n"}, "2.0")
    git(lab.repo.path, "tag", "v2.0")
    lab.edit_lock('[releases.r1]\ncalc = "1.0"\n', "")
    lab.edit_lock('"r1"\n', '"r1"\nreleases = { r1 = { calc = "1.0" } }\n')
    lab.ok("rebase", "calc", "2.0")
    assert lab.ok("apply", "--release", "2.0").code == 0


def test_a_text_that_is_not_a_lock_is_not_written(lab: ForkLab) -> None:
    path = lab.root / "VERSIONS.lock"
    before = path.read_bytes()
    with pytest.raises(UserError, match=r"VERSIONS\.lock"):
        write_lock(path, "releases = {")
    assert path.read_bytes() == before
