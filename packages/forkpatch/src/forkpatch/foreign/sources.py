# SPDX-License-Identifier: Apache-2.0
"""A series of another tool on disk: its format, its patches in order, their bytes.

Lists of patches are quilt's ``series`` with options and guards, and the plain ``.patches``. Guards
have the form of the kernel packagers' tool guards(1), ``+x -y NAME``, or of Mercurial's queues,
``NAME #+x #-y``.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from forkpatch.errors import PatchError, UserError
from forkpatch.git.calls import Git
from forkpatch.model.patchfile import SERIES
from forkpatch.safety import check_path, check_regular

_PLAIN_LIST = ".patches"
_SUFFIXES = (".patch", ".diff")
_NUMBERED = re.compile(r"(\d+)[-_.]")
#: Folders and files in which version control systems keep their own data.
_METADATA = {".git", ".hg", ".svn", ".bzr", "CVS"}
_GUARD = re.compile(r"[+-]!?[A-Za-z0-9_.]+")
_QUEUE_GUARDS = re.compile(r"(?:^|\s)#([+-][^\s#]+)")


class ForeignFormat(StrEnum):
    """Layout of a foreign series.

    Attributes:
        QUILT: a file ``series``, as in quilt, Debian and ungoogled-chromium.
        LISTED: a file ``.patches`` with a name per line, as in Electron.
        NUMBERED: numbered files, as ``git format-patch`` writes them.
        LOOSE: files without an order, no two of which change the same file, as in Brave.
        MAILBOX: one file of mails.
    """

    QUILT = "quilt"
    LISTED = "listed"
    NUMBERED = "numbered"
    LOOSE = "loose"
    MAILBOX = "mailbox"


@dataclass(frozen=True)
class ForeignPatch:
    """A patch file of another tool.

    Attributes:
        file: path from the folder of the series.
        skipped: reason why the patch does not belong to the series; empty if it belongs.
    """

    file: str
    data: bytes
    strip: int = 1
    reverse: bool = False
    skipped: str = ""


@dataclass(frozen=True)
class ForeignSeries:
    """A series of another tool.

    Attributes:
        list_name: name of the file that lists the patches; empty without a list.
        list_data: content of the list.
        unlisted: other files of the folder, which the list does not name; None for a link.
    """

    format: ForeignFormat
    patches: tuple[ForeignPatch, ...]
    list_name: str = ""
    list_data: bytes = b""
    unlisted: Mapping[str, bytes | None] = field(default_factory=dict)


def read_foreign(source: Path, guards: Collection[str] | None = None) -> ForeignSeries:
    """Return the series in a folder or a mailbox.

    A folder may be a Debian source package; ``guards`` is None without a choice.

    Raises:
        UserError: ``source`` has no series, or the series has guards and no choice was made.
        PatchError: a listed patch cannot be read.
    """
    if source.is_file():
        return ForeignSeries(ForeignFormat.MAILBOX, _split_mailbox(source))
    folder = source / "debian/patches" if (source / "debian/patches").is_dir() else source
    for list_name, layout in ((SERIES, ForeignFormat.QUILT), (_PLAIN_LIST, ForeignFormat.LISTED)):
        if (folder / list_name).is_file():
            return _listed(folder / list_name, layout, guards)
    names = in_order(path.name for path in folder.glob("*") if path.suffix in _SUFFIXES)
    if not names:
        raise UserError(
            f"{folder / SERIES}: the folder has neither a series nor patches",
            remedy="name the folder that holds them, or a mailbox",
        )
    numbered = all(_NUMBERED.match(name) for name in names)
    patches = tuple(ForeignPatch(name, _read(folder / name)) for name in names)
    return ForeignSeries(ForeignFormat.NUMBERED if numbered else ForeignFormat.LOOSE, patches)


def in_order(names: Iterable[str]) -> list[str]:
    """Return the names of patch files in their order: by number if each has one, else by name."""
    by_name = sorted(names)
    matches = [_NUMBERED.match(name) for name in by_name]
    numbers = [int(match[1]) for match in matches if match]
    if len(numbers) < len(by_name):
        return by_name
    return [name for _, name in sorted(zip(numbers, by_name, strict=True))]


def _listed(path: Path, layout: ForeignFormat, guards: Collection[str] | None) -> ForeignSeries:
    """Return the series that a list names.

    Raises:
        UserError: the list has guards and no choice was made, lacks a chosen guard, or names a
            patch twice.
    """
    folder, data = path.parent, path.read_bytes()
    text = data.decode("utf-8", "surrogateescape")
    lines = parse_list(text, str(path), quilt=layout is ForeignFormat.QUILT)
    guarded = next((line for line in lines if line.file and (line.before or line.after)), None)
    names = sorted({g.lstrip("+-!") for line in lines for g in (*line.before, *line.after)})
    if unknown := sorted(set(guards or ()) - set(names)):
        has = f"its guards: {', '.join(names)}" if names else "it has no guards"
        raise UserError(f"--guard {unknown[0]}: {path} has no such guard", remedy=has)
    if guarded and guards is None:
        raise UserError(
            f"{path}: {guarded.text.strip()!r} has guards: they choose patches",
            remedy=f"choose with --guard NAME, of {', '.join(names)}; or choose none: --no-guards",
        )
    patches: dict[str, ForeignPatch] = {}
    for line in lines:
        if line.file in patches:
            raise UserError(f"{path}: {line.file} is listed twice")
        if line.file:
            skipped = "" if line.chosen(guards or ()) else "its guards leave it out"
            content = _read(folder / line.file)
            patches[line.file] = ForeignPatch(line.file, content, line.strip, line.reverse, skipped)
    below = (one.relative_to(folder) for one in sorted(folder.rglob("*")))
    others = {one.as_posix(): folder / one for one in below if _METADATA.isdisjoint(one.parts)}
    unlisted = {
        name: None if other.is_symlink() else _read(other)
        for name, other in others.items()
        if name not in {path.name, *patches} and not other.is_dir()
    }
    return ForeignSeries(layout, tuple(patches.values()), path.name, data, unlisted)


def _read(path: Path) -> bytes:
    """Return the content of a regular file."""
    try:
        return check_regular(path).read_bytes()
    except OSError as error:
        raise PatchError(f"{path}: {error.strerror}") from error


def _split_mailbox(path: Path) -> tuple[ForeignPatch, ...]:
    data = _read(path)
    if not data.startswith(b"From "):
        raise UserError(
            f"{path}: it is not a mailbox: its first line does not begin with 'From '",
            remedy="name the folder of the series, or a mailbox",
        )
    with tempfile.TemporaryDirectory(prefix="forkpatch-") as name:
        Git().run("mailsplit", "--keep-cr", f"-o{name}", "--", str(path.resolve()))
        files = sorted(Path(name).iterdir(), key=lambda file: int(file.name))
        return tuple(ForeignPatch(f"{file.name}{_SUFFIXES[0]}", _read(file)) for file in files)


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
    """Return the number of ``-p``, else 1, and True for ``-R``; raise UserError for other words."""
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
