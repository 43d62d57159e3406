# SPDX-License-Identifier: Apache-2.0
"""The convolution of one channel against float64, with pages behind its buffers guarded."""

from __future__ import annotations

import struct
import subprocess
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from crosslab.host.toolchain import Toolchain

from .conftest import AtVlen, host_command, rvv_command

pytestmark = pytest.mark.slow

DRIVER = Path(__file__).with_name("depthwise_driver.c")
# Rows, columns, those of the kernel, strides, dilations.
SIZES = [
    (1, 1, 1, 1, 1, 1, 1, 1),
    (5, 7, 3, 3, 1, 1, 1, 1),
    (4, 33, 3, 5, 2, 2, 1, 1),
    (3, 150, 1, 4, 1, 1, 1, 2),
    (2, 19, 5, 2, 3, 2, 2, 3),
]


@pytest.fixture(scope="module")
def native(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    return host_command(DRIVER, tmp_path_factory.mktemp("host"))


@pytest.fixture(scope="module")
def on_rvv(cross: Toolchain, qemu: Path, tmp_path_factory: pytest.TempPathFactory) -> AtVlen:
    return rvv_command(DRIVER, tmp_path_factory.mktemp("rvv"), cross, qemu)


def check(command: Sequence[str], sizes: Sequence[int]) -> None:
    """Compare a driver's outputs with sums in float64."""
    rows, columns, *kernel = sizes[:4]
    up, right, down, along = sizes[4:]
    rng = np.random.default_rng(sum(sizes))
    height = (rows - 1) * up + (kernel[0] - 1) * down + 1
    width = (columns - 1) * right + (kernel[1] - 1) * along + 1
    x = rng.standard_normal((height, width)).astype(np.float32)
    w = rng.standard_normal(kernel).astype(np.float32)
    data = struct.pack("9q", *sizes, width) + x.tobytes() + w.tobytes()
    done = subprocess.run(command, input=data, capture_output=True, check=True, timeout=120)
    want = np.zeros((rows, columns))
    for a, b in np.ndindex(*kernel):
        part = x[a * down :: up, b * along :: right][:rows, :columns]
        want += w[a, b].astype(np.float64) * part
    got = np.frombuffer(done.stdout, np.float32).reshape(want.shape)
    assert np.abs(got - want).max() < 1e-6 * w.size * np.abs(want).max()


@pytest.mark.parametrize("sizes", SIZES)
def test_the_portable_kernel_convolves(native: list[str], sizes: Sequence[int]) -> None:
    check(native, sizes)


@pytest.mark.parametrize("vlen", [128, 256, 1024])
@pytest.mark.parametrize("sizes", SIZES)
def test_the_rvv_kernel_convolves(on_rvv: AtVlen, vlen: int, sizes: Sequence[int]) -> None:
    check(on_rvv(vlen), sizes)
