# SPDX-License-Identifier: Apache-2.0
"""Work of each thread in a phase, without waiting for other threads."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from crosslab.cores.core import Core
from crosslab.cores.pipeline import pipeline_cycles
from crosslab.run.measurement import Measurement, PhaseRegions
from crosslab.run.symbols import Symbols

# Functions that wait for work or other threads. The emulator runs the threads on few processors, so
# waiting differs from that on a board.
WAITING = re.compile(
    r"ThreadPool|SpscTaskQueue|ParallelLaunch|[Yy]ield|futex|pthread_(cond|mutex)|lll_"
)
TOP = 3


@dataclass(frozen=True)
class ThreadWork:
    """Work of each thread, as the mean of the calls of a phase.

    Attributes:
        threads: cycles of the core's pipeline, or without a core instructions weighted by LMUL; the
            main thread first.
        serial: most expensive functions that only the main thread executes, and their work.
        serial_total: work of all such functions.
    """

    threads: tuple[int, ...]
    serial: tuple[tuple[str, int], ...]
    serial_total: int

    @property
    def imbalance(self) -> float:
        """Largest work of a thread divided by the mean."""
        return max(self.threads) * len(self.threads) / max(sum(self.threads), 1)

    @property
    def idle(self) -> int:
        """Number of threads with less than a hundredth of the largest work of a thread."""
        return sum(100 * work < max(self.threads) for work in self.threads)

    @property
    def serial_share(self) -> float:
        """Share of all work in functions that only the main thread executes."""
        return self.serial_total / max(sum(self.threads), 1)


def thread_work(
    measured: Measurement, phase: PhaseRegions, threads: int, symbols: Symbols, core: Core | None
) -> ThreadWork:
    """Return the work of the threads in a phase.

    Args:
        measured: result of the counter.
        phase: regions of the phase.
        threads: number of threads that the guest was told to use; threads without work count, too.
        symbols: names of functions.
        core: core with the pipeline; None: weighted instructions.
    """
    costs = [
        _costs(measured.of_thread(thread), phase.regions, symbols, core)
        for thread in range(measured.threads)
    ]
    sums = [sum(cost.values()) / phase.calls for cost in costs]
    main, helpers = costs[0], {symbol for cost in costs[1:] for symbol in cost}
    serial = {s: cost / phase.calls for s, cost in main.items() if s not in helpers}
    largest = sorted(serial.items(), key=lambda item: (-item[1], item[0]))[:TOP]
    # Threads without computation, such as threads that wait for signals, come last.
    working = [sums[0], *sorted(sums[1:], reverse=True)]
    working += [0.0] * (threads - len(working))
    return ThreadWork(
        threads=tuple(map(round, working[:threads])),
        serial=tuple((symbol, round(cost)) for symbol, cost in largest),
        serial_total=round(sum(serial.values())),
    )


def _costs(
    measured: Measurement, regions: Sequence[int], symbols: Symbols, core: Core | None
) -> Mapping[str, float]:
    """Return the work of a thread by function, without functions that wait."""
    work: dict[str, float] = defaultdict(float)
    if core and core.pipeline:
        work.update(pipeline_cycles(core, measured, regions, symbols))
    else:
        weights = measured.functions(symbols, regions)
        work.update({symbol: counts.lmul_weighted for symbol, counts in weights.items()})
    return {symbol: cost for symbol, cost in work.items() if not WAITING.search(symbol)}
