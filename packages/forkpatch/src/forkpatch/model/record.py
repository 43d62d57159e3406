# SPDX-License-Identifier: Apache-2.0
"""The derived record of a series: ``derived.json``, in the folder of the series.

The record holds the base's tree id, and the git blob id of every upstream file that the series
changes. For each patch it holds the changed functions and classes, each with a hash of its body on
the base; likewise the upstream symbols that overlays shadow. For a shared patch it holds the
sha256, and the line of each hunk on this base. All values are computed from lock, series and
overlays. The verb ``record`` writes the file, and ``check`` compares it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from forkpatch.command import typed
from forkpatch.errors import PatchError, UserError
from forkpatch.model.patchfile import Patch, Positions
from forkpatch.model.stored import plain, read_stored
from forkpatch.safety import check_own

RECORD = "derived.json"


@dataclass(frozen=True)
class SymbolPlace:
    """A symbol that a hunk changes, or an overlay shadows.

    Attributes:
        body: hash of the symbol's body on the base; empty when the base lacks the symbol.
        hunks: numbers of the hunks of the file that change the symbol, from 1; empty for a shadow.
    """

    path: str
    symbol: str
    body: str
    hunks: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True)
class PatchRecord:
    """The record of a patch.

    Attributes:
        sha256: hash of the patch file.
        at: first old line of each hunk on this base, by path; None for a patch that is not shared.
        places: the places that the patch changes.
    """

    sha256: str
    at: Positions | None = None
    places: tuple[SymbolPlace, ...]


@dataclass(frozen=True)
class Record:
    """The content of ``derived.json``.

    Attributes:
        base: tree id of the base.
        blobs: git blob ids of the base's files that patches touch or overlays shadow, by path.
        patches: the patches by name.
        shadows: the places that overlays shadow.
    """

    base: str
    blobs: Mapping[str, str]
    patches: Mapping[str, PatchRecord]
    shadows: tuple[SymbolPlace, ...]

    @property
    def hashes(self) -> dict[str, str]:
        """The sha256 of each patch file, by name."""
        return {name: patch.sha256 for name, patch in self.patches.items()}


def is_recorded(folder: Path, record: Record) -> bool:
    """Return True when ``folder`` has a record file, or ``record`` has patches or shadows."""
    return bool(record.patches or record.shadows) or (folder / RECORD).is_file()


def read_record(folder: Path) -> Record | None:
    """Return the record in a series' folder; None without a record.

    Raises:
        UserError: the record cannot be read.
    """
    path = check_own(folder / RECORD)
    if not path.exists():
        return None
    try:
        return read_stored(Record, path)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        key = f"the key {error} is missing" if isinstance(error, KeyError) else error
        raise UserError(
            f"{path} is not in the format that the verb record writes: {key}",
            remedy=f"write it again: {typed('record')}",
        ) from error


def format_record(record: Record) -> str:
    """Return the text of ``derived.json``, with one blob or place a line for readable diffs."""
    return _text(plain(record), "") + "\n"


def _text(value: Any, indent: str) -> str:
    """Return JSON with each entry of an object, and each object of an array, on its own line."""
    inner = indent + "  "
    if isinstance(value, dict) and value:
        rows = [f"{inner}{json.dumps(key)}: {_text(item, inner)}" for key, item in value.items()]
        return "{\n" + ",\n".join(rows) + f"\n{indent}}}"
    if isinstance(value, list) and value and isinstance(value[0], dict):
        rows = [f"{inner}{_line(item)}" for item in value]
        return "[\n" + ",\n".join(rows) + f"\n{indent}]"
    return _line(value)


def _line(value: Any) -> str:
    """Return JSON on a single line; a byte of a file name that is not UTF-8 is an escape."""
    text = json.dumps(value, ensure_ascii=False)
    return re.sub("[\ud800-\udfff]", lambda match: f"\\u{ord(match[0]):04x}", text)


def place_patch(patch: Patch, record: Record | None, where: Path, version: str) -> Patch:
    """Return a shared patch with its hunks at the lines recorded for this version.

    For messages, ``where`` is the record's file and ``version`` the words after ``record``.

    Raises:
        PatchError: the record lacks the patch's lines, or the patch changed since.
    """
    remedy = f"type: {typed(f'record {version}')}, and review what it changes"
    known = record.patches.get(patch.name) if record else None
    if known is None or known.at is None:
        raise PatchError(f"{where}: the lines of {patch.name} are not recorded", remedy=remedy)
    if known.sha256 != patch.sha256:
        raise PatchError(
            f"{where}: {patch.name} of {patch.home} changed since its lines were recorded",
            remedy=remedy,
        )
    try:
        return patch.at(known.at)
    except PatchError as error:
        raise PatchError(f"{where}: {error.what}", remedy=remedy) from error
