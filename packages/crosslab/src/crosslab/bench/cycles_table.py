# SPDX-License-Identifier: Apache-2.0
"""Terminal tables of a bench's cycles."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from crosslab.bench.plain_table import plain_table, short
from crosslab.bench.rows import PHASES, PRODUCTS, Row, cost_of, name_of
from crosslab.boards.board import read_boards
from crosslab.cores.core import Core
from crosslab.cores.cycles import MOST_UNMEASURED
from crosslab.cores.memory import MemorySystem
from crosslab.run.decode import Unit

HEADINGS = (
    *("variant", "phase", "pipeline", "of first", "serial", "vec-serial"),
    *("v.mem", "v.arith", "scalar"),
)
MARK = "!"
SYMBOL = 29  # characters
SPEED = (
    "tokens/s: predicted for one core by the model of the board, in which loads of these lines run "
    "beside computation"
)
DEFINITION = (
    "pipeline: instructions wait for each other and for their units. serial: all instructions one "
    "after the other. vec-serial: the larger of vector memory + vector arithmetic, and scalar. "
    "None includes caches or the TLB"
)


def cycles_tables(rows: Sequence[Row], core: Core) -> Iterator[RenderableType]:
    """Yield tables of cycles and of the most expensive kinds of instructions, and notes.

    Args:
        rows: rows of one quantization, VLEN and prompt; rows without cycles are left out.
        core: core of the cycles.
    """
    chosen = [row for row in rows if row.cycles]
    if not chosen:
        return
    yield _summary(chosen, core.name)
    yield Text(DEFINITION)
    if core.pipeline:
        yield Text(f"parameters of the pipeline: {core.pipeline.source}")
    if core.memory and any(row.memory for row in chosen):
        yield _memory(chosen, core.memory)
        yield Text(SPEED)
    # Show details of the last step from upstream to ours, and of every peer.
    last = [row.variant for row in chosen if row.path][-1:]
    for row in chosen:
        if row.layers in ("all", PRODUCTS) or row.variant in last:
            yield _kinds(row)
            if row.functions:
                yield _functions(row)
    yield from map(Text, notes(chosen))


def _summary(rows: Sequence[Row], name: str) -> Table:
    table = plain_table(f"millions of cycles on {name}", HEADINGS)
    for phase in PHASES:
        of_phase = [row for row in rows if row.phase == phase]
        for row in of_phase:
            cycles = row.cycles
            assert cycles
            units = (Unit.MEMORY, Unit.ARITHMETIC, Unit.SCALAR)
            numbers = (cycles.serial, cycles.vec_serial, *(cycles.units[u.value] for u in units))
            piped = "" if cycles.pipeline is None else f"{cycles.pipeline / 1e6:.3f}"
            ratio = f"{cost_of(row) / max(cost_of(of_phase[0]), 1):.1%}"
            variant = name_of(row) + MARK * cycles.marked
            table.add_row(variant, row.label, piped, ratio, *(f"{n / 1e6:.3f}" for n in numbers))
    return table


def _memory(rows: Sequence[Row], memory: MemorySystem) -> Table:
    (name,) = (board.name for board in read_boards() if board.key == memory.board)
    title = f"{name}, one core: caches and tokens a second"
    headings = ("variant", "phase", "L1 misses", "MB read", "written", "tokens/s")
    table = plain_table(title, headings)
    for row in rows:
        if report := row.memory:
            figures = (report.bytes_read / 1e6, report.bytes_written / 1e6)
            cells = (f"{report.misses_l1:,}", *(f"{figure:.3f}" for figure in figures))
            table.add_row(name_of(row), row.label, *cells, f"{row.tokens_per_second:.4g}")
            for symbol, misses, read in report.functions:
                table.add_row(f"  {short(symbol, SYMBOL)}", "", f"{misses:,}", f"{read / 1e6:.3f}")
    return table


def _kinds(row: Row) -> Table:
    cycles = row.cycles
    assert cycles
    title = f"{row.variant}, {row.phase} {row.tokens}: the kinds that cost most"
    table = plain_table(title, ("kind", "runs", "Mcycles", "share", "in"))
    for kind in cycles.kinds:
        where = "\n".join(
            f"{share:4.0%} {short(symbol, SYMBOL)}" for symbol, share in kind.functions
        )
        figures = (f"{kind.runs:,}", f"{kind.cycles / 1e6:.3f}", f"{kind.share:.1%}")
        table.add_row(kind.kind, *figures, where)
    return table


def _functions(row: Row) -> Table:
    cycles = row.cycles
    assert cycles
    title = f"{row.variant}, {row.phase} {row.tokens}: cycles by function"
    table = plain_table(title, ("function", "pipeline", "serial", "scalar", "share", "in"))
    for f in cycles.functions:
        kinds = "\n".join(f"{cost / 1e6:.3f} {kind}" for kind, cost in f.kinds)
        piped = "" if f.pipeline is None else f"{f.pipeline / 1e6:.3f}"
        figures = (piped, f"{f.serial / 1e6:.3f}", f"{f.scalar / 1e6:.3f}", f"{f.share:.1%}")
        table.add_row(short(f.symbol, SYMBOL), *figures, kinds)
    return table


def notes(rows: Sequence[Row]) -> Iterator[str]:
    """Yield lines with the assumed costs of rows, and with their instructions without a cost."""
    yield "assumed, not measured (cores/assumptions.toml), of the serial cycles at most:"
    yield from _at_most(row.cycles.assumed for row in rows if row.cycles)
    unmeasured = list(_at_most(row.cycles.unmeasured for row in rows if row.cycles))
    if unmeasured:
        yield "not measured, counted as no cycles, of the instructions at most:"
        yield from unmeasured
    if any(row.cycles and row.cycles.marked for row in rows):
        yield f"{MARK} more than {MOST_UNMEASURED:.0%} of the instructions were not measured"


def _at_most(shares: Iterable[Mapping[str, float]]) -> Iterator[str]:
    most: dict[str, float] = {}
    for table in shares:
        for what, share in table.items():
            most[what] = max(share, most.get(what, 0.0))
    for what, share in sorted(most.items(), key=lambda item: (-item[1], item[0])):
        yield f"  {share:7.3%} {what}"
