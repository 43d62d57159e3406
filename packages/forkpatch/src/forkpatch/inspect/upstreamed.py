# SPDX-License-Identifier: Apache-2.0
"""Detection of patches that another version of the upstream already contains."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from forkpatch.model.diffs import FileDiff, Hunk
from forkpatch.model.patchfile import Patch
from forkpatch.symbols.outline import MODULE, Outline, Symbol, bare_name, outline
from forkpatch.symbols.placement import counterpart
from forkpatch.tree.derive import changed_symbols

Read = Callable[[str], bytes | None]
Find = Callable[..., tuple[str, ...]]


@dataclass(frozen=True)
class NewBase:
    """Files and renames of the other version of the upstream.

    Attributes:
        read: the content of a file, None when it has none of that path.
        find: the paths of the files that contain all words, and are not as on the patch's own base.
        was: the content of a file on the patch's own base, None when that has none.
        find_renames: gives the new path by old path of the files that were renamed.
    """

    read: Read
    find: Find
    was: Read
    find_renames: Callable[[], Mapping[str, str]] = dict

    @cached_property
    def renames(self) -> Mapping[str, str]:
        """New path by old path of the files that were renamed."""
        return self.find_renames()

    def path_of(self, path: str) -> str:
        """Path of a file of the old version in the new one."""
        return path if self.read(path) is not None else self.renames.get(path, path)


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
    """The places of a hunk in the new version; empty unless all that it changes is there."""
    known, changed = outline(diff.old or "", before), outline(diff.new or "", after)
    found: list[str] = []
    for name in changed_symbols(replace(diff, hunks=(hunk,)), before, after):
        symbol = known.symbols[name]
        old = _block(hunk, "-", symbol, hunk.old_start)
        new = _block(hunk, "+", changed.symbols.get(name), hunk.new_start)
        if _contains(_lines(known, symbol), new):
            return ""  # it said the same elsewhere before: that it still does proves nothing
        place = _symbol_there(known, symbol, old, new, base)
        if not place:
            return ""
        found.append(place)
    return "; ".join(found)


def _symbol_there(
    known: Outline, symbol: Symbol, old: list[bytes], new: list[bytes], base: NewBase
) -> str:
    """The place at which ``symbol`` says ``new`` in the new version; empty without one.

    While the symbol is in its file, no other is it: it must say so there, and the old lines must
    not stand there any more. Only when it is gone is it looked for by its full name elsewhere,
    and what another symbol of that name said on the patch's own base already proves nothing.
    """
    here = base.path_of(known.path)
    data = base.read(here)
    if data is not None:
        now = outline(here, data)
        if own := counterpart(symbol, known, now):
            lines = _lines(now, own)
            there = _contains(lines, new) and not _contains(lines, old)
            return f"{here}: {own.name}" if there else ""
    for candidate in base.find(bare_name(symbol.name)):
        if candidate == here or _suffix(candidate) != _suffix(known.path):
            continue
        now = outline(candidate, base.read(candidate) or b"")
        was = outline(candidate, base.was(candidate) or b"")
        if symbol.name not in now.symbols:
            continue
        lines = _lines(now, now.symbols[symbol.name])
        said = symbol.name in was.symbols and _contains(_lines(was, was.symbols[symbol.name]), new)
        if _contains(lines, new) and not _contains(lines, old) and not said:
            return f"{candidate}: {symbol.name}"
    return ""


def _lines(known: Outline, symbol: Symbol) -> list[bytes]:
    return known.lines[symbol.first - 1 : symbol.last]


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
