# SPDX-License-Identifier: Apache-2.0
"""The cycle simulator, by hand and by what has to add up; the cost model against it."""

from __future__ import annotations

from dataclasses import fields, replace
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from accelerator import functional
from accelerator.device import Device, MemoryId, load_device
from accelerator.errors import AcceleratorError
from accelerator.isa.instructions import Finish, Loop, Multiply, Opcode, Queue, Tokens, Transfer
from accelerator.layer import EXACT, LinearLayer, Requantisation
from accelerator.lowering import Mapping, lower
from accelerator.mapping import best, predict
from accelerator.study import linear_layers, prove, study, utilisation
from accelerator.timing import BUSY, Cause, simulate, trace
from costmodel.estimate.workload import bind_phase, read_workloads

DEVICE = load_device("vta-1x16x16")
BATCHED = load_device("vta-16x16x16")
DEVICES = [DEVICE, BATCHED]
SMOLLM2 = Path(__file__).parent.parent / "costmodel" / "data" / "smollm2.work.json"
LATENCY, BANDWIDTH = 30, 8


def load(memory: MemoryId, elements: int, tokens: Tokens) -> Transfer:
    return Transfer(Opcode.LOAD, memory, 0, 0, 1, elements, elements, tokens=tokens)


def test_a_stream_by_hand() -> None:
    """Micro-ops and values move at once, each at half the bandwidth, then the product."""
    uop = load(MemoryId.MICRO_OP, 40, Tokens())  # 160 bytes
    inp = load(MemoryId.INPUT, 20, Tokens(push_next=True))  # 320 bytes
    gemm = Multiply(Loop(0, 10, 2, 3, 1, 1), tokens=Tokens(pop_prev=True))
    timing = simulate([uop, inp, gemm, Finish()], DEVICE)
    # 160 of each in 40 cycles, the other 160 values alone in 20; the core fills its pipeline once.
    loaded = LATENCY + 40 + 20
    assert timing.cycles == pytest.approx(loaded + 60 + 4)
    compute, values = timing.spent[Queue.COMPUTE], timing.spent[Queue.LOAD]
    assert compute[Cause.WAIT_LOAD] == pytest.approx(20)
    assert (compute[Cause.MOVE], compute[Cause.SHARING]) == pytest.approx((20, 20))
    assert (compute[Cause.MULTIPLY], compute[Cause.LATENCY]) == pytest.approx((60, LATENCY + 4))
    assert (values[Cause.MOVE], values[Cause.SHARING], values[Cause.DONE]) == pytest.approx(
        (40, 20, 64)
    )


@pytest.mark.parametrize(
    ("loop", "cycles"),
    [
        (Loop(0, 2, 3, 4, 8, 2), 24 + 4),
        (Loop(0, 2, 3, 4, 0, 2), 24 + 4),  # each sum comes again after 8 steps
        (Loop(0, 2, 3, 4, 8, 0), 3 * 4 * 5 + 4),  # after 2: it waits for the pipeline of 5
        (Loop(0, 1, 3, 1, 0, 0), 3 * 5 + 4),
    ],
)
def test_sums_that_are_added_to_again_wait_for_the_pipeline(loop: Loop, cycles: int) -> None:
    assert simulate([Multiply(loop), Finish()], DEVICE).cycles == pytest.approx(cycles)
    work = loop.steps * DEVICE.gemm_interval
    reset = simulate([Multiply(loop, reset=True), Finish()], DEVICE)
    assert reset.cycles == pytest.approx(work)


def test_a_deadlock_is_named() -> None:
    gemm = Multiply(Loop(0, 1, 1, 1), tokens=Tokens(pop_next=True))
    message = "deadlock: instruction 0 of COMPUTE waits for a token from STORE"
    with pytest.raises(AcceleratorError, match=message):
        simulate([gemm, Finish()], DEVICE)


@st.composite
def cases(draw: st.DrawFn) -> tuple[LinearLayer, Mapping, Device]:
    device = draw(st.sampled_from(DEVICES))
    extents = draw(st.tuples(st.integers(1, 150), st.integers(1, 150), st.integers(1, 150)))
    form = Requantisation(draw(st.sampled_from([1, 2, 4])), draw(st.integers(0, 15)))
    sides = (draw(st.integers(1, 9)) for _ in range(3))
    halves = draw(st.sampled_from([1, 2]))
    return LinearLayer("any", *extents, form), Mapping(*sides, draw(st.booleans()), halves), device


@settings(max_examples=40, deadline=None)
@given(cases())
def test_bytes_are_predicted_and_times_add_up(case: tuple[LinearLayer, Mapping, Device]) -> None:
    layer, mapping, device = case
    program = lower(layer, mapping, device)
    timing = simulate(program.instructions, device)
    predicted = predict(layer, mapping, device)
    assert predicted.bytes == timing.bytes
    for spent in timing.spent.values():
        assert sum(spent.values()) == pytest.approx(timing.cycles)
    moved = sum(timing.spent[q][Cause.MOVE] for q in Queue)
    assert moved * device.dram_bandwidth == pytest.approx(timing.bytes)
    assert moved <= timing.cycles * (1 + 1e-9)


def test_bytes_and_steps_are_those_of_the_functional_simulator() -> None:
    layer = LinearLayer("some", 100, 90, 200)
    program = lower(layer, Mapping(3, 4, 5), BATCHED)
    timing = simulate(program.instructions, BATCHED)
    counts = functional.run(BATCHED, program.stream, program.image())
    names = [f.name for f in fields(counts) if f.name.endswith("_bytes")]
    assert timing.bytes == sum(getattr(counts, name) for name in names)
    assert timing.spent[Queue.COMPUTE][Cause.MULTIPLY] == pytest.approx(counts.gemm_steps)
    assert timing.spent[Queue.COMPUTE][Cause.ALU] == pytest.approx(counts.alu_steps)


def test_a_trace_shows_each_instruction_once() -> None:
    program = lower(LinearLayer("some", 40, 40, 40), Mapping(2, 2, 2), BATCHED)
    timing = simulate(program.instructions, BATCHED)
    events = trace(program.instructions, timing)["traceEvents"]
    assert isinstance(events, list)
    shown = [e for e in events if e["ph"] == "X"]
    listed = sorted(e["args"]["instruction"] for e in shown)
    assert listed == list(range(len(program.instructions)))
    for queue in Queue:
        own = sorted((e["ts"], e["ts"] + e["dur"]) for e in shown if e["tid"] == queue)
        assert all(a[1] <= b[0] + 1e-6 for a, b in pairwise(own))
        assert own
    assert max(e["ts"] + e["dur"] for e in shown) == pytest.approx(timing.cycles)


def test_the_best_mapping_is_no_worse_than_others() -> None:
    layer = LinearLayer("o_proj", 128, 576, 576)
    found = best(layer, BATCHED)
    others = [Mapping(8, 4, 4), Mapping(8, 18, 4, True), Mapping(4, 36, 6), found.mapping]
    assert found.cycles <= min(predict(layer, m, BATCHED).cycles for m in others)
    with pytest.raises(AcceleratorError, match="no tile fits"):
        best(layer, replace(BATCHED, accumulator=1024))


@pytest.mark.parametrize("device", DEVICES, ids=lambda d: d.name)
@pytest.mark.parametrize("phase", ["prefill:37", "decode:64"])
def test_smollm2_is_proved_and_predicted(device: Device, phase: str) -> None:
    """Every linear layer: tokens in order, equal to numpy; bytes exact, cycles within 10 %."""
    name, _, size = phase.partition(":")
    layers = linear_layers(bind_phase(read_workloads(SMOLLM2), name, int(size), {}))
    assert {layer.name for layer, _ in layers} == {
        *("qkv_proj", "o_proj", "gate_up_proj", "down_proj", "lm_head")
    }
    for layer, count in layers:
        found = study(layer, count, device)
        assert found.predicted.bytes == found.timing.bytes
        assert abs(found.cycle_error) < 0.1
        assert found.timing.utilisation >= found.single.utilisation
        if phase.startswith("prefill") or layer.name != "lm_head":
            prove(found.program)


def test_the_core_is_busy_in_a_long_prefill() -> None:
    phase = bind_phase(read_workloads(SMOLLM2), "prefill", 512, {})
    studied = [study(layer, n, BATCHED) for layer, n in linear_layers(phase, EXACT)]
    assert utilisation(studied) > 0.85
    assert utilisation(studied, single=True) < 0.6
    busy = studied[0].timing.spent[Queue.COMPUTE]
    assert sum(busy[cause] for cause in BUSY) < studied[0].timing.cycles
