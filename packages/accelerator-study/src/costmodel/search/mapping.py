# SPDX-License-Identifier: Apache-2.0
"""Reader of a search's file, whose rows are checked and estimated again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from costmodel.accelerator.hardware import Hardware
from costmodel.accelerator.scheme import Scheme, scheme_named
from costmodel.accelerator.scheme import schemes as schemes_by_name
from costmodel.errors import CostError
from costmodel.estimate.model import product_key
from costmodel.estimate.tiling import DIMENSIONS, BufferTile, Holding
from costmodel.estimate.workload import Phase
from costmodel.search.explore import MOST_PES, Accuracy, Design, Plans, arrays, row
from costmodel.search.systolic import FLOWS

LARGEST_BUFFER = 1 << 40  # bytes
EIGHTHS = 8
ANEW = "write the file again: --model MODEL --search --json FILE"
OTHER_RUN = "give the --model, --phase and --bind of the search that wrote it"


def again(
    found: Mapping[str, Any],
    phases: Sequence[Phase],
    base: Hardware,
    schemes: Sequence[Scheme],
    accuracy: Accuracy,
    wanted: Sequence[str] = (),
) -> list[dict[str, Any]]:
    """Check all rows of a search's file, then estimate them again.

    Args:
        found: the content of the file.
        phases: all phases that rows may name.
        base: accelerator whose memory system and clock all designs share.
        schemes: schemes that must occur, and that take precedence over shipped schemes.
        accuracy: measured perplexity of the model by scheme.
        wanted: names of phases that must occur.

    Raises:
        CostError: the file is damaged, or for another model, phase, accelerator or scheme.
    """
    by_name = {p.name: p for p in phases}
    typed = {s.name: s for s in schemes}
    checked = []
    for number, record in enumerate(found["fronts"]):
        where = f"--mapping: fronts[{number}]"
        if not isinstance(record, dict) or not isinstance(record.get("mapping"), dict):
            raise CostError(f"{where}: not a row of a search", remedy=ANEW)
        if record.get("phase") not in list(by_name):
            raise CostError(f"{where} is of phase {record.get('phase')!r}", remedy=OTHER_RUN)
        checked.append(_Row(where, record, by_name[record["phase"]], base, found.get("pes")))
    named = [str(r.old["scheme"]) for r in checked if _is_text(r.old.get("scheme"))]
    unused = {s for s in typed if not any(scheme_named(n, {s: typed[s]}) for n in named)}
    if checked and unused:
        raise CostError(
            f"--mapping: no row is of --scheme {', '.join(sorted(unused))}",
            remedy="leave it out: the file names its schemes",
        )
    if missing := set(wanted) - {r.phase.name for r in checked}:
        raise CostError(
            f"--mapping: no row is of --phase {', '.join(sorted(missing))}",
            remedy="leave it out, or give the --phase of the search",
        )
    calls = [(r.where, r.phase, r.scheme(typed), r.flow(), r.design(), r.plans()) for r in checked]
    rows = []
    for where, phase, scheme, flow, design, plans in calls:
        try:
            rows.append(row(phase, base, scheme, flow, design, plans, accuracy))
        except CostError as error:
            raise CostError(f"{where}: {error.what}", remedy=ANEW) from error
    return rows


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _whole(value: Any, most: int) -> bool:
    """Return True for an integer from 1 to ``most``; JSON's ``true`` is not an integer."""
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= most


def _wholes(values: Any, most: Sequence[int]) -> bool:
    """Return True for a list of as many integers as ``most`` has, each from 1 to its most."""
    right = isinstance(values, list) and len(values) == len(most)
    return right and all(map(_whole, values, most))


@dataclass(frozen=True)
class _Row:
    """A row of a search's file, with its phase."""

    where: str
    old: Any
    phase: Phase
    base: Hardware
    pes: Any = None  # most PEs of an array, by the file

    @property
    def mapping(self) -> Any:
        return self.old["mapping"]

    def _need(self, right: bool, field: str, value: Any, wanted: str) -> None:
        if not right:
            problem = f"{self.where}: {field} is {value!r}, not {wanted}"
            raise CostError(problem, remedy=ANEW)

    def scheme(self, typed: Mapping[str, Scheme]) -> Scheme:
        """Return the row's scheme by name: a scheme of ``typed``, or a shipped scheme."""
        name = self.old.get("scheme")
        self._need(_is_text(name), "scheme", name, "a name")
        return scheme_named(str(name), typed) or schemes_by_name([str(name)])[0]

    def flow(self) -> str:
        """Return the name of the row's dataflow."""
        name = self.old.get("dataflow")
        self._need(name in list(FLOWS), "dataflow", name, f"one of {', '.join(FLOWS)}")
        return str(name)

    def design(self) -> Design:
        """Return the row's design: the array and the buffer."""
        hardware = self.mapping.get("hardware")
        if hardware != self.base.name:
            remedy = f"--hardware {hardware}" if _is_text(hardware) else ANEW
            raise CostError(f"{self.where} is of hardware {hardware!r}", remedy=remedy)
        array, size = self.old.get("array"), self.mapping.get("buffer_bytes")
        right = _wholes(array, (MOST_PES, MOST_PES)) and prod(array) <= MOST_PES
        self._need(right, "array", array, f"two sides from 1 on of at most {MOST_PES} PEs")
        sides = (array[0], array[1])
        if self.pes is not None:
            if not _whole(self.pes, MOST_PES):
                raise CostError(f"--mapping: pes is {self.pes!r}, not a number", remedy=ANEW)
            wanted = f"an array that a search of {self.pes} PEs makes"
            self._need(sides in arrays(self.pes), "array", array, wanted)
        right = _whole(size, LARGEST_BUFFER)
        self._need(right, "buffer_bytes", size, f"from 1 to {LARGEST_BUFFER}")
        split = self.mapping.get("split")
        if split is None:
            return Design(sides, size)
        right = _wholes(split, (EIGHTHS,) * 3) and sum(split) == EIGHTHS
        self._need(right, "split", split, "the eighths of A, B and C")
        return Design(sides, size, tuple(split))

    def plans(self) -> Plans:
        """Return tiles and orders by product; the row must list the phase's products exactly."""
        listed = self.mapping.get("products")
        self._need(isinstance(listed, dict), "products", listed, "a mapping by product")
        wanted: dict[str, tuple[int, int, int]] = {}
        part: Phase | None = self.phase
        while part is not None:
            wanted |= {product_key(i): i.gemm.extents for i in part.items}
            part = part.beside
        if missing := [key for key in wanted if key not in listed]:
            problem = f"{self.where} maps no product {missing[0]!r}, which {self.phase.name} has"
            raise CostError(problem, remedy=OTHER_RUN)
        if further := [key for key in listed if key not in wanted]:
            problem = f"{self.where} maps {further[0]!r}, which {self.phase.name} does not have"
            raise CostError(problem, remedy=OTHER_RUN)
        return {key: self._held(key, listed[key], wanted[key]) for key in wanted}

    def _held(self, key: str, plan: Any, extents: tuple[int, ...]) -> tuple[Holding, ...]:
        """Return the tiles of a product that the memories hold, from the array outwards."""
        memories = len(self.base.levels) - 1
        right = isinstance(plan, list) and len(plan) == memories
        self._need(right, f"{key!r}", plan, f"a list of {memories}: a tile for each memory")
        holdings: list[Holding] = []
        for held in reversed(plan):
            inside: Any = held if isinstance(held, dict) else {}
            tile, order = inside.get("tile"), inside.get("order")
            wanted = f"M,N,K from 1,1,1 to {','.join(map(str, extents))}"
            self._need(_wholes(tile, extents), f"tile of {key!r}", tile, wanted)
            right = isinstance(order, list) and sorted(map(str, order)) == sorted(DIMENSIONS)
            self._need(right, f"order of {key!r}", order, "an order of m, n and k")
            extents = tuple(tile)
            holdings.append(Holding(BufferTile(*extents), tuple(order)))
        return tuple(reversed(holdings))
