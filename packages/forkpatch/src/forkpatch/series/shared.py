# SPDX-License-Identifier: Apache-2.0
"""Patches that several versions of an upstream share, and the records of these versions.

A series names a patch of another version as ``../VERSION/NAME``. The file lies with that version,
the patch's home; line numbers and blob ids in it are the home's. Here the patch's commit is merged
onto this version's tree, with the home's tree as common ancestor, as in a rebase. The lines are
recorded only when the merge gives the same hunks, line for line and in the same functions. An apply
uses the recorded lines and nothing else.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import zip_longest

from forkpatch.command import typed
from forkpatch.errors import ForkError, PatchError, SourceError, UserError
from forkpatch.git.objects import Commit, TreeFile
from forkpatch.model.diffs import FileDiff
from forkpatch.model.lock import Upstream
from forkpatch.model.patchfile import (
    SERIES,
    Patch,
    SeriesEntry,
    load_series,
    parse_patch,
    patch_bytes,
    read_entries,
    split_patch,
)
from forkpatch.model.record import RECORD, Record, format_record, is_recorded, read_record
from forkpatch.model.weave import Weave
from forkpatch.safety import FILE_MODES, check_own
from forkpatch.series.mailbox import Exported, export_new, format_series
from forkpatch.series.merge import merged_file
from forkpatch.sources.cache import Pristine
from forkpatch.tree.drift import record_of
from forkpatch.tree.fork import Fork, PatchStep, TreePlan, plan_tree
from groundwork.files import atomic_write

_INDEX = re.compile(rb"^index ([0-9a-f]+)\.\.([0-9a-f]+)", re.MULTILINE)
_OWN = "give this version a patch of its own of that name, and list it without ../"

Contents = Mapping[str, bytes]
TreeOf = Callable[[Upstream], Pristine]


def home_versions(fork: Fork, upstream: Upstream) -> tuple[str, ...]:
    """Return the versions that the series of ``upstream`` names as ``../VERSION/NAME``."""
    entries = read_entries(fork.patch_folder(upstream))
    return tuple(dict.fromkeys(entry.home for entry in entries if entry.home))


def lends(fork: Fork, name: str, version: str, other: str) -> bool:
    """Return True when the series of ``other`` names patches of ``version``, directly or not."""
    homes = home_versions(fork, fork.lock.upstream(name, other))
    return any(home == version or lends(fork, name, version, home) for home in homes)


def homes_first(fork: Fork, upstreams: Iterable[Upstream]) -> tuple[Upstream, ...]:
    """Return the upstream versions, each after the versions whose patches its series names.

    Raises:
        UserError: two versions name patches of each other.
    """
    ordered: dict[tuple[str, str], Upstream] = {}
    wanted = tuple(upstreams)

    def visit(upstream: Upstream, path: tuple[str, ...]) -> None:
        if upstream.version in path:
            names = " and ".join(dict.fromkeys(path))
            raise UserError(f"{upstream.name}: the series of {names} name patches of each other")
        for home in home_versions(fork, upstream):
            visit(fork.lock.upstream(upstream.name, home), (*path, upstream.version))
        ordered.setdefault((upstream.name, upstream.version), upstream)

    for upstream in wanted:
        visit(upstream, ())
    return tuple(upstream for upstream in ordered.values() if upstream in wanted)


def locate_series(
    fork: Fork, upstream: Upstream, pristine: Pristine, obtain_home: Callable[[Upstream], Pristine]
) -> tuple[Patch, ...]:
    """Return the series of an upstream version, each patch at its lines in that version.

    Raises:
        PatchError: a patch of another version does not merge cleanly, gives other lines, or
            changes another function of this version.
    """
    patches = load_series(fork.patch_folder(upstream))
    homes: dict[str, TreePlan] = {}
    for home in home_versions(fork, upstream):
        other = fork.lock.upstream(upstream.name, home)
        homes[home] = plan_tree(fork, other, obtain_home(other))
    if not homes:
        return patches
    where = fork.patch_folder(upstream) / SERIES
    weave = Weave(pristine.modes, pristine.data)
    placed = []
    for listed in patches:
        patch = listed
        if patch.home:
            changed = weave.changes()
            now = {path: file.data for path, file in changed.items() if file}
            files = pristine.read(path for path in patch.positions if path not in changed)
            try:
                patch = patch.at(_positions(homes[patch.home].steps[patch.name], files | now))
            except PatchError as error:
                what = f"{where}: ../{patch.home}/{patch.name} cannot serve {upstream}"
                raise PatchError(f"{what}: {error.what}", remedy=_OWN) from error
        weave.apply(patch)
        placed.append(patch)
    return tuple(placed)


def _positions(step: PatchStep, ours: Contents) -> dict[str, tuple[int, ...]]:
    """Return each hunk's first line in ``ours``, by path; raise PatchError if it does not merge."""
    merged: dict[str, bytes] = {}
    files = {path: TreeFile(FILE_MODES[0], data) for path, data in ours.items()}
    diffs = {diff.old: diff for diff in step.patch.files if diff.old is not None and diff.hunks}
    for path, diff in diffs.items():
        if path not in files:
            raise PatchError(f"{path} is not in its tree")
        file = merged_file(diff, step, files.get)[diff.new or path]
        merged[path] = file.data if file else b""
    merged_diffs = {diff.old: diff for diff in _diff(ours, merged)}
    for path, diff in diffs.items():
        actual = merged_diffs.get(path)
        lines = tuple(hunk.lines for hunk in diff.hunks)
        if actual is None or tuple(hunk.lines for hunk in actual.hunks) != lines:
            raise PatchError(f"its hunks of {path} have other lines there")
    return {path: tuple(hunk.old_start for hunk in merged_diffs[path].hunks) for path in diffs}


def _diff(before: Contents, after: Contents) -> tuple[FileDiff, ...]:
    """Return the diff between two sets of files, as an export writes it."""
    changed = {path: data for path, data in after.items() if before[path] != data}
    if not changed:
        return ()
    commits = [
        Commit(b"x\n", changes={path: TreeFile("100644", data) for path, data in files.items()})
        for files in (before, changed)
    ]
    return export_new(commits)[0].patch.files


def share_patches(exported: Iterable[Exported], known: Iterable[Patch]) -> tuple[Exported, ...]:
    """Return the exported patches; a patch equal to another version's patch refers to it.

    The ``home`` of a known patch names its version.
    """
    others = {patch.name: patch for patch in known if patch.home}
    return tuple(
        replace(item, shared=patch)
        if (patch := others.get(item.name)) and _same(item.patch, patch)
        else item
        for item in exported
    )


def _same(first: Patch, other: Patch) -> bool:
    """Return True when two patches have the same author, date, message and changed lines."""
    heads = ((patch.author, patch.date, patch.message) for patch in (first, other))
    return first.effect == other.effect and len(set(heads)) == 1


def keep_files(
    fork: Fork, upstream: Upstream, exported: Iterable[Exported], known: Iterable[Patch]
) -> tuple[Exported, ...]:
    """Return the exported patches; a file that says the same already keeps its bytes.

    Another tool may have written the file: with a commit id, a signature, or shortened ids.
    """
    own_patches = {patch.name: patch for patch in known if not patch.home}

    def kept(item: Exported) -> Exported:
        if item.shared or item.name not in own_patches:
            return item
        data = patch_bytes(fork.patch_file(upstream, own_patches[item.name]))
        return replace(item, data=data) if says_same(item, data) else item

    return tuple(map(kept, exported))


def says_same(item: Exported, data: bytes) -> bool:
    """Return True when a patch file equals an exported patch, blob ids and layout aside.

    Blob ids may be shortened, but must name the same contents.
    """
    exported, other = item.patch, parse_patch(data, item.name)
    ids = (_INDEX.findall(split_patch(text, item.name)[1]) for text in (item.data, data))
    pairs = zip_longest(*ids, fillvalue=(b"", b"-"))
    shortened = all(
        whole.startswith(short)
        for full, other_ids in pairs
        for whole, short in zip(full, other_ids, strict=True)
    )
    return shortened and _same(exported, other) and exported.positions == other.positions


def changed_messages(
    fork: Fork, upstream: Upstream, exported: Iterable[Exported], known: Iterable[Patch]
) -> dict[str, tuple[Patch, bytes]]:
    """Return the patches of other versions with only a new message, and their new text."""
    others = {patch.name: patch for patch in known if patch.home}
    texts: dict[str, tuple[Patch, bytes]] = {}
    for item in exported:
        patch = others.get(item.name)
        if item.shared is None and patch and item.patch.effect == patch.effect:
            path = fork.patch_file(upstream, patch)
            diff = split_patch(path.read_bytes(), str(path))[1]
            text = split_patch(item.data, item.name)[0] + diff
            texts[item.name] = replace(parse_patch(text, item.name), home=patch.home), text
    return texts


def write_back(fork: Fork, upstream: Upstream, patch: Patch, text: bytes) -> None:
    """Write the new text of another version's patch with unchanged hunks.

    The patch's hash is updated in the record of every version that has the patch.
    """
    atomic_write(fork.patch_file(upstream, patch), text)
    new = parse_patch(text, patch.name)
    for other in fork.lock.versions(upstream.name).values():
        folder = fork.patch_folder(other)
        record = read_record(folder)
        home = "" if other.version == patch.home else patch.home
        if record is None or SeriesEntry(patch.name, home) not in read_entries(folder):
            continue
        known = record.patches.get(patch.name)
        if known and known.sha256 == patch.sha256:
            patches = {**record.patches, patch.name: replace(known, sha256=new.sha256)}
            atomic_write(folder / RECORD, format_record(replace(record, patches=patches)))


def borrowers(fork: Fork, upstream: Upstream) -> dict[str, tuple[str, ...]]:
    """Return the versions whose series name a patch of this version, by patch."""
    versions: dict[str, tuple[str, ...]] = {}
    for other in fork.lock.versions(upstream.name).values():
        for entry in read_entries(fork.patch_folder(other)):
            if entry.home == upstream.version:
                versions[entry.name] = (*versions.get(entry.name, ()), other.version)
    return versions


def check_borrowers(
    fork: Fork, upstream: Upstream, patches: Sequence[Exported], changes: Sequence[str]
) -> tuple[str, ...]:
    """Return the versions that share a patch of this version that an export changes.

    Raises:
        UserError: the export would remove a shared patch.
    """
    owned = {patch.name for patch in patches if patch.shared is None}
    stale: set[str] = set()
    for name, versions in borrowers(fork, upstream).items():
        if name not in owned:
            raise UserError(
                f"{upstream.name} {' and '.join(versions)} name {name}, which would be gone",
                remedy=f"give them files of their own first: {typed('export --own --release R')}",
            )
        if f"{name}: changed" in changes:
            stale.update(versions)
    return tuple(sorted(stale))


@dataclass(frozen=True)
class Recorded:
    """The record of an upstream version.

    Attributes:
        plan: the plan of the version's patched tree.
        old: the record in the file before; None if missing or damaged.
        new: the record of the present series.
        same: True when the file was up to date.
    """

    plan: TreePlan
    old: Record | None
    new: Record
    same: bool


def record_version(
    fork: Fork, upstream: Upstream, tree_of: TreeOf, *, check: bool = False
) -> Recorded:
    """Write the record of an upstream version, unless ``check``; return it.

    Raises:
        PatchError: a patch does not apply, or a shared patch does not fit this version.
    """
    pristine = tree_of(upstream)
    patches = locate_series(fork, upstream, pristine, tree_of)
    plan = plan_tree(fork, upstream, pristine, patches)
    folder = fork.patch_folder(upstream)
    path = check_own(folder / RECORD)
    try:
        old = read_record(folder)
    except UserError:  # a damaged record is written again
        old = None
    new = record_of(fork, plan)
    text = format_record(new)
    same = not is_recorded(folder, new) or (
        path.is_file() and path.read_bytes() == text.encode("utf-8")
    )
    if not check and not same:
        folder.mkdir(parents=True, exist_ok=True)
        atomic_write(path, text)
    return Recorded(plan, old, new, same)


def cached_tree(fork: Fork, upstream: Upstream) -> Pristine:
    """Return the pristine tree of an upstream version from the cache.

    Raises:
        SourceError: the cache lacks the tree.
    """
    pristine = fork.cache.find(upstream.tree)
    if pristine is None:
        raise SourceError(f"the tree of {upstream} is not in the cache")
    return pristine


def record_borrowers(
    fork: Fork, upstream: Upstream, versions: Iterable[str]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Write the records of the versions that share changed patches of ``upstream``.

    Returns:
        A line for each written file, and a note for each version that needs a command.
    """
    changes, notes = [], []
    for version in versions:
        try:
            other = fork.lock.upstream(upstream.name, version)
            if not record_version(fork, other, lambda base: cached_tree(fork, base)).same:
                changes.append(f"../{version}/{RECORD}: changed")
        except ForkError as error:
            again = typed(f"record {upstream.name} --version {version}")
            notes.append(f"{version} shares patches that changed: {error.what}; type: {again}")
    return tuple(changes), tuple(notes)


def share_new(
    fork: Fork, upstream: Upstream, names: Sequence[str], others: Iterable[Upstream]
) -> tuple[str, ...]:
    """Enter new patches of a version in the series of other versions, and record them there.

    Returns:
        A line for each written file.

    Raises:
        PatchError: a patch does not fit a version; that version's files are as before.
    """
    changes: list[str] = []
    entries = {entry.name: entry for entry in read_entries(fork.patch_folder(upstream))}
    order = list(entries)
    for other in others:
        series = fork.patch_folder(other) / SERIES
        listed = [*read_entries(series.parent)]
        for name in names:
            known = [entry.name for entry in listed]
            if name not in known:
                above = (known.index(one) + 1 for one in order[: order.index(name)] if one in known)
                entry = replace(entries[name], home=upstream.version)
                listed.insert(max(above, default=len(known)), entry)
        if len(listed) == len(read_entries(series.parent)):
            continue
        before = series.read_text("utf-8") if series.is_file() else None
        series.parent.mkdir(parents=True, exist_ok=True)
        atomic_write(series, format_series(listed, before or ""))
        try:
            record_version(fork, other, fork.pristine)
        except BaseException:
            if before is not None:
                atomic_write(series, before)
            else:
                series.unlink()
                with suppress(OSError):  # it has other files
                    series.parent.rmdir()
            raise
        changes += [f"../{other.version}/{file}: changed" for file in (SERIES, RECORD)]
    return tuple(changes)
