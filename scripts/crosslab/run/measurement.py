# SPDX-License-Identifier: Apache-2.0
"""The plugin's report: counts of a guest, whole, between marks, by kind and by function."""

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

# In the plugin's report, as in native/counter/decode.h.
VTYPE_UNKNOWN = 64


@dataclass(frozen=True)
class Counts:
    """Executed instructions.

    Attributes:
        insns: all of them.
        vector: vector instructions, memory included, vset* not.
        vsetvl: vsetvli, vsetivli, vsetvl.
        vmem: vector loads and stores.
        lmul_weighted: the others (scalar and vset*) once, and each vector instruction with the
            LMUL in force (a fraction with 1); whole-register moves, loads and stores with
            their number of registers.
        unknown_lmul: vector instructions that ran after a vsetvl, whose vtype is in a register
            and is not followed; they weigh 1. Compilers hardly make one.
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
    """The regions of one phase of an answer.

    Attributes:
        regions: which of them.
        calls: that its figures are the mean of.
    """

    regions: tuple[int, ...]
    calls: int

    def counts(self, regions: Sequence[Counts]) -> Counts:
        """Counts of one call."""
        total = asdict(sum((regions[i] for i in self.regions), Counts()))
        return Counts(**{name: round(value / self.calls) for name, value in total.items()})


def phases_of(regions: int, prefills: int) -> tuple[PhaseRegions, PhaseRegions | None]:
    """The two phases of an answer.

    Args:
        regions: number of calls: first the prefill's, then the decode steps.
        prefills: number of the prefill's calls.

    Returns:
        the prefill's calls together, and the decode steps after the first, which also grows the
        allocator's pools; the first when it is alone; None without decode steps.
    """
    steps = regions - prefills
    first = prefills + 1 if steps > 1 else prefills
    decode = PhaseRegions(tuple(range(first, regions)), regions - first) if steps else None
    return PhaseRegions(tuple(range(prefills)), 1), decode


def phase_counts(regions: Sequence[Counts], prefills: int) -> tuple[Counts, Counts | None]:
    """Counts of the two phases: see :func:`phases_of`."""
    prefill, decode = phases_of(len(regions), prefills)
    return prefill.counts(regions), decode.counts(regions) if decode else None


@dataclass(frozen=True)
class Kind:
    """Instructions that a core's table does not distinguish.

    Attributes:
        instruction: without its registers.
        vtype: SEW and LMUL in force, vtype's lowest six bits; None: it does not depend on them, or
            they are not known (:attr:`Counts.unknown_lmul`).
    """

    instruction: Instruction
    vtype: int | None = None

    @property
    def sew(self) -> int:
        """Bits of an element in force; 0: unknown."""
        return 0 if self.vtype is None else 8 << (self.vtype >> 3 & 7)

    @property
    def lmul(self) -> Fraction:
        """Registers of a group in force; 1 where it is not known."""
        return Fraction(1) if self.vtype is None else lmul_of(self.vtype)


@cache
def lmul_of(vtype: int) -> Fraction:
    """LMUL of vtype's lowest three bits."""
    field = vtype & 7
    return Fraction(1 << field) if field < 4 else Fraction(1, 1 << (8 - field))


@dataclass
class Executed:
    """Executions of a kind.

    Attributes:
        runs: instructions.
        elements: moved by strided, indexed and segment loads and stores, fields counted each.
    """

    runs: int = 0
    elements: int = 0


# Symbol of a function (empty without a table of symbols) and a kind that it executed.
Histogram = dict[tuple[str, Kind], Executed]


@dataclass(frozen=True)
class Segment:
    """Instructions that are executed together."""

    address: int
    words: tuple[int, ...]

    def kinds(self, entry: int) -> list[Kind]:
        """Its instructions, entered with a vtype (64: unknown)."""
        vtype = None if entry == VTYPE_UNKNOWN else entry
        found = []
        for word in self.words:
            instruction = decode(word)
            if instruction.sets is not None:
                vtype = None if instruction.sets < 0 else instruction.sets
            found.append(Kind(instruction, vtype if instruction.vector else None))
        return found

    def counts(self, entry: int) -> Counts:
        """The counts of one run."""
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


# Segment, vtype at its entry, instruction whose elements these are, number. In place of the
# instruction: INDEX_RUNS, runs of all; INDEX_TRAFFIC and below, lines that caches missed. Of runs
# also the segment that ran before (-1: none), the vtype at its entry, and the thread.
Record = tuple[int, int, int, int, int, int, int]
# A segment's number and the vtype at its entry.
Node = tuple[int, int]
INDEX_RUNS, INDEX_TRAFFIC = -1, -2


@dataclass(frozen=True)
class LineTraffic:
    """Cache lines.

    Attributes:
        misses_l1: that L1 lacked.
        misses_l2: that L2 lacked, too.
        written_back: that went from L2 to memory to make place.
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
    """Result of the counter.

    Attributes:
        whole: the program from its start to its end.
        regions: one a pair of marks, in order; the marks themselves are outside.
        threads: how many ran.
        segments: the program's code by number.
        records: of each region.
    """

    whole: Counts
    regions: tuple[Counts, ...]
    threads: int
    segments: Mapping[int, Segment] = field(default_factory=dict, repr=False)
    records: tuple[Sequence[Record], ...] = field(default=(), repr=False)

    @property
    def region(self) -> Counts:
        """All regions together."""
        return sum(self.regions, Counts())

    def of_thread(self, thread: int) -> Measurement:
        """The runs of one thread in the regions; 0 is the main thread."""
        of_it = tuple(
            [one for one in records if one[2] == INDEX_RUNS and one[6] == thread]
            for records in self.records
        )
        return replace(self, records=of_it)

    def histogram(
        self, regions: Iterable[int] | None = None, symbols: Symbols | None = None
    ) -> Histogram:
        """The kinds executed in some regions (all) together, by function with symbols."""
        total: dict[tuple[int, int, int], int] = defaultdict(int)
        for segment, vtype, index, number, *_ in self._records(regions):
            total[segment, vtype, index] += number
        found: Histogram = defaultdict(Executed)
        for (number, vtype, index), times in total.items():
            code = self.segments[number]
            symbol = symbols.at(code.address) if symbols else ""
            kinds = code.kinds(vtype)
            if index >= 0:
                found[symbol, kinds[index]].elements += times
            if index != INDEX_RUNS:
                continue
            for kind in kinds:
                found[symbol, kind].runs += times
        return found

    def edges(self, regions: Iterable[int] | None = None) -> dict[tuple[Node, Node], int]:
        """How often one segment ran right after another, in some regions (all) together."""
        found: dict[tuple[Node, Node], int] = defaultdict(int)
        for segment, vtype, index, times, before, its_vtype, _ in self._records(regions):
            if index == INDEX_RUNS:
                found[(before, its_vtype), (segment, vtype)] += times
        return dict(found)

    def functions(
        self, symbols: Symbols, regions: Iterable[int] | None = None
    ) -> dict[str, Counts]:
        """Counts of each function itself, without its callees; most instructions first."""
        found: dict[str, Counts] = defaultdict(Counts)
        for segment, vtype, index, times, *_ in self._records(regions):
            if index == INDEX_RUNS:
                one = self.segments[segment]
                found[symbols.at(one.address)] += one.counts(vtype) * times
        return dict(sorted(found.items(), key=lambda item: (-item[1].insns, item[0])))

    def traffic(
        self, regions: Iterable[int], symbols: Symbols
    ) -> Iterator[tuple[str, LineTraffic]]:
        """Lines that caches missed, by function; a function comes several times."""
        for segment, _, index, lines, *_ in self._records(regions):
            if index <= INDEX_TRAFFIC:
                numbers = [0, 0, 0]
                numbers[INDEX_TRAFFIC - index] = lines
                yield symbols.at(self.segments[segment].address), LineTraffic(*numbers)

    def _records(self, regions: Iterable[int] | None) -> Iterator[Record]:
        chosen = range(len(self.records)) if regions is None else regions
        return chain.from_iterable(self.records[i] for i in chosen)


def read_measurement(table: Mapping[str, Any]) -> Measurement:
    """Read the plugin's JSON."""
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
        # Outside and inside of the marks take turns.
        regions=tuple(counts[1::2]),
        threads=table["threads"],
        segments=segments,
        records=tuple(table["stretches"][1::2]),
    )
