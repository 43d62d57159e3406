# SPDX-License-Identifier: Apache-2.0
"""``MANIFEST.json``: list of an artefact's files, and of the inputs of its build."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import IO, Any

MANIFEST = "MANIFEST.json"
SBOM = "sbom.cdx.json"
SUMS = "SHA256SUMS"
SCHEMA = 2
SEAL = "seal"
MAXIMUM_BYTES = 16 << 20
_BLOCK = 1 << 20
_HEX = frozenset("0123456789abcdef")


@dataclass(frozen=True, order=True)
class Entry:
    """A file in the manifest.

    Attributes:
        path: relative to the artefact's folder, with ``/``.
        bytes: size in bytes.
        sha256: hash of the content, 64 hexadecimal digits.
    """

    path: str
    bytes: int
    sha256: str


class Verdict(StrEnum):
    """Result of a finished model's check, in the manifest as ``verdict``."""

    RIGHT = "right"  # the answer is the reference's
    UNCHECKED = "unchecked"  # no reference computes the model
    WRONG = "wrong"  # the answer is not the reference's, or there is no answer


class ManifestError(ValueError):
    """The text is not a valid manifest."""


def entry_of(path: str, stream: IO[bytes]) -> Entry:
    """Return the entry of a file with the content of ``stream``."""
    total, size = hashlib.sha256(), 0
    while block := stream.read(_BLOCK):
        total.update(block)
        size += len(block)
    return Entry(path, size, total.hexdigest())


def file_entry(path: str, file: Path) -> Entry:
    """Return the entry of ``file`` with the name ``path``."""
    with file.open("rb") as stream:
        return entry_of(path, stream)


def render(about: Mapping[str, Any], entries: Iterable[Entry]) -> str:
    """Return the manifest's text, which is equal for equal content."""
    table = {**about, "schema": SCHEMA, "files": [asdict(entry) for entry in sorted(entries)]}
    return render_json({**table, SEAL: _seal(table)})


def render_sums(entries: Iterable[Entry]) -> str:
    """Return the files' hashes in the format of ``sha256sum -c``."""
    return "".join(f"{entry.sha256}  {entry.path}\n" for entry in sorted(entries))


def render_json(value: Any) -> str:
    """Return JSON with sorted keys, which is equal for equal values."""
    return json.dumps(value, indent=2, sort_keys=True, ensure_ascii=False) + "\n"


def verdict_of(table: Mapping[str, Any]) -> Verdict | None:
    """Return the verdict of a manifest; None if it is missing, as in old manifests, or unknown."""
    try:
        return Verdict(table["verdict"])
    except (KeyError, ValueError):
        return None


def _seal(table: Mapping[str, Any]) -> str:
    """Return the hash of the manifest without the seal, to detect damage of the manifest itself."""
    content = {name: value for name, value in table.items() if name != SEAL}
    return hashlib.sha256(render_json(content).encode()).hexdigest()


def parse(text: bytes) -> tuple[dict[str, Any], dict[str, Entry]]:
    """Read a manifest from an untrusted source.

    Returns:
        the whole table, and the entries by path.

    Raises:
        ManifestError: the manifest is malformed, or does not match its seal.
    """
    try:
        table = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ManifestError(f"it is not JSON: {error}") from error
    if not isinstance(table, dict) or table.get("schema") != SCHEMA:
        raise ManifestError(f"its schema is not {SCHEMA}")
    try:
        sealed = table.get(SEAL) == _seal(table) and render_json(table).encode() == text
    except UnicodeEncodeError:
        sealed = False
    if not sealed:
        raise ManifestError("it changed after it was written: its seal does not match")
    files = table.get("files")
    if not isinstance(files, list):
        raise ManifestError("it has no list of files")
    entries = [_entry(item) for item in files]
    by_path = {entry.path: entry for entry in entries}
    if len(by_path) != len(entries):
        raise ManifestError("it lists a file twice")
    return table, by_path


def _entry(item: object) -> Entry:
    if not isinstance(item, dict) or set(item) != {"path", "bytes", "sha256"}:
        raise ManifestError("an entry has other fields than path, bytes and sha256")
    path, size, sha256 = item["path"], item["bytes"], item["sha256"]
    if type(size) is not int or size < 0 or not isinstance(path, str):
        raise ManifestError(f"the entry of {path!r} has a path or a size of the wrong type")
    if not isinstance(sha256, str) or len(sha256) != 64 or not _HEX.issuperset(sha256):
        raise ManifestError(f"the entry of {path!r} has no sha256")
    return Entry(path, size, sha256)
