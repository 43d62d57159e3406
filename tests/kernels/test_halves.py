# SPDX-License-Identifier: Apache-2.0
"""The matrix-vector product of halves is that of the widened numbers, bit by bit."""

from __future__ import annotations

import json
import shlex
import struct
import subprocess
from pathlib import Path

import numpy as np
import pytest

from crosslab.assemble.kernels import INDEX, KernelTarget, build_kernels, compiler_for
from crosslab.host.toolchain import Toolchain
from crosslab.run.emulator import VLENS, GuestMachine

from .conftest import AtVlen, link_driver

pytestmark = pytest.mark.slow

DRIVER = Path(__file__).with_name("halves_driver.c")
SYMBOL = "mlc_rvv_gemv_f16_tiles"


@pytest.fixture(scope="module")
def driver(cross: Toolchain, qemu: Path, tmp_path_factory: pytest.TempPathFactory) -> AtVlen:
    """The command that runs the driver at a VLEN."""
    folder = tmp_path_factory.mktemp("halves")
    compiler = compiler_for(KernelTarget.RISCV64, zvfh=True)
    index = json.loads(build_kernels(KernelTarget.RISCV64, folder, compiler=compiler).read_text())
    assert index["features"] == ["zvfh"]
    assert SYMBOL in {routine["symbol"] for routine in index["routines"]}
    program = link_driver(DRIVER, folder, [*cross.cc, "-O2"], [*cross.link, "-static"])
    return lambda vlen: [str(qemu), "-cpu", GuestMachine(vlen=vlen, zvfh=True).cpu, program]


def test_kernels_for_any_cpu_have_nothing_in_halves(tmp_path: Path, cross: Toolchain) -> None:
    compiler = compiler_for(KernelTarget.RISCV64)
    assert "zvfh" not in shlex.join(compiler)
    build_kernels(KernelTarget.RISCV64, tmp_path, compiler=compiler)
    index = json.loads((tmp_path / INDEX).read_text())
    assert not index["features"]
    assert SYMBOL not in {routine["symbol"] for routine in index["routines"]}


@pytest.mark.parametrize("vlen", VLENS)
@pytest.mark.parametrize(("n", "k"), [(1, 1), (5, 3), (64, 17), (65, 64), (200, 131), (256, 4)])
def test_products_of_halves_are_exact(driver: AtVlen, vlen: int, n: int, k: int) -> None:
    rng = np.random.default_rng(n * 1000 + k)
    x, b = (rng.standard_normal(shape).astype(np.float16) for shape in (k, (n, k)))
    x[0], b[0, 0] = 6e-8, 65504  # subnormal, and the largest
    tile = vlen // 4
    tiled = np.concatenate([b[first : first + tile].T.ravel() for first in range(0, n, tile)])
    data = struct.pack("3q", n, k, tile) + x.tobytes() + tiled.tobytes()
    done = subprocess.run(driver(vlen), input=data, capture_output=True, check=True, timeout=120)
    want = np.zeros(n, np.float32)
    for i in range(k):
        # The product is exact in float64, and so is the sum but for its one rounding.
        want = (want.astype(np.float64) + b[:, i].astype(np.float64) * np.float64(x[i])).astype(
            np.float32
        )
    assert np.array_equal(np.frombuffer(done.stdout, np.float32), want)
