# SPDX-License-Identifier: Apache-2.0
"""Why a patch does not go onto a new base: sorted into classes, with the upstream's part in it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from forkpatch.inspect.drift import record_of
from forkpatch.inspect.symbols import MODULE, bare_name, outline
from forkpatch.model.patchfile import Hunk
from forkpatch.model.weave import split_lines
from forkpatch.rebase.start import Rebase, changed_places, old_names
from forkpatch.rebase.upstreamed import places_of
from forkpatch.sources.history import History, UpstreamCommit
from forkpatch.sources.obtain import SourceOptions, mirrors_of


class Kind(StrEnum):
    """The classes."""

    CONFLICT = "conflict"
    FILE_GONE = "file gone"
    FILE_RENAMED = "file renamed"
    SYMBOL_MOVED = "symbol moved"
    MISPLACED = "misplaced"


@dataclass(frozen=True)
class Trouble:
    """What stops a patch in one file.

    Attributes:
        lines: first and last line of each conflict in the working tree's file, from 1.
        detail: where the file or symbol is now, or what was hit.
        breaking_commit: the upstream commit that changed these lines; empty without history.
    """

    patch: str
    path: str
    kind: Kind
    lines: tuple[tuple[int, int], ...] = ()
    detail: str = ""
    breaking_commit: str = ""


def trouble_text(trouble: Mapping[str, Any]) -> str:
    """A trouble for people, as it is kept in the state."""
    spans = ", ".join(f"{first}-{last}" for first, last in trouble["lines"])
    text = f"{trouble['patch']}: {trouble['path']}{f':{spans}' if spans else ''}: {trouble['kind']}"
    text += f" ({trouble['detail']})" if trouble["detail"] else ""
    return text + (
        f"\n    upstream commit: {trouble['breaking_commit']}" if trouble["breaking_commit"] else ""
    )


def classify(rebase: Rebase, name: str) -> tuple[Trouble, ...]:
    """The troubles of the patch whose merge has just failed."""
    out = rebase.git.run("ls-files", "-u", "-z").stdout.decode("utf-8", "surrogateescape")
    stages: dict[str, set[int]] = {}
    for record in out.split("\0")[:-1]:
        meta, _, path = record.partition("\t")
        stages.setdefault(path, set()).add(int(meta.split(" ")[2]))
    return tuple(_trouble(rebase, name, path, held) for path, held in sorted(stages.items()))


def _trouble(rebase: Rebase, name: str, path: str, stages: set[int]) -> Trouble:
    old_path = next((old for old, new in rebase.base.renames.items() if new == path), path)
    breaking_commit = str(_breaking_commit(rebase, name, old_path) or "")
    if 2 not in stages:
        target = rebase.base.renames.get(path)
        if target:
            return Trouble(name, path, Kind.FILE_RENAMED, (), f"now {target}", breaking_commit)
        return Trouble(name, path, Kind.FILE_GONE, (), _moved(rebase, name, path), breaking_commit)
    lines = tuple(_marked(rebase, path))
    moved = _moved(rebase, name, old_path)
    if moved:
        return Trouble(name, path, Kind.SYMBOL_MOVED, lines, moved, breaking_commit)
    renamed = f"it was {old_path}" if old_path != path else ""
    return Trouble(name, path, Kind.CONFLICT, lines, renamed, breaking_commit)


def _marked(rebase: Rebase, path: str) -> Iterator[tuple[int, int]]:
    """The spans between git's conflict markers."""
    file = rebase.tree / path
    first = 0
    for number, line in enumerate(split_lines(file.read_bytes()) if file.is_file() else [], 1):
        if line.startswith(b"<<<<<<< "):
            first = number
        elif line.startswith(b">>>>>>> ") and first:
            yield first, number
            first = 0


def _moved(rebase: Rebase, name: str, path: str) -> str:
    """Where the symbols of ``path`` that the patch changes are now, when it is elsewhere."""
    found = []
    for place in record_of(rebase.fork, rebase.old).patches[name]:
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
    """The upstream commit after which the patch's lines are not there any more."""
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


def misplaced(rebase: Rebase, name: str, head: str, picked: str) -> tuple[Trouble, ...]:
    """The troubles of a patch that git put somewhere: symbols which it did not change before."""
    expected = old_names(rebase, name)
    objects = rebase.tree / ".git/objects"
    return tuple(
        Trouble(
            name,
            path,
            Kind.MISPLACED,
            (),
            f"it changes {symbol} now, and changed {', '.join(sorted(expected))} before",
        )
        for path, symbol in changed_places(rebase.git, head, picked, objects)
        if bare_name(symbol) not in expected
    )
