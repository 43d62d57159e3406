# SPDX-License-Identifier: Apache-2.0
"""The lines of a patch file, read one after the other."""

from __future__ import annotations

from forkpatch.errors import PatchError

REMEDY = "export the patch anew"


class DiffReader:
    """The lines of a patch file from its diff on, without their ends, one after the other."""

    def __init__(self, data: bytes, start: int, where: str) -> None:
        self.data = data
        self.at = start
        self.number = data.count(b"\n", 0, start) + 1
        self._where = where

    @property
    def where(self) -> str:
        """The place of the next line, for messages."""
        return f"{self._where}:{self.number}"

    def peek(self) -> bytes | None:
        """The next line, None at the end."""
        if self.at >= len(self.data):
            return None
        end = self.data.find(b"\n", self.at)
        return self.data[self.at : end if end >= 0 else len(self.data)]

    def take(self) -> bytes:
        """The next line, which is passed; empty at the end."""
        line = self.peek() or b""
        self.at += len(line) + 1
        self.number += 1
        return line

    def error(self, what: str) -> PatchError:
        """The error that the next line is ``what``."""
        return PatchError(f"{self.where}: {what}", remedy=REMEDY)
