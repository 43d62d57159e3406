# SPDX-License-Identifier: Apache-2.0
"""The files of another version of the upstream, as far as the place of a patch depends on them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import PurePosixPath

from forkpatch.symbols.outline import MODULE, Symbol, bare_name, outline
from forkpatch.symbols.rivals import Elsewhere

Read = Callable[[str], bytes | None]


@dataclass(frozen=True)
class NewBase:
    """Files and renames of another version of the upstream.

    Attributes:
        read: returns the content of a file; None for a missing file.
        find: returns the paths of the changed or new files that contain all given words.
        was: returns the content of a file on the patch's own base; None for a missing file.
        find_renames: returns the new path of each renamed file, by old path.
        paths: all paths of the patch's own base, and of the new version.
        having_more: returns the paths of files that may have a line more often than before.
    """

    read: Read
    find: Callable[..., tuple[str, ...]]
    was: Read
    find_renames: Callable[[], Mapping[str, str]] = dict
    paths: tuple[Collection[str], Collection[str]] = ((), ())
    having_more: Callable[[bytes], Iterable[str]] = lambda _: ()

    @cached_property
    def renames(self) -> Mapping[str, str]:
        """The new path of each renamed file, by old path."""
        return self.find_renames()

    @cached_property
    def _old_paths(self) -> Mapping[str, str]:
        """The old path of each renamed file, by new path."""
        return {new: old for old, new in self.renames.items()}

    @cached_property
    def _added(self) -> dict[str, list[str]]:
        """The added files whose names the patch's own base did not have, by name."""
        old, new = self.paths
        known = {PurePosixPath(path).name for path in old}
        found: dict[str, list[str]] = {}
        for path in new:
            name = path.rpartition("/")[2]
            if name not in known:
                found.setdefault(name, []).append(path)
        return found

    @cached_property
    def elsewhere(self) -> Elsewhere:
        """The files in which a rival of a place is searched."""
        return Elsewhere(
            self.having_more,
            self.read,
            lambda path: self.was(self._old_paths.get(path, path)),
        )

    def path_of(self, path: str) -> str:
        """Return the path in the new version of a file of the old version."""
        return path if self.read(path) is not None else self.renames.get(path, path)

    def namesakes(self, path: str) -> list[str]:
        """Return the other files of the same new name that upstream added."""
        added = self._added.get(path.rpartition("/")[2], [])
        return [other for other in added if other != path and other not in self._old_paths]


def places_of(base: NewBase, path: str, symbol: str) -> tuple[tuple[str, Symbol], ...]:
    """Return path and symbol of ``symbol``'s places in the new version, likeliest first."""
    name = bare_name(symbol)
    new_path = base.path_of(path)
    if name == MODULE:
        data = base.read(new_path)
        return ((new_path, outline(new_path, data).symbols[MODULE]),) if data is not None else ()
    places: list[tuple[str, Symbol]] = []
    suffix = PurePosixPath(path).suffix
    for candidate in dict.fromkeys([new_path, *base.find(name)]):
        data = base.read(candidate)
        if data is None or (candidate != new_path and PurePosixPath(candidate).suffix != suffix):
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
