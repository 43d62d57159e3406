# SPDX-License-Identifier: Apache-2.0
"""Output: results as tables for people and as JSON for programs."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Sequence
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

from groundwork.errors import printable
from groundwork.files import atomic_write

_WIDE = 1000  # columns
_quiet = False
_STYLES = {
    "applied": "green",
    "current": "green",
    "missing": "yellow",
    "stale": "yellow",
    "edited": "yellow",
    "broken": "red",
    "needed": "green",
    "not needed": "yellow",
    "test does not see it": "red",
    "cannot tell": "red",
}


def be_quiet(quiet: bool) -> None:
    """Turn :func:`say` and :func:`print_table` off or on, but not the report and the warnings."""
    global _quiet  # noqa: PLW0603 - one verb a process
    _quiet = quiet


def say(*lines: str) -> None:
    """Print lines with control characters escaped; print nothing while :func:`be_quiet` is on."""
    for line in () if _quiet else lines:
        print(printable(line), flush=True)


def warn(*lines: str) -> None:
    """Print lines with control characters escaped on standard error, also while quiet."""
    for line in lines:
        print(printable(line), file=sys.stderr)


def counted(count: int, word: str) -> str:
    """Return a number and its noun: ``1 patch``, ``2 patches``."""
    plural = f"{word}es" if word.endswith("ch") else f"{word}s"
    return f"{count} {word if count == 1 else plural}"


def print_table(columns: Sequence[str], rows: Iterable[Sequence[str]], title: str = "") -> None:
    """Print a table unless quiet; a cell ``STATE`` or ``STATE: …`` gets the state's colour."""
    if _quiet:
        return
    from rich.box import SIMPLE_HEAD  # noqa: PLC0415 - for this verb only
    from rich.console import Console  # noqa: PLC0415
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    table = Table(title=title or None, header_style="bold", box=SIMPLE_HEAD, pad_edge=False)
    table.title_justify = "left"
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in rows:
        styles = (_STYLES.get(cell.split(":", maxsplit=1)[0], "") for cell in row)
        table.add_row(*map(Text, map(printable, row), styles))
    # Only a terminal or COLUMNS limits the width of lines.
    width = None if sys.stdout.isatty() or "COLUMNS" in os.environ else _WIDE
    Console(highlight=False, soft_wrap=False, width=width).print(table)


def write_report(target: str | None, value: object) -> None:
    """Write ``value`` as JSON to the file ``target``; ``-`` is standard output, None no file."""
    if target is None:
        return
    text = json.dumps(value, indent=2, default=_plain) + "\n"
    if target == "-":
        sys.stdout.write(text)
    else:
        atomic_write(Path(target).absolute(), text)


def _plain(value: Any) -> object:
    """Convert a dataclass to a dict, a path to a string, for JSON; raise TypeError for others."""
    if is_dataclass(value):
        return {field.name: getattr(value, field.name) for field in fields(value)}
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, frozenset):
        return sorted(value)
    raise TypeError(f"{value!r} is not JSON")
