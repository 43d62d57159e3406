# SPDX-License-Identifier: Apache-2.0
"""Fit of each patch of a series on other contents of the upstream's files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from forkpatch.inspect.symbols import MODULE, bare_name, outline
from forkpatch.inspect.upstreamed import NewBase, already_there
from forkpatch.model.diffs import FileDiff, Hunk
from forkpatch.model.fork import TreePlan
from forkpatch.model.patchfile import Patch
from forkpatch.model.record import Record
from forkpatch.model.weave import split_lines
from forkpatch.series.derive import changed_symbols

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


#: Fits with which the patch applies as it is.
FITTING = (Fit.APPLIES, Fit.CHANGED)


@dataclass(frozen=True)
class PatchFit:
    """Fit of one patch on one version; ``detail`` names the file or symbol that decides."""

    patch: str
    fit: Fit
    detail: str = ""


@dataclass(frozen=True)
class ProbedSeries:
    """A series prepared for probing: each patch with its files before and after it."""

    plan: TreePlan
    record: Record
    steps: tuple[tuple[Patch, Mapping[str, bytes], Mapping[str, bytes]], ...]

    @property
    def paths(self) -> tuple[str, ...]:
        """Every upstream file that the series touches."""
        return tuple(sorted(self.plan.base))


def prepare(plan: TreePlan, record: Record) -> ProbedSeries:
    """The series of a planned tree, ready for probing."""
    state = dict(plan.base)
    steps = []
    for patch, commit in zip(plan.patches, plan.patch_commits, strict=True):
        before = {path: state[path] for path in patch.paths if path in state}
        for path, file in commit.changes.items():
            if file is None:
                state.pop(path, None)
            else:
                state[path] = file.data
        after = {path: state[path] for path in patch.paths if path in state}
        steps.append((patch, before, after))
    return ProbedSeries(plan, record, tuple(steps))


def probe(series: ProbedSeries, contents: Contents) -> tuple[PatchFit, ...]:
    """Fit of each patch on a version, with the patches before it that fit applied.

    Args:
        series: the series.
        contents: the version's files by path; None for a file that it lacks, no entry for
            one whose content is not available.
    """
    state = dict(contents)
    fits = []
    for patch, before, after in series.steps:
        fit, changed = _fit(series, patch, before, after, contents, state)
        state.update(changed)
        fits.append(fit)
    return tuple(fits)


def _fit(
    series: ProbedSeries,
    patch: Patch,
    before: Mapping[str, bytes],
    after: Mapping[str, bytes],
    contents: Contents,
    state: Contents,
) -> tuple[PatchFit, dict[str, bytes | None]]:
    """Fit of one patch, and the files as it changes them."""
    for path in patch.paths:
        if path in series.plan.base and path not in contents:
            return PatchFit(patch.name, Fit.UNKNOWN, path), {}
    base = NewBase(state.get, lambda _word: (), {})
    there = already_there(patch, before, after, base)
    if there:
        return PatchFit(patch.name, Fit.UPSTREAM, "; ".join(there)), {}
    changed: dict[str, bytes | None] = {}
    for diff in patch.files:
        if diff.old is None:
            made = after.get(diff.new or "")
            if state.get(diff.new or "") is not None:
                same = state.get(diff.new or "") == made
                fit = Fit.UPSTREAM if same else Fit.CONFLICT
                return PatchFit(patch.name, fit, f"{diff.new} is there already"), {}
            changed[diff.new or ""] = made
            continue
        data = state.get(diff.old)
        if data is None:
            return PatchFit(patch.name, Fit.MISSING, diff.old), {}
        fit, result = _fit_file(diff, before[diff.old], after.get(diff.new or "", b""), data)
        if result is None:
            return PatchFit(patch.name, fit, diff.old), {}
        if diff.new != diff.old:
            changed[diff.old] = None
        if diff.new is not None:
            changed[diff.new] = result
    return _same_bodies(series, patch, contents), changed


def _same_bodies(series: ProbedSeries, patch: Patch, contents: Contents) -> PatchFit:
    """APPLIES when the symbols of a patch are as on its own base, else CHANGED."""
    for place in series.record.patches[patch.name]:
        data = contents.get(place.path)
        if not place.body or data is None:
            continue
        if outline(place.path, data).body(place.symbol) != place.body:
            return PatchFit(patch.name, Fit.CHANGED, f"{place.path}: {place.symbol}")
    return PatchFit(patch.name, Fit.APPLIES)


def _fit_file(diff: FileDiff, before: bytes, after: bytes, data: bytes) -> tuple[Fit, bytes | None]:
    """Apply the hunks of one file at lines inside the symbols that they change."""
    lines = split_lines(data)
    symbols = changed_symbols(diff, before, after)
    for hunk in reversed(diff.hunks):
        found = _occurrences(lines, list(hunk.old), hunk)
        if not found:
            return Fit.CONFLICT, None
        at = _in_own_symbol(diff.old or "", lines, hunk, found, symbols)
        if at is None:
            return Fit.MISPLACED, None
        new = [line.data for line in hunk.lines if line.kind != "-"]
        lines[at : at + len(hunk.old)] = new
    return Fit.APPLIES, b"".join(lines)


def _occurrences(lines: list[bytes], block: list[bytes], hunk: Hunk) -> list[int]:
    """Indices at which the block occurs, the one nearest to the stated line first."""
    span = len(block)
    found = [at for at in range(len(lines) - span + 1) if lines[at : at + span] == block]
    return sorted(found, key=lambda at: abs(at - hunk.first))


def _in_own_symbol(
    path: str, lines: list[bytes], hunk: Hunk, found: list[int], symbols: Sequence[str]
) -> int | None:
    """First occurrence whose changed lines are in one of the patch's symbols."""
    outlined = outline(path, b"".join(lines))
    wanted = {bare_name(symbol) for symbol in symbols}
    offset = next(at for at, line in enumerate(hunk.lines) if line.kind != " ")
    for at in found:
        around = {
            bare_name(outlined.at(min(max(at + shift, 1), max(len(lines), 1))).name)
            for shift in (offset, offset + 1)
        }
        if around & wanted or MODULE in wanted:
            return at
    return None
