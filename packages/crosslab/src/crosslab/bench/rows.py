# SPDX-License-Identifier: Apache-2.0
"""Rows of the bench's report, from measurements."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from crosslab.bench.options import Bench
from crosslab.bench.thread_work import ThreadWork, thread_work
from crosslab.boards.board import Work, read_boards
from crosslab.cores.cycles import Cycles
from crosslab.cores.pipeline import all_cycles
from crosslab.cores.traffic import MemoryReport, memory_report
from crosslab.run.measurement import Counts, Measurement, PhaseRegions
from crosslab.run.symbols import Symbols
from groundwork.files import atomic_write_json

PHASES = ("prefill", "decode")
TOP = 20
# Value of `layers` in rows of linear layers alone.
PRODUCTS = "products"
COUNTED = "counted in this run"
# Symbols of llama.cpp's matrix products.
PRODUCT = re.compile("gemm|gemv|vec_dot")
LEAST_SHARE = 0.01


@dataclass(frozen=True)
class Function:
    """Instructions of a function without callees, in a phase; per token for decode."""

    symbol: str
    insns: int
    lmul_weighted: int
    share: float


@dataclass(frozen=True)
class Row:
    """A row of the report; decode is per token, as the mean of the steps after the first.

    Attributes:
        model: model name that the user gave.
        variant: "upstream", "ours", a step between them, or a peer with its format of weights.
        phase: "prefill" or "decode".
        tokens: tokens of the prompt, or generated tokens including the prefill's token.
        quantization: format of the weights.
        vlen: bits in a vector register.
        threads: the guest's TVM_NUM_THREADS.
        insns: guest instructions.
        vector: vector instructions.
        vsetvl: vsetvli, vsetivli and vsetvl instructions.
        vmem: vector loads and stores.
        lmul_weighted: instructions weighted by LMUL.
        prompt: tokens of the prompt, in both phases.
        depth: tokens in the cache before the prompt.
        path: definition of the model that was compiled, "own" or "mlc-llm"; None for a peer.
        source: source of the figure; for a peer, its revision and its best setting.
        functions: functions with most instructions, if requested.
        activations: activations of linear layers: "float32", "float16", or "int8" in groups with a
            scale.
        kv_cache: "float32", the computed keys and values, or "int8".
        layers: for a peer, "all" for every layer and token, as in ours, or "as shipped", where the
            prefill computes the last layer after its attention only for the last token; empty for
            ours; :data:`PRODUCTS` in rows of linear layers alone, for ours and a peer.
        build: build of a peer; empty for ours.
        kernels: for a peer, functions of its products with most instructions, and their shares.
        zvfh: compiled for half-precision vectors.
        core: core of the cycles; None without a core.
        cycles_serial: cycles without overlap.
        cycles_vec_serial: the larger of vector and scalar cycles.
        cycles_pipeline: cycles of the core's pipeline; None without a pipeline.
        cycles: cycles by unit and kind, and the assumptions.
        memory: cache misses, if requested.
        tokens_per_second: speed of one core of the caches' board, predicted from the misses.
        work: work of each thread, without waiting; None with one thread.
    """

    model: str
    variant: str
    phase: str
    tokens: int
    quantization: str
    vlen: int
    threads: int
    insns: int
    vector: int
    vsetvl: int
    vmem: int
    lmul_weighted: int
    prompt: int
    path: str | None
    source: str = COUNTED
    functions: tuple[Function, ...] = ()
    activations: str = "float32"
    kv_cache: str = "float32"
    layers: str = ""
    build: str = ""
    kernels: tuple[tuple[str, float], ...] = ()
    zvfh: bool = False
    depth: int = 0
    core: str | None = None
    cycles_serial: int | None = None
    cycles_vec_serial: int | None = None
    cycles_pipeline: int | None = None
    cycles: Cycles | None = None
    memory: MemoryReport | None = None
    tokens_per_second: float | None = None
    work: ThreadWork | None = None

    @property
    def call(self) -> int:
        """Tokens of a call: of the prompt, or of a decode step."""
        return self.tokens if self.phase == "prefill" else 1

    @property
    def label(self) -> str:
        """The phase with the tokens of a call."""
        return f"{self.phase} {self.call}"


def name_of(row: Row) -> str:
    """Return the variant's name in tables, with "*" for a peer's prefill as shipped."""
    return f"{row.variant}*" if row.layers == "as shipped" else row.variant


def cost_of(row: Row) -> int:
    """Return a row's pipeline cycles, else its serial cycles; without a core, its instructions."""
    return row.cycles_pipeline or row.cycles_serial or row.insns


def measured_row(
    fields: Mapping[str, Any],
    bench: Bench,
    measured: Measurement,
    regions: PhaseRegions,
    program: Path,
) -> Row:
    """Return the row of a phase, with functions and cycles if the options request them.

    Args:
        fields: of the row, besides those that are counted or of the bench.
        bench: the bench's options.
        measured: result of the counter.
        regions: regions of the phase.
        program: the program, whose symbols name functions.
    """
    peer = "build" in fields
    named = bench.profile or bench.core or bench.threads > 1 or peer
    symbols = Symbols.of(program) if named else None
    counts = asdict(regions.counts(measured.regions))
    del counts["unknown_lmul"]
    of_bench = {"model": bench.model, "threads": bench.threads, "depth": bench.depth}
    row = Row(**{**of_bench, **counts, **fields})
    if (bench.profile or peer) and symbols:
        functions = top_functions(measured.functions(symbols, regions.regions), regions.calls)
        kernels = tuple((f.symbol, f.share) for f in functions if _is_kernel(f)) if peer else ()
        row = replace(row, functions=functions if bench.profile else (), kernels=kernels)
    if row.threads > 1 and symbols:
        work = thread_work(measured, regions, row.threads, symbols, bench.core)
        row = replace(row, work=work)
    if bench.core:
        cycles = all_cycles(bench.core, measured, regions.regions, symbols, regions.calls)
        if bench.caches and bench.core.memory and symbols:
            memory = memory_report(bench.core.memory, measured, regions, symbols)
            row = replace(row, memory=memory, tokens_per_second=_speed(bench, row, memory, cycles))
        row = replace(
            row,
            core=bench.core.key,
            cycles_serial=cycles.serial,
            cycles_vec_serial=cycles.vec_serial,
            cycles_pipeline=cycles.pipeline,
            cycles=cycles,
        )
    return row


def _speed(bench: Bench, row: Row, memory: MemoryReport, cycles: Cycles) -> float:
    """Return the tokens per second of one core, from cycles and misses of a call."""
    assert bench.core
    assert bench.core.memory
    board = next(b for b in read_boards() if b.key == bench.core.memory.board)
    written = memory.bytes_written / board.layout.line
    work = Work(
        products=cycles.pipeline or cycles.serial,
        memory_lines=memory.misses_l2 + written,
        l2_lines=memory.misses_l1 - memory.misses_l2,
    )
    return round(row.call / board.seconds(work, threads=1), 2)


def _is_kernel(function: Function) -> bool:
    return bool(PRODUCT.search(function.symbol)) and function.share >= LEAST_SHARE


def top_functions(functions: Mapping[str, Counts], calls: int) -> tuple[Function, ...]:
    """Return the first TOP of functions, given with most instructions first; counts per call."""
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
    """Write the report as a JSON list, atomically.

    Raises:
        OSError: the file cannot be written.
    """
    table = [asdict(row) for row in rows]
    for entry in table:
        for name in ("functions", "kernels", "cycles", "memory", "work"):
            if not entry[name]:
                del entry[name]
    atomic_write_json(report, table)
