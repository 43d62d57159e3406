# SPDX-License-Identifier: Apache-2.0
"""Fit of each patch of a series on other contents of the upstream's files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from forkpatch.git.merge import merge_data
from forkpatch.model.diffs import FileDiff
from forkpatch.model.patchfile import Patch
from forkpatch.model.record import Record
from forkpatch.symbols.outline import outline
from forkpatch.symbols.placement import misplaced
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

    Args:
        series: the series.
        contents: the version's files by path; None for a missing file, no entry for a file with
            unavailable content.
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
    changed: dict[str, bytes | None] = {}
    for diff in patch.files:
        fit, detail, files = _fit_file(diff, step, state)
        if fit is not Fit.APPLIES:
            return PatchFit(patch.name, fit, detail), {}
        changed |= files
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


def _fit_file(
    diff: FileDiff, step: PatchStep, state: Contents
) -> tuple[Fit, str, dict[str, bytes | None]]:
    """Merge a patch's change of a file, as a rebase does; return fit, detail and files."""
    path = diff.new or diff.old or ""
    patched = step.after.get(diff.new or "", b"")
    if diff.old is None:
        if state.get(path) not in (None, patched):
            return Fit.CONFLICT, f"{path} is there already", {}
        return Fit.APPLIES, "", {path: patched}
    data = state.get(diff.old)
    if data is None:
        return Fit.MISSING, diff.old, {}
    before = step.before[diff.old]
    merged = merge_data(data, before, patched)
    if merged is None or (diff.new is None and data != before):
        return Fit.CONFLICT, diff.old, {}
    wrong = misplaced(diff, (before, patched), (data, merged), diff.old)
    if wrong and diff.new is not None:
        return Fit.MISPLACED, f"{diff.old}: {wrong[0].detail}", {}
    gone = {diff.old: None} if diff.new != diff.old else {}
    return Fit.APPLIES, "", {**gone, **({diff.new: merged} if diff.new is not None else {})}
