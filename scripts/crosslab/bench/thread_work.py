# SPDX-License-Identifier: Apache-2.0
"""The work of each thread in a phase, without its waiting for the others."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from crosslab.cores.core import Core
from crosslab.cores.pipeline import pipeline_cycles
from crosslab.run.measurement import Measurement, PhaseRegions
from crosslab.run.symbols import Symbols

# Functions that wait for work or for the end of others' work. The emulator runs the threads on few
# processors, so that their waiting there is not that of a board.
WAITING = re.compile(
    r"ThreadPool|SpscTaskQueue|ParallelLaunch|[Yy]ield|futex|pthread_(cond|mutex)|lll_"
)
TOP = 3


@dataclass(frozen=True)
class ThreadWork:
    """The work of each thread, as the mean of the calls of a phase.

    Attributes:
        threads: cycles of the core's pipeline, or instructions weighted by LMUL without one; the
            main thread first.
        serial: functions that the main thread alone executes and that cost most, and their work.
        serial_total: work of all such functions.
    """

    threads: tuple[int, ...]
    serial: tuple[tuple[str, int], ...]
    serial_total: int

    @property
    def imbalance(self) -> float:
        """The largest thread's work over the mean."""
        return max(self.threads) * len(self.threads) / max(sum(self.threads), 1)

    @property
    def idle(self) -> int:
        """Threads that did less than a hundredth of the largest one's work."""
        return sum(100 * work < max(self.threads) for work in self.threads)

    @property
    def serial_share(self) -> float:
        """Part of all work that the main thread alone does."""
        return self.serial_total / max(sum(self.threads), 1)


def thread_work(
    measured: Measurement, phase: PhaseRegions, threads: int, symbols: Symbols, core: Core | None
) -> ThreadWork:
    """The work of the threads in a phase.

    Args:
        measured: result of the counter.
        phase: its regions.
        threads: that the guest was told to use; those that did nothing count, too.
        symbols: names of functions.
        core: whose pipeline's cycles are wanted.
    """
    costs = [
        _costs(measured.of_thread(thread), phase.regions, symbols, core)
        for thread in range(measured.threads)
    ]
    sums = [sum(cost.values()) / phase.calls for cost in costs]
    main, helpers = costs[0], {symbol for cost in costs[1:] for symbol in cost}
    serial = {s: cost / phase.calls for s, cost in main.items() if s not in helpers}
    largest = sorted(serial.items(), key=lambda item: (-item[1], item[0]))[:TOP]
    # Threads of the program that compute nothing, as those that wait for signals, come last.
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
    """Work of one thread by function, without those that wait."""
    found: dict[str, float] = defaultdict(float)
    if core and core.pipeline:
        found.update(pipeline_cycles(core, measured, regions, symbols))
    else:
        weights = measured.functions(symbols, regions)
        found.update({symbol: counts.lmul_weighted for symbol, counts in weights.items()})
    return {symbol: cost for symbol, cost in found.items() if not WAITING.search(symbol)}
