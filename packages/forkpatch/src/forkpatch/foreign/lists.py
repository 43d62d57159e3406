# SPDX-License-Identifier: Apache-2.0
"""Lists of patches: quilt's ``series`` with options and guards, and the plain ``.patches``.

Guards have the form of the kernel packagers' tool guards(1), ``+x -y NAME``, or of Mercurial's
queues, ``NAME #+x #-y``.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from forkpatch.errors import UserError
from forkpatch.safety import check_path

_GUARD = re.compile(r"[+-]!?[A-Za-z0-9_.]+")
_QUEUE_GUARDS = re.compile(r"(?:^|\s)#([+-][^\s#]+)")


@dataclass(frozen=True)
class ListLine:
    """A line of a list of patches.

    Attributes:
        text: the unchanged line, with its line end.
        file: path of the patch from the list's folder; empty for a comment or an empty line.
        strip: number of leading parts to remove from each path in the patch (``-p``).
        reverse: True when the patch is applied in reverse (``-R``).
        before: guards before the name.
        after: guards after the name.
    """

    text: str
    file: str = ""
    strip: int = 1
    reverse: bool = False
    before: tuple[str, ...] = ()
    after: tuple[str, ...] = ()

    @property
    def guarded(self) -> bool:
        """True when guards decide whether the patch belongs to the series."""
        return bool(self.before or self.after)

    def chosen(self, names: Collection[str]) -> bool:
        """Return True when the patch belongs to the series for a choice of guards."""
        included = not self.before or self.before[0].startswith("-")
        for guard in self.before:  # the last guard that matches the choice decides
            negated = guard[1] == "!"
            if (guard[1:].removeprefix("!") in names) != negated:
                included = guard[0] == "+"
        required = [guard[1:] for guard in self.after if guard[0] == "+"]
        refused = [guard[1:] for guard in self.after if guard[0] == "-"]
        if any(name in names for name in refused):
            return False
        return included and (not required or any(name in names for name in required))


def parse_list(text: str, where: str, *, quilt: bool = True) -> tuple[ListLine, ...]:
    """Return the lines of a list of patches.

    A list of quilt has comments, options and guards; any other has one name a line.

    Raises:
        UserError: a line is malformed.
    """
    lines = text.splitlines(keepends=True)
    return tuple(
        _parse_line(line, f"{where}:{number}", quilt=quilt) for number, line in enumerate(lines, 1)
    )


def _parse_line(text: str, where: str, *, quilt: bool) -> ListLine:
    """Return a parsed line of a list."""
    if not quilt:
        name = text.strip()
        return ListLine(text, check_path(name, where) if name else "")
    comment = re.search(r"(?:^|\s)#", text)
    words = (text[: comment.start()] if comment else text).split()
    before = []
    while words and _GUARD.fullmatch(words[0]):
        before.append(words.pop(0))
    if not words:
        if before:
            raise UserError(f"{where}: guards without the name of a patch")
        return ListLine(text)
    name, *options = words
    after = _QUEUE_GUARDS.findall(text[comment.start() :]) if comment else []
    strip, reverse = _options(options, where)
    return ListLine(text, check_path(name, where), strip, reverse, tuple(before), tuple(after))


def _options(words: Sequence[str], where: str) -> tuple[int, bool]:
    """Return the number of path parts to remove, and True for a reversed patch."""
    strip, reverse, rest = 1, False, list(words)
    while rest:
        word = rest.pop(0)
        if word in ("-R", "--reverse"):
            reverse = True
        elif match := re.fullmatch(r"(?:-p|--strip=)([0-9]{1,2})", word):
            strip = int(match[1])
        elif word in ("-p", "--strip") and rest and re.fullmatch("[0-9]{1,2}", rest[0]):
            strip = int(rest.pop(0))
        else:
            if not word.startswith("-"):
                raise UserError(
                    f"{where}: {word} after the name of a patch is not an option: a name cannot"
                    " have a space here",
                    remedy="rename the patch file, and its line: quilt rename",
                )
            raise UserError(
                f"{where}: the option {word} is not known",
                remedy="refresh the patch so that it needs none but -pN and -R: quilt refresh",
            )
    return strip, reverse
