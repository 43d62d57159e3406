# SPDX-License-Identifier: Apache-2.0
"""Lowered layers on the functional simulator, against integer numpy."""

from __future__ import annotations

from dataclasses import replace
from math import prod

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from accelerator import functional
from accelerator.device import Device, load_device
from accelerator.errors import AcceleratorError
from accelerator.layer import EXACT, LinearLayer, Requantisation, pack, unpack
from accelerator.lowering import lower
from accelerator.program import Mapping
from accelerator.study import prove

DEVICES = [load_device("vta-1x16x16"), load_device("vta-16x16x16")]


def ran(layer: LinearLayer, mapping: Mapping, device: Device, seed: int, order: int = 0) -> None:
    """Run a layer on random operands and compare."""
    values, weights = layer.operands(seed)
    program = lower(layer, mapping, device)
    memory = program.image(values, weights)
    counts = functional.run(device, program.stream, memory, order)
    np.testing.assert_array_equal(program.result(memory), layer.reference(values, weights))
    sides = (device.batch, device.outputs, device.inputs)
    blocks = [-(-extent // side) for extent, side in zip(layer.extents, sides, strict=True)]
    assert counts.gemm_steps == prod(blocks)


@st.composite
def requantisations(draw: st.DrawFn) -> Requantisation:
    width = draw(st.sampled_from([1, 2, 4]))
    return Requantisation(width, draw(st.integers(0, 15)))


@pytest.mark.parametrize("device", DEVICES, ids=lambda d: d.name)
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_random_layers_are_bit_equal(device: Device, data: st.DataObject) -> None:
    extents = st.tuples(st.integers(1, 70), st.integers(1, 100), st.integers(1, 150))
    layer = LinearLayer("random", *data.draw(extents), data.draw(requantisations()))
    side = st.integers(1, 5)
    mapping = Mapping(
        data.draw(side),
        data.draw(side),
        data.draw(side),
        data.draw(st.booleans()),
        data.draw(st.sampled_from([1, 2])),
    )
    ran(layer, mapping, device, data.draw(st.integers(0, 99)), data.draw(st.integers(0, 5)))


def test_the_largest_sums_are_exact() -> None:
    layer = LinearLayer("extreme", 2, 17, 1536)
    values = np.full((2, 1536), -128, dtype=np.int8)
    weights = np.full((17, 1536), -128, dtype=np.int8)
    program = lower(layer, Mapping(2, 2, 8), DEVICES[0])
    memory = program.image(values, weights)
    functional.run(DEVICES[0], program.stream, memory)
    assert set(program.result(memory).ravel()) == {1536 * 128 * 128}
    assert set(layer.reference(values, weights).ravel()) == {1536 * 128 * 128}


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 3000), st.integers(0, 99))
def test_the_reference_is_integer_arithmetic(inputs: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    values, weights = (random.integers(-128, 128, (3, inputs), dtype=np.int8) for _ in range(2))
    expected = values.astype(np.int64) @ weights.astype(np.int64).T
    found = LinearLayer("any", 3, 3, inputs).reference(values, weights)
    np.testing.assert_array_equal(found, expected)


def test_rounding_and_saturation() -> None:
    form = Requantisation(1, 2)
    sums = np.array([-1000, -7, -6, -5, 5, 6, 7, 1000], dtype=np.int32)
    assert form.apply(sums).tolist() == [-128, -2, -1, -1, 1, 2, 2, 127]
    assert EXACT.apply(sums).tolist() == sums.tolist()
    assert Requantisation(2, 9).clips(1536)
    assert not Requantisation(2, 10).clips(1536)


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 9), st.integers(1, 9), st.integers(1, 4), st.integers(1, 4))
def test_packed_blocks_come_back(rows: int, columns: int, height: int, width: int) -> None:
    matrix = np.arange(rows * columns, dtype=np.int8).reshape(rows, columns)
    planes = pack(matrix, height, width).view(np.uint8)[np.newaxis]
    np.testing.assert_array_equal(unpack(planes, rows, columns), matrix)


@pytest.mark.parametrize(
    ("width", "shift"),
    [(3, 0), (4, 16), (1, -1)],
)
def test_an_unknown_requantisation_is_refused(width: int, shift: int) -> None:
    with pytest.raises(AcceleratorError, match="requantisation to"):
        Requantisation(width, shift)


def test_a_residual_is_not_shifted_further_than_the_device_rounds() -> None:
    assert Requantisation(1, residual=-15).residual == -15
    with pytest.raises(AcceleratorError, match="a residual shifted by -16"):
        Requantisation(1, residual=-16)


def test_a_stream_that_is_not_proved_is_no_mistake_of_the_user() -> None:
    program = lower(LinearLayer("short", 20, 20, 20), Mapping(1, 1, 1), DEVICES[0])
    prove(program)
    with pytest.raises(AcceleratorError, match="short on vta-1x16x16: ") as caught:
        prove(replace(program, instructions=program.instructions[:-1]))
    assert caught.value.exit_code == 1


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(
        AcceleratorError, match="wide: a tile of 64 x 1 x 1 x 64 blocks does not fit vta-1x16x16"
    ):
        lower(LinearLayer("wide", 64, 64, 1024), Mapping(64, 1, 64), DEVICES[0])
    with pytest.raises(AcceleratorError, match="no extent"):
        LinearLayer("none", 0, 1, 1)
    with pytest.raises(AcceleratorError, match="passes 32 bits"):
        LinearLayer("deep", 1, 1, 1 << 17)
    with pytest.raises(AcceleratorError, match="bytes, vta-1x16x16 has"):
        lower(LinearLayer("vast", 1, 1 << 20, 1 << 10), Mapping(1, 1, 1), DEVICES[0])
