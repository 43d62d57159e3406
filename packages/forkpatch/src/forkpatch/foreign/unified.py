# SPDX-License-Identifier: Apache-2.0
"""Unified diffs of any tool, read as patch(1) reads them.

Tools write different lines around the hunks: git's extended headers, ``Index:`` lines, times,
rulers, remarks, any prefix before the paths. The header of a hunk states its number of lines. Lines
between the files are skipped.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace

from forkpatch.errors import PatchError
from forkpatch.model.diffs import DIFF_GIT, HUNK, DiffReader, FileDiff, Hunk, HunkLine, read_file

_START = re.compile(
    rb"^(?:Index: [^\n]*\n|diff -[^\n]*\n|--- [^\n]*\n\+\+\+ [^\n]*\n(?:@@ |\Z)"
    rb"|\*\*\* [^\n]*\n--- )",
    re.MULTILINE,
)


def diff_offset(data: bytes) -> int:
    """Return the offset of the first file's diff, including the lines before its names.

    Without a diff, return the length of the data.
    """
    start = _START.search(data)
    return start.start() if start else len(data)


def read_unified(data: bytes, where: str, strip: int = 1) -> Iterator[FileDiff]:
    """Yield the files of a diff; :func:`settled` chooses the path of an ambiguous file.

    Raises:
        PatchError: a hunk is incomplete, or the diff is unsupported: a binary file without
            content, a context diff, a submodule.
        UnsafePathError: a path is outside the tree.
    """
    data = data if data.endswith(b"\n") else data + b"\n"
    reader = DiffReader(data, diff_offset(data), where, strip)
    while (line := reader.peek()) is not None:
        after = reader.peek(1) or b""
        if line.startswith(DIFF_GIT) or (line.startswith(b"--- ") and after.startswith(b"+++ ")):
            yield read_file(reader)
        elif line.startswith(b"*** ") and after.startswith(b"--- "):
            raise reader.error("a context diff: its lines cannot be read")
        elif HUNK.match(line):
            raise reader.error("malformed diff: a hunk without the names of its file")
        elif line.startswith(b"Binary files "):
            raise reader.error("a binary file is changed, and the patch does not say how")
        else:
            reader.take()


def settled(diff: FileDiff, exists: Callable[[str], bool]) -> FileDiff:
    """Return the diff with one path: of two, the one that patch(1) takes, an existing one first."""
    if diff.named:
        return diff
    existing = [path for path in diff.paths if exists(path)]
    adds = len(diff.hunks) == 1 and diff.hunks[0].old_count == 0
    # As patch(1) chooses: fewest parts, then shortest names.
    path = min(
        existing or diff.paths,
        key=lambda one: (one.count("/"), len(one.rpartition("/")[2]), len(one)),
    )
    return replace(diff, old=None if adds and not existing else path, new=path)


def reverse(diff: FileDiff, where: str) -> FileDiff:
    """Return the diff that reverses a diff.

    Raises:
        PatchError: the diff is of a binary file or a copy; ``where`` names its patch.
    """
    if diff.binary or diff.copied:
        raise PatchError(
            f"{where}:{diff.patch_line}: -R of a {'binary file' if diff.binary else 'copy'}",
            remedy="turn the patch round (git diff -R), and take -R out of the series",
        )
    swapped = {" ": " ", "+": "-", "-": "+"}
    hunks = tuple(
        Hunk(
            *(hunk.new_start, hunk.new_count, hunk.old_start, hunk.old_count),
            tuple(HunkLine(swapped[line.kind], line.data) for line in hunk.lines),
            hunk.patch_line,
        )
        for hunk in diff.hunks
    )
    return replace(
        diff,
        old=diff.new,
        new=diff.old,
        old_mode=diff.new_mode,
        new_mode=diff.old_mode,
        hunks=hunks,
    )
