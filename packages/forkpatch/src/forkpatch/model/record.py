# SPDX-License-Identifier: Apache-2.0
"""The derived record of a series: ``derived.json``, beside the series that it is made from.

It holds the base's tree id, the git blob id of every upstream file that the series changes, the
functions and classes that each patch changes, with a hash of each one's body on the base, and the
same for every upstream symbol that an overlay shadows. For a patch of another version it has the
sha256, and the line of each hunk on this base. All of it is computed from lock, series and
overlays; the verb ``record`` writes it, and ``check`` compares it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from forkpatch.command import typed
from forkpatch.errors import PatchError, UserError
from forkpatch.model.patchfile import Patch, Positions
from forkpatch.safety import check_regular

RECORD = "derived.json"


@dataclass(frozen=True)
class SymbolPlace:
    """A symbol that a hunk changes, or an overlay shadows.

    Attributes:
        body: its hash on the base; empty when the base has no such symbol.
        hunks: which hunks of the file change it, from 1; none for a shadow.
    """

    path: str
    symbol: str
    body: str
    hunks: tuple[int, ...] = ()


@dataclass(frozen=True)
class Record:
    """The content of ``derived.json``.

    Attributes:
        base: tree id of the base.
        blobs: git blob ids of the base's files that patches touch or overlays shadow, by path.
        hashes: sha256 of each patch file.
        patches: the places that each patch changes.
        shadows: the places that overlays shadow.
        positions: for each patch that lies with another version, the first old line of each of
            its hunks on this base, by path.
    """

    base: str
    blobs: Mapping[str, str]
    hashes: Mapping[str, str]
    patches: Mapping[str, tuple[SymbolPlace, ...]]
    shadows: tuple[SymbolPlace, ...]
    positions: Mapping[str, Positions] = field(default_factory=dict)


def is_recorded(folder: Path, record: Record) -> bool:
    """True when the series in ``folder`` has a record, or needs one: it has patches or shadows."""
    return bool(record.patches or record.shadows) or (folder / RECORD).is_file()


def read_record(folder: Path) -> Record | None:
    """The record beside a series; None without one.

    Raises:
        UserError: it cannot be read.
    """
    path = check_regular(folder / RECORD)
    if not path.exists():
        return None
    try:
        raw: dict[str, Any] = json.loads(path.read_text("utf-8"))
        return Record(
            base=raw["base"],
            blobs=dict(raw["blobs"]),
            hashes={name: entry["sha256"] for name, entry in raw["patches"].items()},
            patches={
                name: tuple(_place(**place) for place in entry["places"])
                for name, entry in raw["patches"].items()
            },
            shadows=tuple(_place(**place) for place in raw["shadows"]),
            positions={
                name: {path: tuple(map(int, lines)) for path, lines in entry["at"].items()}
                for name, entry in raw["patches"].items()
                if "at" in entry
            },
        )
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        key = f"the key {error} is missing" if isinstance(error, KeyError) else error
        raise UserError(
            f"{path} is not in the format that the verb record writes: {key}",
            remedy=f"make it anew: {typed('record')}",
        ) from error


def format_record(record: Record) -> str:
    """The text of ``derived.json``; one blob and one place a line, so that changes read well."""
    patches = {
        name: {
            "sha256": record.hashes[name],
            **({"at": record.positions[name]} if name in record.positions else {}),
            "places": [_written(place) for place in places],
        }
        for name, places in record.patches.items()
    }
    shadows = [_written(place) for place in record.shadows]
    value = {"base": record.base, "blobs": record.blobs, "patches": patches, "shadows": shadows}
    return _text(value, "") + "\n"


def _place(hunks: list[int] | None = None, **rest: str) -> SymbolPlace:
    return SymbolPlace(**rest, hunks=tuple(map(int, hunks or ())))


def _written(place: SymbolPlace) -> dict[str, Any]:
    return {key: value for key, value in vars(place).items() if key != "hunks" or value}


def _text(value: Any, indent: str) -> str:
    """JSON with an entry of an object, and an object of an array, on a line of its own."""
    inner = indent + "  "
    if isinstance(value, dict) and value:
        rows = [f"{inner}{json.dumps(key)}: {_text(item, inner)}" for key, item in value.items()]
        return "{\n" + ",\n".join(rows) + f"\n{indent}}}"
    if isinstance(value, list) and value and isinstance(value[0], dict):
        rows = [f"{inner}{_line(item)}" for item in value]
        return "[\n" + ",\n".join(rows) + f"\n{indent}]"
    return _line(value)


def _line(value: Any) -> str:
    """JSON on one line; a byte that is no UTF-8 (of a file's name) is an escape, as in a key."""
    text = json.dumps(value, ensure_ascii=False)
    return re.sub("[\ud800-\udfff]", lambda match: f"\\u{ord(match[0]):04x}", text)


def place_patch(patch: Patch, record: Record | None, where: Path, version: str) -> Patch:
    """A patch of another version, with its hunks at the lines that are recorded for this one.

    Args:
        patch: the patch as it lies with the other version.
        record: the record beside this version's series.
        where: the record's file, for the message.
        version: upstream and version, as options of the verb ``record``.

    Raises:
        PatchError: nothing is recorded for the patch as it is now.
    """
    remedy = f"type: {typed(f'record {version}')}, and review what it changes"
    known = record.positions.get(patch.name) if record else None
    if record is None or known is None:
        raise PatchError(f"{where}: the lines of {patch.name} are not recorded", remedy=remedy)
    if record.hashes[patch.name] != patch.sha256:
        raise PatchError(
            f"{where}: {patch.name} of {patch.home} changed since its lines were recorded",
            remedy=remedy,
        )
    try:
        return patch.at(known)
    except PatchError as error:
        raise PatchError(f"{where}: {error.what}", remedy=remedy) from error
