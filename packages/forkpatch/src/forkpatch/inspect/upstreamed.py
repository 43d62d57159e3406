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
    """Files and renames of another version of the upstream.

    Attributes:
        read: returns the content of a file; None for a missing file.
        find: returns the paths of the changed or new files that contain all given words.
        was: returns the content of a file on the patch's own base; None for a missing file.
        find_renames: returns the new path of each renamed file, by old path.
    """

    read: Read
    find: Find
    was: Read
    find_renames: Callable[[], Mapping[str, str]] = dict

    @cached_property
    def renames(self) -> Mapping[str, str]:
        """The new path of each renamed file, by old path."""
        return self.find_renames()

    def path_of(self, path: str) -> str:
        """Return the path in the new version of a file of the old version."""
        return path if self.read(path) is not None else self.renames.get(path, path)


def places_of(base: NewBase, path: str, symbol: str) -> tuple[tuple[str, Symbol], ...]:
    """Return path and symbol of ``symbol``'s places in the new version, likeliest first."""
    name = bare_name(symbol)
    new_path = base.path_of(path)
    if name == MODULE:
        data = base.read(new_path)
        return ((new_path, outline(new_path, data).symbols[MODULE]),) if data is not None else ()
    places: list[tuple[str, Symbol]] = []
    for candidate in dict.fromkeys([new_path, *base.find(name)]):
        data = base.read(candidate)
        if data is None or (candidate != new_path and _suffix(candidate) != _suffix(path)):
            continue
        symbols = outline(candidate, data).symbols
        exact = [symbols[symbol]] if symbol in symbols else []
        others = [
            item
            for item in symbols.values()
            if bare_name(item.name) == name and item.name != symbol
        ]
        places += [(candidate, item) for item in (*exact, *others)]
    return tuple(places)


def already_there(
    patch: Patch, before: Mapping[str, bytes], after: Mapping[str, bytes], base: NewBase
) -> tuple[str, ...]:
    """Return where the new version contains all of ``patch``; empty when it does not.

    Args:
        patch: the patch.
        before: the patch's files before the patch, on its own base.
        after: the same files after the patch.
        base: the new version.

    Returns:
        ``path: symbol`` for each hunk.
    """
    places: list[str] = []
    for diff in patch.files:
        if diff.old is None or diff.new is None or not diff.hunks:
            return ()
        for hunk in diff.hunks:
            place = _hunk_there(diff, hunk, before[diff.old], after[diff.new], base)
            if not place:
                return ()
            places.append(place)
    return tuple(dict.fromkeys(places))


def _hunk_there(diff: FileDiff, hunk: Hunk, before: bytes, after: bytes, base: NewBase) -> str:
    """Return a hunk's places in the new version; empty unless all its changes are there."""
    known, changed = outline(diff.old or "", before), outline(diff.new or "", after)
    places: list[str] = []
    for name in changed_symbols(replace(diff, hunks=(hunk,)), before, after):
        symbol = known.symbols[name]
        old = _block(hunk, "-", symbol, hunk.old_start)
        new = _block(hunk, "+", changed.symbols.get(name), hunk.new_start)
        if _contains(_lines(known, symbol), new):
            return ""  # the base has the new lines elsewhere in the symbol, so they prove nothing
        place = _symbol_there(known, symbol, old, new, base)
        if not place:
            return ""
        places.append(place)
    return "; ".join(places)


def _symbol_there(
    known: Outline, symbol: Symbol, old: list[bytes], new: list[bytes], base: NewBase
) -> str:
    """Return where ``symbol`` has the lines ``new`` in the new version; empty without a place.

    A symbol that is still in its file must have the new lines there, and no longer the old lines.
    Only a removed symbol is searched by full name in other files. There, a symbol that had the new
    lines already on the patch's own base proves nothing.
    """
    new_path = base.path_of(known.path)
    data = base.read(new_path)
    if data is not None:
        outlined = outline(new_path, data)
        if same_symbol := counterpart(symbol, known, outlined):
            lines = _lines(outlined, same_symbol)
            has_lines = _contains(lines, new) and not _contains(lines, old)
            return f"{new_path}: {same_symbol.name}" if has_lines else ""
    for candidate in base.find(bare_name(symbol.name)):
        if candidate == new_path or _suffix(candidate) != _suffix(known.path):
            continue
        outlined = outline(candidate, base.read(candidate) or b"")
        was = outline(candidate, base.was(candidate) or b"")
        if symbol.name not in outlined.symbols:
            continue
        lines = _lines(outlined, outlined.symbols[symbol.name])
        had_lines = symbol.name in was.symbols and _contains(
            _lines(was, was.symbols[symbol.name]), new
        )
        if _contains(lines, new) and not _contains(lines, old) and not had_lines:
            return f"{candidate}: {symbol.name}"
    return ""


def _lines(known: Outline, symbol: Symbol) -> list[bytes]:
    """Return the lines of a symbol."""
    return known.lines[symbol.first - 1 : symbol.last]


def _block(hunk: Hunk, sign: str, symbol: Symbol | None, start: int) -> list[bytes]:
    """Return a hunk's old or new lines that are inside the symbol."""
    lines = [line.data for line in hunk.lines if line.kind in (" ", sign)]
    if symbol is None or symbol.name == MODULE:
        return lines
    return [
        line for number, line in enumerate(lines, start) if symbol.first <= number <= symbol.last
    ]


def _contains(lines: list[bytes], block: list[bytes]) -> bool:
    """Return True when ``lines`` has the run of lines ``block``, whatever its indent."""
    block_lines = [line.strip() for line in block]
    have = [line.strip() for line in lines]
    if not any(block_lines):
        return False
    span = len(block_lines)
    return any(have[row : row + span] == block_lines for row in range(len(have) - span + 1))


def _suffix(path: str) -> str:
    """Return the part of a path after the last dot."""
    return path.rpartition(".")[2]
