# SPDX-License-Identifier: Apache-2.0
"""Options of commands: a mistake is answered in two lines, with the nearest known word.

A first look reads the options of a command that cannot run yet: see :func:`looking`.
"""

from __future__ import annotations

import argparse
import difflib
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NoReturn, TypeVar

from groundwork.errors import USER_MISTAKE

T = TypeVar("T")
_UNKNOWN = re.compile(r"unrecognized arguments: (\S+)")


@dataclass(frozen=True)
class _Look:
    typed: str
    more: tuple[str, ...]
    checks: bool


_look: _Look | None = None


@contextmanager
def looking(typed: str, more: Iterable[str] = (), *, checks: bool) -> Iterator[None]:
    """Let commands end with exit code 0 as soon as their options are read.

    Args:
        typed: the words before the options, for messages: ``nox -s model``.
        more: options that the caller reads itself, which may have been meant.
        checks: call the check of :meth:`Parser.read`, too.
    """
    global _look  # noqa: PLW0603 - one command a process
    _look = _Look(typed, tuple(more), checks)
    try:
        yield
    finally:
        _look = None


def nearest(word: str, known: Iterable[str]) -> str | None:
    """The known word that is most like a word, in any case of letters; None: no word is."""
    by_small = {one.lower(): one for one in known}
    near = difflib.get_close_matches(word.lower(), by_small, n=1)
    return by_small[near[0]] if near else None


def meant(word: str, known: Iterable[str], what: str, before: str = "") -> str:
    """A remedy for an unknown word: the nearest known one, else all of them.

    Args:
        word: that was given.
        known: that can be given.
        what: the words are, in plural.
        before: words to type before the known one.
    """
    known = list(known)
    near = nearest(word, known)
    return f"did you mean: {before}{near}" if near else f"{what}: {', '.join(known) or 'none'}"


def choice(word: str, known: Sequence[str], what: str) -> str:
    """The known word that a word is, in any case of letters; a type of argparse builds on it.

    Args:
        word: that was given.
        known: that can be given.
        what: the words are, for the message.

    Raises:
        argparse.ArgumentTypeError: it is not one of them.
    """
    found = next((one for one in known if one.lower() == word.lower()), None)
    if found is None:
        near = nearest(word, known)
        hint = f"did you mean {near}?" if near else f"choose from {', '.join(known)}"
        raise argparse.ArgumentTypeError(f"{word!r} is not {what}; {hint}")
    return found


class Parser(argparse.ArgumentParser):
    """A parser whose errors are the mistake, and the option that was meant."""

    def read(self, words: Sequence[str] | None, check: Callable[[argparse.Namespace], T]) -> T:
        """Parse words, and return what ``check`` makes of them; a first look ends here."""
        args = super().parse_args(words)
        if _look is None:
            return check(args)
        if _look.checks:
            check(args)
        raise SystemExit(0)

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse words; a first look ends here."""
        found = super().parse_args(args, namespace)
        if _look:
            raise SystemExit(0)
        return found

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        choices = [str(one) for one in action.choices or ()]
        if choices and str(value) not in choices:
            try:
                same = choice(str(value), choices, "known")
            except argparse.ArgumentTypeError as error:
                raise argparse.ArgumentError(action, str(error)) from None
            text = f"{value!r} is not known; did you mean {same}?"
            raise argparse.ArgumentError(action, text)

    def _options(self) -> list[str]:
        """All options, with those of the verbs: it is this parser that finds an unknown one."""
        found = list(self._option_string_actions)
        for action in self._actions:
            if isinstance(action, argparse._SubParsersAction):
                found += (one for verb in action.choices.values() for one in verb._options())
        return found

    def error(self, message: str) -> NoReturn:
        """End with the mistake, without the usage, which is longer than a screen."""
        if unknown := _UNKNOWN.match(message):
            word, known = unknown[1], [*self._options(), *(_look.more if _look else ())]
            option = word.startswith("-")
            near = nearest(word.partition("=")[0], known) if option else None
            message = f"there is no option {word}" if option else f"{word!r} is not expected here"
            message += f"; did you mean {near}?" if near else ""
        message = message.replace("the following arguments are required:", "missing:")
        typed = f"{_look.typed} --" if _look else self.prog
        name = _look.typed if _look else self.prog
        self.exit(USER_MISTAKE, f"{name}: {message}\n  options: {typed} --help\n")
