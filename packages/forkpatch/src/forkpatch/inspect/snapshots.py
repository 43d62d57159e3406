# SPDX-License-Identifier: Apache-2.0
"""File contents of many upstream versions, read from the history without a checkout.

Each blob is read once, by id. Versions with the same files are probed once.
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
    """Blob ids of a version's files, by path; empty for a missing file."""

    label: str
    commit: str
    blobs: tuple[tuple[str, str], ...]


def snapshots(
    git: Git, versions: Sequence[tuple[str, str]], paths: Sequence[str]
) -> tuple[Snapshot, ...]:
    """Return the blob ids of ``paths`` at many commits, with one call of git.

    ``versions`` has label and commit of each version.
    """
    folders = {path: path.rpartition("/")[0] for path in paths}
    keys = [(commit, folder) for _, commit in versions for folder in set(folders.values())]
    text = "".join(f"{commit}:{folder}\n" for commit, folder in keys)
    command = ("cat-file", "--batch-check=%(objectname) %(objecttype)")
    out = git.run(*command, stdin=text.encode("utf-8", "surrogateescape")).stdout
    # Trees are read, not files: a partial mirror has every tree, but not every file.
    trees = {
        place: line.split(b" ")[0].decode("ascii") if line.endswith(b" tree") else ""
        for place, line in zip(keys, out.split(b"\n")[:-1], strict=True)
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
    """Yield name and id of the files and links in a raw tree object with ids of ``size`` bytes."""
    offset = 0
    while offset < len(tree):
        end = tree.index(b"\0", offset)
        mode, _, name = tree[offset:end].partition(b" ")
        offset = end + 1 + size
        if mode.startswith(b"100") or mode == SYMLINK_MODE.encode():
            yield name.decode("utf-8", "surrogateescape"), tree[end + 1 : offset].hex()


def read_available(git: Git, oids: Iterable[str]) -> dict[str, bytes | None]:
    """Return contents of blobs; None for a blob that a partial mirror lacks."""
    ids = set(oids)
    try:
        return read_blobs(git, ids)
    except GitError:
        listed = git.run("cat-file", "--batch-all-objects", "--batch-check=%(objectname)").stdout
        local_ids = ids & set(listed.decode("ascii").split())
        return dict.fromkeys(ids) | read_blobs(git, local_ids)


class Prober:
    """Prober of a series on many versions; equal file contents are probed once."""

    def __init__(self, series: ProbedSeries, git: Git, versions: Sequence[Snapshot]) -> None:
        self._series = series
        ids = (oid for version in versions for _, oid in version.blobs if oid)
        self._blobs = read_available(git, ids)
        self._known: dict[tuple[tuple[str, str], ...], tuple[PatchFit, ...]] = {}

    def fits(self, version: Snapshot) -> tuple[PatchFit, ...]:
        """Return the fit of each patch on a version."""
        if version.blobs not in self._known:
            self._known[version.blobs] = probe(self._series, self.contents(version))
        return self._known[version.blobs]

    def contents(self, version: Snapshot) -> dict[str, bytes | None]:
        """Return a version's available file contents; None for a missing file."""
        return dict(self._contents(version))

    def _contents(self, version: Snapshot) -> Iterator[tuple[str, bytes | None]]:
        """Yield path and content of a version's available files; None for a missing file."""
        for path, oid in version.blobs:
            if not oid:
                yield path, None
            elif (data := self._blobs[oid]) is not None:
                yield path, data
