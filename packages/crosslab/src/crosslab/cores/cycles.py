# SPDX-License-Identifier: Apache-2.0
"""Estimate of a core's cycles from executed instructions.

Each instruction costs its reciprocal throughput in the core's table. *Serial* is the sum of all
costs, without overlap. *Vec-serial* is the larger of two sums: vector instructions (loads, stores
and arithmetic, which hardly overlap on the measured cores), and scalar instructions, which run in
parallel. Both ignore latencies, caches and the TLB.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import islice
from typing import TypeVar

from crosslab.cores.core import Core, column_of
from crosslab.run.decode import Unit
from crosslab.run.measurement import Executed, Histogram, Kind

# A report lists the top kinds with functions of each, and the top functions with kinds of each.
TOP_KINDS, TOP_FUNCTIONS = 10, 3
FUNCTIONS, KINDS_OF_FUNCTION = 20, 8
# Share of all instructions above which a figure is marked.
MOST_UNMEASURED = 0.02


Number = TypeVar("Number", int, float)


def vec_serial(units: Mapping[Unit, Number]) -> Number:
    """Return the larger of vector memory + vector arithmetic cycles, and scalar cycles."""
    return max(units[Unit.MEMORY] + units[Unit.ARITHMETIC], units[Unit.SCALAR])


@dataclass(frozen=True)
class KindCycles:
    """Cycles of a kind of instruction.

    Attributes:
        kind: mnemonic, column of the table, and other distinguishing fields.
        runs: number of executed instructions.
        cycles: cycles of these instructions.
        share: share of the serial cycles.
        functions: functions with this kind and their shares of its cycles, largest first.
    """

    kind: str
    runs: int
    cycles: int
    share: float
    functions: tuple[tuple[str, float], ...]


@dataclass(frozen=True)
class FunctionCycles:
    """Cycles of a function without callees.

    Attributes:
        symbol: name of the function.
        serial: cycles without overlap.
        scalar: cycles of its scalar instructions.
        share: share of the serial cycles of the phase.
        kinds: most expensive kinds and their cycles, largest first.
        pipeline: cycles of the pipeline; None: unknown.
    """

    symbol: str
    serial: int
    scalar: int
    share: float
    kinds: tuple[tuple[str, int], ...]
    pipeline: int | None = None


@dataclass(frozen=True)
class Cycles:
    """Cycles of a call of a phase.

    Attributes:
        serial: cycles without overlap.
        units: cycles by :class:`Unit`'s value.
        kinds: most expensive kinds.
        functions: most expensive functions; empty without symbols.
        unmeasured: instructions with unknown cost, by kind, as a share of all instructions; they
            add no cycles.
        assumed: share of the serial cycles by reason of the assumption.
        pipeline: cycles of the core's pipeline (:mod:`crosslab.cores.pipeline`); None: unknown.
    """

    serial: int
    units: Mapping[str, int]
    kinds: tuple[KindCycles, ...]
    functions: tuple[FunctionCycles, ...]
    unmeasured: Mapping[str, float]
    assumed: Mapping[str, float]
    pipeline: int | None = None

    def with_pipeline(self, functions: Mapping[str, float], calls: int) -> Cycles:
        """Return a copy with the pipeline's mean cycles of a call.

        Args:
            functions: the pipeline's cycles of all calls, by function.
            calls: number of calls.
        """
        named = [
            replace(function, pipeline=round(functions.get(function.symbol, 0.0) / calls))
            for function in self.functions
        ]
        total = round(sum(functions.values()) / calls)
        return replace(self, pipeline=total, functions=tuple(named))

    @property
    def vec_serial(self) -> int:
        """The larger of vector memory + vector arithmetic cycles, and scalar cycles."""
        return vec_serial({unit: self.units[unit.value] for unit in Unit})

    @property
    def marked(self) -> bool:
        """True if the cost of more than MOST_UNMEASURED of the instructions is unknown."""
        return sum(self.unmeasured.values()) > MOST_UNMEASURED


def cycles_of(core: Core, histogram: Histogram, calls: int) -> Cycles:
    """Return the mean cycles of a call, without the pipeline's, from a histogram of all calls."""
    by_kind: dict[Kind, dict[str, Executed]] = defaultdict(dict)
    for (symbol, kind), executed in histogram.items():
        by_kind[kind][symbol] = executed
    units = dict.fromkeys((unit.value for unit in Unit), 0.0)
    costs: list[tuple[float, Kind]] = []
    unmeasured: dict[str, int] = defaultdict(int)
    assumed: dict[str, float] = defaultdict(float)
    for kind, by_symbol in by_kind.items():
        cost = sum(core.total(kind, executed) for executed in by_symbol.values())
        if math.isnan(cost):
            unmeasured[name_of(kind)] += sum(execution.runs for execution in by_symbol.values())
            continue
        units[kind.instruction.unit.value] += cost
        costs.append((cost, kind))
        if why := core.cost(kind).assumed:
            assumed[why] += cost
    serial = sum(units.values())
    insns = sum(executed.runs for executed in histogram.values())
    top = sorted(costs, key=lambda pair: (-pair[0], name_of(pair[1])))[:TOP_KINDS]
    return Cycles(
        serial=round(serial / calls),
        units={unit: round(cost / calls) for unit, cost in units.items()},
        kinds=tuple(_kind_cycles(core, k, by_kind[k], cost, serial, calls) for cost, k in top),
        functions=tuple(_functions(core, histogram, serial, calls)),
        unmeasured={name: runs / insns for name, runs in _largest(unmeasured)},
        assumed={why: cost / serial for why, cost in _largest(assumed)},
    )


def _kind_cycles(
    core: Core,
    kind: Kind,
    executions: Mapping[str, Executed],
    cost: float,
    serial: float,
    calls: int,
) -> KindCycles:
    costs = {symbol: core.total(kind, executed) for symbol, executed in executions.items()}
    functions = [(symbol, round(part / cost, 4)) for symbol, part in _largest(costs) if symbol]
    return KindCycles(
        kind=name_of(kind),
        runs=round(sum(executed.runs for executed in executions.values()) / calls),
        cycles=round(cost / calls),
        share=round(cost / serial, 4),
        functions=tuple(functions[:TOP_FUNCTIONS]),
    )


def _functions(
    core: Core, histogram: Histogram, serial: float, calls: int
) -> Iterator[FunctionCycles]:
    costs: dict[str, dict[Kind, float]] = defaultdict(dict)
    for (symbol, kind), executed in histogram.items():
        if symbol and not math.isnan(cost := core.total(kind, executed)):
            costs[symbol][kind] = cost
    sums = {symbol: sum(kinds.values()) for symbol, kinds in costs.items()}
    for symbol, cost in islice(_largest(sums), FUNCTIONS):
        kinds = costs[symbol]
        scalar = sum(part for kind, part in kinds.items() if kind.instruction.unit == Unit.SCALAR)
        named = _largest({name_of(kind): part for kind, part in kinds.items()})
        yield FunctionCycles(
            symbol=symbol,
            serial=round(cost / calls),
            scalar=round(scalar / calls),
            share=round(cost / serial, 4),
            kinds=tuple(
                (name, round(part / calls)) for name, part in islice(named, KINDS_OF_FUNCTION)
            ),
        )


def _largest(numbers: Mapping[str, float]) -> Iterator[tuple[str, float]]:
    yield from sorted(numbers.items(), key=lambda item: (-item[1], item[0]))


def name_of(kind: Kind) -> str:
    """Return a kind's name for messages, such as ``vlse32.v zero e32m8``."""
    instruction = kind.instruction
    words = [instruction.mnemonic]
    words += ["zero"] * instruction.zero_stride + ["masked"] * instruction.masked
    if instruction.vector and not instruction.registers:
        words.append(column_of(kind) or "unknown vtype")
    return " ".join(words)
