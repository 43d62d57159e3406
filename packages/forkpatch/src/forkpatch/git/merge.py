# SPDX-License-Identifier: Apache-2.0
"""Merges and diffs of single files that lie in memory."""

from __future__ import annotations

import re
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from forkpatch.git.calls import Git

#: The diff by which files are merged everywhere, so that all verbs come to the same merge.
ALGORITHM = "myers"

#: Rows, from 0, that differ: the first and the number in one file, and the same in the other.
Range = tuple[int, int, int, int]

_CONFLICTS = range(128)  # exit codes of git merge-file: the number of conflicts
_BINARY = 255  # the exit code for a file that is not text
_OPTIONS = (
    *("--no-color", "--no-ext-diff", "--no-textconv", "--text", "--no-renames"),
    *("-U0", f"--diff-algorithm={ALGORITHM}"),
)
# They begin with a line feed, which a search finds much sooner than the beginning of a line.
_FILE = re.compile(rb'\ndiff --git .*/(\d+)"?(?=\n)')
_PATH = re.compile(rb"\ndiff --git (.*)")
_RANGES = re.compile(rb"\n@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@")


def merge_data(ours: bytes, base: bytes, theirs: bytes, *options: str) -> bytes | None:
    """Return the three-way merge of one file; None with a conflict, or if it is not text.

    ``options`` are those of ``git merge-file``: ``--ours`` resolves a conflict to that side.
    """
    if ours in (base, theirs):
        return theirs
    if theirs == base:
        return ours
    conflicts, merged = _merged((ours, base, theirs), *options)
    return None if conflicts else merged


def marked(ours: bytes, base: bytes, theirs: bytes) -> bytes | None:
    """The merge of one file with its conflicts between markers; None when it is not text."""
    labels = ("-L", "ours", "-L", "base", "-L", "theirs")
    conflicts, merged = _merged((ours, base, theirs), "--diff3", *labels)
    return None if conflicts == _BINARY else merged


def _merged(sides: Sequence[bytes], *options: str) -> tuple[int, bytes]:
    """Merge ours, base and theirs; return the number of conflicts and the merged file.

    The number is _BINARY if a file is not text.
    """
    with tempfile.TemporaryDirectory(prefix="forkpatch-") as folder:
        paths = [Path(folder, str(number)) for number in range(len(sides))]
        for path, data in zip(paths, sides, strict=True):
            path.write_bytes(data)
        command = ("merge-file", "-p", "-q", *options, *map(str, paths))
        done = Git().run(*command, ok=(*_CONFLICTS, _BINARY))
    return done.returncode, done.stdout


def changed_lines(pairs: Sequence[tuple[bytes, bytes]]) -> list[list[Range]]:
    """Return, for each pair of files, the ranges of rows that differ; git runs only once."""
    found: list[list[Range]] = [[] for _ in pairs]
    changed = [number for number, (before, after) in enumerate(pairs) if before != after]
    if not changed:
        return found
    with tempfile.TemporaryDirectory(prefix="forkpatch-") as name:
        sides = [Path(name, side) for side in ("a", "b")]
        for side, contents in zip(sides, zip(*pairs, strict=True), strict=True):
            side.mkdir()
            for number in changed:
                (side / str(number)).write_bytes(contents[number])
        done = Git().run("diff", "--no-index", *_OPTIONS, *map(str, sides), ok=(0, 1))
    parts = _FILE.split(b"\n" + done.stdout)
    for pair, diff in zip(parts[1::2], parts[2::2], strict=True):
        found[int(pair)] += ranges_of(diff)
    return found


def file_diffs(git: Git, old: str, new: str, *paths: str) -> dict[str, bytes]:
    """Return the diffs, without context, of the files that differ between two trees, by path.

    Without ``paths``, those are all files but the files that are not text.
    """
    literal = {"GIT_LITERAL_PATHSPECS": "1"}
    options = _OPTIONS if paths else (one for one in _OPTIONS if one != "--text")
    out = git.run("diff-tree", "-r", "-p", *options, old, new, "--", *paths, env=literal).stdout
    found, parts = {}, _PATH.split(b"\n" + out)
    for head, diff in zip(parts[1::2], parts[2::2], strict=True):
        name = head[: len(head) // 2]  # both sides have the same name, with a/ and b/
        name = re.sub(rb"\\(.)", rb"\1", name[1:-1]) if name.startswith(b'"') else name
        if b"\nBinary files " not in diff:
            found[name[2:].decode("utf-8", "surrogateescape")] = diff
    return found


def has_more(diff: bytes, line: bytes) -> bool:
    """Return True if a diff adds a line more often than it removes it.

    Blanks around lines do not count, nor does a comma at the end.
    """
    lines = diff.partition(b"\n@@ ")[2].split(b"\n")
    counts = Counter(text[:1] for text in lines if text[1:].strip() in (line, line + b","))
    return counts[b"+"] > counts[b"-"]


def ranges_of(diff: bytes) -> Iterator[Range]:
    """Yield the ranges of rows, from 0, in which the sides of a diff without context differ."""
    for ranges in _RANGES.findall(diff):
        first, count, start, length = (int(text or 1) for text in ranges)
        # Without lines, git names the line above.
        yield first - (count > 0), count, start - (length > 0), length
