# SPDX-License-Identifier: Apache-2.0
"""The origin of an imported series: facts that forkpatch's own format does not hold.

The folder ``origin/`` of a series holds ``origin.json``, which names the foreign file of each
patch, and the foreign files that an export could not reproduce byte for byte. With the origin, an
export returns an unchanged patch exactly as imported.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from forkpatch.errors import UserError
from forkpatch.foreign.sources import ForeignFormat
from forkpatch.model.mailhead import parse_head
from forkpatch.model.patchfile import split_patch
from forkpatch.model.stored import plain, typed_value
from forkpatch.safety import check_own, check_path

ORIGIN = "origin"
_INDEX = "origin.json"
_FILES = "files"


@dataclass(frozen=True)
class OriginEntry:
    """A foreign patch file, and the patch made from it.

    Attributes:
        file: path from the foreign folder.
        name: name of the patch made from the file; empty without a patch.
        diff: hash of the imported patch's diff without blob ids, which depend on earlier patches.
        head: hash of the imported patch's author, date and message.
        why: reason why the file became no patch.
    """

    file: str
    name: str = ""
    diff: str = ""
    head: str = ""
    why: str = ""


@dataclass(frozen=True)
class Origin:
    """The foreign series that a series was made from.

    Attributes:
        data: the kept foreign files, by path.
    """

    format: ForeignFormat
    list_name: str
    list_data: bytes
    entries: tuple[OriginEntry, ...]
    data: Mapping[str, bytes] = field(default_factory=dict)

    @property
    def beside(self) -> Mapping[str, bytes]:
        """The kept files that became no patch: left out by the list, or not in the list."""
        used = {self.list_name, *(entry.file for entry in self.entries if entry.name)}
        return {name: data for name, data in self.data.items() if name not in used}

    def of(self, name: str) -> OriginEntry | None:
        """Return the foreign patch file that a patch was made from; None without a file."""
        return next((entry for entry in self.entries if entry.name == name), None)


def read_origin(folder: Path) -> Origin | None:
    """Return the origin of the series in ``folder``; None for a series without an origin.

    Raises:
        UserError: the origin cannot be read, or has a symbolic link.
    """
    store = folder / ORIGIN
    path, files = store / _INDEX, store / _FILES
    for place in (store, files):
        if place.is_symlink():
            raise UserError(
                f"{place} is a symbolic link, not a folder", remedy="put a folder in its place"
            )
    if not check_own(path).is_file():
        return None
    try:
        raw: dict[str, Any] = json.loads(path.read_text("utf-8"))
        list_name = str(raw["list"])
        entries = typed_value(tuple[OriginEntry, ...], raw["patches"])
        data = {
            kept.relative_to(files).as_posix(): check_own(kept).read_bytes()
            for kept in sorted(files.rglob("*"))
            if kept.is_symlink() or not kept.is_dir()
        }
        for name in filter(None, (list_name, *(entry.file for entry in entries), *data)):
            check_path(name, str(path))  # an export writes a file of that name
        return Origin(
            format=ForeignFormat(raw["format"]),
            list_name=list_name,
            list_data=data[list_name] if list_name else b"",
            entries=entries,
            data=data,
        )
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise UserError(
            f"{path}: {error!r}",
            remedy=f"restore it from git; or remove {store}: then all patches are written again",
        ) from error


def write_origin(folder: Path, origin: Origin) -> None:
    """Write the origin into the folder of a new series."""
    store = folder / ORIGIN
    files = dict(origin.data)
    if origin.list_name:
        files[origin.list_name] = origin.list_data
    for name, data in files.items():
        (store / _FILES / name).parent.mkdir(parents=True, exist_ok=True)
        (store / _FILES / name).write_bytes(data)
    store.mkdir(parents=True, exist_ok=True)
    value = {
        "format": origin.format,
        "list": origin.list_name,
        "patches": plain(origin.entries),
    }
    (store / _INDEX).write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8")


def hash_head(data: bytes, name: str) -> str:
    """Return a hash of author, date and message of a patch file."""
    head = "\0".join(parse_head(split_patch(data, name)[0], name))
    return hashlib.sha256(head.encode("utf-8", "surrogateescape")).hexdigest()


def hash_diff(data: bytes, name: str) -> str:
    """Return a hash of a patch file's diff without blob ids."""
    diff = split_patch(data, name)[1]
    return hashlib.sha256(re.sub(rb"(?m)^index [^\n]*\n", b"", diff)).hexdigest()
