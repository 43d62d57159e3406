# SPDX-License-Identifier: Apache-2.0
"""Cache misses of a run, and tokens a second that follow from them.

The counter simulates two levels of data cache, one core alone, addresses as the program has them:
no prefetch, no TLB, no instruction fetch. Each element of a strided access is one by itself.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from crosslab.cores.cycles import Cycles
from crosslab.cores.memory import MemorySystem
from crosslab.run.measurement import LineTraffic, Measurement, PhaseRegions
from crosslab.run.symbols import Symbols

TOP = 5


@dataclass(frozen=True)
class MemoryReport:
    """Misses of one call of a phase, and its speed on the board.

    Attributes:
        misses_l1: lines that L1 lacked.
        misses_l2: lines that came from memory.
        bytes_read: from memory.
        bytes_written: to memory.
        cycles: that these bytes take by the bandwidth that was measured.
        functions: that read most from memory: symbol, L1 misses, bytes read.
        tokens_per_second: when nothing overlaps (serial cycles and memory, one after the other),
            and when all does (the larger of vec-serial cycles and memory).
    """

    misses_l1: int
    misses_l2: int
    bytes_read: int
    bytes_written: int
    cycles: int
    functions: tuple[tuple[str, int, int], ...]
    tokens_per_second: tuple[float, float]


def memory_report(
    memory: MemorySystem,
    measured: Measurement,
    phase: PhaseRegions,
    symbols: Symbols,
    *,
    cycles: Cycles,
    tokens: int,
) -> MemoryReport:
    """The report of a phase.

    Args:
        memory: the caches that the counter simulated.
        measured: its result.
        phase: its regions.
        symbols: names of functions.
        cycles: of one call.
        tokens: that one call takes or makes.
    """
    functions: dict[str, LineTraffic] = defaultdict(LineTraffic)
    for symbol, traffic in measured.traffic(phase.regions, symbols):
        functions[symbol] += traffic
    calls = phase.calls
    total = sum(functions.values(), LineTraffic())
    read, written = total.misses_l2 * memory.line, total.written_back * memory.line
    waiting = (read + written) / calls / memory.bytes_per_cycle
    slowest, fastest = cycles.serial + waiting, max(cycles.vec_serial, waiting)
    most = sorted(functions.items(), key=lambda item: (-item[1].misses_l2, item[0]))[:TOP]
    return MemoryReport(
        misses_l1=round(total.misses_l1 / calls),
        misses_l2=round(total.misses_l2 / calls),
        bytes_read=round(read / calls),
        bytes_written=round(written / calls),
        cycles=round(waiting),
        functions=tuple(
            (symbol, round(one.misses_l1 / calls), round(one.misses_l2 * memory.line / calls))
            for symbol, one in most
        ),
        tokens_per_second=(
            round(tokens * memory.clock / slowest, 2),
            round(tokens * memory.clock / fastest, 2),
        ),
    )
