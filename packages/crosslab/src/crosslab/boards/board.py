# SPDX-License-Identifier: Apache-2.0
"""A board: clusters of cores, their memory, and the time of work that threads share."""

from __future__ import annotations

import math
import tomllib
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from crosslab.cores.core import CORES
from crosslab.errors import UserError

BOARDS = CORES / "boards"
Units = tuple[tuple[str, float], ...]


@dataclass(frozen=True)
class Cluster:
    """Cores that share a second-level cache.

    Attributes:
        cpus: number of cores.
        l1: bytes of a core's data cache.
        l2: bytes of the shared cache.
    """

    cpus: int
    l1: int
    l2: int


@dataclass(frozen=True)
class Memory:
    """Seconds of a cache line; the prefetcher's effect is in them.

    Attributes:
        latency: wait of one core for a line of a long stream in huge pages, without other cores.
        queue: time in which the memory serves one line; each thread waits for one line of each
            thread.
        page: further wait in pages of 4 KiB: the TLB's walk, and the prefetcher's new start.
        l2: wait of a core for a line that misses L1, during which it does not compute; 0: it
            computes meanwhile.
    """

    latency: float
    queue: float
    page: float
    l2: float


@dataclass(frozen=True)
class Layout:
    """Layout of a board: its core, caches and clusters.

    Attributes:
        core: key of the core's file.
        line: bytes of a cache line.
        clusters: clusters in the order in which threads fill them.
        measure: measure of the kernels' cycles, as in ``kernels.csv``.
    """

    core: str
    line: int
    clusters: tuple[Cluster, ...]
    measure: str = "pipeline"

    def shares_l2(self, threads: int) -> int:
        """Return how many of the threads share the L2 of the first cluster."""
        return min(threads, self.clusters[0].cpus)


@dataclass(frozen=True)
class Board:
    """A board with identical cores.

    Attributes:
        key: name of its file.
        name: full name.
        layout: core and caches.
        clock: clock under load, in Hz.
        memory: seconds of a line.
        barrier: seconds that all threads wait for each other after an operation, for each thread.
        scale: true cycles of products divided by those of the core's model.
        units: names of matrix units, and cycles of a multiply-add in a prompt.
        fitted: parameters that were fitted to published rows, as ``memory.page`` or ``scale``.
        source: source of the other parameters.
        compatible: beginnings of the names by which Linux knows the chip
            (``/proc/device-tree/compatible``).
    """

    key: str
    name: str
    layout: Layout
    clock: float
    memory: Memory
    barrier: float
    source: str
    scale: float = 1.0
    units: Units = ()
    fitted: tuple[str, ...] = ()
    compatible: tuple[str, ...] = ()

    @property
    def core(self) -> str:
        """Key of the core's file."""
        return self.layout.core

    @property
    def cpus(self) -> int:
        """Number of cores."""
        return sum(cluster.cpus for cluster in self.layout.clusters)

    def line_seconds(self, threads: int, *, huge_pages: bool = False) -> float:
        """Return the seconds in which each of the threads gets a line from memory.

        Args:
            threads: number of threads.
            huge_pages: the line lies in a huge page.
        """
        memory = self.memory
        return memory.latency + threads * memory.queue + memory.page * (not huge_pages)

    def seconds(self, work: Work, threads: int, *, huge_pages: bool = False) -> float:
        """Return the seconds of work that threads share.

        A core computes, and waits for each line that misses L1; beside it, memory delivers lines to
        L2. The longer of both counts.

        Args:
            work: work of the busiest thread.
            threads: number of threads.
            huge_pages: weights lie in huge pages.
        """
        cycles = work.cycles + work.products * self.scale
        if work.unit:
            cycles += work.unit_adds * dict(self.units)[work.unit]
        missed = work.memory_lines + work.cache_lines + work.l2_lines
        computing = cycles / self.clock + missed * self.memory.l2
        waiting = work.memory_lines * self.line_seconds(threads, huge_pages=huge_pages)
        waiting += work.cache_lines * self.line_seconds(threads)
        return max(computing, waiting) + work.barriers * self.barrier * threads

    def with_parameter(self, name: str, value: float) -> Board:
        """Return the board with another value of a parameter, named as in ``fitted``."""
        part, _, rest = name.rpartition(".")
        fields: dict[str, Any] = {rest: value}
        if part == "memory":
            return replace(self, memory=replace(self.memory, **fields))
        if part == "units":
            units = {**dict(self.units), rest: value}
            return replace(self, units=tuple(units.items()))
        return replace(self, **fields)

    def parameter(self, name: str) -> float:
        """Return the value of a parameter, named as in ``fitted``."""
        part, _, rest = name.rpartition(".")
        if part == "units":
            return dict(self.units)[rest]
        return float(getattr(self.memory if part == "memory" else self, rest))


@dataclass(frozen=True)
class Work:
    """Work of the busiest thread.

    Attributes:
        cycles: cycles by the core's model, without those of products.
        products: cycles of products by the core's model.
        unit: name of a matrix unit; empty: none is used.
        unit_adds: multiply-adds on the unit.
        memory_lines: cache lines from memory, without those of the KV cache.
        cache_lines: cache lines of the KV cache from memory; they lie in pages of 4 KiB.
        l2_lines: cache lines that miss L1 and hit L2.
        barriers: number of times that all threads wait for each other.
    """

    cycles: float = 0.0
    products: float = 0.0
    unit: str = ""
    unit_adds: float = 0.0
    memory_lines: float = 0.0
    cache_lines: float = 0.0
    l2_lines: float = 0.0
    barriers: float = 0.0


def _check_numbers(board: Board) -> None:
    """Raise ValueError if a value of a board's file is not a number in its range."""
    layout, memory = board.layout, board.memory
    if not layout.clusters:
        raise ValueError("there is no [[cluster]]")
    sizes = [("clock", board.clock), ("line", layout.line), ("scale", board.scale), *board.units]
    for cluster in layout.clusters:
        sizes += asdict(cluster).items()
    for name, value in (*sizes, ("barrier", board.barrier), *asdict(memory).items()):
        if type(value) not in (int, float) or not 0 <= value < math.inf:
            raise ValueError(f"{name} is {value!r}, not a number of 0 or more")
    if zeros := [name for name, value in sizes if value == 0]:
        raise ValueError(f"{zeros[0]} is 0")


@cache
def read_boards(folder: Path = BOARDS) -> tuple[Board, ...]:
    """Read all boards, sorted by file name.

    Raises:
        UserError: a file is malformed.
    """
    return tuple(map(_read, sorted(folder.glob("*.toml"))))


def _read(file: Path) -> Board:
    try:
        table: dict[str, Any] = tomllib.loads(file.read_text(encoding="utf-8"))
        clusters = tuple(Cluster(**entry) for entry in table.pop("cluster"))
        table["layout"] = Layout(table.pop("core"), table.pop("line"), clusters)
        table["memory"] = Memory(**table["memory"])
        table["units"] = tuple(table.get("units", {}).items())
        for name in ("fitted", "compatible"):
            if not isinstance(names := table.get(name, []), list):
                raise TypeError(f"{name} is {names!r}, not a list of names")
            table[name] = tuple(names)
        board = Board(**table, key=file.stem)
        _check_numbers(board)
        for name in board.fitted:
            board.parameter(name)
        return board
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise UserError(
            f"{file} is malformed: {error}", remedy="cores/README.md describes a board's file"
        ) from error
