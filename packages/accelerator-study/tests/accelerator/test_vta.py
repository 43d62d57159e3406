# SPDX-License-Identifier: Apache-2.0
"""Our streams on apache/tvm-vta's functional simulator, to the last byte; random ones on ours."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import vta_oracle
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from strategies import programs

from accelerator import functional
from accelerator.checker import check
from accelerator.device import Device, load_device
from accelerator.layer import Convolution, Layer, LinearLayer, Pooling, Requantisation
from accelerator.lowering import lower
from accelerator.mapping import best
from accelerator.pooling import pool
from accelerator.program import Mapping
from costmodel.estimate.window import Axis

DEVICES = [load_device("vta-1x16x16"), load_device("vta-16x16x16")]
Oracle = Callable[[bytes, bytes], bytes]


@pytest.fixture(scope="module", params=DEVICES, ids=lambda d: d.name)
def device(request: pytest.FixtureRequest) -> Device:
    found: Device = request.param
    return found


@pytest.fixture(scope="module")
def oracle(device: Device, tmp_path_factory: pytest.TempPathFactory) -> Oracle:
    """VTA's simulator for the device: stream and memory in, memory out."""
    folder: Path = tmp_path_factory.mktemp("vta")
    program = vta_oracle.build(device, folder)
    return lambda stream, memory: vta_oracle.run(program, folder, stream, memory)


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_random_programs_do_the_same_in_every_order(device: Device, data: st.DataObject) -> None:
    stream, memory = data.draw(programs(device))
    check(stream, device, memory)
    after = []
    for order in range(functional.ORDERS):
        copy = bytearray(memory)
        functional.run(device, stream, copy, order)
        after.append(bytes(copy))
    assert len(set(after)) == 1


@settings(
    max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_random_programs_are_equal_to_the_last_byte(
    device: Device, oracle: Oracle, data: st.DataObject
) -> None:
    stream, memory = data.draw(programs(device))
    ours = bytearray(memory)
    functional.run(device, stream, ours)
    assert oracle(stream, memory) == bytes(ours)


SQUARE = Axis(14, 3, 1, 1)
ADDED = Requantisation(1, channels=True, residual=-1, least=0)


@pytest.mark.parametrize(
    ("layer", "mapping"),
    [
        (Convolution("3x3", 48, 40, SQUARE, SQUARE, requantisation=ADDED), None),
        (Convolution("rows", 96, 32, SQUARE, SQUARE), Mapping(3, 2, 2, columns=5)),
        (Convolution("stride", 20, 33, Axis(15, 1, 2), Axis(15, 1, 2)), None),
        (Convolution("dilated", 16, 16, Axis(20, 5, 2, 4, 2), Axis(9, 3, 1, 2, 2)), None),
        (Convolution("depthwise", 40, 40, SQUARE, SQUARE, 40, Requantisation(1, 5)), None),
        (Convolution("groups", 64, 32, SQUARE, SQUARE, 4, Requantisation(2, 3)), None),
        (Pooling("pool", 40, Axis(15, 3, 2, 1), Axis(15, 3, 2, 1)), None),
        (LinearLayer("o_proj", 37, 576, 576), None),
        (LinearLayer("down_proj", 37, 576, 1536, Requantisation(2, 10)), None),
        (LinearLayer("decode", 1, 960, 576, Requantisation(1, 11)), None),
        (LinearLayer("attention QK", 111, 37, 64), None),
        (LinearLayer("attention PV", 111, 64, 37), None),
        (LinearLayer("ragged", 35, 100, 70), Mapping(2, 3, 2, True)),
        (LinearLayer("tiny", 1, 1, 1), Mapping(1, 1, 1, halves=1)),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_layers_are_equal_to_the_last_byte(
    device: Device, oracle: Oracle, layer: Layer, mapping: Mapping | None
) -> None:
    if isinstance(layer, Pooling):
        program, _ = pool(layer, device)
    else:
        program = lower(layer, mapping or best(layer, device).mapping, device)
    operands = layer.operands(1)
    memory = bytes(program.image(*operands))
    ours = bytearray(memory)
    functional.run(device, program.stream, ours)
    theirs = oracle(program.stream, memory)
    assert theirs == bytes(ours)
    np.testing.assert_array_equal(program.result(theirs), layer.reference(*operands))
