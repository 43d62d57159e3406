# SPDX-License-Identifier: Apache-2.0
"""Cache misses of a run.

The counter simulates two levels of data cache of one core, with the program's addresses: no
prefetch, no TLB, no instruction fetch. Each element of a strided access is a separate access.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from crosslab.cores.memory import MemorySystem
from crosslab.run.measurement import LineTraffic, Measurement, PhaseRegions
from crosslab.run.symbols import Symbols

TOP = 5


@dataclass(frozen=True)
class MemoryReport:
    """Cache misses of a call of a phase, and its speed on a board.

    Attributes:
        misses_l1: lines missing in L1.
        misses_l2: lines read from memory.
        bytes_read: bytes read from memory.
        bytes_written: bytes written to memory.
        functions: (symbol, L1 misses, bytes read) of the functions that read most from memory.
    """

    misses_l1: int
    misses_l2: int
    bytes_read: int
    bytes_written: int
    functions: tuple[tuple[str, int, int], ...]


def memory_report(
    memory: MemorySystem,
    measured: Measurement,
    phase: PhaseRegions,
    symbols: Symbols,
) -> MemoryReport:
    """Return the mean cache misses of a call of a phase.

    Args:
        memory: the caches that the counter simulated.
        measured: result of the counter.
        phase: regions of the phase.
        symbols: names of functions.
    """
    functions: dict[str, LineTraffic] = defaultdict(LineTraffic)
    for symbol, traffic in measured.traffic(phase.regions, symbols):
        functions[symbol] += traffic
    calls = phase.calls
    total = sum(functions.values(), LineTraffic())
    read, written = total.misses_l2 * memory.line, total.written_back * memory.line
    most = sorted(functions.items(), key=lambda item: (-item[1].misses_l2, item[0]))[:TOP]
    return MemoryReport(
        misses_l1=round(total.misses_l1 / calls),
        misses_l2=round(total.misses_l2 / calls),
        bytes_read=round(read / calls),
        bytes_written=round(written / calls),
        functions=tuple(
            (symbol, round(lines.misses_l1 / calls), round(lines.misses_l2 * memory.line / calls))
            for symbol, lines in most
        ),
    )
