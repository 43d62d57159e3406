# SPDX-License-Identifier: Apache-2.0
"""Fit of each patch of a series on other contents of the upstream's files."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from forkpatch.git.calls import Git
from forkpatch.git.objects import Changes, TreeFile, list_tree, read_available
from forkpatch.model.patchfile import Patch
from forkpatch.model.record import Record
from forkpatch.safety import FILE_MODES, GITLINK_MODE
from forkpatch.series.merge import MergeError, merged_file
from forkpatch.symbols.outline import outline
from forkpatch.tree.fork import PatchStep, TreePlan

#: Contents of a version's files: None for a missing file, no entry for one that a mirror lacks.
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


#: Fit of a patch, and the file or symbol that decides; by patch.
Fits = Mapping[str, tuple[Fit, str]]


@dataclass(frozen=True)
class ProbedSeries:
    """A series prepared for probing: each patch with its files before and after it.

    Attributes:
        paths: the upstream files to read; a lost symbol is searched in them.
    """

    plan: TreePlan
    record: Record
    steps: tuple[PatchStep, ...]
    paths: frozenset[str]

    def fits(self, contents: Contents) -> Fits:
        """Return the fit of each patch on a version, with all earlier fitting patches applied."""
        state, fits = dict(contents), dict[str, tuple[Fit, str]]()
        for step in self.steps:
            fit, detail, changed = self._fit(step, contents, state)
            fits[step.patch.name] = fit, detail
            state |= changed
        return fits

    def _fit(self, step: PatchStep, contents: Contents, state: Contents) -> _Fitted:
        for path in step.patch.paths:
            if path in self.plan.base and path not in contents:
                return Fit.UNKNOWN, path, {}

        def read(path: str) -> TreeFile | None:
            data = state.get(path)
            return TreeFile(FILE_MODES[0], data) if data is not None else None

        changes: Changes = {}
        try:
            for diff in step.patch.files:
                changes |= merged_file(diff, step, read)
        except MergeError as error:
            return Fit(error.obstacle), error.detail, {}
        changed = {path: file.data if file else None for path, file in changes.items()}
        if all(state.get(path) == data for path, data in changed.items()):
            return Fit.UPSTREAM, "it changes nothing any more", {}
        drifted = self._drifted(step.patch, contents)
        return Fit.CHANGED if drifted else Fit.APPLIES, drifted, changed

    def _drifted(self, patch: Patch, contents: Contents) -> str:
        """Return the first symbol of a patch that differs from the series' own base."""
        for place in self.record.patches[patch.name]:
            data = contents.get(place.path)
            known = outline(place.path, data) if place.body and data is not None else None
            if known and known.body(place.symbol) != place.body:
                return f"{place.path}: {place.symbol}"
        return ""


_Fitted = tuple[Fit, str, Mapping[str, bytes | None]]


class Prober:
    """A series on commits of its upstream; equal file contents are probed once."""

    def __init__(self, series: ProbedSeries, git: Git, commits: Iterable[str]) -> None:
        self._series, self._known = series, dict[frozenset[tuple[str, str]], Fits]()
        self._listed = {commit: self._files(git, commit) for commit in commits}
        self._blobs = read_available(
            git, (oid for files in self._listed.values() for oid in files.values())
        )

    def _files(self, git: Git, commit: str) -> Mapping[str, str]:
        """Return the ids of a commit's files; a partial mirror has these, but not every file."""
        listed = list_tree(git, commit, *self._series.paths) if self._series.paths else {}
        return {path: oid for path, (mode, oid) in listed.items() if mode != GITLINK_MODE}

    def fits(self, commit: str) -> Fits:
        """Return the fit of each patch on a commit."""
        key = frozenset(self._listed[commit].items())
        if key not in self._known:
            self._known[key] = self._series.fits(self.contents(commit))
        return self._known[key]

    def contents(self, commit: str) -> Contents:
        """Return a commit's available file contents."""
        found = {path: self._blobs[oid] for path, oid in self._listed[commit].items()}
        missing = dict.fromkeys(path for path in self._series.paths if path not in found)
        return {path: data for path, data in found.items() if data is not None} | missing
