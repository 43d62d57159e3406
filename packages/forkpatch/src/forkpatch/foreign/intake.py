# SPDX-License-Identifier: Apache-2.0
"""The verb ``import-series``: import a series of another tool.

A hunk is accepted at its stated line, or where its lines occur only once in the file. Otherwise the
import stops and writes nothing, unless ``--nearest`` asks for the nearest place, as patch(1)
chooses. The result is in forkpatch's own format, and applies exactly.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path, PurePosixPath

from forkpatch.errors import PatchError, UserError
from forkpatch.foreign.heads import decoded, read_head
from forkpatch.foreign.origin import Origin, OriginEntry, hash_diff, hash_head, write_origin
from forkpatch.foreign.sources import ForeignFormat, ForeignPatch, ForeignSeries, read_foreign
from forkpatch.foreign.unified import read_unified, reverse, settled
from forkpatch.git.objects import Commit, TreeFile
from forkpatch.model.diffs import FileDiff, Hunk, HunkLine, split_lines
from forkpatch.model.lock import Upstream
from forkpatch.model.patchfile import Patch
from forkpatch.model.record import format_record
from forkpatch.model.weave import Weave
from forkpatch.series.mailbox import Exported, export_new, new_name, planned, write_series
from forkpatch.sources.cache import Pristine
from forkpatch.sources.obtain import SourceOptions
from forkpatch.tree.drift import record_of
from forkpatch.tree.fork import Fork
from forkpatch.tree.worktree import patch_commit

_NUMBER = re.compile(r"^\d+[-_.]+")


@dataclass(frozen=True)
class ImportReport:
    """The result of an import.

    Attributes:
        patches: the names of the patches, in order.
        shifted: the hunks that were not at their stated lines, with their lines.
        left_out: the files that became no patch, with reasons.
    """

    upstream: str
    version: str
    folder: Path
    patches: tuple[str, ...]
    shifted: tuple[str, ...]
    left_out: tuple[str, ...]


@dataclass(frozen=True)
class Woven:
    """A foreign series applied to a base.

    Attributes:
        patches: the exact patches in forkpatch's form, each with its foreign file.
        changes: changes of all patches together to the base.
        steps: the files that each patch changes, after the patch.
        skipped: the files that became no patch, with reasons.
    """

    patches: tuple[tuple[ForeignPatch, Patch], ...]
    changes: dict[str, TreeFile | None]
    steps: tuple[dict[str, TreeFile | None], ...]
    skipped: dict[str, str]
    shifted: tuple[str, ...]


def import_series(
    fork: Fork,
    upstream: Upstream,
    source: Path,
    options: SourceOptions,
    guards: Collection[str] | None = None,
    *,
    nearest: bool = False,
) -> ImportReport:
    """Import the series at ``source`` as the series of an upstream version.

    ``guards`` are the chosen guards, None without a choice. With ``nearest``, a hunk goes to the
    place nearest to its stated line, as patch(1) chooses.

    Raises:
        UserError: ``source`` has no series or no patch, or the upstream version has a series.
        PatchError: a patch cannot be read, or the place of a hunk is not certain.
    """
    target = fork.patch_folder(upstream)
    if target.exists():
        raise UserError(f"{target} exists", remedy="remove it, or import to another version")
    foreign = read_foreign(source, guards)
    pristine = fork.pristine(upstream, options)
    woven = weave_foreign(foreign, pristine, str(source), nearest=nearest)
    no_line = f"{foreign.list_name} does not list it"
    left_out = {
        name: f"{no_line}; it is a link" if data is None else f"{no_line}; an export gives it back"
        for name, data in foreign.unlisted.items()
    } | woven.skipped
    reasons = tuple(f"{file}: {why}" for file, why in left_out.items())
    if not woven.patches:
        raise UserError(
            f"{source}: nothing to import: {'; '.join(reasons[:5]) or 'it lists no patch'}",
            remedy="name the folder that holds the patches and their list, or a mailbox",
        )
    commits = [Commit(f"{upstream}\n".encode(), tree=upstream.tree)]
    for (_, patch), changes in zip(woven.patches, woven.steps, strict=True):
        commits.append(patch_commit(patch, changes))
    exported = export_new(commits, pristine.git.objects)
    plan = planned(fork, upstream, exported)
    if plan.weave.changes() != woven.changes:
        raise PatchError(f"{source}: the patches as imported do not give the same tree")
    origin = _origin(foreign, woven, exported)
    write_series(
        target,
        exported,
        format_record(record_of(fork, plan)),
        extra=lambda folder: write_origin(folder, origin),
    )
    return ImportReport(
        upstream.name,
        upstream.version,
        target,
        tuple(patch.name for patch in exported),
        woven.shifted,
        reasons,
    )


def _origin(foreign: ForeignSeries, woven: Woven, exported: tuple[Exported, ...]) -> Origin:
    exports = {source.file: item for (source, _), item in zip(woven.patches, exported, strict=True)}
    entries, data = [], {name: kept for name, kept in foreign.unlisted.items() if kept is not None}
    for patch in foreign.patches:
        item = exports.get(patch.file)
        if item is None or item.data != patch.data:
            data[patch.file] = patch.data
        if item is None:
            entries.append(OriginEntry(patch.file, why=woven.skipped[patch.file]))
            continue
        hashes = (hash_it(item.data, item.name) for hash_it in (hash_diff, hash_head))
        entries.append(OriginEntry(patch.file, item.name, *hashes))
    return Origin(foreign.format, foreign.list_name, foreign.list_data, tuple(entries), data)


def weave_foreign(
    foreign: ForeignSeries, pristine: Pristine, where: str, *, nearest: bool = False
) -> Woven:
    """Apply a foreign series to a base, in memory.

    ``nearest`` is as in :func:`import_series`; ``where`` is the series' place, for messages.

    Raises:
        PatchError: a patch cannot be read, or the place of a hunk is not certain.
        UserError: patches without an order change the same file.
    """
    read, listed = cache(pristine.data), pristine.listed
    weave = Weave(pristine.modes, read)

    def state(path: str) -> TreeFile | None:
        changed = weave.changes(paths=[path])
        if path in changed:
            return changed[path]
        return TreeFile(listed[path][0], read(path)) if path in listed else None

    patches: list[tuple[ForeignPatch, Patch]] = []
    steps: list[dict[str, TreeFile | None]] = []
    skipped: dict[str, str] = {}
    shifted: list[str] = []
    for item in foreign.patches:
        if item.skipped:
            skipped[item.file] = item.skipped
            continue
        source = f"{where}/{item.file}"
        with _naming(source):
            data = decoded(item.data)
        diffs = tuple(read_unified(data, source, item.strip))
        if not diffs:
            skipped[item.file] = "it holds no diff"
            continue
        stem = _stem(item.file)
        with _naming(source):
            patch = read_head(data, stem)
        # A file's own name is kept, unless it is a number.
        words = patch.subject if stem.isdecimal() else stem
        patch = replace(patch, name=new_name(words, weave.patches))
        files: list[FileDiff] = []
        weave.begin(patch.name)
        for file_diff in diffs:
            diff = settled(file_diff, lambda path: state(path) is not None)
            diff = reverse(diff, source) if item.reverse else diff
            placing = _Placing(item.file, shifted, nearest)
            for part in [diff] if file_diff.binary else _settle(diff, state, placing):
                weave.apply_file(patch.name, part)
                files.append(part)
        patch = replace(patch, files=tuple(files))
        weave.finish(patch)
        patches.append((item, patch))
        steps.append({path: state(path) for path in patch.paths})
    if foreign.format is ForeignFormat.LOOSE:
        _check_disjoint(patches)
    return Woven(tuple(patches), weave.changes(), tuple(steps), skipped, tuple(shifted))


@contextmanager
def _naming(place: str) -> Iterator[None]:
    """Add the file's path to an error about the head of its patch."""
    try:
        yield
    except PatchError as error:
        raise PatchError(f"{place}: {error.what}", remedy=error.remedy) from error


def _check_disjoint(patches: list[tuple[ForeignPatch, Patch]]) -> None:
    """Raise UserError when two patches without an order change the same file."""
    owner: dict[str, str] = {}
    for source, patch in patches:
        for path in patch.paths:
            if path in owner:
                raise UserError(
                    f"{owner[path]} and {source.file} both change {path}, and no list says which"
                    " comes first",
                    remedy="put a file 'series' beside them that names them in order",
                )
            owner[path] = source.file


def _stem(file: str) -> str:
    """Return a foreign file's name without number and suffix."""
    path = PurePosixPath(file)
    stem = path.stem if path.suffix in (".patch", ".diff") else path.name
    return _NUMBER.sub("", stem) or stem


@dataclass(frozen=True)
class _Placing:
    """The patch whose hunks are placed, its moved hunks, and the choice of the nearest place."""

    name: str
    shifted: list[str]
    nearest: bool


def _settle(
    diff: FileDiff, state: Callable[[str], TreeFile | None], placing: _Placing
) -> Iterator[FileDiff]:
    """Yield the diff with every hunk at the lines where it certainly belongs.

    A copy becomes a new file, because forkpatch's form has no copies. A file that patch(1) would
    leave empty is removed, as quilt and dpkg-source do.
    """
    name = placing.name
    if diff.old is None:
        hunks = [replace(hunk, old_start=0, new_start=1) for hunk in diff.hunks]
        if any(hunk.old_count for hunk in hunks) or len(hunks) > 1:
            raise PatchError(f"{name}:{diff.patch_line}: {diff.new} is new, but has old lines")
        yield replace(diff, hunks=tuple(hunks), new_mode=diff.new_mode or "100644")
        return
    before = state(diff.old)
    if before is None:
        what = f"{diff.old} is not in the tree"
        raise PatchError(
            f"{name}:{diff.patch_line}: {what}",
            remedy="is it among the included paths of the lock? else refresh the patch",
        )
    lines = split_lines(before.data)
    hunks, after = _place(diff, lines, placing)
    if diff.copied:
        new = tuple(HunkLine("+", line) for line in after)
        hunk = Hunk(0, 0, 1, len(new), new, diff.patch_line)
        mode = diff.new_mode or before.mode
        new_diff = replace(diff, old=None, new_mode=mode, old_mode=None, copied=False)
        yield replace(new_diff, hunks=(hunk,) if new else ())
        return
    plain = diff.old_mode is None and diff.new_mode is None
    if diff.new is not None and not after and lines and plain and diff.new == diff.old:
        diff = replace(diff, new=None)
    yield replace(diff, hunks=tuple(hunks))


def _place(diff: FileDiff, lines: list[bytes], placing: _Placing) -> tuple[list[Hunk], list[bytes]]:
    """Return the hunks at their lines, and the file's lines after the hunks."""
    hunks: list[Hunk] = []
    after: list[bytes] = []
    delta = end = offset = 0
    for hunk in diff.hunks:
        size = hunk.old_count
        index = hunk.first
        # After a moved hunk, patch(1) expects the next hunk to be moved by the same offset.
        if offset or index < end or lines[index : index + size] != list(hunk.old):
            index = _search(diff, hunk, lines, end, hunk.first + offset, placing)
        if index != hunk.first:
            message = f"{placing.name}: {diff.old}:{hunk.old_start} is at line {index + 1}"
            placing.shifted.append(message)
        offset = index - hunk.first
        after += lines[end:index]
        after += [line.data for line in hunk.lines if line.kind != "-"]
        end = index + size
        old_start = index + (hunk.old_count > 0)
        new_start = index + delta + (hunk.new_count > 0)
        hunks.append(replace(hunk, old_start=old_start, new_start=new_start))
        delta += hunk.new_count - hunk.old_count
    return hunks, after + lines[end:]


def _search(
    diff: FileDiff, hunk: Hunk, lines: list[bytes], first: int, guess: int, placing: _Placing
) -> int:
    """Return the only index of a hunk's old lines, or if chosen the nearest to ``guess``.

    The index is at least ``first``. Raise PatchError if there is none, or no certain one.
    """
    old = list(hunk.old)
    last = len(lines) - len(old)
    indexes = [n for n in range(first, last + 1) if lines[n : n + len(old)] == old]
    if not old:  # without old lines, any place fits
        indexes = [guess] if first <= guess <= len(lines) else []
    if indexes and (placing.nearest or len(indexes) == 1):
        return min(indexes, key=lambda index: (abs(index - guess), index < guess))
    where = f"{placing.name}:{hunk.patch_line}: the hunk at line {hunk.old_start} of {diff.old}"
    if not indexes:
        raise PatchError(
            f"{where}: its lines are not there",
            remedy="refresh the patch against this version (quilt refresh), then import",
        )
    raise PatchError(
        f"{where}: there are {len(indexes)} places",
        remedy="refresh the patch (quilt refresh), or take the one that patch(1) takes: --nearest",
    )
