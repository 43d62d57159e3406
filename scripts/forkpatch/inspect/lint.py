# SPDX-License-Identifier: Apache-2.0
"""The verb ``check``: everything about patches and overlays that can be wrong without a build."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from forkpatch.errors import ForkError
from forkpatch.model.fork import Fork, plan_tree
from forkpatch.model.lock import Upstream
from forkpatch.model.patchfile import SERIES, SUFFIX, FileDiff, Patch, read_patch, read_series
from forkpatch.series.record import RECORD, format_record, is_recorded, record_of

STATUS_FORMS = "Pending | Submitted [url] | Backport [commit] | Inappropriate [reason]"
_STATUS = re.compile(
    r"Pending|Submitted \[https?://\S+\]|Backport \[[0-9a-f]{7,40}\]|Inappropriate \[[^\]]+\]"
)
_ZERO_FROM = b"From " + b"0" * 40 + b" Mon Sep 17 00:00:00 2001\n"
_EXPORT = "make it anew from its commit: forkpatch export"
_FULL_ID = 40


@dataclass(frozen=True)
class Finding:
    """Something that is wrong, where, and how to put it right.

    Attributes:
        where: ``file:line``, the file relative to the fork's root.
    """

    where: str
    what: str
    fix: str

    def __str__(self) -> str:
        return f"{self.where}: {self.what}\n    fix: {self.fix}"


@dataclass(frozen=True)
class Report:
    """All findings, and what could not be looked at, with the reason."""

    findings: tuple[Finding, ...]
    notes: tuple[str, ...]


def check_fork(fork: Fork) -> Report:
    """Check every upstream version of the lock."""
    findings: list[Finding] = []
    notes: list[str] = []
    for versions in fork.lock.upstreams.values():
        for upstream in versions.values():
            found = list(_check_files(fork, upstream))
            findings += found
            # A tree that cannot be put together for a reason named above is named once.
            if not any(finding.fix == _READ for finding in found):
                findings += _check_tree(fork, upstream, notes)
    return Report(tuple(findings), tuple(notes))


_READ = "correct the file so that it can be read"


def _check_files(fork: Fork, upstream: Upstream) -> Iterator[Finding]:
    folder = fork.patch_folder(upstream)
    if not folder.is_dir():
        return
    root = fork.settings.root
    series = folder / SERIES
    try:
        names = read_series(folder)
    except ForkError as error:
        yield Finding(_relative(series, root), error.what, error.remedy or _READ)
        return
    for path in sorted(folder.glob(f"*{SUFFIX}")):
        if path.name not in names:
            yield Finding(
                _relative(path, root),
                f"{SERIES} does not list it",
                f"add {path.name} to {_relative(series, root)}, or delete it",
            )
    for name in names:
        path = folder / name
        where = _relative(path, root)
        try:
            patch = read_patch(path)
        except ForkError as error:
            yield Finding(where, error.what.removeprefix(f"{path}:"), _READ)
            continue
        data = path.read_bytes()
        yield from _check_form(where, patch, data)
        yield from _check_message(where, patch, data)
        yield from _check_trailers(where, patch, data, root)
        for diff in patch.files:
            yield from _check_diff(where, diff, data)


def _relative(path: Path, root: Path) -> str:
    return path.relative_to(root).as_posix() if path.is_relative_to(root) else str(path)


def _check_form(where: str, patch: Patch, data: bytes) -> Iterator[Finding]:
    if not data.startswith(_ZERO_FROM):
        yield Finding(f"{where}:1", "it does not begin with a zero commit id", _EXPORT)
    if re.match(r"\d+-", patch.name):
        yield Finding(
            f"{where}:1",
            "its name begins with a number: two additions would collide",
            f"name it {re.sub('^[0-9]+-', '', patch.name)}",
        )
    if re.search(rb"^-- \n", data, re.MULTILINE):
        line = data[: data.index(b"\n-- \n")].count(b"\n") + 2
        yield Finding(f"{where}:{line}", "it ends with a signature", _EXPORT)
    for number, line_text in enumerate(data.split(b"\n"), 1):
        if line_text.startswith(b"index ") and len(line_text.split(b"..")[0]) < _FULL_ID:
            yield Finding(f"{where}:{number}", "its object ids are shortened", _EXPORT)


def _check_message(where: str, patch: Patch, data: bytes) -> Iterator[Finding]:
    subject_line = _line_of(data, "Subject")
    if len(patch.subject) > 72:
        yield Finding(
            f"{where}:{subject_line}",
            f"the subject has {len(patch.subject)} characters",
            "say it in 72, and the rest below",
        )
    paragraphs = patch.message.strip().split("\n\n")[1:]
    if patch.trailers:
        paragraphs = paragraphs[:-1]
    if not "".join(paragraphs).strip():
        yield Finding(
            f"{where}:{subject_line}",
            "the message does not say why the patch exists",
            "add a paragraph for somebody who meets it in two years",
        )
    if re.search(r"^(diff -|---$|Index: )", patch.message, re.MULTILINE):
        yield Finding(
            f"{where}:{subject_line}",
            "a line of the message would be taken for the diff",
            "indent the line",
        )


def _check_trailers(where: str, patch: Patch, data: bytes, root: Path) -> Iterator[Finding]:
    end = data[: data.index(b"diff --git ")].count(b"\n")
    status = patch.trailer("Upstream-Status")
    if status is None:
        yield Finding(f"{where}:{end}", "no Upstream-Status trailer", f"add one: {STATUS_FORMS}")
    elif not _STATUS.fullmatch(status):
        yield Finding(
            f"{where}:{_line_of(data, 'Upstream-Status')}",
            f"Upstream-Status {status!r} is none of the forms",
            f"write one of: {STATUS_FORMS}",
        )
    test = patch.trailer("Test")
    if test is None:
        yield Finding(
            f"{where}:{end}",
            "no Test trailer",
            "add the id of the test that fails without this patch: Test: path::function",
        )
    elif reason := _missing_test(test, root):
        yield Finding(
            f"{where}:{_line_of(data, 'Test')}", f"Test {test!r}: {reason}", "correct the id"
        )
    if patch.trailer("Touches") is not None:
        yield Finding(
            f"{where}:{_line_of(data, 'Touches')}",
            "Touches is derived, never written by hand",
            "remove the trailer",
        )


def _line_of(data: bytes, header: str) -> int:
    """The line, from 1, on which a header or trailer begins."""
    match = re.search(rb"^" + header.encode() + rb":", data, re.MULTILINE | re.IGNORECASE)
    return data[: match.start()].count(b"\n") + 1 if match else 1


def _missing_test(test: str, root: Path) -> str:
    """Why there is no such test; empty when there is one."""
    file, *names = test.partition("[")[0].split("::")
    path = root / file
    if not path.is_file():
        return f"there is no file {file}"
    if path.suffix != ".py":
        return ""
    try:
        node: ast.AST = ast.parse(path.read_bytes())
    except SyntaxError as error:
        return f"{file} cannot be read: {error}"
    for name in names:
        inner = [
            child
            for child in ast.walk(node)
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
            and child.name == name
        ]
        if not inner:
            return f"{file} has no {name}"
        node = inner[0]
    return ""


def _check_diff(where: str, diff: FileDiff, data: bytes) -> Iterator[Finding]:
    path = diff.new or diff.old
    if diff.binary:
        yield Finding(
            f"{where}:{diff.patch_line}",
            f"{path} is changed as binary",
            "put the file into the overlays",
        )
    if None not in (diff.old, diff.new) and diff.old_mode != diff.new_mode:
        yield Finding(
            f"{where}:{diff.patch_line}",
            f"the mode of {path} changes from {diff.old_mode} to {diff.new_mode}",
            "leave modes alone: a wheel cannot hold them",
        )
    lines = data.split(b"\n")
    for hunk in diff.hunks:
        for offset, line in enumerate(hunk.lines):
            number = hunk.patch_line + 1 + offset
            text = line.data.rstrip(b"\r\n")
            if line.kind == "+" and text != text.rstrip(b" \t"):
                yield Finding(
                    f"{where}:{number}", f"a line added to {path} ends in blanks", "remove them"
                )
            elif line.kind == "+" and b" \t" in text[: len(text) - len(text.lstrip(b" \t"))]:
                yield Finding(
                    f"{where}:{number}",
                    f"a line added to {path} is indented by blanks and then a tab",
                    "indent it as its neighbours are",
                )
            elif line.kind == " " and lines[number - 1 : number] == [b""]:
                yield Finding(
                    f"{where}:{number}", "an empty line of context lost its blank", _EXPORT
                )


def _check_tree(fork: Fork, upstream: Upstream, notes: list[str]) -> Iterator[Finding]:
    """Check what takes the upstream's files: exact application, overlays, symbols, pins."""
    pristine = fork.cache.find(upstream.tree)
    if pristine is None:
        notes.append(
            f"{upstream}: its tree is not in the cache (type: forkpatch apply): application,"
            f" overlays and {RECORD} were not checked"
        )
        return
    folder, root = fork.patch_folder(upstream), fork.settings.root
    try:
        plan = plan_tree(fork, upstream, pristine)
    except ForkError as error:
        yield Finding(_relative(folder / SERIES, root), error.what, error.remedy or "see above")
        return
    record = folder / RECORD
    expected = record_of(fork, plan)
    same = record.is_file() and record.read_text("utf-8") == format_record(expected)
    if is_recorded(folder, expected) and not same:
        yield Finding(
            _relative(record, root),
            "it is not what the series gives",
            f"forkpatch record {upstream.name} --version {upstream.version}",
        )
