# SPDX-License-Identifier: Apache-2.0
"""Fit of each patch of a series on other contents of the upstream's files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from forkpatch.git.objects import Changes, TreeFile
from forkpatch.model.patchfile import Patch
from forkpatch.model.record import Record
from forkpatch.safety import FILE_MODES
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
        """The upstream files that the series touches."""
        return tuple(sorted(self.plan.base))


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
    """Return the fit of a patch, and the files that it changes."""
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
