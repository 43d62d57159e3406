# SPDX-License-Identifier: Apache-2.0
"""The scheduler of kernels' loops: orders keep dependences, registers hold one value at a time."""

from __future__ import annotations

import pytest

from crosslab.assemble.kernel_list import KERNELS
from crosslab.cores.core import CORES, Core, core_names, read_core
from crosslab.errors import LabError
from crosslab.loops.code import Bank, Loop
from crosslab.loops.library import HEADS, WINDOWS, Described, functions, read_loops
from crosslab.loops.machine import Machine
from crosslab.loops.registers import allocate, available, pinned
from crosslab.loops.schedule import Scheduler

# Longer ones are of the same kind, and take seconds.
LONGEST = 300
DESCRIBED = {one.name: one for one in read_loops(KERNELS / "loops")}
X60 = read_core(CORES, "spacemit-x60")


def described(name: str) -> Loop:
    loop = Loop(DESCRIBED[name].lmuls[0])
    DESCRIBED[name].describe(loop)
    return loop


SHORT = [name for name in DESCRIBED if len(described(name).body) <= LONGEST]


def scheduler(loop: Loop, core: Core = X60) -> Scheduler:
    registers = {bank: len(names) for bank, names in available(loop).items()}
    return Scheduler(loop.body, Machine(core), pinned(loop), registers)


@pytest.mark.parametrize("name", SHORT)
def test_orders_keep_dependences(name: str) -> None:
    of = scheduler(described(name))
    for order in of.orders(HEADS[:2], WINDOWS[:2]):
        # Place of each instruction of iteration 0, where a pass has as many places as instructions.
        place = {
            op.number: at - (len(order.ops) if op.number in order.ahead else 0)
            for at, op in enumerate(order.ops)
        }
        assert sorted(place) == list(range(len(order.ops)))
        for edge in of.edges:
            assert place[edge.first] < place[edge.later] + edge.distance * len(order.ops)


@pytest.mark.parametrize("name", SHORT)
def test_a_register_holds_one_value_at_a_time(name: str) -> None:
    loop = described(name)
    order = next(o for o in scheduler(loop).orders(HEADS, WINDOWS) if allocate(loop, o))
    registers = allocate(loop, order)
    assert registers is not None
    holds: dict[str, object] = {}
    ops = [*loop.before, *(op for op in order.ops if op.number in order.ahead)]
    ops += [*order.ops, *order.ops, *(o for o in order.ops if o.number not in order.ahead)]
    for op in [*ops, *loop.after]:
        written = {getattr(place, "value", place) for place in op.writes}
        read = {getattr(place, "value", place) for place in op.reads}
        for value in op.values():
            names = [registers[value]]
            if value.bank is Bank.VECTOR:
                number = int(registers[value][1:])
                names = [f"v{i}" for i in range(number, number + value.size)]
            for one in names:
                if value in read:
                    assert holds[one] is value, op
                if value in written:
                    holds[one] = value


@pytest.mark.parametrize("core", ["xuantie-c908", "tenstorrent-ascalon-x", "sifive-x280"])
def test_each_core_gets_its_loop(core: str) -> None:
    text = functions(DESCRIBED["mlc_i8_scaled_3"], read_core(CORES, core))
    assert "static void mlc_i8_scaled_3_m4(" in text


def test_a_loop_without_an_order_for_a_core_gets_one_for_another() -> None:
    text = functions(DESCRIBED["mlc_q4_row_1"], read_core(CORES, "xuantie-c920"))
    assert text.startswith("// No order for XuanTie C920")
    assert "static void mlc_q4_row_1_m8(" in text


@pytest.mark.thorough
@pytest.mark.parametrize("core", core_names(CORES))
def test_every_core_gets_every_loop(core: str) -> None:
    for name, described in DESCRIBED.items():
        assert f"static void {name}_m" in functions(described, read_core(CORES, core))


def test_a_loop_that_needs_too_many_registers_is_an_error() -> None:
    def describe(k: Loop) -> None:
        (x,) = k.pointers(x="const float *")
        (e32,) = k.widths("lanes", 32)
        with k.repeat("times"):
            vectors = [e32.load("vle32.v", x) for _ in range(5)]
            for i in range(10):
                e32.put("vfadd.vv", vectors[i % 5], vectors[i % 5], vectors[(i + 1) % 5])

    with pytest.raises(LabError, match="the loop crowded needs more registers"):
        functions(Described("crowded", (8,), describe), X60)
