# SPDX-License-Identifier: Apache-2.0
"""Conflicts of a patch with a new base: class, place, and the upstream commit behind them."""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Iterator, Mapping
from itertools import islice

from forkpatch.git.merge import merge_data
from forkpatch.git.objects import blob_id, read_index, unmerged
from forkpatch.model.diffs import Hunk, split_lines
from forkpatch.rebase.merging import Move
from forkpatch.rebase.plan import Conflict, ConflictKind, RebaseStep
from forkpatch.rebase.workspace import Rebase, files_at
from forkpatch.sources.history import History, UpstreamCommit
from forkpatch.sources.obtain import SourceOptions, places_of
from forkpatch.symbols.outline import MODULE, bare_name, outline
from forkpatch.symbols.placement import Misplacement, misplaced


def classify(rebase: Rebase, name: str) -> tuple[Conflict, ...]:
    """Return a conflict for each unmerged file of git's index, after a patch's merge failed."""
    index = read_index(rebase.git)
    return tuple(_conflict(rebase, name, path, index[path]) for path in sorted(unmerged(index)))


def _conflict(rebase: Rebase, name: str, path: str, stages: Container[str]) -> Conflict:
    """Return the conflict of a file, with its class and the upstream commit behind it."""
    old_path = rebase.base.old_path(path)
    lines: tuple[tuple[int, int], ...] = ()
    if "2" in stages:
        lines = tuple(_marked(rebase, path))
        moved = _moved(rebase, name, old_path)
        kind = ConflictKind.SYMBOL_MOVED if moved else ConflictKind.LINES
        detail = moved or (f"it was {old_path}" if old_path != path else "")
    elif target := rebase.base.renames.get(path):
        kind, detail = ConflictKind.FILE_RENAMED, f"now {target}"
    else:
        kind, detail = ConflictKind.FILE_GONE, _moved(rebase, name, path)
    commit = str(_breaking_commit(rebase, name, old_path) or "")
    return Conflict(name, path, kind, lines, detail, commit)


def _marked(rebase: Rebase, path: str) -> Iterator[tuple[int, int]]:
    """Yield first and last line of each of git's conflicts in a file."""
    file = rebase.tree / path
    first, is_text = 0, file.is_file() and not file.is_symlink()
    for number, line in enumerate(split_lines(file.read_bytes()) if is_text else [], 1):
        if line.startswith(b"<<<<<<< "):
            first = number
        elif line.startswith(b">>>>>>> ") and first:
            yield first, number
            first = 0


def _moved(rebase: Rebase, name: str, path: str) -> str:
    """Return, in words, the new places of symbols of ``path`` that moved and the patch changes."""
    messages = []
    for place in rebase.record.patches[name].places:
        if place.path != path or place.symbol == MODULE:
            continue
        content = rebase.base.read(rebase.base.path_of(path))
        names = outline(path, content).symbols if content is not None else ()
        if any(bare_name(known) == bare_name(place.symbol) for known in names):
            continue
        for new_path, symbol in islice(rebase.base.places_of(path, place.symbol), 1):
            messages.append(f"{place.symbol} is now in {new_path}: {symbol.name}")
    return "; ".join(messages)


def history_of(rebase: Rebase) -> History | None:
    """Return upstream's history between both versions; None without a mirror of it here."""
    old, new = rebase.old.upstream, rebase.new
    places = places_of(old, rebase.fork.cache, SourceOptions())
    known = [version.commit for version in (old, new) if version.commit]
    return History.find(places, *known) if old.commit else None


def backported(rebase: Rebase, name: str) -> str:
    """Return the upstream commit that a patch backports if only the new version has it; or ""."""
    named = re.fullmatch(
        r"Backport \[([0-9a-f]+)\]", rebase.patch(name).trailer("Upstream-Status") or ""
    )
    history = history_of(rebase) if named else None
    if named is None or history is None:
        return ""
    versions = (rebase.old.upstream.commit, rebase.new.commit or "HEAD")
    has_it = [history.git.is_ancestor(named[1], version) for version in versions]
    return named[1][:12] if has_it == [False, True] else ""


def _breaking_commit(rebase: Rebase, name: str, path: str) -> UpstreamCommit | None:
    """Return the first upstream commit that removed old lines of the patch; None if unknown."""
    old, new = rebase.old.upstream, rebase.new
    history = history_of(rebase)
    if history is None:
        return None
    newest = new.commit or "HEAD"  # a guess for a wheel, whose commit is unknown
    base = split_lines(rebase.old.base.get(path, b""))
    for diff in rebase.patch(name).files:
        for hunk in diff.hunks if diff.old == path else ():
            block = _in_base(base, hunk)
            commit = history.broke(old.commit, newest, path, block) if block else None
            if commit:
                return commit
    return None


def _in_base(base: list[bytes], hunk: Hunk) -> list[bytes]:
    """Return the longest run of a hunk's old lines that the base has without earlier patches."""
    old = list(hunk.old)
    for size in range(len(old), 0, -1):
        for start in range(len(old) - size + 1):
            block = old[start : start + size]
            if any(base[row : row + size] == block for row in range(len(base))):
                return block
    return []


def placed_wrongly(rebase: Rebase, name: str, now: Mapping[str, bytes]) -> tuple[Conflict, ...]:
    """Return the misplaced changes of a patch whose conflicts are open, or were resolved.

    ``now`` has the patch's files after the merge, by path on the new base.
    """
    (ours,) = files_at(rebase.git, [rebase.plan.head], _paths(rebase, name))
    files = Move(rebase.old.steps[name], "", "", ours, now).files(rebase.base)
    errors = (
        (item.path, error)
        for item in files
        if item.new[1]
        for error in misplaced(*item, whole=False, elsewhere=rebase.base)
    )
    return misplacements_of(name, now, errors)


def misplacements_of(
    name: str, now: Mapping[str, bytes], errors: Iterable[tuple[str, Misplacement]]
) -> tuple[Conflict, ...]:
    """Return the conflicts for some misplaced changes; ``now``: the files after the merge."""
    return tuple(
        Conflict(
            name,
            path,
            ConflictKind.MISPLACED,
            detail=error.detail,
            symbol=error.symbol,
            blob=blob_id(now[path]) if path in now else "",
        )
        for path, error in errors
    )


def merged_files(rebase: Rebase, step: RebaseStep) -> dict[str, bytes]:
    """Return the files of a failed merge; a file with conflicts has upstream's side of each."""
    commits = f"{step.original}^", step.original, rebase.plan.head
    before, after, head = files_at(rebase.git, commits, _paths(rebase, step.patch))
    conflicting = unmerged(read_index(rebase.git))
    files = {}
    for diff in rebase.patch(step.patch).files:
        path = rebase.base.path_of(diff.old) if diff.old else diff.new or ""
        file = rebase.tree / path
        if path in conflicting and diff.old in before and diff.new in after and path in head:
            merged = merge_data(head[path], before[diff.old], after[diff.new], "--ours")
            files[path] = merged or b""
        elif path not in conflicting and file.is_file() and not file.is_symlink():
            files[path] = file.read_bytes()
    return files


def files_after(rebase: Rebase, name: str, tree: str) -> dict[str, bytes]:
    """Return the contents in the commit or tree ``tree`` of files that a patch names, by path."""
    return files_at(rebase.git, [tree], _paths(rebase, name))[0]


def _paths(rebase: Rebase, name: str) -> list[str]:
    """Return the paths that a patch names, and their paths on the new base."""
    paths = rebase.patch(name).paths
    return sorted({*paths, *map(rebase.base.path_of, paths)})
