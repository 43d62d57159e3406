# SPDX-License-Identifier: Apache-2.0
"""Terminal tables of a bench's report."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby

from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from crosslab.bench.cycles_table import cycles_tables
from crosslab.bench.plain_table import plain_table, short
from crosslab.bench.rows import PHASES, PRODUCTS, Function, Row, name_of
from crosslab.bench.thread_work import ThreadWork
from crosslab.cores.core import Core

HEADINGS = ("variant", "phase", "all", "vector", "vset", "vmem", "weighted", "of first")
SYMBOL = 46  # characters
# llama.cpp's products with weights that it did not reorder for its fast kernels.
NOT_REPACKED = re.compile("ggml_vec_dot_i?q")


def show(rows: Sequence[Row], console: Console, core: Core | None = None) -> None:
    """Print a table for each quantization, VLEN and prompt, and the profiles if there are any.

    Args:
        rows: rows of the report.
        console: output console.
        core: core of the cycles in the rows.
    """
    # Products of linear layers alone have separate tables.
    ordered = sorted(rows, key=lambda row: row.layers == PRODUCTS)
    for _, group in groupby(
        ordered, lambda row: (row.layers == PRODUCTS, row.quantization, row.vlen, row.prompt)
    ):
        case = list(group)
        console.print(table_of(case))
        for part in cycles_tables(case, core) if core else ():
            console.print(part)
    for row in rows:
        if row.functions:
            where = f"{row.variant}, {row.phase} {row.tokens}, {row.quantization}, VLEN {row.vlen}"
            console.print(profile_table(where, row.functions))


def table_of(rows: Sequence[Row]) -> Group:
    """Return a table of instructions, in 80 columns, and notes, for rows of one VLEN and prompt."""
    first = rows[0]
    through = {"mlc-llm": "through MLC-LLM", "own": "the project's own definition"}
    what = through[first.path or "own"]
    if first.layers == PRODUCTS:
        what = "products of linear layers alone"
    after = f", {first.depth} tokens in the cache before" if first.depth else ""
    title = (
        f"model {first.model}, {first.quantization}, {what}{after}\n"
        f"VLEN {first.vlen}, {first.threads} thread{'s' if first.threads > 1 else ''}: "
        "millions of guest instructions"
    )
    table = plain_table(title, HEADINGS)
    for phase in PHASES:
        chosen = [row for row in rows if row.phase == phase]
        for row in chosen:
            counts = (row.insns, row.vector, row.vsetvl, row.vmem, row.lmul_weighted)
            cells = [_millions(count) for count in counts]
            table.add_row(name_of(row), row.label, *cells, f"{row.insns / chosen[0].insns:.1%}")
    return Group(table, Text("weighted: a vector instruction counts as its LMUL"), *_notes(rows))


def _millions(count: int) -> str:
    return f"{count / 1e6:.3f}" if count < 1e9 else f"{count / 1e6:,.0f}"


def _notes(rows: Iterable[Row]) -> list[Text]:
    notes = list(map(Text, peer_notes(rows)))
    if any(row.layers == "as shipped" for row in rows):
        notes.append(Text("* as shipped: the last layer after its attention for the last token"))
    if any(row.threads > 1 for row in rows):
        notes.append(Text("with several threads, waiting counts too and differs from run to run"))
    notes += [Text(_work(row, row.work)) for row in rows if row.work]
    return notes


def peer_notes(rows: Iterable[Row]) -> Iterator[str]:
    """Yield the source of each peer's row, and the kernels of its products."""
    for row in (row for row in rows if not row.path):
        kernels = ", ".join(
            f"{symbol} {share:.0%}{' (not repacked)' * bool(NOT_REPACKED.match(symbol))}"
            for symbol, share in row.kernels
        )
        products = f"; its products: {kernels}" if kernels else ""
        yield f"{name_of(row)}, {row.phase}: {row.source}{products}"


def _work(row: Row, work: ThreadWork) -> str:
    serial = ", ".join(symbol for symbol, _ in work.serial) or "nothing"
    idle = ""
    if work.idle:
        about = "the model's parallel loops have fewer parts than threads"
        idle = f"; {work.idle} of the threads did next to nothing: {about}"
    return (
        f"{name_of(row)}, {row.phase}: the largest of {row.threads} threads does "
        f"{work.imbalance:.3f} times their mean; {work.serial_share:.1%} of the work is the main "
        f"thread's alone, most of it {serial}{idle}"
    )


def profile_table(where: str, functions: Iterable[Function]) -> Table:
    """Return the table of the given functions; ``where`` begins its title."""
    table = plain_table(f"{where}: by function", ("function", "all", "weighted", "share"))
    for f in functions:
        counts = (f"{f.insns:,}", f"{f.lmul_weighted:,}", f"{f.share:.1%}")
        # The JSON report has the symbols in full.
        table.add_row(short(f.symbol, SYMBOL), *counts)
    return table
