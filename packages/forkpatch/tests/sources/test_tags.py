# SPDX-License-Identifier: Apache-2.0
"""Upstreams whose tags are written in other ways than ``v1.2.3``."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from forklab import FILES, ForkLab, Repo, git

from forkpatch.pins.versions import prefix_of, series_of, version_of


@pytest.mark.parametrize(
    ("older", "newer", "prefix"),
    [
        ("v1.2.3", "v1.10.0", "v"),
        ("curl-8_16_0", "curl-8_17_0", "curl-"),
        ("REL_16_1", "REL_16_10", "REL_"),
        ("release-1.2", "release-1.2.1", "release-"),
        ("2024.01", "2024.10", ""),
        ("2024-01-15", "2024-02-01", ""),
        ("jdk-21+35", "jdk-21.0.1+12", "jdk-"),
        ("OpenSSL_1_1_1", "OpenSSL_1_1_1b", "OpenSSL_"),
        ("8.0-m01", "8.0.0", ""),
        ("v2.55.0-rc1", "v2.55.0", "v"),
        ("rel/log4j-2.17.1-rc1", "rel/log4j-2.17.1", "rel/log4j-"),
        ("swift-5.9-RELEASE", "swift-5.10-RELEASE", "swift-"),
    ],
)
def test_tags_of_one_series_are_in_the_order_of_their_versions(
    older: str, newer: str, prefix: str
) -> None:
    first, second = version_of(older), version_of(newer)
    assert first and second and first < second
    assert prefix_of(older) == prefix_of(newer) == prefix
    assert series_of(older) == series_of(newer)


@pytest.mark.parametrize("name", ["before_rename", "vm-playpen", "79d603f012ab", "latest"])
def test_other_names_are_not_versions(name: str) -> None:
    assert version_of(name) is None


def upstream(lab: ForkLab, *tags: str) -> Repo:
    """The laboratory's upstream with these tags alone, each on a commit of its own."""
    git(lab.repo.path, "tag", "-d", *git(lab.repo.path, "tag").split())
    for number, tag in enumerate(tags):
        lab.repo.commit({"src/run.c": FILES["src/run.c"] + b"\n" * number}, f"Version {tag}")
        git(lab.repo.path, "tag", tag)
    return lab.repo


CURL = ("curl-7_88_1", "rc-9_0_0-1", "curl-8_16_0", "curl-8_17_0", "curl-8_18_0", "tiny-curl-9_0")


def begun(lab: ForkLab, root: Path, *words: str) -> ForkLab:
    root.mkdir()
    fork = ForkLab(root, lab.home, lab.repo, lab.capsys)
    fork.ok("init", str(lab.repo.path), "--name", "calc", *words)
    return fork


def test_newest_version_is_of_the_usual_series_of_tags(lab: ForkLab, tmp_path: Path) -> None:
    upstream(lab, *CURL)
    fork = begun(lab, tmp_path / "new")
    assert 'tag = "curl-8_18_0"' in (fork.root / "VERSIONS.lock").read_text()


def test_newer_versions_are_those_of_the_pinned_series(lab: ForkLab, tmp_path: Path) -> None:
    upstream(lab, *CURL)
    fork = begun(lab, tmp_path / "new", "--tag", "curl-8_16_0")
    (news,) = fork.ok("watch", "--json", "-").json
    assert news["tags"] == ["curl-8_17_0", "curl-8_18_0"]
    assert news["version"] == "8_16_0" and news["tags_understood"]


@pytest.mark.parametrize("typed", ["8_17_0", "8.17.0", "curl-8_17_0"])
def test_version_is_added_as_it_is_typed(lab: ForkLab, tmp_path: Path, typed: str) -> None:
    upstream(lab, *CURL)
    fork = begun(lab, tmp_path / "new", "--tag", "curl-8_16_0")
    fork.ok("lock", "--add", f"calc={typed}")
    assert 'tag = "curl-8_17_0"' in (fork.root / "VERSIONS.lock").read_text()
    done = fork.run("lock", "--add", "calc=8_99_0")
    assert done.code == 2 and "no tag curl-8_99_0 or v8_99_0 or 8_99_0 of calc" in done.err


def test_whole_tag_names_the_same_version_in_every_verb(lab: ForkLab, tmp_path: Path) -> None:
    upstream(lab, *CURL)
    fork = begun(lab, tmp_path / "new", "--tag", "curl-8_16_0")
    fork.ok("lock", "--add", "calc=curl-8_18_0")
    assert "calc 8_17_0 added" in fork.ok("rebase", "calc", "curl-8_17_0").out
    tables = tomllib.loads((fork.root / "VERSIONS.lock").read_text())
    assert set(tables["upstreams"]["calc"]["versions"]) == {"8_16_0", "8_17_0", "8_18_0"}
    fork.ok("range-diff", "calc", "curl-8_16_0", "8_17_0")
    done = fork.run("lock", "--add", "calc=curl-8_17_0")
    assert done.code == 2 and "has calc 8_17_0 already" in done.err


@pytest.mark.parametrize(
    ("pinned", "newer", "version"),
    [
        ("jdk-21+34", "jdk-21+35", "21+35"),
        ("log4j-2.17.0", "log4j-2.17.1", "2.17.1"),
        ("OpenSSL_1_1_1a", "OpenSSL_1_1_1b", "1_1_1b"),
        ("2024a", "2024b", "2024b"),
        ("3.0.0.Final", "3.1.0.Final", "3.1.0.Final"),
        ("v1.1-final", "v1.2-final", "1.2-final"),
        ("lib2-1.3", "lib2-1.4", "1.4"),
    ],
)
def test_watch_gives_the_name_of_each_newer_release(
    lab: ForkLab, tmp_path: Path, pinned: str, newer: str, version: str
) -> None:
    upstream(lab, pinned, newer)
    fork = begun(lab, tmp_path / "new", "--tag", pinned)
    (news,) = fork.ok("watch", "--json", "-").json
    assert news["releases"] == {newer: version}


def test_a_pre_release_is_no_newer_release(lab: ForkLab, tmp_path: Path) -> None:
    upstream(lab, "v5.0", "v5.1", "v5.2rc1")
    fork = begun(lab, tmp_path / "new", "--tag", "v5.0")
    (news,) = fork.ok("watch", "--json", "-").json
    assert (news["tags"], news["releases"]) == (["v5.1", "v5.2rc1"], {"v5.1": "5.1"})


def test_tags_that_name_no_version_are_said(lab: ForkLab, tmp_path: Path) -> None:
    upstream(lab, "spring", "summer")
    fork = begun(lab, tmp_path / "new", "--tag", "spring")
    done = fork.ok("watch")
    assert "tags not understood" in done.out
    assert not fork.ok("watch", "--json", "-").json[0]["tags_understood"]


def test_rebase_adds_the_version_and_names_the_release(lab: ForkLab, tmp_path: Path) -> None:
    upstream(lab, *CURL)
    fork = begun(lab, tmp_path / "new", "--tag", "curl-8_16_0")
    fork.ok("apply")
    tree = fork.root / ".work/8_16_0/calc"
    (tree / "LICENSE").write_text("freer\n")
    git(tree, "commit", "-q", "-a", "-m", "Free it")
    fork.ok("export", "calc")
    done = fork.ok("rebase", "calc", "8.17.0")
    assert "VERSIONS.lock: calc 8.17.0 added" in done.out
    assert "release 8.17.0 has it; next: forkpatch apply --release 8.17.0" in done.out
    fork.ok("apply", "--release", "8.17.0")
    assert (fork.root / ".work/8.17.0/calc/LICENSE").read_text() == "freer\n"
    lock = (fork.root / "VERSIONS.lock").read_text()
    done = fork.run("rebase", "calc", "9.9")
    assert done.code == 2 and "no tag curl-9.9" in done.err
    assert (fork.root / "VERSIONS.lock").read_text() == lock


def test_lock_lists_executables_for_a_wheel_alone(lab: ForkLab, tmp_path: Path) -> None:
    upstream(lab, "v2.0")
    fork = begun(lab, tmp_path / "new")
    fork.ok("apply")
    assert "executable" not in (fork.root / "VERSIONS.lock").read_text()
    assert (fork.root / ".work/2.0/calc/python/calc/tool.sh").stat().st_mode & 0o111
