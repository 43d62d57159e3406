# SPDX-License-Identifier: Apache-2.0
"""The record of a series, computed from lock, series and overlays."""

from __future__ import annotations

from collections.abc import Iterator

from forkpatch.git.objects import list_tree
from forkpatch.model.diffs import FileDiff
from forkpatch.model.overlays import read_shadows
from forkpatch.model.record import Record, SymbolPlace, read_record
from forkpatch.symbols.outline import MODULE, outline
from forkpatch.tree.fork import Fork, TreePlan


def record_of(fork: Fork, plan: TreePlan) -> Record:
    """Return the record of a planned tree."""
    patches: dict[str, tuple[SymbolPlace, ...]] = {}
    for step in plan.steps():
        places: dict[tuple[str, str], SymbolPlace] = {}
        for diff in step.patch.files:
            before = step.before.get(diff.old or "", b"")
            after = step.after.get(diff.new or "", b"")
            base = outline(diff.old or "", plan.base.get(diff.old or "", b""))
            path = diff.old or diff.new or ""
            for symbol, hunks in _symbols_by_hunk(diff, before, after).items():
                body = base.body(symbol) if diff.old in plan.base else None
                places[path, symbol] = SymbolPlace(path, symbol, body or "", hunks)
        patches[step.patch.name] = tuple(places.values())
    shadows = tuple(_shadows(fork, plan))
    touched = {path for patch in plan.patches for path in patch.paths}
    paths = sorted(touched | {place.path for place in shadows})
    listed = list_tree(plan.pristine.git, plan.pristine.tree)
    return Record(
        base=plan.upstream.tree,
        blobs={path: listed[path][1] for path in paths if path in listed},
        hashes={patch.name: patch.sha256 for patch in plan.patches},
        patches=patches,
        shadows=shadows,
        positions={patch.name: patch.positions for patch in plan.patches if patch.home},
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
    """Return the symbols of ``before`` that a file's hunks change, with their numbers, from 1.

    A removed line counts for its symbol. An added line counts for the innermost symbol around it
    that existed before: a new function counts for the symbol around the function.
    """
    if diff.old is None:
        return {MODULE: (1,)}
    old, new = outline(diff.old, before), outline(diff.new or diff.old, after)
    hunk_numbers: dict[str, list[int]] = {}
    for number, hunk in enumerate(diff.hunks, 1):
        old_line, new_line = max(hunk.old_start, 1), max(hunk.new_start, 1)
        names: dict[str, None] = {}
        for kind, data in hunk.lines:
            if kind == "-" and data.strip():
                names[old.at(old_line).name] = None
            elif kind == "+" and data.strip():
                names[new.around(new_line, old.symbols)] = None
            old_line += kind != "+"
            new_line += kind != "-"
        for name in names:
            hunk_numbers.setdefault(name, []).append(number)
    return {name: tuple(numbers) for name, numbers in hunk_numbers.items()} or {MODULE: (1,)}


def _shadows(fork: Fork, plan: TreePlan) -> Iterator[SymbolPlace]:
    """Yield the symbols that the overlays shadow, with the hashes of their bodies."""
    shadows = read_shadows(fork.overlay_folder(plan.upstream))
    contents = plan.pristine.read(shadow.path for shadow in shadows)
    for item in shadows:
        data = contents.get(item.path)
        body = None if data is None else outline(item.path, data).body(item.symbol)
        yield SymbolPlace(item.path, item.symbol, body or "")
