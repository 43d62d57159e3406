# SPDX-License-Identifier: Apache-2.0
"""Fit of each patch of a series on other contents of the upstream's files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from forkpatch.git.calls import Git
from forkpatch.git.objects import Changes, TreeFile, read_available, read_blobs
from forkpatch.model.patchfile import Patch
from forkpatch.model.record import Record
from forkpatch.safety import FILE_MODES, SYMLINK_MODE
from forkpatch.series.merge import MergeError, merged_file
from forkpatch.symbols.outline import outline
from forkpatch.tree.fork import PatchStep, TreePlan

Contents = Mapping[str, bytes | None]


class Fit(StrEnum):
    """Fit of a patch on a version of its upstream."""

    APPLIES = "applies"
    CHANGED = "body changed"
    MISPLACED = "misplaced"
    CONFLICT = "conflict"
    UPSTREAM = "already upstream"
    MISSING = "file missing"
    UNKNOWN = "not known"


#: Fits of a patch that applies unchanged.
FITTING = (Fit.APPLIES, Fit.CHANGED)


@dataclass(frozen=True)
class PatchFit:
    """Fit of a patch on a version; ``detail`` names the file or symbol that decides."""

    patch: str
    fit: Fit
    detail: str = ""


@dataclass(frozen=True)
class ProbedSeries:
    """A series prepared for probing: each patch with its files before and after it."""

    plan: TreePlan
    record: Record
    steps: tuple[PatchStep, ...]

    @property
    def paths(self) -> tuple[str, ...]:
        """The upstream files that the series changes or its overlays shadow."""
        return tuple(sorted({*self.plan.base, *(place.path for place in self.record.shadows)}))


def probe(series: ProbedSeries, contents: Contents) -> tuple[PatchFit, ...]:
    """Return the fit of each patch on a version, with all earlier fitting patches applied.

    ``contents`` has None for a missing file, and no entry for a file whose content is unavailable.
    """
    state = dict(contents)
    fits = []
    for step in series.steps:
        fit, changed = _fit(series, step, contents, state)
        state.update(changed)
        fits.append(fit)
    return tuple(fits)


def _fit(
    series: ProbedSeries, step: PatchStep, contents: Contents, state: Contents
) -> tuple[PatchFit, dict[str, bytes | None]]:
    patch = step.patch
    for path in patch.paths:
        if path in series.plan.base and path not in contents:
            return PatchFit(patch.name, Fit.UNKNOWN, path), {}

    def read(path: str) -> TreeFile | None:
        data = state.get(path)
        return TreeFile(FILE_MODES[0], data) if data is not None else None

    changes: Changes = {}
    try:
        for diff in patch.files:
            changes |= merged_file(diff, step, read)
    except MergeError as error:
        return PatchFit(patch.name, Fit(error.obstacle), error.detail), {}
    changed = {path: file.data if file else None for path, file in changes.items()}
    if all(state.get(path) == data for path, data in changed.items()):
        return PatchFit(patch.name, Fit.UPSTREAM, "it changes nothing any more"), {}
    return _same_bodies(series, patch, contents), changed


def _same_bodies(series: ProbedSeries, patch: Patch, contents: Contents) -> PatchFit:
    """Return the fit APPLIES when the patch's symbols are as on its own base, else CHANGED."""
    for place in series.record.patches[patch.name]:
        data = contents.get(place.path)
        if not place.body or data is None:
            continue
        if outline(place.path, data).body(place.symbol) != place.body:
            return PatchFit(patch.name, Fit.CHANGED, f"{place.path}: {place.symbol}")
    return PatchFit(patch.name, Fit.APPLIES)


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


class Prober:
    """Prober of a series on many versions; equal file contents are probed once."""

    def __init__(self, series: ProbedSeries, git: Git, versions: Sequence[Snapshot]) -> None:
        self._series = series
        self.patches = [patch.name for patch in series.plan.patches]
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
