# SPDX-License-Identifier: Apache-2.0
"""Detection of patches that another version of the upstream already contains."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from forkpatch.inspect.symbols import MODULE, Symbol, bare_name, outline
from forkpatch.model.diffs import FileDiff, Hunk
from forkpatch.model.patchfile import Patch
from forkpatch.model.weave import split_lines
from forkpatch.series.derive import changed_symbols

Read = Callable[[str], bytes | None]
Find = Callable[[str], tuple[str, ...]]


@dataclass(frozen=True)
class NewBase:
    """Files and renames of the other version of the upstream.

    Attributes:
        read: the content of a file, None when it has none of that path.
        find: the paths of the files that contain a word.
        renames: new path by old path, for the files that were renamed.
    """

    read: Read
    find: Find
    renames: Mapping[str, str]

    def path_of(self, path: str) -> str:
        """Path of a file of the old version in the new one."""
        return self.renames.get(path, path)


def places_of(base: NewBase, path: str, symbol: str) -> tuple[tuple[str, Symbol], ...]:
    """Places of ``symbol`` of the old file ``path`` in the new version, likeliest first."""
    wanted = bare_name(symbol)
    here = base.path_of(path)
    if wanted == MODULE:
        data = base.read(here)
        return ((here, outline(here, data).symbols[MODULE]),) if data is not None else ()
    found: list[tuple[str, Symbol]] = []
    for candidate in dict.fromkeys([here, *base.find(wanted)]):
        data = base.read(candidate)
        if data is None or (candidate != here and _suffix(candidate) != _suffix(path)):
            continue
        symbols = outline(candidate, data).symbols
        exact = [symbols[symbol]] if symbol in symbols else []
        others = [
            item
            for item in symbols.values()
            if bare_name(item.name) == wanted and item.name != symbol
        ]
        found += [(candidate, item) for item in (*exact, *others)]
    return tuple(found)


def already_there(
    patch: Patch, before: Mapping[str, bytes], after: Mapping[str, bytes], base: NewBase
) -> tuple[str, ...]:
    """Places at which the new version contains all of ``patch``; empty when it does not.

    Args:
        patch: the patch.
        before: the files it changes, as they were before it on its own base.
        after: the same files after it.
        base: the new version.

    Returns:
        ``path: symbol`` for each of its hunks.
    """
    found: list[str] = []
    for diff in patch.files:
        if diff.old is None or diff.new is None or not diff.hunks:
            return ()
        for hunk in diff.hunks:
            place = _hunk_there(diff, hunk, before[diff.old], after[diff.new], base)
            if not place:
                return ()
            found.append(place)
    return tuple(dict.fromkeys(found))


def _hunk_there(diff: FileDiff, hunk: Hunk, before: bytes, after: bytes, base: NewBase) -> str:
    path = diff.new or ""
    one = replace(diff, hunks=(hunk,))
    for symbol in changed_symbols(one, before, after):
        mine = outline(path, before).symbols.get(symbol)
        old = _block(hunk, "-", mine, hunk.old_start)
        new = _block(hunk, "+", outline(path, after).symbols.get(symbol), hunk.new_start)
        if mine and _contains(split_lines(before)[mine.first - 1 : mine.last], new):
            continue  # it said the same elsewhere before: that it still does proves nothing
        for candidate, item in places_of(base, diff.old or "", symbol):
            lines = split_lines(base.read(candidate) or b"")[item.first - 1 : item.last]
            if _contains(lines, new) and not _contains(lines, old):
                return f"{candidate}: {item.name}"
    return ""


def _block(hunk: Hunk, sign: str, symbol: Symbol | None, start: int) -> list[bytes]:
    """The lines of one side of a hunk, of those inside the symbol."""
    lines = [line.data for line in hunk.lines if line.kind in (" ", sign)]
    if symbol is None or symbol.name == MODULE:
        return lines
    return [
        line for number, line in enumerate(lines, start) if symbol.first <= number <= symbol.last
    ]


def _contains(lines: list[bytes], block: list[bytes]) -> bool:
    """True when the lines of ``block`` follow each other in ``lines``, whatever their indent."""
    wanted = [line.strip() for line in block]
    have = [line.strip() for line in lines]
    if not any(wanted):
        return False
    span = len(wanted)
    return any(have[at : at + span] == wanted for at in range(len(have) - span + 1))


def _suffix(path: str) -> str:
    return path.rpartition(".")[2]
