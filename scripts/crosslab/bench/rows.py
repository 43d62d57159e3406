# SPDX-License-Identifier: Apache-2.0
"""Measurements as rows of a report."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from common.files import atomic_write_json
from crosslab.run.counter import FunctionCounts, Measurement

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


def top_functions(measured: Measurement, calls: int) -> tuple[Function, ...]:
    """The functions that execute most in the marked calls, as the mean of these."""
    total = max(measured.region.insns, 1)

    def of(one: FunctionCounts) -> Function:
        weighted = round(one.region.lmul_weighted / calls)
        share = round(one.region.insns / total, 4)
        return Function(one.symbol, round(one.region.insns / calls), weighted, share)

    return tuple(of(f) for f in measured.functions[:TOP] if f.region.insns)


def write_rows(rows: Sequence[Row], report: Path) -> None:
    """Write the report as a JSON list, whole or not at all.

    Raises:
        OSError: it cannot be written.
    """
    table = [asdict(row) for row in rows]
    for entry in table:
        if not entry["functions"]:
            del entry["functions"]
    atomic_write_json(report, table)
