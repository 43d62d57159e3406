# SPDX-License-Identifier: Apache-2.0
"""Record of a series: computed from lock, series and overlays, and compared with another one."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

from forkpatch.command import typed
from forkpatch.errors import PatchError
from forkpatch.model.diffs import FileDiff
from forkpatch.model.overlays import read_shadows
from forkpatch.model.record import PatchRecord, Record, SymbolPlace, read_record
from forkpatch.symbols.outline import MODULE, Outline, bare_name, outline
from forkpatch.tree.fork import Fork, TreePlan


class Drift(StrEnum):
    """Change of a symbol between two bases."""

    UNCHANGED = "unchanged"
    CHANGED = "body changed"
    MOVED = "moved"
    GONE = "gone"
    MISPLACED = "misplaced"
    FOLLOWED = "followed"


@dataclass(frozen=True)
class DriftFinding:
    """Drift of a symbol.

    Attributes:
        what: the patch, or ``overlay`` for a shadowed symbol.
        detail: the symbol's new place, or the symbols that the patch changed before.
    """

    what: str
    path: str
    symbol: str
    drift: Drift
    detail: str = ""

    def __str__(self) -> str:
        tail = f" ({self.detail})" if self.detail else ""
        return f"{self.what}: {self.path}: {self.symbol}: {self.drift}{tail}"


def files_to_compare(
    plan: TreePlan, *records: Record, find: Callable[[str], Iterable[str]] | None = None
) -> dict[str, bytes]:
    """Return contents of the base's files that records name, or that may have a lost symbol.

    ``find`` returns the files with a word; without it, all files are searched.
    """
    places = [
        place
        for record in records
        for group in (*(patch.places for patch in record.patches.values()), record.shadows)
        for place in group
    ]
    files = plan.pristine.read(place.path for place in places)
    lost = {
        bare_name(place.symbol)
        for place in places
        if place.body
        and place.symbol not in outline(place.path, files.get(place.path, b"")).symbols
    }
    if find is not None:
        return files | plan.pristine.read({path for word in lost for path in find(word)})
    words = [part for word in sorted(lost) for part in ("-e", word)]
    if words:
        listed = plan.pristine.git.fields("grep", "-lzIwF", *words, plan.pristine.tree, ok=(0, 1))
        files |= plan.pristine.read(item.partition(":")[2] for item in listed)
    return files


def compare(old: Record, new: Record, base: Mapping[str, bytes]) -> tuple[DriftFinding, ...]:
    """Return the drift of each recorded symbol.

    ``base`` has the files of the new base that either record names.

    Returns:
        A finding for each symbol; MISPLACED when a hunk now changes a symbol that it did not change
        before.
    """
    outlines = {path: outline(path, data) for path, data in base.items()}
    findings: list[DriftFinding] = []
    for patch, was in old.patches.items():
        places, now = was.places, new.patches.get(patch)
        same_hunks = now is not None and was.sha256 == now.sha256
        expected: dict[tuple[str, str], set[int]] = {}
        for place in places:
            finding, target = _compared(patch, place, outlines)
            findings.append(finding)
            for key in ((place.path, place.symbol), target):
                expected[key] = expected.get(key, set()) | set(place.hunks if same_hunks else ())
        findings += [
            DriftFinding(
                patch,
                place.path,
                place.symbol,
                Drift.MISPLACED,
                "it changed " + (", ".join(p.symbol for p in places) or "nothing") + " before",
            )
            for place in (now.places if now else ())
            if place.body and not _is_expected(place, expected)
        ]
    findings += (_compared("overlay", place, outlines)[0] for place in old.shadows)
    return tuple(findings)


def _compared(
    what: str, place: SymbolPlace, outlines: Mapping[str, Outline]
) -> tuple[DriftFinding, tuple[str, str]]:
    """Return the drift of a symbol as a finding, and the symbol's present path and name.

    ``what`` is the patch, or ``overlay``. A symbol that is gone keeps its path and name.
    """
    drift, target = became(place, outlines)
    detail = f"now {target[0]}: {target[1]}" if drift is Drift.MOVED else ""
    return DriftFinding(what, place.path, place.symbol, drift, detail), target


def _is_expected(place: SymbolPlace, expected: Mapping[tuple[str, str], set[int]]) -> bool:
    """Return True when the hunks that change a symbol now did before, or any did if unknown."""
    known = expected.get((place.path, place.symbol))
    return known is not None and (not known or known >= set(place.hunks))


def became(place: SymbolPlace, outlines: Mapping[str, Outline]) -> tuple[Drift, tuple[str, str]]:
    """Return the drift of a symbol, and its present path and name; the recorded ones if gone."""
    place_key = (place.path, place.symbol)
    if not place.body:
        return Drift.UNCHANGED, place_key
    source = outlines.get(place.path)
    body = source.body(place.symbol) if source else None
    if body == place.body:
        return Drift.UNCHANGED, place_key
    if body is not None:
        return Drift.CHANGED, place_key
    bare = bare_name(place.symbol)
    word = bare.encode("utf-8", "surrogateescape")
    for path, other in outlines.items() if bare != MODULE else ():
        is_named = word in other.data
        rows = [row for row, line in enumerate(other.lines, 1) if word in line] if is_named else []
        for symbol in other.symbols.values() if rows else ():
            if bare_name(symbol.name) == bare:
                return Drift.MOVED, (path, symbol.name)
            # A body has the name of its symbol.
            is_in = bisect_left(rows, symbol.first) < bisect_right(rows, symbol.last)
            if is_in and symbol.body == place.body:
                return Drift.MOVED, (path, symbol.name)
    return Drift.GONE, place_key


def check_placement(fork: Fork, plan: TreePlan) -> None:
    """Raise PatchError if a recorded, unchanged patch changes another symbol on another base."""
    old = read_record(fork.patch_folder(plan.upstream))
    if old is None or old.base == plan.upstream.tree:
        return
    new = record_of(fork, plan)
    hashes = new.hashes
    same = {k: v for k, v in old.patches.items() if hashes.get(k) == v.sha256}
    old = replace(old, patches=same)
    findings = compare(old, new, files_to_compare(plan, old, new))
    wrong = [finding for finding in findings if finding.drift is Drift.MISPLACED]
    if wrong:
        raise PatchError(
            f"{wrong[0]}",
            remedy="the patch changes another function than it was made for;"
            f" move the series with {typed('rebase')}, or correct the patch",
        )


def record_of(fork: Fork, plan: TreePlan) -> Record:
    """Return a planned tree's record: hashes, and symbols that patches change, overlays shadow."""
    patches: dict[str, PatchRecord] = {}
    for step in plan.steps.values():
        places: dict[tuple[str, str], SymbolPlace] = {}
        for diff in step.patch.files:
            before = step.before.get(diff.old or "", b"")
            after = step.after.get(diff.new or "", b"")
            base = outline(diff.old or "", plan.base.get(diff.old or "", b""))
            path = diff.old or diff.new or ""
            for symbol, hunks in _symbols_by_hunk(diff, before, after).items():
                body = base.body(symbol) if diff.old in plan.base else None
                places[path, symbol] = SymbolPlace(path, symbol, body or "", hunks)
        patch = step.patch
        patches[patch.name] = PatchRecord(
            sha256=patch.sha256,
            at=patch.positions if patch.home else None,
            places=tuple(places.values()),
        )
    shadows = tuple(_shadows(fork, plan))
    touched = {path for patch in plan.patches for path in patch.paths}
    paths = sorted(touched | {place.path for place in shadows})
    listed = plan.pristine.listed
    return Record(
        base=plan.upstream.tree,
        blobs={path: listed[path][1] for path in paths if path in listed},
        patches=patches,
        shadows=shadows,
    )


def known_record(fork: Fork, plan: TreePlan) -> Record:
    """Return the record in the folder of a series if it is of this tree; otherwise compute it."""
    known = read_record(fork.patch_folder(plan.upstream))
    shadows = read_shadows(fork.overlay_folder(plan.upstream))
    if (
        known is not None
        and known.base == plan.upstream.tree
        and known.hashes == {patch.name: patch.sha256 for patch in plan.patches}
        and [(one.path, one.symbol) for one in known.shadows]
        == [(one.path, one.symbol) for one in shadows]
    ):
        return known
    return record_of(fork, plan)


def _symbols_by_hunk(diff: FileDiff, before: bytes, after: bytes) -> dict[str, tuple[int, ...]]:
    """Return the symbols of ``before`` that a file's hunks change, with the hunks' numbers, from 1.

    A removed line counts for its symbol. An added line counts for the innermost symbol around it
    that existed before: a new function counts for the symbol around the function.
    """
    if diff.old is None:
        return {MODULE: (1,)}
    old = outline(diff.old, before)
    if not old.is_parsed:
        return {MODULE: tuple(range(1, len(diff.hunks) + 1)) or (1,)}
    changes = list(_changed_lines(diff))
    names = [old.inside(line - (sign == "+"), line, data) for _, sign, line, _, data in changes]
    if None in names:
        new = outline(diff.new or diff.old, after)
        names = [
            new.around(new_line, old.symbols) if sign == "+" else old.at(line).name
            for _, sign, line, new_line, _ in changes
        ]
    hunks: dict[str, dict[int, None]] = {}
    for (number, *_), name in zip(changes, names, strict=True):
        hunks.setdefault(name or MODULE, {})[number] = None
    return {name: tuple(numbers) for name, numbers in hunks.items()} or {MODULE: (1,)}


def _changed_lines(diff: FileDiff) -> Iterator[tuple[int, str, int, int, bytes]]:
    """Yield hunk, sign, old and new line number, and text of each changed line but blank ones."""
    for number, hunk in enumerate(diff.hunks, 1):
        line, new_line = hunk.first + 1, max(hunk.new_start, 1)
        for sign, data in hunk.lines:
            if sign != " " and data.strip():
                yield number, sign, line, new_line, data
            line += sign != "+"
            new_line += sign != "-"


def _shadows(fork: Fork, plan: TreePlan) -> Iterator[SymbolPlace]:
    """Yield the symbols that the overlays shadow, with the hashes of their bodies."""
    shadows = read_shadows(fork.overlay_folder(plan.upstream))
    contents = plan.pristine.read(shadow.path for shadow in shadows)
    for item in shadows:
        data = contents.get(item.path)
        body = None if data is None else outline(item.path, data).body(item.symbol)
        yield SymbolPlace(item.path, item.symbol, body or "")
