# SPDX-License-Identifier: Apache-2.0
"""The closed form of double buffering against a walk over every step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import permutations, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from costmodel.accelerator.hardware import Level, load_hardware
from costmodel.accelerator.scheme import FLOAT16, SCHEMES, Scheme
from costmodel.estimate.pipeline import State, duration, many_steps, steps
from costmodel.estimate.tiling import DIMENSIONS, BufferTile, Holding

DRAM = replace(load_hardware("edge8x8").levels[-1], read=13.0, write=7.0)
ORDERS = list(permutations(DIMENSIONS))
SCHEME = st.sampled_from([FLOAT16, SCHEMES["int4-g32"], SCHEMES["int8-token"]])


def work(m: int, n: int, k: int) -> int:
    return m * n * k // 8 + 5


def walk(
    region: State, held: Holding, scheme: Scheme, on_chip: str, level: Level, double: bool, b: int
) -> tuple[float, float, float]:
    """Cycles, bits read and written of ``b`` products, tile by tile."""
    size = dict(zip(DIMENSIONS, held.tile, strict=True))
    extents = dict(zip(DIMENSIONS, region[:3], strict=True))
    loops = [range(0, extents[d], size[d]) for d in held.order]
    listed = [dict(zip(held.order, at, strict=True)) for at in product(*loops)]
    fetch, store, compute = [], [], []
    for step, at in enumerate(listed):
        m, n, k = (min(size[d], extents[d] - at[d]) for d in DIMENSIONS)

        def moved(dimensions: Sequence[str], other: int, now: dict[str, int] = at) -> bool:
            if not 0 <= other < len(listed):
                return True
            return any(now[d] != listed[other][d] for d in dimensions)

        new, done = at["k"] == 0 and region[3], at["k"] + size["k"] >= extents["k"] and region[4]
        bits = scheme.activation_bits(m, k) * moved("mk", step - 1) * ("A" not in on_chip)
        bits += scheme.weight_bits(k, n) * moved("nk", step - 1) * ("B" not in on_chip)
        held_back = "C" not in on_chip
        bits += m * n * scheme.accumulator * (moved("mn", step - 1) and not new) * held_back
        width = scheme.output if done else scheme.accumulator
        fetch.append(bits)
        store.append(m * n * width * moved("mn", step + 1) * held_back)
        compute.append(work(m, n, k))
    fetch, store, compute = fetch * b, store * b, compute * b
    if not double:
        alone = [f / level.read + s / level.write for f, s in zip(fetch, store, strict=True)]
        return sum(alone) + sum(compute), sum(fetch), sum(store)
    time = float(level.cycles(fetch[0], 0)) + float(level.cycles(0, store[-1]))
    for f, s, c in zip([*fetch[1:], 0], [0, *store[:-1]], compute, strict=True):
        time += max(c, float(level.cycles(f, s)))
    return time, sum(fetch), sum(store)


@settings(max_examples=120, deadline=None)
@given(
    st.tuples(st.integers(1, 21), st.integers(1, 17), st.integers(1, 19)),
    st.tuples(st.integers(1, 8), st.integers(1, 8), st.integers(1, 8)),
    st.sampled_from(ORDERS),
    SCHEME,
    st.sampled_from(["", "A", "C"]),
    st.tuples(st.booleans(), st.booleans(), st.booleans(), st.booleans()),
    st.integers(1, 5),
)
def test_the_closed_form_is_the_walk(
    extents: tuple[int, int, int],
    tile: tuple[int, int, int],
    order: tuple[str, ...],
    scheme: Scheme,
    on_chip: str,
    flags: tuple[bool, bool, bool, bool],
    batch: int,
) -> None:
    level = replace(DRAM, shared=flags[0])
    region = (*extents, flags[2], flags[3])
    held = Holding(BufferTile(*(min(t, e) for t, e in zip(tile, extents, strict=True))), order)
    found = steps(region, held, scheme, frozenset(on_chip))
    time = duration(found, work(found.m, found.n, found.k), level, flags[1], batch)
    wanted = walk(region, held, scheme, on_chip, level, flags[1], batch)
    moved = found.moved() * batch
    given = (float(time[0]), moved.read, moved.write)
    assert given == pytest.approx(wanted, rel=1e-12)


def test_many_mappings_are_each_one_alone() -> None:
    region = (20, 18, 27, True, True)
    tiles = [np.array(side) for side in ([3, 20, 7], [18, 4, 5], [2, 9, 27])]
    orders = np.array([[0, 1, 2], [2, 0, 1], [1, 2, 0]]).T
    together = many_steps(region, tiles, orders, FLOAT16, frozenset())
    times = duration(together, work(together.m, together.n, together.k), DRAM, True, 2)
    for n in range(3):
        order = tuple(DIMENSIONS[d] for d in orders[:, n])
        held = Holding(BufferTile(*(int(side[n]) for side in tiles)), order)
        alone = walk(region, held, FLOAT16, "", DRAM, True, 2)[0]
        assert times[n] == pytest.approx(alone, rel=1e-12)
