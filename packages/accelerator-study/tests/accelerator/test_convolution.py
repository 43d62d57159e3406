# SPDX-License-Identifier: Apache-2.0
"""Convolutions and poolings on both simulators, against numpy and against the cost model."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from accelerator import functional
from accelerator.checker import check
from accelerator.device import Device, MemoryId, load_device
from accelerator.errors import AcceleratorError
from accelerator.isa.instructions import Opcode, Transfer
from accelerator.layer import EXACT, Convolution, Layer, LinearLayer, Pooling, Requantisation
from accelerator.lowering import lower
from accelerator.mapping import best, predict
from accelerator.pooling import pool
from accelerator.program import Mapping, Program
from accelerator.study import prove, study
from accelerator.timing import simulate
from accelerator.workload.networks import NETWORKS
from costmodel.estimate.window import Axis

DEVICE = load_device("vta-1x16x16")
BATCHED = load_device("vta-16x16x16")
DEVICES = [DEVICE, BATCHED]


@st.composite
def axes(draw: st.DrawFn) -> Axis:
    kernel = draw(st.sampled_from([1, 1, 2, 3, 3, 5]))
    stride, dilation = draw(st.integers(1, 3)), draw(st.integers(1, 2))
    trailing = draw(st.none() | st.integers(0, 2))
    axis = Axis(draw(st.integers(1, 14)), kernel, stride, draw(st.integers(0, 3)), dilation)
    found = replace(axis, trailing=trailing)
    assume(found.outputs > 0)
    return found


@st.composite
def forms(draw: st.DrawFn) -> Requantisation:
    width = draw(st.sampled_from([1, 1, 2, 4]))
    channels = draw(st.booleans())
    shift = 0 if channels else draw(st.integers(0, 9))
    residual = draw(st.none() | st.integers(-3, 3))
    least, most = draw(st.sampled_from([(None, None), (0, None), (0, 6)]))
    return Requantisation(width, shift, channels, residual, least, most)


@st.composite
def convolutions(draw: st.DrawFn) -> Convolution:
    groups = draw(st.sampled_from([1, 1, 1, 2, 4, 16]))
    sides = [1, 3, 8, 16] if groups > 1 else [1, 16, 20, 33, 64]
    inputs, outputs = (groups * draw(st.sampled_from(sides)) for _ in range(2))
    across, form = draw(axes()), draw(forms())
    return Convolution("any", inputs, outputs, draw(axes()), across, groups, form)


def ran(program: Program, order: int, seed: int) -> None:
    """Prove a stream, run it on random operands, and compare."""
    operands = program.layer.operands(seed)
    memory = program.image(*operands)
    check(program.stream, program.device, memory)
    functional.run(program.device, program.stream, memory, order)
    np.testing.assert_array_equal(program.result(memory), program.layer.reference(*operands))


@pytest.mark.parametrize("device", DEVICES, ids=lambda d: d.name)
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_random_convolutions_are_bit_equal(device: Device, data: st.DataObject) -> None:
    layer, side = data.draw(convolutions()), st.integers(1, 5)
    mapping = Mapping(
        *(data.draw(side) for _ in range(3)),
        data.draw(st.booleans()),
        data.draw(st.sampled_from([1, 2])),
        columns=data.draw(side),
    )
    try:
        program = lower(layer, mapping, device)
    except AcceleratorError:
        mapping = best(layer, device).mapping
        program = lower(layer, mapping, device)
    ran(program, data.draw(st.integers(0, 5)), data.draw(st.integers(0, 99)))
    moved = simulate(program.instructions, device).bytes
    assert predict(layer, mapping, device).bytes == moved


@settings(max_examples=30, deadline=None)
@given(data=st.data())
def test_the_reference_is_the_sum_of_the_definition(data: st.DataObject) -> None:
    layer = replace(data.draw(convolutions()), requantisation=EXACT)
    rows, columns = layer.rows, layer.columns
    values, weights, *_ = layer.operands(data.draw(st.integers(0, 99)))
    found = layer.reference(values, weights)
    for _ in range(5):
        row, column = (data.draw(st.integers(0, axis.outputs - 1)) for axis in (rows, columns))
        output = data.draw(st.integers(0, layer.outputs - 1))
        group = output // (layer.outputs // layer.groups)
        inputs = layer.inputs // layer.groups
        total = 0
        for i in range(rows.kernel):
            for j in range(columns.kernel):
                y = row * rows.stride + i * rows.dilation - rows.padding
                x = column * columns.stride + j * columns.dilation - columns.padding
                if 0 <= y < rows.extent and 0 <= x < columns.extent:
                    pixels = values[0, group * inputs : (group + 1) * inputs, y, x].astype(int)
                    total += int(pixels @ weights[output, :, i, j].astype(int))
        assert found[0, output, row, column] == total


@pytest.mark.parametrize("device", DEVICES, ids=lambda d: d.name)
@settings(max_examples=20, deadline=None)
@given(data=st.data())
def test_random_poolings_are_bit_equal(device: Device, data: st.DataObject) -> None:
    channels = data.draw(st.sampled_from([3, 16, 40]))
    rows, columns = (
        replace(axis, padding=min(axis.padding, axis.dilation * (axis.kernel - 1)), trailing=None)
        for axis in (data.draw(axes()), data.draw(axes()))
    )
    assume(min(rows.outputs, columns.outputs) > 0)
    layer = Pooling("any", channels, rows, columns)
    program, cost = pool(layer, device, data.draw(st.sampled_from([1, 2])))
    ran(program, data.draw(st.integers(0, 5)), data.draw(st.integers(0, 99)))
    assert simulate(program.instructions, device).bytes == cost.bytes


def test_padding_is_never_the_largest() -> None:
    layer = Pooling("negative", 16, Axis(4, 3, 1, 1), Axis(4, 3, 1, 1))
    program, _ = pool(layer, DEVICE)
    memory = program.image(np.full((1, 16, 4, 4), -7, dtype=np.int8))
    functional.run(DEVICE, program.stream, memory)
    assert set(program.result(memory).ravel()) == {-7}


def test_a_product_is_a_convolution_of_one_position() -> None:
    """The same instructions, the same bytes, and the same cost."""
    linear = LinearLayer("linear", 40, 90, 70)
    picture = Convolution("picture", 70, 90, Axis(40), Axis(1))
    mapping = Mapping(7, 3, 2)
    first, second = (lower(layer, mapping, DEVICE) for layer in (linear, picture))
    assert first.instructions == second.instructions
    assert first.micro_ops == second.micro_ops
    costs = [predict(layer, mapping, DEVICE) for layer in (linear, picture)]
    assert costs[0] == costs[1]


def test_a_window_is_loaded_with_its_padding_and_copied_nowhere() -> None:
    layer = Convolution("3x3", 16, 16, Axis(8, 3, 1, 1), Axis(8, 3, 1, 1))
    program = lower(layer, Mapping(8, 1, 1, columns=8), DEVICE)
    values = program.values_at // DEVICE.element(MemoryId.INPUT)
    loads = [
        each
        for each in program.instructions
        if isinstance(each, Transfer) and each.dram == values and each.opcode is Opcode.LOAD
    ]
    (load,) = loads
    assert (load.rows, load.columns) == (8, 8)
    assert {load.pad_above, load.pad_below, load.pad_left, load.pad_right} == {1}


SMALL = [("resnet18", "layer4 shortcut"), ("resnet18", "layer3 shortcut")]
SMALL += [("mobilenet-v2", name) for name in ("depthwise 9", "project 12", "expand 6")]


@pytest.mark.parametrize(("network", "name"), SMALL)
def test_small_layers_of_networks(network: str, name: str) -> None:
    layer = next(each for each, _ in NETWORKS[network]() if each.name == name)
    _predicted(DEVICE, layer, 0.1)


@pytest.mark.thorough
@pytest.mark.parametrize("device", DEVICES, ids=lambda d: d.name)
@pytest.mark.parametrize("network", sorted(NETWORKS))
def test_networks(network: str, device: Device) -> None:
    """Every layer: tokens in order, equal to numpy; bytes exact, cycles near."""
    layers = NETWORKS[network]()
    assert sum(count for _, count in layers) in {22, 53}
    for layer, _ in layers:
        _predicted(device, layer, 0.1)


def _predicted(device: Device, layer: Layer, most: float) -> None:
    found = study(layer, 1, device)
    prove(found.program)
    assert found.predicted.bytes == found.timing.bytes
    assert abs(found.cycle_error) < most


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"groups": 3}, "3 groups do not divide 32 and 16 channels"),
        ({"rows": Axis(2, 5)}, "the kernel does not fit the picture"),
        ({"rows": Axis(40, 33, 1, 16)}, "padding of .16, 0."),
        ({"inputs": 0}, "no extent may be below 1"),
        ({"inputs": 1 << 17}, "passes 32 bits"),
    ],
)
def test_an_impossible_convolution_is_refused(changes: dict[str, object], message: str) -> None:
    layer = Convolution("c", 32, 16, Axis(8, 3), Axis(8, 3))
    with pytest.raises(AcceleratorError, match=message):
        replace(layer, **changes)  # type: ignore[arg-type]
