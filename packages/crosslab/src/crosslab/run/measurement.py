# SPDX-License-Identifier: Apache-2.0
"""The plugin's report: instruction counts of a guest, in total, between marks and by function."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from fractions import Fraction
from functools import cache
from itertools import chain
from operator import add
from typing import Any

from crosslab.run.decode import Instruction, Unit, decode
from crosslab.run.symbols import Symbols

# vtype of the plugin's report, as in native/counter/decode.h.
VTYPE_UNKNOWN = 64


@dataclass(frozen=True)
class Counts:
    """Numbers of executed instructions.

    Attributes:
        insns: all instructions.
        vector: vector instructions, including loads and stores, without vset*.
        vsetvl: vsetvli, vsetivli, vsetvl.
        vmem: vector loads and stores.
        lmul_weighted: all instructions, weighted: scalar instructions and vset* by 1, vector
            instructions by the LMUL in force (at least 1), whole-register moves, loads and stores
            by their number of registers.
        unknown_lmul: vector instructions after a vsetvl, whose vtype comes from a register and is
            not known; each weighs 1. Compilers rarely use vsetvl.
    """

    insns: int = 0
    vector: int = 0
    vsetvl: int = 0
    vmem: int = 0
    lmul_weighted: int = 0
    unknown_lmul: int = 0

    def __add__(self, other: Counts) -> Counts:
        return Counts(*map(add, self._all(), other._all()))

    def __mul__(self, times: int) -> Counts:
        return Counts(*(times * number for number in self._all()))

    def _all(self) -> tuple[int, ...]:
        kinds = (self.insns, self.vector, self.vsetvl, self.vmem)
        return (*kinds, self.lmul_weighted, self.unknown_lmul)


@dataclass(frozen=True)
class PhaseRegions:
    """The measured regions of a phase (prefill or decode) of an answer.

    Attributes:
        regions: indices of the regions.
        calls: number of calls that the mean is taken over.
    """

    regions: tuple[int, ...]
    calls: int

    def counts(self, regions: Sequence[Counts]) -> Counts:
        """Return the rounded mean counts of one call; ``regions``: the counts of all regions."""
        total = asdict(sum((regions[i] for i in self.regions), Counts()))
        return Counts(**{name: round(value / self.calls) for name, value in total.items()})


def phases_of(regions: int, prefills: int) -> tuple[PhaseRegions, PhaseRegions | None]:
    """Return the regions of an answer's prefill and decode phases.

    Args:
        regions: number of calls: first the calls of the prefill, then the decode steps.
        prefills: number of calls of the prefill.

    Returns:
        all calls of the prefill as one; and the decode steps without the first, which also grows
        the allocator's pools, unless it is the only step; None without decode steps.
    """
    steps = regions - prefills
    first = prefills + 1 if steps > 1 else prefills
    decode = PhaseRegions(tuple(range(first, regions)), regions - first) if steps else None
    return PhaseRegions(tuple(range(prefills)), 1), decode


def phase_counts(regions: Sequence[Counts], prefills: int) -> tuple[Counts, Counts | None]:
    """Return the counts of a prefill and of a mean decode step; see :func:`phases_of`."""
    prefill, decode = phases_of(len(regions), prefills)
    return prefill.counts(regions), decode.counts(regions) if decode else None


@dataclass(frozen=True)
class Kind:
    """Instructions that have the same cost in a core's table.

    Attributes:
        instruction: the instruction without its registers.
        vtype: SEW and LMUL in force, the lowest six bits of vtype; None: irrelevant for the
            instruction, or unknown (:attr:`Counts.unknown_lmul`).
    """

    instruction: Instruction
    vtype: int | None = None

    @property
    def sew(self) -> int:
        """Element width in force, in bits; 0: unknown."""
        return 0 if self.vtype is None else 8 << (self.vtype >> 3 & 7)

    @property
    def lmul(self) -> Fraction:
        """LMUL in force; 1 if unknown."""
        return Fraction(1) if self.vtype is None else lmul_of(self.vtype)


@cache
def lmul_of(vtype: int) -> Fraction:
    """Return the LMUL that the lowest three bits of vtype encode."""
    field = vtype & 7
    return Fraction(1 << field) if field < 4 else Fraction(1, 1 << (8 - field))


@dataclass
class Executed:
    """Executions of a kind of instruction.

    Attributes:
        runs: number of executed instructions.
        elements: elements moved by strided, indexed and segment loads and stores; each field
            counts.
    """

    runs: int = 0
    elements: int = 0


# By symbol of a function (empty without a symbol table) and kind of instruction in the function.
Histogram = dict[tuple[str, Kind], Executed]


@dataclass(frozen=True)
class Segment:
    """Straight-line code: instructions that are executed together."""

    address: int
    words: tuple[int, ...]

    def kinds(self, entry: int) -> list[Kind]:
        """Return the kind of each instruction, given the vtype at entry (64: unknown)."""
        vtype = None if entry == VTYPE_UNKNOWN else entry
        kinds = []
        for word in self.words:
            instruction = decode(word)
            if instruction.sets is not None:
                vtype = None if instruction.sets < 0 else instruction.sets
            kinds.append(Kind(instruction, vtype if instruction.vector else None))
        return kinds

    def counts(self, entry: int) -> Counts:
        """Return the counts of one run of the segment, given the vtype at entry."""
        sums = dict.fromkeys(("vector", "vsetvl", "vmem", "lmul_weighted", "unknown_lmul"), 0)
        for kind in self.kinds(entry):
            instruction = kind.instruction
            sums["vector"] += instruction.vector
            sums["vsetvl"] += instruction.sets is not None
            sums["vmem"] += instruction.unit is Unit.MEMORY
            whole = instruction.registers
            sums["lmul_weighted"] += whole or max(1, math.ceil(kind.lmul))
            sums["unknown_lmul"] += instruction.vector and not whole and kind.vtype is None
        return Counts(insns=len(self.words), **sums)


# Segment, vtype at entry, index, number; previous segment (-1: none), its vtype, thread. The number
# is the elements of the instruction `index`. If the index is INDEX_RUNS, it is runs of the segment;
# for INDEX_TRAFFIC and lower, missed cache lines.
Record = tuple[int, int, int, int, int, int, int]
# A segment's number and the vtype at its entry.
Node = tuple[int, int]
INDEX_RUNS, INDEX_TRAFFIC = -1, -2


@dataclass(frozen=True)
class LineTraffic:
    """Numbers of cache lines.

    Attributes:
        misses_l1: lines missing in L1.
        misses_l2: lines missing in L1 and L2.
        written_back: changed lines evicted from L2 to memory.
    """

    misses_l1: int = 0
    misses_l2: int = 0
    written_back: int = 0

    def __add__(self, other: LineTraffic) -> LineTraffic:
        return LineTraffic(
            self.misses_l1 + other.misses_l1,
            self.misses_l2 + other.misses_l2,
            self.written_back + other.written_back,
        )


@dataclass(frozen=True)
class Measurement:
    """Result of a run under the counter.

    Attributes:
        whole: counts of the whole program.
        regions: counts of the region between each pair of marks, in order, without the marks.
        threads: number of threads that ran.
        segments: the program's code segments by number.
        records: records of each region.
    """

    whole: Counts
    regions: tuple[Counts, ...]
    threads: int
    segments: Mapping[int, Segment] = field(default_factory=dict, repr=False)
    records: tuple[Sequence[Record], ...] = field(default=(), repr=False)

    @property
    def region(self) -> Counts:
        """Counts of all regions together."""
        return sum(self.regions, Counts())

    def of_thread(self, thread: int) -> Measurement:
        """Return a copy with the records of one thread's runs (0: main thread), and all counts."""
        selected = tuple(
            [record for record in records if record[2] == INDEX_RUNS and record[6] == thread]
            for records in self.records
        )
        return replace(self, records=selected)

    def histogram(
        self, regions: Iterable[int] | None = None, symbols: Symbols | None = None
    ) -> Histogram:
        """Return the executions of each kind in the regions (None: all), by function."""
        total: dict[tuple[int, int, int], int] = defaultdict(int)
        for segment, vtype, index, number, *_ in self._records(regions):
            total[segment, vtype, index] += number
        histogram: Histogram = defaultdict(Executed)
        for (number, vtype, index), times in total.items():
            code = self.segments[number]
            symbol = symbols.at(code.address) if symbols else ""
            kinds = code.kinds(vtype)
            if index >= 0:
                histogram[symbol, kinds[index]].elements += times
            if index != INDEX_RUNS:
                continue
            for kind in kinds:
                histogram[symbol, kind].runs += times
        return histogram

    def edges(self, regions: Iterable[int] | None = None) -> dict[tuple[Node, Node], int]:
        """Return how often a segment ran right after another in the regions (None: all)."""
        runs: dict[tuple[Node, Node], int] = defaultdict(int)
        for segment, vtype, index, times, before, its_vtype, _ in self._records(regions):
            if index == INDEX_RUNS:
                runs[(before, its_vtype), (segment, vtype)] += times
        return dict(runs)

    def functions(
        self, symbols: Symbols, regions: Iterable[int] | None = None
    ) -> dict[str, Counts]:
        """Return the counts of each function without callees, most instructions first."""
        counts: dict[str, Counts] = defaultdict(Counts)
        for segment, vtype, index, times, *_ in self._records(regions):
            if index == INDEX_RUNS:
                code = self.segments[segment]
                counts[symbols.at(code.address)] += code.counts(vtype) * times
        return dict(sorted(counts.items(), key=lambda item: (-item[1].insns, item[0])))

    def traffic(
        self, regions: Iterable[int], symbols: Symbols
    ) -> Iterator[tuple[str, LineTraffic]]:
        """Yield (function, missed lines) in the regions; a function can come several times."""
        for segment, _, index, lines, *_ in self._records(regions):
            if index <= INDEX_TRAFFIC:
                numbers = [0, 0, 0]
                numbers[INDEX_TRAFFIC - index] = lines
                yield symbols.at(self.segments[segment].address), LineTraffic(*numbers)

    def _records(self, regions: Iterable[int] | None) -> Iterator[Record]:
        chosen = range(len(self.records)) if regions is None else regions
        return chain.from_iterable(self.records[i] for i in chosen)


def read_measurement(table: Mapping[str, Any]) -> Measurement:
    """Read the plugin's JSON report."""
    segments = {
        int(number): Segment(address, tuple(int(word, 16) for word in words.split()))
        for number, (address, words) in table["segments"].items()
    }
    once = cache(lambda segment, vtype: segments[segment].counts(vtype))

    def counts_of(records: Sequence[Record]) -> Counts:
        return sum(
            (once(s, v) * times for s, v, i, times, *_ in records if i == INDEX_RUNS), Counts()
        )

    counts = [counts_of(records) for records in table["stretches"]]
    return Measurement(
        whole=sum(counts, Counts()),
        # Stretches alternate: outside marks, between marks.
        regions=tuple(counts[1::2]),
        threads=table["threads"],
        segments=segments,
        records=tuple(table["stretches"][1::2]),
    )
