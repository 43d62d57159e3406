# SPDX-License-Identifier: Apache-2.0
"""Write the record of one version's series, and of the versions that share its patches."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from forkpatch.command import typed
from forkpatch.errors import ForkError, SourceError, UserError
from forkpatch.model.lock import Upstream
from forkpatch.model.patchfile import SERIES, SeriesEntry, parse_entry, read_entries
from forkpatch.model.record import RECORD, Record, format_record, is_recorded, read_record
from forkpatch.safety import check_regular
from forkpatch.series.shared import locate_series
from forkpatch.sources.cache import Pristine
from forkpatch.tree.derive import record_of
from forkpatch.tree.fork import Fork, TreePlan, plan_tree
from groundwork.files import atomic_write

TreeOf = Callable[[Upstream], Pristine]


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
    """Write the record of an upstream version.

    Raises:
        PatchError: a patch does not apply, or a shared patch does not fit this version.
    """
    pristine = tree_of(upstream)
    patches = locate_series(fork, upstream, pristine, tree_of)
    plan = plan_tree(fork, upstream, pristine, patches)
    folder = fork.patch_folder(upstream)
    path = check_regular(folder / RECORD)
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
        before = series.read_text("utf-8") if series.is_file() else None
        text = before or ""
        for name in names:
            entry = replace(entries[name], home=upstream.version)
            text = _entered(text, entry, order[: order.index(name)])
        if text == before:
            continue
        series.parent.mkdir(parents=True, exist_ok=True)
        atomic_write(series, text)
        try:
            record_version(fork, other, fork.pristine)
        except BaseException:
            series.unlink() if before is None else atomic_write(series, before)
            raise
        changes += [f"../{other.version}/{file}: changed" for file in (SERIES, RECORD)]
    return tuple(changes)


def _entered(text: str, entry: SeriesEntry, above: Sequence[str]) -> str:
    """Return the text of a series with ``entry`` after the last listed patch of ``above``."""
    lines = [f"{line}\n" for line in text.splitlines()]
    texts = [line.partition("#")[0].strip() for line in lines]
    names = [parse_entry(text, SERIES).name if text else "" for text in texts]
    if entry.name in names:
        return text
    index = max((names.index(name) + 1 for name in above if name in names), default=len(lines))
    return "".join([*lines[:index], f"{entry}\n", *lines[index:]])
