# SPDX-License-Identifier: Apache-2.0
"""Forkpatch, quilt, gbp pq and git on the same Debian series, run side by side.

    uv run --package forkpatch python packages/forkpatch/tests/side_by_side.py FOLDER

For each source package (``.dsc``) of FOLDER every tool applies ``debian/patches`` to the pristine
tree, writes the series anew, and moves it to a next version of the upstream: the same tree with
five more lines at the top of each file that the series changes. Compared are the trees with
dpkg-source's, and the files with those of the package. A dash means that the tool stopped.
Needs quilt, git-buildpackage and dpkg-dev.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from debian_series import (
    PERSON,
    commit_tree,
    content_of,
    differences,
    listed,
    make_fork,
    run,
    unpack,
)

from forkpatch.git.calls import neutral_environment

_LINES = b"\n" * 5
#: Result of one step: the names that differ; None when the tool stopped.
Step = tuple[str, ...] | None


class Bench:
    """One package, unpacked: pristine, as dpkg-source patches it, and both of a next version."""

    def __init__(self, dsc: Path, folder: Path) -> None:
        self.folder = folder
        self.pristine, self.patched = folder / "pristine", folder / "patched"
        unpack(dsc, self.pristine, "--skip-patches")
        unpack(dsc, self.patched)
        patches = self.pristine / "debian/patches"
        self.patches = {name: (patches / name).read_bytes() for name in listed(patches)}
        before, after = content_of(self.pristine), content_of(self.patched)
        touched = [n for n in differences(before, after) if n in before and n in after]
        self.next, self.expected = folder / "next", folder / "expected"
        for old, new in ((self.pristine, self.next), (self.patched, self.expected)):
            shutil.copytree(old, new, symlinks=True)
            for name in touched:
                (new / name).write_bytes(_LINES + (new / name).read_bytes())
        for name in set(after) - set(before):  # a file that the series makes is as it was
            assert (self.expected / name).exists()

    def compare(self, tree: Path, expected: Path) -> Step:
        """Files in which two trees differ."""
        return differences(content_of(tree), content_of(expected))

    def returned(self, folder: Path) -> Step:
        """Files of the series that did not come back under their name as they were."""
        return tuple(
            name
            for name, data in self.patches.items()
            if not (folder / name).is_file() or (folder / name).read_bytes() != data
        )


def call(folder: Path, *words: str, **env: str) -> bool:
    """Run a tool; False when it fails."""
    environment = neutral_environment({**PERSON, "GIT_ALLOW_PROTOCOL": "file", **env})
    done = subprocess.run(words, cwd=folder, env=environment, capture_output=True, check=False)
    return done.returncode == 0


def forkpatch(bench: Bench, place: Path) -> tuple[Step, Step, Step]:
    """Forkpatch."""
    upstream = place / "upstream"
    shutil.copytree(bench.pristine, upstream, symlinks=True)
    os.environ["XDG_CACHE_HOME"] = str(place / "cache")
    fork = make_fork(place, upstream, commit_tree(upstream))
    patches = str(bench.pristine / "debian/patches")
    if any(run(fork, *words)[0] for words in (
        ("import-series", "up", "--nearest", patches), ("apply",),
        ("export", "up", "--format", "debian", "--output", str(place / "back")),
    )):  # fmt: skip
        return None, None, None
    first = bench.compare(fork / ".work/r/up", bench.patched), bench.returned(place / "back")
    for path in upstream.iterdir():
        if path.name != ".git":
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
    shutil.copytree(bench.next, upstream, symlinks=True, dirs_exist_ok=True)
    commit = commit_tree(upstream)
    lock = fork / "VERSIONS.lock"
    text = lock.read_text()
    begin = text.index('[upstreams.up.versions."1"]')
    entry = text[begin:].replace('versions."1"', 'versions."2"')
    old = next(line for line in entry.splitlines() if line.startswith("commit"))
    tree = next(line for line in entry.splitlines() if line.startswith("tree"))
    entry = entry.replace(old, f'commit = "{commit}"').replace(tree, 'tree = ""')
    lock.write_text(f"{text}\n{entry}")
    if run(fork, "lock")[0] or run(fork, "rebase", "up", "2")[0]:
        return *first, None
    lock.write_text(lock.read_text().replace('up = "1"', 'up = "2"'))
    moved = not run(fork, "apply", "--discard")[0]
    return *first, bench.compare(fork / ".work/r/up", bench.expected) if moved else None


def quilt(bench: Bench, place: Path) -> tuple[Step, Step, Step]:
    """Quilt; the series is written anew with ``quilt refresh``."""
    env = {"QUILT_PATCHES": "debian/patches", "QUILT_NO_DIFF_TIMESTAMPS": "1"}
    tree, moved = place / "tree", place / "moved"
    shutil.copytree(bench.pristine, tree, symlinks=True)
    if not call(tree, "quilt", "push", "-a", "--fuzz=0", **env):
        return None, None, None
    applied = bench.compare(tree, bench.patched)
    call(tree, "quilt", "pop", "-a", **env)
    while call(tree, "quilt", "push", **env):
        call(tree, "quilt", "refresh", **env)
    shutil.copytree(bench.next, moved, symlinks=True)
    there = call(moved, "quilt", "push", "-a", "--fuzz=0", **env)
    shutil.rmtree(tree / ".pc")
    back = bench.returned(tree / "debian/patches")
    return applied, back, bench.compare(moved, bench.expected) if there else None


def write_over(tree: Path, other: Path) -> None:
    """Copy a tree over another."""
    for path in tree.rglob("*"):
        if path.is_symlink():  # copytree writes over files alone
            path.unlink()
    shutil.copytree(other, tree, symlinks=True, dirs_exist_ok=True)


def gbp(bench: Bench, place: Path) -> tuple[Step, Step, Step]:
    """git-buildpackage's patch queues."""
    tree = place / "tree"
    shutil.copytree(bench.pristine, tree, symlinks=True)
    commit_tree(tree, keep_debian=True)
    if not call(tree, "gbp", "pq", "import"):
        return None, None, None
    applied = bench.compare(tree, bench.patched)
    if not call(tree, "gbp", "pq", "export"):
        return applied, None, None
    back = bench.returned(tree / "debian/patches")
    call(tree, "git", "checkout", "-q", "--", ".")
    write_over(tree, bench.next)
    commit_tree(tree, keep_debian=True)
    moved = call(tree, "gbp", "pq", "rebase")
    return applied, back, bench.compare(tree, bench.expected) if moved else None


def git(bench: Bench, place: Path) -> tuple[Step, Step, Step]:
    """Git alone: quiltimport, format-patch, rebase."""
    tree = place / "tree"
    shutil.copytree(bench.pristine, tree, symlinks=True)
    commit_tree(tree, keep_debian=True)
    call(tree, "git", "branch", "-q", "next")
    who = ("--author", "unknown <unknown@localhost>")
    if not call(tree, "git", "quiltimport", *who, "--patches", "debian/patches"):
        return None, None, None
    applied = bench.compare(tree, bench.patched)
    call(tree, "git", "format-patch", "-q", "-o", str(place / "back"), "next")
    back = bench.returned(place / "back")
    call(tree, "git", "checkout", "-q", "-b", "onto", "next")
    write_over(tree, bench.next)
    commit_tree(tree, keep_debian=True)
    call(tree, "git", "checkout", "-q", "-")
    moved = call(tree, "git", "rebase", "-q", "--onto", "onto", "next")
    return applied, back, bench.compare(tree, bench.expected) if moved else None


TOOLS: tuple[Callable[[Bench, Path], tuple[Step, Step, Step]], ...] = (forkpatch, quilt, gbp, git)


def _cell(step: Step) -> str:
    return "-" if step is None else f"{len(step)} differ" if step else "identical"


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path, help="folder of .dsc files and what belongs to them")
    folder = parser.parse_args().folder
    row = "{:32} {:>7} {:10} {:>7} {:12} {:12} {}"
    print(row.format("package", "patches", "tool", "seconds", "tree", "series", "next version"))
    for dsc in sorted(folder.resolve().glob("*.dsc")):
        with tempfile.TemporaryDirectory(prefix="side-") as name:
            try:
                bench = Bench(dsc, Path(name))
            except FileNotFoundError as error:
                print(f"{dsc.stem}: left out: it has no {Path(error.filename).name}")
                continue
            for tool in TOOLS:
                place = Path(name, tool.__name__)
                place.mkdir()
                began = time.monotonic()
                cells = [_cell(step) for step in tool(bench, place)]
                seconds = f"{time.monotonic() - began:.1f}"
                count = str(len(bench.patches) - 1)
                print(row.format(dsc.stem, count, tool.__name__, seconds, *cells), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
