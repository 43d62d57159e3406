# SPDX-License-Identifier: Apache-2.0
"""Checks a GGUF file before the library opens it.

The library believes the counts of a file: an array of 2^60 numbers in a file of 100 bytes keeps
it busy until memory ends. Here every count is compared with the bytes that are left.
Source: the GGUF specification (ggml's docs/gguf.md), versions 2 and 3, little-endian.
"""

from __future__ import annotations

import math
import mmap
import struct
from dataclasses import dataclass, field
from pathlib import Path

from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

from crosslab.errors import UserError

MAGIC = b"GGUF"
VERSIONS = (2, 3)
MOST_AXES = 4
MOST_FIELDS = 1 << 16
MOST_TENSORS = 1 << 16
DEEPEST_ARRAY = 2
_STRING, _ARRAY = 8, 9
_SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}


@dataclass
class _Walk:
    """A place in the file that does not pass its end."""

    name: str
    data: mmap.mmap
    at: int = 0
    seen: set[bytes] = field(default_factory=set)

    def fail(self, what: str) -> UserError:
        return UserError(
            f"{self.name} is not a GGUF file: {what} at byte {self.at}",
            remedy="get the file again, and compare its sha256 with its publisher's",
        )

    def skip(self, count: int) -> None:
        if count > len(self.data) - self.at:
            raise self.fail(f"{count} bytes are said to follow, the file ends before,")
        self.at += count

    def number(self, form: str) -> int:
        start = self.at
        self.skip(struct.calcsize(form))
        value: int = struct.unpack_from(f"<{form}", self.data, start)[0]
        return value

    def text(self) -> bytes:
        start = self.at + 8
        self.skip(self.number("Q"))
        data = self.data[start : self.at]
        try:
            data.decode()
        except UnicodeDecodeError as error:
            raise self.fail("text that is not UTF-8 ends") from error
        return data

    def new_name(self, what: str) -> str:
        name = self.text()
        if name in self.seen:
            raise self.fail(f"a second {what} {name.decode()!r}")
        self.seen.add(name)
        return name.decode()

    def value(self, kind: int, depth: int) -> None:
        if kind == _STRING:
            self.text()
        elif kind == _ARRAY:
            self.array(depth)
        elif kind in _SIZES:
            self.skip(_SIZES[kind])
        else:
            raise self.fail(f"a value of unknown type {kind}")

    def array(self, depth: int) -> None:
        if depth >= DEEPEST_ARRAY:
            raise self.fail("arrays within arrays")
        kind, count = self.number("I"), self.number("Q")
        if kind in _SIZES:
            self.skip(count * _SIZES[kind])
            return
        # A text and an array take at least their count of 8 bytes.
        if count * 8 > len(self.data) - self.at:
            raise self.fail(f"an array of {count} values, the file ends before,")
        for _ in range(count):
            self.value(kind, depth + 1)


def check_gguf(path: Path) -> None:
    """Refuse a file whose counts, types or offsets lead out of it.

    Raises:
        UserError: with the place.
    """
    try:
        with path.open("rb") as stream, mmap.mmap(stream.fileno(), 0, prot=mmap.PROT_READ) as data:
            _check(_Walk(path.name, data))
    except (OSError, ValueError) as error:
        raise UserError(f"{path.name} is not a GGUF file: {error}") from error


def _check(walk: _Walk) -> None:
    if walk.data[:4] != MAGIC:
        raise walk.fail("no GGUF mark")
    walk.skip(4)
    version = walk.number("I")
    if version not in VERSIONS:
        raise walk.fail(f"version {version}, known are 2 and 3 (little-endian),")
    tensors, fields = walk.number("Q"), walk.number("Q")
    if tensors > MOST_TENSORS or fields > MOST_FIELDS:
        raise walk.fail(f"{tensors} tensors and {fields} fields")
    alignment = 32
    for _ in range(fields):
        name = walk.new_name("field")
        kind = walk.number("I")
        start = walk.at
        walk.value(kind, 0)
        if name == "general.alignment":
            alignment = struct.unpack_from("<I", walk.data, start)[0] if kind == 4 else 0
            if alignment < 8 or alignment & (alignment - 1) or alignment > 1 << 16:
                raise walk.fail("an alignment that is none")
    walk.seen.clear()
    ends = [_tensor(walk) for _ in range(tensors)]
    start = math.ceil(walk.at / alignment) * alignment
    if ends and start + max(ends) > len(walk.data):
        raise walk.fail("tensors that end behind the file, said")


def _tensor(walk: _Walk) -> int:
    """Where a tensor's bytes end, from where all of them start."""
    name = walk.new_name("tensor")
    axes = walk.number("I")
    if not 1 <= axes <= MOST_AXES:
        raise walk.fail(f"tensor {name!r} of {axes} axes")
    sizes = [walk.number("Q") for _ in range(axes)]
    kind, offset = walk.number("I"), walk.number("Q")
    if kind not in list(GGMLQuantizationType):
        raise walk.fail(f"tensor {name!r} of unknown type {kind}")
    block, size = GGML_QUANT_SIZES[GGMLQuantizationType(kind)]
    if 0 in sizes or sizes[0] % block:
        raise walk.fail(f"tensor {name!r} of shape {sizes} in blocks of {block}")
    end: int = offset + math.prod(sizes) // block * size
    return end
