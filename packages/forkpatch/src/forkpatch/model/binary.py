# SPDX-License-Identifier: Apache-2.0
"""Changes of binary files in a diff, as ``git diff --binary`` writes them.

Git's ``Documentation/gitformat-pack.txt`` defines the format: deflated, as a whole file or a delta.
"""

from __future__ import annotations

import base64
import re
import zlib
from dataclasses import dataclass
from io import BytesIO

from forkpatch.command import typed
from forkpatch.errors import PatchError
from forkpatch.git.objects import blob_id
from forkpatch.model.reader import REMEDY, DiffReader

_BINARY = re.compile(rb"(literal|delta) (\d{1,12})$")
_FULL_ID = 40


@dataclass(frozen=True)
class BinaryChange:
    """New content of a binary file, as a whole or as a delta to the old content.

    Attributes:
        old: blob id of the old content; zeros for a new file.
        new: blob id of the new content; zeros for a removed file.
        delta: True when ``data`` is a delta.
        data: the inflated data.
    """

    old: str
    new: str
    delta: bool
    data: bytes

    def apply(self, before: bytes | None, where: str) -> bytes:
        """Return the new content.

        Raises:
            PatchError: old or new content differs from the patch's blob ids.
        """
        if before is not None and blob_id(before) != self.old:
            raise PatchError(
                f"{where}: the binary file is {blob_id(before)}, the patch was made for {self.old}",
                remedy=f"to move it to another base: {typed('rebase')}",
            )
        after = _patched(before or b"", self.data, where) if self.delta else self.data
        if set(self.new) != {"0"} and blob_id(after) != self.new:
            raise PatchError(f"{where}: the binary change does not give {self.new}", remedy=REMEDY)
        return after


def read_binary(reader: DiffReader, ids: re.Match[bytes] | None) -> BinaryChange:
    """Return the change of a ``GIT binary patch``; the reverse change is skipped."""
    if ids is None or len(ids[1]) < _FULL_ID or len(ids[2]) < _FULL_ID:
        raise reader.error("a binary change without full object ids: use --full-index")
    reader.take()
    delta, data = _read_deflated(reader)
    if _BINARY.match(reader.peek() or b""):
        _read_deflated(reader)
    return BinaryChange(ids[1].decode(), ids[2].decode(), delta, data)


def _read_deflated(reader: DiffReader) -> tuple[bool, bytes]:
    """Read a deflated block; return True for a delta, and the inflated data."""
    match = _BINARY.match(reader.peek() or b"")
    if match is None:
        raise reader.error("malformed diff: a binary change is neither literal nor delta")
    reader.take()
    parts = []
    while line := reader.peek():
        length = line[0] - 64 if line[0] <= 90 else line[0] - 70  # A-Z: 1-26, a-z: 27-52
        try:
            part = base64.b85decode(line[1:])
        except ValueError as error:
            raise reader.error(f"malformed diff: {error}") from error
        if not 0 < length <= len(part) < length + 4:
            raise reader.error("malformed diff: a line of a binary change has another length")
        parts.append(part[:length])
        reader.take()
    reader.take()
    size = int(match[2])
    inflate = zlib.decompressobj()
    try:
        data = inflate.decompress(b"".join(parts), size + 1)
    except zlib.error as error:
        raise reader.error(f"malformed diff: {error}") from error
    if len(data) != size or inflate.unconsumed_tail:
        raise reader.error("malformed diff: a binary change has another size than it states")
    return match[1] == b"delta", data


def _patched(base: bytes, delta: bytes, where: str) -> bytes:
    """Return the result of a delta, which consists of copies from the base and new bytes."""
    from gitdb.fun import apply_delta_data, msb_size  # noqa: PLC0415 - few patches have a delta

    result = BytesIO()
    try:
        at, size = msb_size(delta)
        at, result_size = msb_size(delta, at)
        apply_delta_data(base, len(base), delta[at:], len(delta) - at, result.write)
    except (AssertionError, IndexError, ValueError):
        size = result_size = -1
    # At a copy from beyond the base, gitdb stops and returns the result so far.
    if size != len(base) or len(result.getvalue()) != result_size:
        raise PatchError(f"{where}: the delta of a binary change is damaged", remedy=REMEDY)
    return result.getvalue()
