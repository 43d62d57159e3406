# SPDX-License-Identifier: Apache-2.0
"""Spoils files: bytes, lines, numbers, and words of the other files, from a seed."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence

NUMBERS = [b"0", b"-1", b"1.5", b"65536", b"2147483648", b"9223372036854775808", b"1e400", b"nan"]
NUMBERS += [b"9" * 5000, b"true", b'""', b"[]", b"{}", b"null", b"[[[]]]", b'"../../x"']
WORDS = [b"\0", b"\xff\xfe", b"\xed\xa0\x80", b'"', b"'", b"\\", b"\n", b"\r", b"\r\n", b"[[", b"]"]
WORDS += [b"../", b"/etc/passwd", b".git/", b"{", b"}", b"(" * 3000, b"[" * 3000, b"\xe2\x80\xae"]
HUGE = [0xFF, 0x7F, 0x80, 0x00, 0x01]
_NUMBER = re.compile(rb"-?\d+(?:\.\d+)?")
_WORD = re.compile(rb"[A-Za-z_][\w.]*|\"[^\"\n]*\"")


def mutated(seeds: Sequence[bytes], source: random.Random) -> bytes:
    """One of the seeds, changed in one to four ways."""
    data = source.choice(seeds)
    for _ in range(source.choice((1, 1, 1, 2, 2, 3, 4))):
        data = source.choice(_CHANGES)(data, seeds, source)
    return data[: 1 << 16]


def _flip(data: bytes, _: Sequence[bytes], source: random.Random) -> bytes:
    changed = bytearray(data or b"x")
    for _ in range(source.randint(1, 4)):
        changed[source.randrange(len(changed))] ^= 1 << source.randrange(8)
    return bytes(changed)


def _extreme(data: bytes, _: Sequence[bytes], source: random.Random) -> bytes:
    at, count = source.randrange(len(data) + 1), source.choice((1, 2, 4, 8))
    value = bytes([source.choice(HUGE)]) * (count - 1) + bytes([source.choice(HUGE)])
    return data[:at] + value + data[at + count :]


def _cut(data: bytes, _: Sequence[bytes], source: random.Random) -> bytes:
    first, end = sorted(source.randrange(len(data) + 1) for _ in range(2))
    return data[:first] if source.random() < 0.3 else data[:first] + data[end:]


def _repeat(data: bytes, _: Sequence[bytes], source: random.Random) -> bytes:
    first, end = sorted(source.randrange(len(data) + 1) for _ in range(2))
    return data[:end] + data[first:end] * source.choice((1, 2, 50)) + data[end:]


def _insert(data: bytes, _: Sequence[bytes], source: random.Random) -> bytes:
    at = source.randrange(len(data) + 1)
    return data[:at] + source.choice(WORDS) + data[at:]


def _number(data: bytes, _: Sequence[bytes], source: random.Random) -> bytes:
    return _replaced(_NUMBER, data, source.choice(NUMBERS), source)


def _word(data: bytes, seeds: Sequence[bytes], source: random.Random) -> bytes:
    words = _WORD.findall(source.choice(seeds)) or [b"x"]
    return _replaced(_WORD, data, source.choice([*words, *NUMBERS]), source)


def _line(data: bytes, seeds: Sequence[bytes], source: random.Random) -> bytes:
    lines = data.splitlines(keepends=True) or [b""]
    others = source.choice(seeds).splitlines(keepends=True) or [b""]
    at = source.randrange(len(lines))
    match source.randrange(3):
        case 0:
            del lines[at]
        case 1:
            lines.insert(at, source.choice(others))
        case _:
            lines[at] = source.choice(others)
    return b"".join(lines)


def _replaced(pattern: re.Pattern[bytes], data: bytes, new: bytes, source: random.Random) -> bytes:
    found = list(pattern.finditer(data))
    if not found:
        return data + new
    match = source.choice(found)
    return data[: match.start()] + new + data[match.end() :]


_CHANGES = (_flip, _extreme, _cut, _repeat, _insert, _number, _number, _word, _word, _line)
