# SPDX-License-Identifier: Apache-2.0
"""The cycle simulator, by hand and by what has to add up; the cost model against it."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass, fields, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from accelerator import functional
from accelerator.device import Device, MemoryId, load_device
from accelerator.errors import AcceleratorError
from accelerator.isa.instructions import (
    Finish,
    Loop,
    Multiply,
    Opcode,
    Queue,
    Tokens,
    Transfer,
    queue_of,
)
from accelerator.layer import EXACT, LinearLayer, Requantisation
from accelerator.lowering import lower
from accelerator.mapping import best, predict
from accelerator.program import Mapping
from accelerator.study import products, prove, study, utilisation
from accelerator.timing import Cause, simulate, timeline
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


@dataclass(frozen=True)
class Slice:
    """A complete event, its times in nanoseconds, as trace processors keep them."""

    name: str
    begin: int
    end: int
    args: dict[str, Any]


def read_trace(text: str) -> dict[str, list[Slice]]:
    """Slices by thread, after the rules of the Trace Event Format (Google, 2016).

    Only what it says of complete events ("X") and metadata ("M") is taken, nothing of what wrote
    it: keys and their types, a name for each thread, and slices of a thread that do not overlap.
    """

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    found = json.loads(text, parse_constant=refuse)
    assert found["displayTimeUnit"] in ("ms", "ns")
    names: dict[tuple[int, int], str] = {}
    slices: dict[tuple[int, int], list[Slice]] = {}
    for event in found["traceEvents"]:
        thread = (event["pid"], event["tid"])
        assert all(type(number) is int for number in thread)
        assert isinstance(event["name"], str)
        if event["ph"] == "M":
            assert event["name"] == "thread_name"
            assert thread not in names
            names[thread] = event["args"]["name"]
            continue
        assert event["ph"] == "X"
        assert isinstance(event["args"], dict)
        times = [event["ts"], event["dur"]]
        assert all(type(time) in (int, float) and time >= 0 for time in times)
        whole = [round(time * 1000) for time in times]
        assert [nano / 1000 for nano in whole] == times
        slices.setdefault(thread, []).append(
            Slice(event["name"], whole[0], sum(whole), event["args"])
        )
    assert slices.keys() == names.keys()
    for listed in slices.values():
        listed.sort(key=lambda each: (each.begin, each.end))
        assert all(a.end <= b.begin for a, b in pairwise(listed))
    return {names[thread]: listed for thread, listed in slices.items()}


@pytest.mark.parametrize("device", DEVICES, ids=lambda d: d.name)
@pytest.mark.parametrize("extents", [(40, 40, 40), (111, 37, 64), (3, 300, 70)])
def test_a_trace_is_read_by_the_formats_rules(
    device: Device, extents: tuple[int, int, int]
) -> None:
    program = lower(LinearLayer("some", *extents), Mapping(2, 2, 2), device)
    timing = simulate(program.instructions, device)
    once = ("some", program.instructions, timing)
    twice = read_trace(json.dumps(timeline([once, once])))
    first, second = twice["layer"]
    assert (first.name, second.begin) == ("some", first.end)
    tracks = read_trace(json.dumps(timeline([once])))
    del tracks["layer"]
    assert tracks.keys() == {queue.name for queue in Queue}
    assert all(len(twice[name]) == 2 * len(track) for name, track in tracks.items())
    shown = [each for track in tracks.values() for each in track]
    listed = sorted(each.args["instruction"] for each in shown)
    assert listed == list(range(len(program.instructions)))
    assert max(each.end for each in shown) / 1000 == pytest.approx(timing.cycles, abs=1e-3)
    waiting = (Cause.WAIT_LOAD, Cause.WAIT_COMPUTE, Cause.WAIT_STORE, Cause.DONE)
    for queue in Queue:
        track, spent = tracks[queue.name], timing.spent[queue]
        running = sum(each.end - each.begin for each in track) / 1000
        gaps = sum(b.begin - a.end for a, b in pairwise(track)) / 1000 + track[0].begin / 1000
        idle = sum(spent[cause] for cause in waiting)
        # Each end is rounded to a thousandth.
        near = 1e-3 * (len(track) + 1)
        assert running == pytest.approx(timing.cycles - idle, abs=near)
        assert gaps == pytest.approx(idle - spent[Cause.DONE], abs=near)
        for each in track:
            instruction = program.instructions[each.args["instruction"]]
            assert queue_of(instruction) is queue
            if isinstance(instruction, Multiply):
                assert each.name == ("RESET" if instruction.reset else "GEMM")


def test_the_traces_reader_refuses_what_the_format_does() -> None:
    program = lower(LinearLayer("some", 40, 40, 40), Mapping(2, 2, 2), BATCHED)
    timing = simulate(program.instructions, BATCHED)
    text = json.dumps(timeline([("some", program.instructions, timing)]))
    for old, new in (
        ('"ph": "X"', '"ph": "Z"'),
        ('"ts": 0', '"ts": NaN'),
        ('"dur": ', '"dur": 1000000'),
        ('"thread_name"', '"name_of_thread"'),
        ('"tid": 0', '"tid": "0"'),
    ):
        assert old in text
        with pytest.raises((AssertionError, KeyError)):
            read_trace(text.replace(old, new, 1))


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
    """Every product: tokens in order, equal to numpy; bytes exact, cycles within 10 %."""
    name, _, size = phase.partition(":")
    layers = products(bind_phase(read_workloads(SMOLLM2), name, int(size), {}))
    assert {layer.name for layer, _ in layers} == {
        *("qkv_proj", "o_proj", "gate_up_proj", "down_proj", "lm_head"),
        *("attention QK", "attention PV"),
    }
    for layer, count in layers:
        found = study(layer, count, device)
        assert found.predicted.bytes == found.timing.bytes
        assert abs(found.cycle_error) < 0.1
        assert found.timing.utilisation >= found.single.utilisation
        if phase.startswith("prefill") or layer.name != "lm_head":
            prove(found.program)


@pytest.mark.parametrize("device", DEVICES, ids=lambda d: d.name)
@pytest.mark.parametrize(
    "extents", [(1536, 512, 64), (1536, 64, 512), (768, 64, 256), (3, 1024, 64)]
)
def test_attentions_products_are_predicted(device: Device, extents: tuple[int, int, int]) -> None:
    """Few inputs a sum: shifts between its bytes and their stores take turns."""
    found = study(LinearLayer("attention", *extents), 1, device)
    assert found.predicted.bytes == found.timing.bytes
    assert abs(found.cycle_error) < 0.1


@pytest.mark.parametrize("device", DEVICES, ids=lambda d: d.name)
def test_small_layers_are_predicted(device: Device) -> None:
    """Few steps: the first fetch, and stores one behind the other, are most of the time."""
    draw = random.Random(3)
    forms = [EXACT, *(Requantisation(*f) for f in ((1, 0), (1, 7), (2, 0), (2, 1), (2, 3), (4, 2)))]
    layers = [((31, 19, 8), Requantisation(2, 1)), ((16, 361, 64), Requantisation(2, 3))]
    for most in (*[(48, 160, 14)] * 40, *[(64, 400, 128)] * 20):
        layers.append((tuple(draw.randint(1, each) for each in most), draw.choice(forms)))
    for extents, form in layers:
        assert abs(study(LinearLayer("small", *extents, form), 1, device).cycle_error) < 0.09


def test_attentions_products_are_a_head_of_keys_each_and_leave_whole() -> None:
    phase = bind_phase(read_workloads(SMOLLM2), "prefill", 37, {})
    found = {layer.name: (layer, n) for layer, n in products(phase, Requantisation(1, 11))}
    heads = {"QK": (111, 37, 64), "PV": (111, 64, 37)}
    for name, extents in heads.items():
        layer = LinearLayer(f"attention {name}", *extents, weighted=False)
        assert found[layer.name] == (layer, 90)
    assert found["o_proj"][0].requantisation == Requantisation(1, 11)
    without = products(phase, attention=False)
    assert {layer.name for layer, _ in without} == found.keys() - {"attention QK", "attention PV"}


def test_a_product_of_a_linear_layer_s_kind_without_weights_stays_apart() -> None:
    phase = bind_phase(read_workloads(SMOLLM2), "prefill", 37, {})
    first = phase.items[0]
    item = replace(first, gemm=replace(first.gemm, weight=False))
    layers = products(replace(phase, items=(item, first)))
    names = [(layer.name, layer.weighted) for layer, _ in layers]
    assert names == [(first.kind, False), (f"{first.kind} 2", True)]


def test_the_core_is_busy_in_a_long_prefill() -> None:
    phase = bind_phase(read_workloads(SMOLLM2), "prefill", 512, {})
    studied = [study(layer, n, BATCHED) for layer, n in products(phase, attention=False)]
    assert utilisation(studied) > 0.84
    assert utilisation(studied, single=True) < 0.6
    spent = studied[0].timing.spent[Queue.COMPUTE]
    busy = (Cause.MULTIPLY, Cause.RESET, Cause.ALU, Cause.MOVE)
    assert sum(spent[cause] for cause in busy) < studied[0].timing.cycles
