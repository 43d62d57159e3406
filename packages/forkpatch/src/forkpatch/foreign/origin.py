# SPDX-License-Identifier: Apache-2.0
"""The origin of an imported series: the facts that forkpatch's own format does not hold.

``origin/`` in the folder of a series holds ``origin.json``, which names the foreign file of each
patch, and those foreign files that an export could not write again byte for byte. With it, an
export gives back a patch as it was imported, as long as the patch is unchanged.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from forkpatch.errors import UserError
from forkpatch.foreign.sources import ForeignFormat
from forkpatch.model.mailhead import parse_head
from forkpatch.model.patchfile import split_patch

ORIGIN = "origin"
_INDEX = "origin.json"
_FILES = "files"


@dataclass(frozen=True)
class OriginEntry:
    """One foreign patch.

    Attributes:
        file: its path from the foreign folder.
        name: the patch that it became; empty when it became none.
        diff: hash of that patch's diff as it was imported, blob ids left aside: they follow from
            the patches before it.
        head: hash of author, date and message of that patch.
        why: reason for which it became none.
    """

    file: str
    name: str = ""
    diff: str = ""
    head: str = ""
    why: str = ""


@dataclass(frozen=True)
class Origin:
    """The foreign series that a series was made of.

    Attributes:
        data: the foreign files that are kept, by path.
    """

    format: ForeignFormat
    list_name: str
    list_data: bytes
    entries: tuple[OriginEntry, ...]
    data: Mapping[str, bytes] = field(default_factory=dict)

    @property
    def beside(self) -> Mapping[str, bytes]:
        """The kept files that became no patch: left out by the list, or not named in it."""
        made = {self.list_name, *(entry.file for entry in self.entries if entry.name)}
        return {name: data for name, data in self.data.items() if name not in made}

    def of(self, name: str) -> OriginEntry | None:
        """The foreign patch that a patch was made of."""
        return next((entry for entry in self.entries if entry.name == name), None)


def read_origin(folder: Path) -> Origin | None:
    """The origin of the series in ``folder``; None when it was not imported.

    Raises:
        UserError: it cannot be read.
    """
    place = folder / ORIGIN
    path = place / _INDEX
    if not path.is_file():
        return None
    try:
        raw: dict[str, Any] = json.loads(path.read_text("utf-8"))
        list_name = raw["list"]
        files = place / _FILES
        return Origin(
            format=ForeignFormat(raw["format"]),
            list_name=list_name,
            list_data=(files / list_name).read_bytes() if list_name else b"",
            entries=tuple(OriginEntry(**entry) for entry in raw["patches"]),
            data={
                found.relative_to(files).as_posix(): found.read_bytes()
                for found in sorted(files.rglob("*"))
                if found.is_file()
            },
        )
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(
            f"{path}: {error!r}",
            remedy=f"restore it from git; or remove {place}: then all patches are written again",
        ) from error


def write_origin(folder: Path, origin: Origin) -> None:
    """Write the origin into a folder of a series that is being made."""
    place = folder / ORIGIN
    files = dict(origin.data)
    if origin.list_name:
        files[origin.list_name] = origin.list_data
    for name, data in files.items():
        (place / _FILES / name).parent.mkdir(parents=True, exist_ok=True)
        (place / _FILES / name).write_bytes(data)
    place.mkdir(parents=True, exist_ok=True)
    value = {
        "format": origin.format,
        "list": origin.list_name,
        "patches": [
            {key: item for key, item in asdict(entry).items() if item or key == "file"}
            for entry in origin.entries
        ],
    }
    (place / _INDEX).write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8")


def hash_head(data: bytes, name: str) -> str:
    """Hash of author, date and message of a patch file."""
    head = "\0".join(parse_head(split_patch(data, name)[0], name))
    return hashlib.sha256(head.encode("utf-8", "surrogateescape")).hexdigest()


def hash_diff(data: bytes, name: str) -> str:
    """Hash of the diff of a patch file, without its blob ids."""
    diff = split_patch(data, name)[1]
    return hashlib.sha256(re.sub(rb"(?m)^index [^\n]*\n", b"", diff)).hexdigest()


def copy_origin(old: Path, new: Path) -> None:
    """Copy the origin of the series in ``old``, when there is one, to the folder ``new``."""
    if (old / ORIGIN).is_dir():
        shutil.copytree(old / ORIGIN, new / ORIGIN)
