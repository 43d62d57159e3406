# SPDX-License-Identifier: Apache-2.0
"""Where each hunk of a series is, recorded beside the series and compared afterwards.

``symbols.json`` holds for every patch the functions and classes that it changes, with a hash
of what each says on the base, and the same for every upstream symbol that an overlay shadows.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from forkpatch.errors import PatchError, UserError
from forkpatch.git.objects import list_tree, read_blobs
from forkpatch.inspect.symbols import MODULE, Outline, bare_name, outline
from forkpatch.model.fork import Fork, Plan
from forkpatch.model.overlays import SHADOWS
from forkpatch.model.patchfile import FileDiff, Patch

RECORD = "symbols.json"
SCHEMA = 1


class Drift(StrEnum):
    """What became of a symbol between two bases."""

    UNCHANGED = "unchanged"
    CHANGED = "body changed"
    MOVED = "moved"
    GONE = "gone"
    MISPLACED = "misplaced"


@dataclass(frozen=True)
class Place:
    """A symbol that a hunk changes, or an overlay shadows.

    Attributes:
        body: its hash on the base; empty when the base has no such symbol.
    """

    path: str
    symbol: str
    body: str


@dataclass(frozen=True)
class Record:
    """The content of ``symbols.json``.

    Attributes:
        base: tree id of the base.
        hashes: sha256 of each patch file.
        patches: the places that each patch changes.
        shadows: the places that overlays shadow.
    """

    base: str
    hashes: Mapping[str, str]
    patches: Mapping[str, tuple[Place, ...]]
    shadows: tuple[Place, ...]


@dataclass(frozen=True)
class Finding:
    """What became of one place.

    Attributes:
        what: the patch, or ``overlay`` for a shadowed symbol.
        detail: where it is now, or which symbol was hit instead.
    """

    what: str
    path: str
    symbol: str
    drift: Drift
    detail: str = ""

    def __str__(self) -> str:
        tail = f" ({self.detail})" if self.detail else ""
        return f"{self.what}: {self.path}: {self.symbol}: {self.drift}{tail}"


def record_of(fork: Fork, plan: Plan) -> Record:
    """The record of a planned tree."""
    state: dict[str, bytes] = dict(plan.base)
    patches: dict[str, tuple[Place, ...]] = {}
    for patch, commit in zip(plan.patches, plan.patch_commits, strict=True):
        places: dict[tuple[str, str], Place] = {}
        for diff in patch.files:
            before = state.get(diff.old or "", b"")
            after_file = commit.changes.get(diff.new or "")
            after = after_file.data if after_file else b""
            base = outline(diff.old or "", plan.base.get(diff.old or "", b""))
            for symbol in changed_symbols(diff, before, after):
                path = diff.old or diff.new or ""
                body = base.body(symbol) if diff.old in plan.base else None
                places[path, symbol] = Place(path, symbol, body or "")
        for path, file in commit.changes.items():
            state[path] = file.data if file else b""
        patches[patch.name] = tuple(places.values())
    hashes = {patch.name: patch.sha256 for patch in plan.patches}
    return Record(plan.upstream.tree, hashes, patches, tuple(_shadows(fork, plan)))


def changed_symbols(diff: FileDiff, before: bytes, after: bytes) -> tuple[str, ...]:
    """The symbols of ``before`` that the hunks of one file change, in order.

    A removed line counts for the symbol it was in; an added line for the innermost symbol
    around it that was there before, so that a new function counts for what it was put into.
    """
    if diff.old is None:
        return (MODULE,)
    old, new = outline(diff.old, before), outline(diff.new or diff.old, after)
    found: dict[str, None] = {}
    for hunk in diff.hunks:
        old_line, new_line = max(hunk.old_start, 1), max(hunk.new_start, 1)
        for line in hunk.lines:
            if line.kind == "-" and line.data.strip():
                found[old.at(old_line).name] = None
            elif line.kind == "+" and line.data.strip():
                found[new.around(new_line, old.symbols)] = None
            old_line += line.kind != "+"
            new_line += line.kind != "-"
    return tuple(found) or (MODULE,)


def read_shadows(folder: Path) -> Iterator[tuple[str, str]]:
    """Path and symbol of each ``[[shadow]]`` of an overlay folder.

    Raises:
        UserError: the file is malformed.
    """
    path = folder / SHADOWS
    if not path.is_file():
        return
    try:
        for shadow in tomllib.loads(path.read_text("utf-8")).get("shadow", []):
            yield shadow["path"], shadow["symbol"]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise UserError(
            f"{path}: {error!r}", remedy="each [[shadow]] has path, symbol, by, why"
        ) from error


def _shadows(fork: Fork, plan: Plan) -> Iterator[Place]:
    wanted = list(read_shadows(fork.overlay_folder(plan.upstream)))
    contents = read_base(plan, {path for path, _ in wanted})
    for path, symbol in wanted:
        body = outline(path, contents[path]).body(symbol) if path in contents else None
        yield Place(path, symbol, body or "")


def read_base(plan: Plan, paths: Iterable[str]) -> dict[str, bytes]:
    """The contents of files of the base, of those it has."""
    listed = list_tree(plan.pristine.git, plan.pristine.tree, *sorted(set(paths)))
    blobs = read_blobs(plan.pristine.git, (oid for _, oid in listed.values()))
    return {path: blobs[oid] or b"" for path, (_, oid) in listed.items()}


def files_to_compare(plan: Plan, *records: Record) -> dict[str, bytes]:
    """The files of the base that records name, and those where a lost symbol may be now."""
    places = [
        place
        for record in records
        for group in (*record.patches.values(), record.shadows)
        for place in group
    ]
    found = read_base(plan, {place.path for place in places})
    lost = {
        bare_name(place.symbol)
        for place in places
        if place.body and outline(place.path, found.get(place.path, b"")).body(place.symbol) is None
    }
    words = [part for word in sorted(lost) for part in ("-e", word)]
    if words:
        git = plan.pristine.git
        out = git.run("grep", "-l", "-z", "-I", "-w", "-F", *words, plan.pristine.tree, ok=(0, 1))
        listed = out.stdout.decode("utf-8", "surrogateescape").split("\0")[:-1]
        found |= read_base(plan, {item.partition(":")[2] for item in listed})
    return found


def compare(old: Record, new: Record, base: Mapping[str, bytes]) -> tuple[Finding, ...]:
    """What became of each recorded place.

    Args:
        old: as recorded, perhaps on another base.
        new: as it is now.
        base: contents of the files of the new base that either record names.

    Returns:
        A finding for each place; a hunk that landed in a symbol which it did not change
        before is MISPLACED.
    """
    outlines = {path: outline(path, data) for path, data in base.items()}
    findings: list[Finding] = []
    for patch, places in old.patches.items():
        now = new.patches.get(patch, ())
        expected: set[tuple[str, str]] = set()
        for place in places:
            drift, target = _became(place, outlines)
            expected |= {(place.path, place.symbol), target}
            detail = f"now {target[0]}: {target[1]}" if drift is Drift.MOVED else ""
            findings.append(Finding(patch, place.path, place.symbol, drift, detail))
        findings += [
            Finding(
                patch,
                place.path,
                place.symbol,
                Drift.MISPLACED,
                "it changed " + (", ".join(p.symbol for p in places) or "nothing") + " before",
            )
            for place in now
            if (place.path, place.symbol) not in expected and place.body
        ]
    for place in old.shadows:
        drift, target = _became(place, outlines)
        detail = f"now {target[0]}: {target[1]}" if drift is Drift.MOVED else ""
        findings.append(Finding("overlay", place.path, place.symbol, drift, detail))
    return tuple(findings)


def _became(place: Place, outlines: Mapping[str, Outline]) -> tuple[Drift, tuple[str, str]]:
    """What became of a place, and where it is now."""
    here = (place.path, place.symbol)
    if not place.body:
        return Drift.UNCHANGED, here
    known = outlines.get(place.path)
    body = known.body(place.symbol) if known else None
    if body == place.body:
        return Drift.UNCHANGED, here
    bare = bare_name(place.symbol)
    for path, other in outlines.items():
        for symbol in other.symbols.values():
            same_name = bare_name(symbol.name) == bare and (path, symbol.name) != here
            if symbol.body == place.body or (body is None and same_name and bare != MODULE):
                return Drift.MOVED, (path, symbol.name)
    return (Drift.GONE if body is None else Drift.CHANGED), here


def read_record(folder: Path) -> Record | None:
    """The record beside a series, None when there is none.

    Raises:
        UserError: it cannot be read.
    """
    path = folder / RECORD
    if not path.is_file():
        return None
    try:
        raw: dict[str, Any] = json.loads(path.read_text("utf-8"))
        return Record(
            base=raw["base"],
            hashes={name: entry["sha256"] for name, entry in raw["patches"].items()},
            patches={
                name: tuple(Place(**place) for place in entry["places"])
                for name, entry in raw["patches"].items()
            },
            shadows=tuple(Place(**place) for place in raw["shadows"]),
        )
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise UserError(f"{path}: {error!r}", remedy="make it anew: forkpatch symbols") from error


def format_record(record: Record) -> str:
    """The text of ``symbols.json``; one place a line, so that changes read well."""

    def places(items: Iterable[Place], indent: str) -> str:
        lines = [
            json.dumps({"path": p.path, "symbol": p.symbol, "body": p.body}, ensure_ascii=False)
            for p in items
        ]
        inner = ",\n".join(f"{indent}  {line}" for line in lines)
        return f"[\n{inner}\n{indent}]" if lines else "[]"

    entries = ",\n".join(
        f"    {json.dumps(name)}: {{\n"
        f'      "sha256": "{record.hashes[name]}",\n'
        f'      "places": {places(items, "      ")}\n    }}'
        for name, items in record.patches.items()
    )
    body = f"{{\n{entries}\n  }}" if entries else "{}"
    return (
        f'{{\n  "schema": {SCHEMA},\n  "base": "{record.base}",\n  "patches": {body},\n'
        f'  "shadows": {places(record.shadows, "  ")}\n}}\n'
    )


def check_placement(fork: Fork, plan: Plan) -> tuple[Finding, ...]:
    """Compare a planned tree with the record beside its series; patches edited since are left out.

    Raises:
        PatchError: a hunk landed in another symbol than recorded.
    """
    old = read_record(fork.patch_folder(plan.upstream))
    if old is None:
        return ()
    new = record_of(fork, plan)
    same = {name for name, sha in new.hashes.items() if old.hashes.get(name) == sha}
    old = Record(
        old.base, old.hashes, {k: v for k, v in old.patches.items() if k in same}, old.shadows
    )
    if old.base == new.base:
        return ()
    findings = compare(old, new, files_to_compare(plan, old, new))
    wrong = [finding for finding in findings if finding.drift is Drift.MISPLACED]
    if wrong:
        raise PatchError(
            f"{wrong[0]}",
            remedy="the patch changes another function than it was made for;"
            " move the series with forkpatch rebase, or correct the patch",
        )
    return findings


def touched_by(patch: Patch, record: Record) -> set[tuple[str, str]]:
    """Path and symbol of everything that a patch changes."""
    return {(place.path, place.symbol) for place in record.patches.get(patch.name, ())}
