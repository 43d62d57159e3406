# SPDX-License-Identifier: Apache-2.0
"""Volumes: the golden table, and both engines against brute force on random dataflows."""

from __future__ import annotations

import oracle
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from costmodel.accelerator.dataflow import Dataflow, count
from costmodel.counting.affine import Affine, constant, floor_div, modulo, variable
from costmodel.counting.closed_form import lower
from costmodel.counting.enumeration import enumerate_all
from costmodel.counting.extrapolation import NoPolynomialError, extrapolate
from costmodel.counting.relations import Line
from costmodel.counting.space import (
    Access,
    Box,
    Fabric,
    NonSeparableMapError,
    NotInjectiveError,
    OutsideArrayError,
    SpaceTime,
)
from costmodel.errors import CostError

ROW, COL, RED = variable("i"), variable("j"), variable("k")
SYSTOLIC = Fabric((8, 8), ((-1, 0), (0, -1)))
OPERANDS = (
    Access("A", ((ROW, RED),)),
    Access("B", ((RED, COL),)),
    Access("C", ((ROW, COL),)),
)
OUTPUT_STATIONARY = SpaceTime(
    (modulo(ROW, 8), modulo(COL, 8)),
    (floor_div(ROW, 8), floor_div(COL, 8), modulo(ROW, 8) + modulo(COL, 8) + RED),
)
WEIGHT_STATIONARY = SpaceTime(
    (modulo(RED, 8), modulo(COL, 8)),
    (floor_div(COL, 8), floor_div(RED, 8), ROW + modulo(COL, 8) + modulo(RED, 8)),
)
SINGLE = Access("one", ((),))  # an element for all instances
SETTINGS = settings(
    max_examples=120, deadline=None, suppress_health_check=[HealthCheck.filter_too_much]
)


def cube(size: int) -> Box:
    return Box.of({"i": size, "j": size, "k": size})


@pytest.mark.parametrize(
    ("size", "mapping", "stamps", "volumes"),
    [
        (32, OUTPUT_STATIONARY, 736, (4096, 4096, 1024)),
        (64, OUTPUT_STATIONARY, 4992, (32768, 32768, 4096)),
        (64, WEIGHT_STATIONARY, 4992, (32768, 4096, 32768)),
        (256, OUTPUT_STATIONARY, 276480, (2097152, 2097152, 65536)),
        (256, WEIGHT_STATIONARY, 276480, (2097152, 65536, 2097152)),
    ],
)
def test_golden_table(size: int, mapping: SpaceTime, stamps: int, volumes: tuple[int, ...]) -> None:
    counters = [lower(cube(size), mapping, SYSTOLIC, operand) for operand in OPERANDS]
    assert [counter.occupancy().stamps for counter in counters] == [stamps] * 3
    assert tuple(counter.unique() for counter in counters) == volumes


def test_large_gemm_counts_as_the_formula_of_full_tiles() -> None:
    counters = [lower(cube(4096), OUTPUT_STATIONARY, SYSTOLIC, operand) for operand in OPERANDS]
    tiles = (4096 // 8) ** 2
    occupancy = counters[0].occupancy()
    assert occupancy.instances == 4096**3
    assert occupancy.stamps == tiles * (4096 + 14)
    assert occupancy.busiest == tiles * 4096
    moved = [counter.unique() for counter in counters]
    assert moved == [tiles * 8 * 4096, tiles * 8 * 4096, 4096**2]


@st.composite
def tiled_dataflow(draw: st.DrawFn) -> tuple[Box, SpaceTime]:
    """Loops tiled, permuted, skewed and spread over one to three PE axes."""
    names = ("i", "j", "k", "b")[: draw(st.integers(2, 4))]
    domain = Box.of({n: draw(st.integers(1, 5)) for n in names})
    inner, outer = [], []
    for name in names:
        cut = draw(st.integers(1, 3))
        inner.append(modulo(variable(name), cut))
        outer.append(floor_div(variable(name), cut))
    axes = draw(st.integers(1, min(3, len(names))))
    chosen = draw(st.permutations(range(len(names))))
    space = tuple(inner[n] for n in chosen[:axes])
    loops = [*outer, *(inner[n] for n in chosen[axes:])]
    loops = list(draw(st.permutations(loops)))
    last = loops.pop()
    for form in space:
        last += form.scaled(draw(st.integers(-1, 1)))
    return domain, SpaceTime(space, (*loops, last))


@st.composite
def affine_dataflow(draw: st.DrawFn) -> tuple[Box, SpaceTime]:
    """Small random combinations, most of which no closed form is for."""
    names = ("i", "j", "k")
    domain = Box.of({n: draw(st.integers(1, 4)) for n in names})

    def form() -> Affine:
        total = constant(0)
        for name in names:
            total += variable(name).scaled(draw(st.integers(-1, 2)))
        return total

    space = (modulo(form(), 3), modulo(form(), 4))
    return domain, SpaceTime(space, tuple(form() for _ in range(draw(st.integers(1, 3)))))


@st.composite
def accesses(draw: st.DrawFn, domain: Box) -> tuple[Access, ...]:
    subsets = st.lists(st.sampled_from(domain.names), max_size=3, unique=True)
    found = [Access("A", (tuple(variable(n) for n in draw(subsets)),))]
    name = draw(st.sampled_from(domain.names))
    cut = draw(st.integers(1, 3))
    found.append(Access("S", ((floor_div(variable(name), cut),),)))
    found.append(Access("P", (tuple(variable(n) for n in draw(subsets)),), (name,)))
    found.append(Access("W", ((variable(domain.names[0]) + variable(domain.names[1]),),)))
    return tuple(found)


FEEDS = st.lists(
    st.tuples(st.integers(-1, 1), st.integers(-1, 1)).filter(any), max_size=3, unique=True
)


def fabric_for(mapping: SpaceTime, feeds: list[tuple[int, int]], lanes: int) -> Fabric:
    axes = len(mapping.space)
    moves = {(*f, 0)[:axes] for f in feeds}
    return Fabric((4,) * axes, tuple(sorted(m for m in moves if any(m))), lanes)


@SETTINGS
@given(st.data(), tiled_dataflow(), FEEDS)
def test_closed_form_equals_brute_force(
    data: st.DataObject, flow: tuple[Box, SpaceTime], feeds: list[tuple[int, int]]
) -> None:
    domain, mapping = flow
    lanes = oracle.multiplicity(domain, mapping)
    fabric = fabric_for(mapping, feeds, lanes)
    tensors = data.draw(accesses(domain))
    try:
        counters = [lower(domain, mapping, fabric, access) for access in tensors]
        (occupancy,) = {counter.occupancy() for counter in counters}
        volumes = [counter.unique() for counter in counters]
    except NonSeparableMapError:
        assume(False)
    load = oracle.busiest(domain, mapping)
    assert occupancy.stamps == len(oracle.stamps(domain, mapping))
    assert occupancy.active_pes == len(load)
    assert occupancy.busiest == -(-max(load.values()) // occupancy.lanes)
    assert volumes == [oracle.unique(domain, mapping, fabric, a) for a in tensors]


@SETTINGS
@given(st.data(), st.one_of(tiled_dataflow(), affine_dataflow()), FEEDS)
def test_enumeration_equals_brute_force(
    data: st.DataObject, flow: tuple[Box, SpaceTime], feeds: list[tuple[int, int]]
) -> None:
    domain, mapping = flow
    fabric = fabric_for(mapping, feeds, oracle.multiplicity(domain, mapping))
    tensors = data.draw(accesses(domain))
    for access in tensors:
        everything = enumerate_all(domain, mapping, fabric, access)
        assert everything.occupancy().stamps == len(oracle.stamps(domain, mapping))
        assert everything.unique() == oracle.unique(domain, mapping, fabric, access)


@SETTINGS
@given(st.one_of(tiled_dataflow(), affine_dataflow()))
def test_engines_agree_on_what_is_injective(flow: tuple[Box, SpaceTime]) -> None:
    domain, mapping = flow
    fabric = fabric_for(mapping, [], 1)
    injective = oracle.multiplicity(domain, mapping) == 1
    try:
        counter = lower(domain, mapping, fabric, SINGLE)
    except NonSeparableMapError:
        assume(False)
    try:
        counter.occupancy()
        found = True
    except NotInjectiveError as clash:
        found = False
        assert clash.first != clash.second
        assert oracle.place_and_time(mapping, clash.first) == oracle.place_and_time(
            mapping, clash.second
        )
    assert found == injective


def test_a_place_outside_the_array_is_refused() -> None:
    mapping = SpaceTime((ROW, modulo(COL, 8)), (COL, RED))
    engine = lower(cube(9), mapping, SYSTOLIC, SINGLE)
    with pytest.raises(OutsideArrayError, match="from 0 to 8, the array has 8"):
        engine.occupancy()
    with pytest.raises(OutsideArrayError, match="from 0 to 8, the array has 8"):
        enumerate_all(cube(9), mapping, SYSTOLIC, SINGLE)


def test_a_stencil_is_counted_by_enumeration() -> None:
    domain = Box.of({"i": 9, "j": 9})
    mapping = SpaceTime((modulo(ROW, 8), modulo(COL, 8)), (floor_div(ROW, 8), floor_div(COL, 8)))
    around = Access("A", ((ROW, COL), (ROW + constant(1), COL), (ROW - constant(1), COL)))
    everything = enumerate_all(domain, mapping, SYSTOLIC, around)
    assert everything.unique() == oracle.unique(domain, mapping, SYSTOLIC, around)


def test_a_clash_says_how_many_lanes_would_do_and_they_do() -> None:
    space = Line("S[i,j] -> PE[(i+j)%R]", "flow")
    flow = Dataflow("clash", space, Line("S[i,j] -> T[i/4, j/R]", "flow"), ())
    box, access = Box.of({"i": 16, "j": 16}), Access("X", ((variable("i"), variable("j")),))
    bound = flow.bind(Fabric((4,), ()))
    with pytest.raises(CostError, match="share a PE and a time stamp") as told:
        count(flow, box, bound.mapping, Fabric((4,), ()), (access,))
    needed = int(str(told.value).rsplit("--macs-per-pe ", 1)[1])
    assert needed == 4
    assert count(flow, box, bound.mapping, Fabric((4,), (), needed), (access,)).unique["X"] == 256


def test_extrapolation_is_exact_for_polynomials_and_refuses_others() -> None:
    def area(box: tuple[int, ...]) -> dict[str, int]:
        return {"points": box[0] * box[1] + box[0] // 4}

    assert extrapolate((4003, 77), (4, 1), area) == area((4003, 77))
    with pytest.raises(NoPolynomialError):
        extrapolate((4003, 77), (1, 1), area)
