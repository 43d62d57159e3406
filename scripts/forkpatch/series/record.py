# SPDX-License-Identifier: Apache-2.0
"""The derived record of a series: ``derived.json``, beside the series that it is made from.

It holds the base's tree id, the git blob id of every upstream file that the series leans on, the
functions and classes that each patch changes, with a hash of each one's body on the base, and the
same for every upstream symbol that an overlay shadows. All of it follows from lock, series and
overlays; the verb ``record`` writes it, ``check`` compares it.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from forkpatch.errors import UserError
from forkpatch.git.objects import list_tree, read_blobs
from forkpatch.inspect.symbols import MODULE, outline
from forkpatch.model.fork import Fork, TreePlan
from forkpatch.model.overlays import SHADOWS
from forkpatch.model.patchfile import FileDiff, Patch

RECORD = "derived.json"


@dataclass(frozen=True)
class SymbolPlace:
    """A symbol that a hunk changes, or an overlay shadows.

    Attributes:
        body: its hash on the base; empty when the base has no such symbol.
    """

    path: str
    symbol: str
    body: str


@dataclass(frozen=True)
class Record:
    """The content of ``derived.json``.

    Attributes:
        base: tree id of the base.
        blobs: git blob ids of the base's files that patches touch or overlays shadow, by path.
        hashes: sha256 of each patch file.
        patches: the places that each patch changes.
        shadows: the places that overlays shadow.
    """

    base: str
    blobs: Mapping[str, str]
    hashes: Mapping[str, str]
    patches: Mapping[str, tuple[SymbolPlace, ...]]
    shadows: tuple[SymbolPlace, ...]


def record_of(fork: Fork, plan: TreePlan) -> Record:
    """The record of a planned tree."""
    state: dict[str, bytes] = dict(plan.base)
    patches: dict[str, tuple[SymbolPlace, ...]] = {}
    for patch, commit in zip(plan.patches, plan.patch_commits, strict=True):
        places: dict[tuple[str, str], SymbolPlace] = {}
        for diff in patch.files:
            before = state.get(diff.old or "", b"")
            after_file = commit.changes.get(diff.new or "")
            after = after_file.data if after_file else b""
            base = outline(diff.old or "", plan.base.get(diff.old or "", b""))
            for symbol in changed_symbols(diff, before, after):
                path = diff.old or diff.new or ""
                body = base.body(symbol) if diff.old in plan.base else None
                places[path, symbol] = SymbolPlace(path, symbol, body or "")
        for path, file in commit.changes.items():
            state[path] = file.data if file else b""
        patches[patch.name] = tuple(places.values())
    shadows = tuple(_shadows(fork, plan))
    paths = {path for patch in plan.patches for path in patch.paths}
    listed = list_tree(plan.pristine.git, plan.pristine.tree)
    return Record(
        base=plan.upstream.tree,
        blobs={
            path: listed[path][1]
            for path in sorted(paths | {place.path for place in shadows})
            if path in listed
        },
        hashes={patch.name: patch.sha256 for patch in plan.patches},
        patches=patches,
        shadows=shadows,
    )


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


def _shadows(fork: Fork, plan: TreePlan) -> Iterator[SymbolPlace]:
    wanted = list(read_shadows(fork.overlay_folder(plan.upstream)))
    contents = read_base(plan, {path for path, _ in wanted})
    for path, symbol in wanted:
        body = outline(path, contents[path]).body(symbol) if path in contents else None
        yield SymbolPlace(path, symbol, body or "")


def read_base(plan: TreePlan, paths: Iterable[str]) -> dict[str, bytes]:
    """The contents of files of the base, of those it has."""
    wanted = sorted(set(paths))
    if not wanted:  # git would list the whole tree
        return {}
    listed = list_tree(plan.pristine.git, plan.pristine.tree, *wanted)
    blobs = read_blobs(plan.pristine.git, (oid for _, oid in listed.values()))
    return {path: blobs[oid] or b"" for path, (_, oid) in listed.items()}


def is_recorded(folder: Path, record: Record) -> bool:
    """True when the series in ``folder`` has its record, or needs none: no patches, no shadows."""
    return bool(record.patches or record.shadows) or (folder / RECORD).is_file()


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
            blobs=dict(raw["blobs"]),
            hashes={name: entry["sha256"] for name, entry in raw["patches"].items()},
            patches={
                name: tuple(SymbolPlace(**place) for place in entry["places"])
                for name, entry in raw["patches"].items()
            },
            shadows=tuple(SymbolPlace(**place) for place in raw["shadows"]),
        )
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise UserError(f"{path}: {error!r}", remedy="make it anew: forkpatch record") from error


def format_record(record: Record) -> str:
    """The text of ``derived.json``; one blob and one place a line, so that changes read well."""
    patches = {
        name: {
            "sha256": record.hashes[name],
            "places": [asdict(place) for place in places],
        }
        for name, places in record.patches.items()
    }
    shadows = [asdict(place) for place in record.shadows]
    value = {"base": record.base, "blobs": record.blobs, "patches": patches, "shadows": shadows}
    return _text(value, "") + "\n"


def _text(value: Any, indent: str) -> str:
    """JSON with an entry of an object, and an object of an array, on a line of its own."""
    inner = indent + "  "
    if isinstance(value, dict) and value:
        rows = [f"{inner}{json.dumps(key)}: {_text(item, inner)}" for key, item in value.items()]
        return "{\n" + ",\n".join(rows) + f"\n{indent}}}"
    if isinstance(value, list) and value:
        rows = [f"{inner}{json.dumps(item, ensure_ascii=False)}" for item in value]
        return "[\n" + ",\n".join(rows) + f"\n{indent}]"
    return json.dumps(value, ensure_ascii=False)


def touched_by(patch: Patch, record: Record) -> set[tuple[str, str]]:
    """Path and symbol of everything that a patch changes."""
    return {(place.path, place.symbol) for place in record.patches.get(patch.name, ())}
