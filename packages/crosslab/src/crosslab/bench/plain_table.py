# SPDX-License-Identifier: Apache-2.0
"""Terminal tables without lines, and long symbols in them."""

from __future__ import annotations

from collections.abc import Container, Sequence

from rich.table import Table

#: Headings of columns with names.
NAMES = ("variant", "phase", "kind", "function", "in", "weights", "activations")


def plain_table(title: str, headings: Sequence[str], left: Container[str] = NAMES) -> Table:
    """Return a table with figures on the right, and with the columns ``left`` on the left."""
    table = Table(title=title, box=None, padding=(0, 1, 0, 0))
    for heading in headings:
        # Names fold where the terminal is narrow; figures, and figures with names, do not.
        if heading in left:
            table.add_column(heading, overflow="fold", no_wrap=heading == "in")
        else:
            table.add_column(heading, justify="right", no_wrap=True)
    return table


def short(symbol: str, most: int) -> str:
    """Return a symbol in at most so many characters: C++ symbols can be very long."""
    return symbol if len(symbol) <= most else f"{symbol[: most - 1]}…"
