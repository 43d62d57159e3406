# SPDX-License-Identifier: Apache-2.0
"""The verb ``export --format``: write a series for another tool.

An imported patch that is unchanged is written as imported, byte for byte. A changed patch keeps its
foreign head if author, date and message are unchanged. The fork's overlays are the first patch of
the written series. The series is read as an import reads it, and must give the same tree.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path, PurePosixPath

from forkpatch.errors import IntegrityError, UserError
from forkpatch.foreign.heads import dep3_head
from forkpatch.foreign.intake import weave_foreign
from forkpatch.foreign.origin import Origin, OriginEntry, hash_diff, hash_head, read_origin
from forkpatch.foreign.sources import (
    ForeignFormat,
    ForeignPatch,
    ForeignSeries,
    in_order,
    parse_list,
)
from forkpatch.foreign.unified import diff_offset
from forkpatch.model.patchfile import SERIES, Patch, split_patch
from forkpatch.safety import SYMLINK_MODE
from forkpatch.series.mailbox import export_new, relisted
from forkpatch.tree.fork import Fork, TreePlan
from forkpatch.tree.swap import check_new, new_folder


class ExportFormat(StrEnum):
    """Tool that a series is written for."""

    QUILT = "quilt"
    DEBIAN = "debian"
    FORMAT_PATCH = "format-patch"


#: Origin of a series that was not imported, or not from the tool that it is written for.
_NEW = Origin(ForeignFormat.QUILT, "", b"", ())
#: Layouts of an imported series that an export as ``format-patch`` gives back.
_OF_GIT = (ForeignFormat.NUMBERED, ForeignFormat.LISTED, ForeignFormat.MAILBOX)


@dataclass(frozen=True)
class ForeignExport:
    """Result of an export for another tool.

    Attributes:
        kept: the files that are written as imported.
        written: the files that are written again.
        overlays: the number of overlay files, which the first patch adds.
    """

    upstream: str
    version: str
    folder: Path
    kept: tuple[str, ...]
    written: tuple[str, ...]
    overlays: int


@dataclass(frozen=True)
class _Item:
    """A patch, its file, and its origin: entry, foreign file, and equality with that file."""

    patch: Patch
    data: bytes
    entry: OriginEntry | None
    original: bytes
    unchanged: bool
    same_head: bool


def export_foreign(
    fork: Fork, plan: TreePlan, format_: ExportFormat, output: Path
) -> ForeignExport:
    """Write the series of an upstream version to the new folder ``output``.

    Raises:
        UserError: ``output`` is not empty or in the work folder, or the tool cannot apply a
            patch.
        IntegrityError: the foreign series does not give the same tree.
    """
    if output.resolve().is_relative_to(fork.settings.work.resolve()):
        raise UserError(
            f"{output} is in {fork.settings.work}, where trees are built and removed",
            remedy="name a folder elsewhere",
        )
    check_new(output)
    origin = read_origin(fork.patch_folder(plan.upstream)) or _NEW
    layouts = _OF_GIT if format_ is ExportFormat.FORMAT_PATCH else (ForeignFormat.QUILT,)
    origin = origin if origin.format in layouts else _NEW
    items = [*_overlay_items(plan), *(_item(fork, plan, patch, origin) for patch in plan.patches)]
    if format_ is not ExportFormat.FORMAT_PATCH:
        for item in items:
            _check_plain(item.patch)
    names = _file_names(items, format_, origin)
    files = {name: _text(item, format_) for name, item in zip(names, items, strict=True)}
    series = _series(format_, origin, items, names, files)
    files |= origin.beside
    if series.list_name:
        files[series.list_name] = series.list_data
    woven = weave_foreign(series, plan.pristine, str(output), nearest=True)
    if woven.changes != plan.weave.changes() | plan.overlays:
        raise IntegrityError(f"{output}: what would be written does not give the same tree")
    with new_folder(output) as scratch:
        for name, data in files.items():
            (scratch / name).parent.mkdir(parents=True, exist_ok=True)
            (scratch / name).write_bytes(data)
    kept = tuple(name for name, item in zip(names, items, strict=True) if item.unchanged)
    return ForeignExport(
        plan.upstream.name,
        plan.upstream.version,
        output,
        kept,
        tuple(name for name in names if name not in kept),
        len(plan.overlays),
    )


def _overlay_items(plan: TreePlan) -> list[_Item]:
    """Return a patch that adds the overlay files; nothing for a fork without overlays."""
    if not plan.overlays:
        return []
    (patch,) = export_new(plan.commits[:2], plan.pristine.git.objects)
    return [_Item(patch.patch, patch.data, None, b"", unchanged=False, same_head=False)]


def _item(fork: Fork, plan: TreePlan, patch: Patch, origin: Origin) -> _Item:
    data = fork.patch_file(plan.upstream, patch).read_bytes()
    entry = origin.of(patch.name)
    if entry is None:
        return _Item(patch, data, None, b"", unchanged=False, same_head=False)
    same_head = hash_head(data, patch.name) == entry.head
    same = same_head and hash_diff(data, patch.name) == entry.diff
    original = origin.data.get(entry.file, data)  # a missing file equals the export
    return _Item(patch, data, entry, original, unchanged=same, same_head=same_head)


def _check_plain(patch: Patch) -> None:
    """Raise UserError for a diff that patch(1), which quilt and dpkg-source call, cannot apply."""
    for diff in patch.files:
        link = SYMLINK_MODE in (diff.old_mode, diff.new_mode, diff.mode)
        if diff.binary or link:
            what = "a symbolic link" if link else "a binary file"
            raise UserError(
                f"{patch.name}:{diff.patch_line}: {diff.new or diff.old} is {what}, which quilt and"
                " dpkg-source cannot patch",
                remedy="export it for git: --format format-patch",
            )


def _text(item: _Item, format_: ExportFormat) -> bytes:
    """Return the bytes of a foreign patch file: as imported, if the patch is unchanged."""
    if item.unchanged:
        return item.original
    # The file of a shared patch has the lines of its home version.
    data = item.data
    if item.patch.home:
        data = _at_lines(item.patch, data)
    head, diff = split_patch(data, item.patch.name)
    if item.same_head:
        return item.original[: diff_offset(item.original)] + diff
    if format_ is ExportFormat.DEBIAN:
        return dep3_head(item.patch) + diff
    return head + diff


def _at_lines(patch: Patch, data: bytes) -> bytes:
    """Return a patch file with its hunks at their lines in this version."""
    hunks = {hunk.patch_line: hunk for diff in patch.files for hunk in diff.hunks}
    lines = data.split(b"\n")
    for number, hunk in hunks.items():
        numbers = b"@@ -%d,%d +%d,%d @@" % (
            *(hunk.old_start, hunk.old_count, hunk.new_start, hunk.new_count),
        )
        lines[number - 1] = re.sub(rb"^@@ [^@]* @@", numbers, lines[number - 1])
    return b"\n".join(lines)


def _file_names(items: Sequence[_Item], format_: ExportFormat, origin: Origin) -> list[str]:
    """Return the foreign file names, which stay the same if possible."""
    numbered = [
        f"{number:04d}-{PurePosixPath(item.patch.name).stem}.patch"
        for number, item in enumerate(items, 1)
    ]
    if format_ is ExportFormat.FORMAT_PATCH and not origin.list_name:
        names = [item.entry.file if item.entry else "" for item in items]
        return names if "" not in names and names == in_order(set(names)) else numbered
    taken = {*origin.beside, *(item.entry.file for item in items if item.entry)}
    names = []
    for item in items:
        name = item.entry.file if item.entry else item.patch.name
        while item.entry is None and name in taken:
            name = f"new-{name}"
        taken.add(name)
        names.append(name)
    return names


def _series(
    format_: ExportFormat,
    origin: Origin,
    items: Sequence[_Item],
    names: Sequence[str],
    files: dict[str, bytes],
) -> ForeignSeries:
    """Return the foreign series to write, in the form in which an import reads it."""
    if format_ is ExportFormat.FORMAT_PATCH and not origin.list_name:
        plain = tuple(ForeignPatch(name, files[name]) for name in names)
        return ForeignSeries(ForeignFormat.NUMBERED, plain)
    old = origin.list_data.decode("utf-8", "surrogateescape")
    text, options = _list_text(old, items, names, quilt=origin.format is ForeignFormat.QUILT)
    patches = tuple(
        ForeignPatch(name, files[name], *options.get(name, (1, False))) for name in names
    )
    data = text.encode("utf-8", "surrogateescape")
    return ForeignSeries(origin.format, patches, origin.list_name or SERIES, data)


def _list_text(
    old: str, items: Sequence[_Item], names: Sequence[str], *, quilt: bool
) -> tuple[str, dict[str, tuple[int, bool]]]:
    """Return a list's text, and (strip, reverse) by file; comments are as in :func:`relisted`."""
    known = {item.entry.file for item in items if item.entry}
    lines = parse_list(old, SERIES, quilt=quilt)
    own = {line.file: line for line in lines if line.file in known}
    options = {file: (line.strip, line.reverse) for file, line in own.items()}
    new = []
    for name, item in zip(names, items, strict=True):
        text = own[name].text if name in own else name
        if not item.unchanged and options.get(name, (1, False)) != (1, False):
            text, options[name] = name, (1, False)  # it is written again, with -p1 and forwards
        new.append((name, text.removesuffix("\n") + "\n"))
    result = relisted(((line.file if line.file in own else "", line.text) for line in lines), new)
    return (result if old.endswith("\n") or not old else result.removesuffix("\n")), options
