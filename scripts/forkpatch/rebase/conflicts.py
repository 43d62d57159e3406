# SPDX-License-Identifier: Apache-2.0
"""Conflicts of a patch with a new base: their class, place and the upstream commit behind them."""

from __future__ import annotations

from collections.abc import Iterator

from forkpatch.inspect.symbols import MODULE, bare_name, outline
from forkpatch.inspect.upstreamed import places_of
from forkpatch.model.diffs import Hunk
from forkpatch.model.patchfile import parse_patch
from forkpatch.model.weave import split_lines
from forkpatch.rebase.plan import Conflict, ConflictKind
from forkpatch.rebase.workspace import Rebase, files_at
from forkpatch.series.derive import changed_symbols
from forkpatch.series.mailbox import FORMAT_PATCH
from forkpatch.sources.history import History, UpstreamCommit
from forkpatch.sources.obtain import SourceOptions, mirrors_of


def classify(rebase: Rebase, name: str) -> tuple[Conflict, ...]:
    """Conflicts of the patch whose merge has just failed."""
    out = rebase.git.run("ls-files", "-u", "-z").stdout.decode("utf-8", "surrogateescape")
    stages: dict[str, set[int]] = {}
    for record in out.split("\0")[:-1]:
        meta, _, path = record.partition("\t")
        stages.setdefault(path, set()).add(int(meta.split(" ")[2]))
    return tuple(_conflict(rebase, name, path, held) for path, held in sorted(stages.items()))


def _conflict(rebase: Rebase, name: str, path: str, stages: set[int]) -> Conflict:
    old_path = next((old for old, new in rebase.base.renames.items() if new == path), path)
    lines: tuple[tuple[int, int], ...] = ()
    if 2 in stages:
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
    """First and last line of each of git's conflicts."""
    file = rebase.tree / path
    first = 0
    for number, line in enumerate(split_lines(file.read_bytes()) if file.is_file() else [], 1):
        if line.startswith(b"<<<<<<< "):
            first = number
        elif line.startswith(b">>>>>>> ") and first:
            yield first, number
            first = 0


def _moved(rebase: Rebase, name: str, path: str) -> str:
    """New places of the symbols of ``path`` that the patch changes, of those that moved."""
    found = []
    for place in rebase.record.patches[name]:
        if place.path != path or place.symbol == MODULE:
            continue
        here = rebase.base.read(rebase.base.path_of(path))
        names = outline(path, here).symbols if here is not None else ()
        if any(bare_name(known) == bare_name(place.symbol) for known in names):
            continue
        for now, symbol in places_of(rebase.base, path, place.symbol)[:1]:
            found.append(f"{place.symbol} is now in {now}: {symbol.name}")
    return "; ".join(found)


def _breaking_commit(rebase: Rebase, name: str, path: str) -> UpstreamCommit | None:
    """First upstream commit after which the patch's old lines are no longer there."""
    old, new = rebase.old.upstream, rebase.new
    mirrors = [*mirrors_of(old, rebase.fork.cache, SourceOptions()), old.url]
    known = [one.commit for one in (old, new) if one.commit]
    history = History.find(mirrors, *known)
    if history is None or not old.commit:
        return None
    newest = new.commit or "HEAD"  # of a wheel, whose commit is not known, it is a guess
    base = split_lines(rebase.old.base.get(path, b""))
    for diff in rebase.patch(name).files:
        for hunk in diff.hunks if diff.old == path else ():
            block = _in_base(base, hunk)
            found = history.broke(old.commit, newest, path, block) if block else None
            if found:
                return found
    return None


def _in_base(base: list[bytes], hunk: Hunk) -> list[bytes]:
    """The longest run of a hunk's old lines that the base has, earlier patches left aside."""
    old = list(hunk.old)
    for size in range(len(old), 0, -1):
        for at in range(len(old) - size + 1):
            block = old[at : at + size]
            if any(base[place : place + size] == block for place in range(len(base))):
                return block
    return []


def misplaced(rebase: Rebase, name: str, head: str, picked: str) -> tuple[Conflict, ...]:
    """Conflicts of a patch that git merged into symbols which it did not change before."""
    places = rebase.record.patches[name]
    expected = {bare_name(place.symbol) for place in places}
    was = ", ".join(sorted(expected))
    return tuple(
        Conflict(
            name,
            path,
            ConflictKind.MISPLACED,
            detail=f"it changes {symbol} now, and changed {was} before",
        )
        for path, symbol in _changed_places(rebase, head, picked)
        if bare_name(symbol) not in expected
    )


def _changed_places(rebase: Rebase, before: str, commit: str) -> Iterator[tuple[str, str]]:
    """Path and symbol of everything that a commit changes."""
    patch = parse_patch(rebase.git.run(*FORMAT_PATCH, commit).stdout, commit)
    old, new = files_at(rebase.git, (before, commit), patch.paths)
    for diff in patch.files:
        contents = old.get(diff.old or "", b""), new.get(diff.new or "", b"")
        for symbol in changed_symbols(diff, *contents):
            yield diff.new or diff.old or "", symbol
