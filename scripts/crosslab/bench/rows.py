# SPDX-License-Identifier: Apache-2.0
"""Measurements as rows of a report."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from common.files import atomic_write_json
from crosslab.bench.options import Bench
from crosslab.cores.cycles import Cycles, cycles_of
from crosslab.run.counter import Counts, Measurement, phases_of
from crosslab.run.symbols import Symbols

PHASES = ("prefill", "decode")
TOP = 20
COUNTED = "counted in this run"


@dataclass(frozen=True)
class Function:
    """Instructions of one function itself in a phase; per token in decode."""

    symbol: str
    insns: int
    lmul_weighted: int
    share: float


@dataclass(frozen=True)
class Row:
    """One line of the report; decode is per token, the mean of the steps after the first.

    Attributes:
        model: as the user named it.
        variant: "upstream", "ours", a step between them, or a recorded peer.
        phase: "prefill" or "decode".
        tokens: of the prompt, or generated (the first of these is the prefill's).
        quantization: of the weights.
        vlen: bits in a vector register.
        threads: the guest's TVM_NUM_THREADS.
        insns: guest instructions.
        vector: vector instructions; None, as in the next ones: not recorded.
        vsetvl: vsetvli, vsetivli, vsetvl.
        vmem: vector loads and stores.
        lmul_weighted: instructions weighted by LMUL.
        prompt: tokens of the prompt, in both phases.
        path: "own" or "mlc-llm", whose definition of the model was compiled.
        recorded: an old figure of another program, not measured in this run.
        source: where the figure is from.
        functions: those that execute most, when they were asked for.
        activations: of the products: "float32", or "int8" where they are quantized as well.
        layers: of a peer's prefill: "all" for every token, or "as shipped", where the last layer's
            feed-forward is done for the last token alone; empty for ours, which does all.
        core: the one whose cycles these are; None when no core was asked for.
        cycles_serial: its cycles when nothing overlaps.
        cycles_vec_serial: the larger of its vector and its scalar cycles.
        cycles: the same by unit and kind, and what was assumed.
    """

    model: str
    variant: str
    phase: str
    tokens: int
    quantization: str
    vlen: int
    threads: int
    insns: int
    vector: int | None
    vsetvl: int | None
    vmem: int | None
    lmul_weighted: int | None
    prompt: int
    path: str | None
    recorded: bool = False
    source: str = COUNTED
    functions: tuple[Function, ...] = ()
    activations: str = "float32"
    layers: str = ""
    core: str | None = None
    cycles_serial: int | None = None
    cycles_vec_serial: int | None = None
    cycles: Cycles | None = None


def measured_rows(
    common: Mapping[str, Any], bench: Bench, measured: Measurement, calls: int, program: Path
) -> Iterator[Row]:
    """The rows of one run: its two phases, with functions and cycles where they were asked for.

    Args:
        common: fields of both rows that the counter does not know.
        bench: its options.
        measured: marks of the prefill's calls, then of each decode step.
        calls: number of the prefill's.
        program: with symbols, which functions are named by.
    """
    symbols = Symbols.of(program) if bench.profile or bench.core else None
    phases = zip(PHASES, phases_of(len(measured.regions), calls), strict=True)
    for name, phase in phases:
        assert phase is not None  # the options ask for 3 tokens or more
        counts = asdict(phase.counts(measured.regions))
        del counts["unknown_lmul"]
        tokens = bench.decode if name == "decode" else common["prompt"]
        row = Row(phase=name, tokens=tokens, **counts, **common)
        if bench.profile and symbols:
            functions = top_functions(measured.functions(symbols, phase.regions), phase.calls)
            row = replace(row, functions=functions)
        if bench.core:
            histogram = measured.histogram(phase.regions, symbols)
            cycles = cycles_of(bench.core, histogram, phase.calls)
            row = replace(
                row,
                core=bench.core.key,
                cycles_serial=cycles.serial,
                cycles_vec_serial=cycles.vec_serial,
                cycles=cycles,
            )
        yield row


def top_functions(functions: Mapping[str, Counts], calls: int) -> tuple[Function, ...]:
    """The functions that execute most, as the mean of so many calls."""
    total = max(sum(counts.insns for counts in functions.values()), 1)
    return tuple(
        Function(
            symbol,
            round(counts.insns / calls),
            round(counts.lmul_weighted / calls),
            round(counts.insns / total, 4),
        )
        for symbol, counts in list(functions.items())[:TOP]
    )


def write_rows(rows: Sequence[Row], report: Path) -> None:
    """Write the report as a JSON list, whole or not at all.

    Raises:
        OSError: it cannot be written.
    """
    table = [asdict(row) for row in rows]
    for entry in table:
        for name in ("functions", "cycles"):
            if not entry[name]:
                del entry[name]
    atomic_write_json(report, table)
