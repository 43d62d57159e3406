# SPDX-License-Identifier: Apache-2.0
"""Kernels with SpacemiT's vmadot give the bits of the kernels without it.

QEMU has no vmadot: support/native/vmadot.c executes it when the CPU refuses it.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
from pathlib import Path

import numpy as np
import pytest
from support.gguf_bytes import random_rows
from support.shared_builds import VMADOT

from crosslab.assemble.kernels import IME_FLAGS, KernelTarget, build_kernels
from crosslab.host.toolchain import Toolchain
from crosslab.models.gguf_formats import GgufFormat, gguf_formats, read_blocks

from .conftest import AtVlen, link_driver
from .test_gguf_kernels import DRIVER as GGUF_DRIVER
from .test_gguf_kernels import packed_call
from .test_linear import DRIVER as LINEAR_DRIVER
from .test_linear import Call


@pytest.fixture(scope="module")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("kernels")
    build_kernels(KernelTarget.RISCV64, folder, extra_flags=IME_FLAGS)
    return folder


def driver(source: Path, kernels: Path, cross: Toolchain, qemu: Path) -> AtVlen:
    link = [*cross.link, "-static", str(VMADOT)]
    program = link_driver(source, kernels, [*cross.cc, "-O2"], link)
    return lambda vlen: [str(qemu), "-cpu", f"rv64,v=true,vlen={vlen},vext_spec=v1.0", program]


def output(command: list[str], call: bytes, *, unit: bool) -> tuple[bytes, int]:
    """What a driver writes, and how many vmadot it executed."""
    variables = {"MLC_RVV_COUNT_VMADOT": "1"} | ({"MLC_RVV_USE_IME": "1"} if unit else {})
    done = subprocess.run(
        command, input=call, capture_output=True, check=False, env={**os.environ, **variables}
    )
    said = done.stderr.decode()
    assert done.returncode == 0, said
    found = re.search(r"^vmadot: (\d+)$", said, re.MULTILINE)
    assert found is not None, said
    return done.stdout, int(found[1])


# Rows: a rest, whole registers, more than share unpacked weights; outputs: a whole tile and a rest.
@pytest.mark.parametrize("f", gguf_formats().values(), ids=lambda f: f.name)
def test_formats_of_gguf(kernels: Path, cross: Toolchain, qemu: Path, f: GgufFormat) -> None:
    at = driver(GGUF_DRIVER, kernels, cross, qemu)
    for m, n, inputs in ((5, 64, 256), (17, 70, 512 + 256 % f.block), (67, 128, 256)):
        random = np.random.default_rng(m)
        k = inputs if f.block == 256 else inputs + 32
        blocks = read_blocks(f.name, random_rows(f.name, n, k, seed=n))
        a = random.standard_normal((m, k)) * 2.0 ** random.integers(-9, 9, (m, 1))
        # The largest sums that there are.
        a[0] = 1
        call = packed_call(f.name, blocks, a.astype(np.float32), n, 64, np.zeros(1, np.int64))
        plain, none = output(at(256), call, unit=False)
        unit, some = output(at(256), call, unit=True)
        assert none == 0
        # The unit gains nothing where groups of a block have scales.
        assert some == 0 if f.scaled else some >= m * n // 64 * 64 * k // 128
        assert unit == plain


def test_q4(kernels: Path, cross: Toolchain, qemu: Path) -> None:
    at = driver(LINEAR_DRIVER, kernels, cross, qemu)
    for m, n, k in ((9, 64, 320), (24, 150, 700), (70, 64, 64)):
        call = Call("gemm_q4_int8", m, n, k, (1, 2, 3), 32, 64, 0).packed()
        plain, none = output(at(256), call, unit=False)
        unit, some = output(at(256), call, unit=True)
        assert none == 0
        assert some >= m // 2 * 2 * (n // 64) * 64 * k // 128
        assert unit == plain


def test_other_registers_keep_their_kernels(kernels: Path, cross: Toolchain, qemu: Path) -> None:
    call = Call("gemm_q4_int8", 16, 64, 64, (0, 0, 0), 32, 64, 0).packed()
    at = driver(LINEAR_DRIVER, kernels, cross, qemu)
    assert output(at(512), call, unit=True) == output(at(512), call, unit=False)


def test_an_illegal_instruction_still_ends_the_program(
    tmp_path: Path, cross: Toolchain, qemu: Path
) -> None:
    source = tmp_path / "bad.c"
    source.write_text('int main(void) { __asm__ volatile(".4byte 0xe000302b"); return 0; }')
    program = tmp_path / "bad"
    command = [*cross.cc, str(source), str(VMADOT), *cross.link, "-static", "-o", str(program)]
    subprocess.run(command, check=True)
    done = subprocess.run([qemu, program], capture_output=True, check=False)
    assert done.returncode == -signal.SIGILL
