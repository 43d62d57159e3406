# SPDX-License-Identifier: Apache-2.0
"""Options of commands: a mistake gets an answer of two lines, with the nearest known word.

A first look checks the options of a command that cannot run yet: see :func:`looking`.
"""

from __future__ import annotations

import argparse
import difflib
import itertools
import os
import re
import stat
import sys
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from groundwork.errors import USER_MISTAKE
from groundwork.files import open_file

T = TypeVar("T")
LONGEST = 1e7  # seconds; poll(2), which waits for outputs, has a limit
LAST_PORT = 65535
_UNKNOWN = re.compile(r"unrecognized arguments: (\S+)")
_MISSING = "the following arguments are required:"
_NEGATIVE = re.compile(r"-\.?\d")


@dataclass(frozen=True)
class _Look:
    typed: str
    more: tuple[str, ...]
    checks: bool


_look: _Look | None = None


@contextmanager
def looking(typed: str, more: Iterable[str] = (), *, checks: bool) -> Iterator[None]:
    """Make commands exit with code 0 after reading their options, during a ``with`` block.

    Args:
        typed: the words before the options, for messages: ``nox -s model``.
        more: options that the caller itself reads, to suggest as well.
        checks: call the check of :meth:`Parser.read`, too.
    """
    global _look  # noqa: PLW0603 - one command a process
    _look = _Look(typed, tuple(more), checks)
    try:
        yield
    finally:
        _look = None


def at_first_look() -> bool:
    """Return True during a first look, when the command's packages may be missing."""
    return _look is not None


def nearest(word: str, known: Iterable[str]) -> str | None:
    """Return the known word most similar to ``word``, ignoring case; None if none is similar."""
    by_small = {name.lower(): name for name in known}
    near = difflib.get_close_matches(word.lower(), by_small, n=1)
    return by_small[near[0]] if near else None


def meant(word: str, known: Iterable[str], what: str, before: str = "") -> str:
    """Return a remedy for an unknown word: the nearest known word, or all known words.

    Args:
        word: the unknown word.
        known: the known words.
        what: plural noun for the known words.
        before: text before the known word in the suggestion.
    """
    known = list(known)
    near = nearest(word, known)
    return f"did you mean: {before}{near}" if near else f"{what}: {', '.join(known) or 'none'}"


def choice(word: str, known: Sequence[str], what: str) -> str:
    """Return the known word that equals ``word`` ignoring case; argparse types use this function.

    Args:
        word: the user's word.
        known: the known words.
        what: text after "is not" in the message, as in "a known core".

    Raises:
        argparse.ArgumentTypeError: the word is unknown.
    """
    match = next((name for name in known if name.lower() == word.lower()), None)
    if match is None:
        near = nearest(word, known)
        hint = f"did you mean {near}?" if near else f"choose from {', '.join(known)}"
        raise argparse.ArgumentTypeError(f"{word!r} is not {what}; {hint}")
    return match


def seconds_of(word: str) -> float:
    """Return a time in seconds, above 0; argparse types use this function.

    Raises:
        argparse.ArgumentTypeError: the word is no such number.
    """
    try:
        seconds = float(word)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds <= LONGEST:  # nan is refused, too
        raise argparse.ArgumentTypeError(
            f"{word!r} is not a number of seconds above 0 and at most {LONGEST:.0f}"
        )
    return seconds


def port_of(word: str) -> int:
    """Return a port, or 0 for any; argparse types use this function.

    Raises:
        argparse.ArgumentTypeError: the word is no such number.
    """
    if not word.isdecimal() or int(word) > LAST_PORT:
        raise argparse.ArgumentTypeError(f"{word!r} is not a port; give 1 to {LAST_PORT}")
    return int(word)


def output_file(word: str) -> Path:
    """Return the path of a file to write, so that no work precedes the error; an argparse type.

    Raises:
        argparse.ArgumentTypeError: the path is a folder, or no folder of it can be written to.
    """
    path = Path(os.path.realpath(word))
    mode = _mode(word, path)
    if stat.S_ISDIR(mode):
        raise argparse.ArgumentTypeError(f"{word!r} is a folder; give the name of a file")
    is_device = mode and not stat.S_ISREG(mode)
    if not is_device and open_file(Path(word)) is None:
        _check_writable(word, path.parent)
    return Path(word)


def output_folder(word: str) -> Path:
    """Return the path of a folder to write files to; see :func:`output_file`."""
    path = Path(os.path.realpath(word))
    if _mode(word, path) and not path.is_dir():
        raise argparse.ArgumentTypeError(f"{word!r} is not a folder; give the name of a folder")
    _check_writable(word, path)
    return Path(word)


def _mode(word: str, path: Path) -> int:
    """Return the type and mode of the path of an option's value; 0 without such a file."""
    try:
        return path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        return 0
    except OSError as error:  # such as a name that is too long
        raise argparse.ArgumentTypeError(f"{word!r}: {error.strerror}") from error


def _check_writable(word: str, folder: Path) -> None:
    """Raise unless files can be written in a folder, or in a folder that has to be made."""
    folder = next(parent for parent in (folder, *folder.parents) if parent.exists())
    if not (folder.is_dir() and os.access(folder, os.W_OK)):
        raise argparse.ArgumentTypeError(f"{word!r}: no file can be written in {folder}")


class _Listed(argparse.Action):
    """Add the values of an option to those of the same option before, in place of the default."""

    def __call__(
        self, _parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, *_: Any
    ) -> None:
        before = getattr(namespace, self.dest)
        setattr(namespace, self.dest, [*([] if before is self.default else before), *values])


def _stored(**fields: Any) -> argparse.Action:
    """Return the action of an argument that names none."""
    is_listed = fields["option_strings"] and fields.get("nargs") == "+"
    return _Listed(**fields) if is_listed else argparse._StoreAction(**fields)


class Parser(argparse.ArgumentParser):
    """A parser whose errors state the mistake and suggest the nearest option.

    It accepts an option by its full name alone: sessions, too, look for some of its options. An
    option with a list of values (``nargs="+"``) can be given several times.
    """

    def __init__(self, **fields: Any) -> None:
        super().__init__(allow_abbrev=False, **fields)
        self.register("action", None, _stored)
        self._words: tuple[str, ...] = ()

    def read(self, words: Sequence[str] | None, check: Callable[[argparse.Namespace], T]) -> T:
        """Parse words and return ``check``'s result for the options; a first look exits, code 0."""
        args = super().parse_args(words)
        if _look is None:
            return check(args)
        if _look.checks:
            check(args)
        raise SystemExit(0)

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse words and return the options; a first look exits with code 0."""
        options = super().parse_args(args, namespace)
        if _look:
            raise SystemExit(0)
        return options

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse words, which stay known to :meth:`error`; return options and unknown words."""
        self._words = tuple(sys.argv[1:] if args is None else args)
        return super().parse_known_args(args, namespace)

    def refuse_unused(self, options: argparse.Namespace, used: Container[str], beside: str) -> None:
        """Exit with code 2 if an option without effect differs from its default.

        Args:
            options: the parsed options.
            used: names in ``options`` of those with an effect.
            beside: the option or word that leaves the others without effect, for the message.
        """
        for action in self._actions:
            value = getattr(options, action.dest, action.default)
            if action.option_strings and action.dest not in used and value != action.default:
                self.error(f"{action.option_strings[0]} has no effect with {beside}; leave it out")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        choices = [str(entry) for entry in action.choices or ()]
        if choices and str(value) not in choices:
            try:
                match = choice(str(value), choices, "known")
            except argparse.ArgumentTypeError as error:
                raise argparse.ArgumentError(action, str(error)) from None
            text = f"{value!r} is not known; did you mean {match}?"
            raise argparse.ArgumentError(action, text)

    def _options(self) -> list[str]:
        """Return all options, with those of verbs: this parser reports a verb's unknown options."""
        options = list(self._option_string_actions)
        for action in self._actions:
            if isinstance(action, argparse._SubParsersAction):
                options += (o for verb in action.choices.values() for o in verb._options())
        return options

    def _unknown_option(self) -> str | None:
        """Return the first option that the parser does not know; None if it knows all.

        A short option may have its value in the same word.
        """
        known = {*self._options(), *(_look.more if _look else ())}
        for word in itertools.takewhile(lambda word: word != "--", self._words):
            is_option = word[:1] == "-" and " " not in word and not _NEGATIVE.match(word)
            name = word.partition("=")[0] if word.startswith("--") else word[:2]
            if is_option and word != "-" and name not in known:
                return word
        return None

    def error(self, message: str) -> NoReturn:
        """Exit with code 2 after a message on the mistake, without the usage, which is long.

        An unknown option is named before a missing argument, which it may have to replace.
        """
        if message.startswith(_MISSING) and (stranger := self._unknown_option()):
            message = f"unrecognized arguments: {stranger}"
        if unknown := _UNKNOWN.match(message):
            word, known = unknown[1], [*self._options(), *(_look.more if _look else ())]
            option = word.startswith("-")
            name = word.partition("=")[0]
            near = nearest(name, known) if option else None
            message = f"there is no option {word}" if option else f"{word!r} is not expected here"
            if near == name:  # of another verb
                message = f"{word} is not an option of this verb"
            elif near:
                message += f"; did you mean {near}?"
        message = message.replace(_MISSING, "missing:")
        typed = f"{_look.typed} --" if _look else self.prog
        name = _look.typed if _look else self.prog.removesuffix(" --")
        self.exit(USER_MISTAKE, f"{name}: {message}\n  options: {typed} --help\n")
