# SPDX-License-Identifier: Apache-2.0
"""apache/tvm-vta's own functional simulator, built from a git mirror of it that the user has."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from accelerator.device import Device
from crosslab.host.toolchain import find_native

HERE = Path(__file__).parent
MIRROR = "VTA_MIRROR"
COMMIT = "d4a15f627d5cc9762a82270d1be60a136e6af9c2"
SOURCES = (
    *("src/sim/sim_driver.cc", "src/sim/sim_tlpp.cc", "src/vmem/virtual_memory.cc"),
    *("src/vmem/virtual_memory.h", "include/vta/driver.h", "include/vta/hw_spec.h"),
    *("include/vta/hw_spec_const.h", "include/vta/sim_tlpp.h"),
)
FIRST_PAGE = 4096  # its memory begins here
SECONDS = 60


def _git(*words: str) -> bytes:
    command = ["git", "-C", os.environ[MIRROR], *words]
    return subprocess.run(command, check=True, capture_output=True).stdout


def build(device: Device, folder: Path) -> Path:
    """The simulator as a program for one device; skips the test where there is no mirror."""
    if not os.environ.get(MIRROR):
        pytest.skip(f"no git mirror of apache/tvm-vta: {MIRROR}=PATH names one")
    for name in SOURCES:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(_git("show", f"{COMMIT}:{name}"))
    sizes = {
        "INP_WIDTH": 8,
        "WGT_WIDTH": 8,
        "ACC_WIDTH": 32,
        "OUT_WIDTH": 8,
        "BATCH": device.batch,
        "BLOCK_IN": device.inputs,
        "BLOCK_OUT": device.outputs,
        "UOP_BUFF_SIZE": device.micro_op,
        "INP_BUFF_SIZE": device.input,
        "WGT_BUFF_SIZE": device.weight,
        "ACC_BUFF_SIZE": device.accumulator,
        "BUS_WIDTH": 64,
    }
    defines = [f"-DVTA_LOG_{name}={size.bit_length() - 1}" for name, size in sizes.items()]
    program = folder / "vta"
    sources = [str(folder / name) for name in SOURCES if name.endswith(".cc")]
    includes = [f"-I{folder / 'include'}", f"-I{HERE / 'vta_stubs'}"]
    command = [*find_native().cxx, "-std=c++17", "-O1", "-w", *defines, *includes, *sources]
    command += [str(HERE / "vta_driver.cc"), "-o", str(program)]
    subprocess.run(command, check=True, capture_output=True, timeout=SECONDS)
    return program


def run(program: Path, folder: Path, stream: bytes, memory: bytes) -> bytes:
    """Memory after the run."""
    (folder / "stream").write_bytes(stream)
    (folder / "memory").write_bytes(memory[FIRST_PAGE:])
    command = [str(program), str(folder / "stream"), str(folder / "memory")]
    subprocess.run(command, check=True, timeout=SECONDS, capture_output=True)
    return memory[:FIRST_PAGE] + (folder / "memory").read_bytes()
