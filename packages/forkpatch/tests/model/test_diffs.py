# SPDX-License-Identifier: Apache-2.0
"""Reading of diffs: text hunks by unidiff, all else by forkpatch; nothing is skipped."""

from __future__ import annotations

from pathlib import Path

import pytest

from forkpatch.errors import PatchError
from forkpatch.model.diffs import FileDiff, parse_diff, split_lines
from forkpatch.model.patchfile import parse_patch

PATCHES = Path(__file__).parents[4] / "patches"
TEXT = b"diff --git a/x b/x\n--- a/x\n+++ b/x\n@@ -1 +1 @@\n-a\n+b\n"


def only(diff: bytes) -> FileDiff:
    (file,) = parse_diff(diff, 0, "x.patch")
    return file


def test_lines_keep_every_byte_and_end_at_a_line_feed_alone() -> None:
    odd = b"a\x0cb\x85c\r\xe2\x80\xa8d\x1c\xff\r\n"
    body = b"".join(kind + line for kind in (b"-", b"+") for line in (odd, b"last"))
    end = b"\n\\ Kein Zeilenumbruch am Dateiende.\n"
    body = body.replace(b"last", b"last" + end)
    file = only(TEXT[: TEXT.index(b"@@")] + b"@@ -1,2 +1,2 @@ section\x0c\n" + body)
    (hunk,) = file.hunks
    assert [line.data for line in hunk.lines] == split_lines(odd + b"last") * 2
    assert (hunk.first, hunk.old_count, hunk.new_count, hunk.patch_line) == (0, 2, 2, 4)


def test_the_lost_blank_of_an_empty_line_of_context_is_given_back() -> None:
    diff = TEXT.replace(b"@@ -1 +1 @@\n", b"@@ -1,2 +1,2 @@\n\n") + b"-- \n2.47.0\n"
    assert only(diff).hunks[0].lines[0] == (" ", b"\n")


@pytest.mark.parametrize(
    ("old", "new", "line"),
    [
        (b"+b\n", b"", 6),
        (b"+b\n", b"\r\n", 6),
        (b"+b\n", b"*b\n", 6),
        (b"-a\n", b"\\ No newline at end of file\n-a\n", 5),
        (b"-1 +1 @@\n", b"-1,0 +1,0 @@\n", 5),
        (b"+b\n", b"+b\n@@ odd @@\n", 7),
        (b"+b\n", b"+b\n+c\n", 7),
    ],
)
def test_a_damaged_hunk_is_refused_at_its_line(old: bytes, new: bytes, line: int) -> None:
    with pytest.raises(PatchError, match=rf"x\.patch:{line}: "):
        only(TEXT.replace(old, new))


def test_a_name_with_blanks_or_in_quotes_is_read() -> None:
    assert only(TEXT.replace(b"/x", b"/x y")).new == "x y"
    quoted = TEXT.replace(b"a/x", b'"a/\\303\\251"').replace(b"b/x", b'"b/\\303\\251"')
    assert only(quoted).new == "é"


def test_patch_that_was_parsed_is_kept() -> None:
    data = min(PATCHES.rglob("*.patch"), key=lambda path: path.stat().st_size).read_bytes()
    patch = parse_patch(data, "a.patch")
    assert parse_patch(bytes(bytearray(data)), "a.patch") is patch
    assert parse_patch(data, "b.patch").name == "b.patch"
    assert parse_patch(data + b"\n", "a.patch").sha256 != patch.sha256
