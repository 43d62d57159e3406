# SPDX-License-Identifier: Apache-2.0
"""Our reader of diffs agrees with the package unidiff, an independent one, on text files.

unidiff skips what it does not know, so it cannot be the engine's reader: the last test shows what
it loses. Where both can read, they must not differ.
"""

from __future__ import annotations

import difflib
import sys
from pathlib import Path

import pytest
import unidiff
from hypothesis import given
from hypothesis import strategies as st

from forkpatch.errors import PatchError
from forkpatch.model.diffs import FileDiff, parse_diff
from forkpatch.model.patchfile import parse_patch

PATCHES = Path(__file__).parents[4] / "patches"

#: Its four numbers, and its lines.
HunkFields = tuple[int, int, int, int, tuple[tuple[str, bytes], ...]]


def _ours(files: tuple[FileDiff, ...]) -> list[tuple[str | None, list[HunkFields]]]:
    return [
        (
            file.new or file.old,
            [
                (
                    *(hunk.old_start, hunk.old_count, hunk.new_start, hunk.new_count),
                    tuple((line.kind, line.data) for line in hunk.lines),
                )
                for hunk in file.hunks
            ],
        )
        for file in files
    ]


def _theirs(diff: bytes) -> list[tuple[str | None, list[HunkFields]]]:
    found = []
    # Latin-1 maps every byte to one character and back.
    for file in unidiff.PatchSet(diff.decode("latin-1")):
        hunks = []
        for hunk in file:
            lines: list[tuple[str, bytes]] = []
            for line in hunk:
                if line.line_type == "\\":
                    lines[-1] = (lines[-1][0], lines[-1][1].removesuffix(b"\n"))
                else:
                    lines.append((line.line_type, line.value.encode("latin-1")))
            hunks.append(
                (
                    *(hunk.source_start, hunk.source_length),
                    *(hunk.target_start, hunk.target_length),
                    tuple(lines),
                )
            )
        found.append((file.path, hunks))
    return found


@pytest.mark.parametrize(
    "path", sorted(PATCHES.rglob("*.patch")), ids=lambda path: f"{path.parent.name}/{path.stem}"
)
def test_every_patch_is_read_as_unidiff_reads_it(path: Path) -> None:
    data = path.read_bytes()
    ours = _ours(parse_patch(data, path.name).files)
    assert ours == _theirs(data[data.index(b"diff --git ") :])
    assert all(hunks for _, hunks in ours)


LINES = st.lists(st.sampled_from([b"", b"a", b"-- b", b"--- c", b"+++ d", b"@@ e", b"\tf"]))


@given(LINES, LINES, st.integers(0, 3))
def test_diffs_are_read_as_unidiff_reads_them(
    old: list[bytes], new: list[bytes], context: int
) -> None:
    texts = [line.decode() for line in old], [line.decode() for line in new]
    body = list(difflib.unified_diff(*texts, "a/x", "b/x", n=context, lineterm=""))
    if not body:
        return
    diff = "\n".join(["diff --git a/x b/x", *body, ""]).encode()
    assert _ours(tuple(parse_diff(diff, 0, "x.patch"))) == _theirs(diff)


def test_patch_that_was_parsed_is_kept_without_its_bytes() -> None:
    data = max(PATCHES.rglob("*.patch"), key=lambda path: path.stat().st_size).read_bytes()
    references = sys.getrefcount(data)
    patch = parse_patch(data, "a.patch")
    assert sys.getrefcount(data) == references, "a patch may have hundreds of megabytes"
    assert parse_patch(bytes(bytearray(data)), "a.patch") is patch
    assert parse_patch(data, "b.patch").name == "b.patch"
    assert parse_patch(data + b"\n", "a.patch").sha256 != patch.sha256


TEXT = b"diff --git a/x b/x\n--- a/x\n+++ b/x\n@@ -1 +1 @@\n-a\n+b\n"
QUOTED = TEXT.replace(b"a/x", b'"a/\\303\\251"').replace(b"b/x", b'"b/\\303\\251"')
COPY = b"diff --git a/x b/y\nsimilarity index 100%\ncopy from x\ncopy to y\n"
BINARY = b"""diff --git a/x b/x
new file mode 100644
index 0000000000000000000000000000000000000000..f76dd238ade08917e6712764a16a22005a50573d
GIT binary patch
literal 1
IcmZPo000310RR91

"""
CUT = TEXT + b"@@ odd @@\n-c\n+d\n"


def test_unidiff_loses_what_the_engine_needs() -> None:
    """Names in quotes, copies, binary files, and hunks that it cannot read, without an error."""

    def both(diff: bytes) -> tuple[FileDiff, unidiff.PatchedFile]:
        (ours,), (theirs,) = parse_diff(diff, 0, "x"), unidiff.PatchSet(diff.decode())
        return ours, theirs

    ours, theirs = both(QUOTED)
    assert ours.new == "é" and theirs.path != "é"
    ours, theirs = both(COPY)
    assert ours.copied and not any("cop" in name for name in vars(theirs))
    ours, theirs = both(BINARY)
    assert ours.change and ours.change.apply(None, "x") == b"\0" and "literal" not in str(theirs)
    with pytest.raises(PatchError, match="the line of a hunk's numbers cannot be read"):
        both(CUT)
    assert len(unidiff.PatchSet(CUT.decode())[0]) == 1
