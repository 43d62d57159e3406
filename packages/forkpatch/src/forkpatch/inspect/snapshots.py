# SPDX-License-Identifier: Apache-2.0
"""File contents of many upstream versions, read from the history without a checkout.

Blobs are read by id, each once. Versions whose files are the same are probed once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from forkpatch.git.calls import Git, GitError
from forkpatch.git.objects import read_blobs
from forkpatch.inspect.probe import PatchFit, ProbedSeries, probe
from forkpatch.safety import SYMLINK_MODE


@dataclass(frozen=True)
class Snapshot:
    """Blob ids of one version's files, by path; empty for a file that it lacks."""

    label: str
    commit: str
    blobs: tuple[tuple[str, str], ...]


def snapshots(
    git: Git, versions: Sequence[tuple[str, str]], paths: Sequence[str]
) -> tuple[Snapshot, ...]:
    """The blob ids of ``paths`` at many commits, in one call.

    Args:
        git: the repository.
        versions: label and commit of each.
        paths: the files.
    """
    folders = {path: path.rpartition("/")[0] for path in paths}
    asked = [(commit, folder) for _, commit in versions for folder in set(folders.values())]
    text = "".join(f"{commit}:{folder}\n" for commit, folder in asked)
    command = ("cat-file", "--batch-check=%(objectname) %(objecttype)")
    out = git.run(*command, stdin=text.encode("utf-8", "surrogateescape")).stdout
    # A tree is asked, not the file itself: a partial mirror has every tree, but not every file.
    trees = {
        place: line.split(b" ")[0].decode("ascii") if line.endswith(b" tree") else ""
        for place, line in zip(asked, out.split(b"\n")[:-1], strict=True)
    }
    raw = read_blobs(git, filter(None, trees.values()))
    entries = {oid: dict(_entries(data or b"", len(oid) // 2)) for oid, data in raw.items()}
    return tuple(
        Snapshot(
            label,
            commit,
            tuple(
                (path, entries.get(trees[commit, folders[path]], {}).get(path.split("/")[-1], ""))
                for path in paths
            ),
        )
        for label, commit in versions
    )


def _entries(tree: bytes, size: int) -> Iterator[tuple[str, str]]:
    """Name and id of the files and links in a raw tree object; an id has ``size`` bytes."""
    at = 0
    while at < len(tree):
        end = tree.index(b"\0", at)
        mode, _, name = tree[at:end].partition(b" ")
        at = end + 1 + size
        if mode.startswith(b"100") or mode == SYMLINK_MODE.encode():
            yield name.decode("utf-8", "surrogateescape"), tree[end + 1 : at].hex()


def read_available(git: Git, oids: Iterable[str]) -> dict[str, bytes | None]:
    """Contents of blobs; None for one that a partial mirror would have to fetch."""
    wanted = set(oids)
    try:
        return read_blobs(git, wanted)
    except GitError:
        listed = git.run("cat-file", "--batch-all-objects", "--batch-check=%(objectname)").stdout
        here = wanted & set(listed.decode("ascii").split())
        return dict.fromkeys(wanted) | read_blobs(git, here)


class Prober:
    """Prober of many versions; each combination of file contents is probed once."""

    def __init__(self, series: ProbedSeries, git: Git, versions: Sequence[Snapshot]) -> None:
        self._series = series
        ids = (oid for one in versions for _, oid in one.blobs if oid)
        self._blobs = read_available(git, ids)
        self._known: dict[tuple[tuple[str, str], ...], tuple[PatchFit, ...]] = {}

    def fits(self, version: Snapshot) -> tuple[PatchFit, ...]:
        """Fit of each patch on a version."""
        if version.blobs not in self._known:
            self._known[version.blobs] = probe(self._series, self.contents(version))
        return self._known[version.blobs]

    def contents(self, version: Snapshot) -> dict[str, bytes | None]:
        """Contents of a version's files that are available; None for a file that it lacks."""
        return dict(self._contents(version))

    def _contents(self, version: Snapshot) -> Iterator[tuple[str, bytes | None]]:
        for path, oid in version.blobs:
            if not oid:
                yield path, None
            elif (data := self._blobs[oid]) is not None:
                yield path, data
