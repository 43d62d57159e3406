# SPDX-License-Identifier: Apache-2.0
"""The functional simulators in C++, built once for this machine, and calls of the device's."""

from __future__ import annotations

import ctypes
import shlex
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial
from inspect import signature
from pathlib import Path
from typing import TypeVar

from accelerator.device import NATIVE, Device, MemoryId
from accelerator.errors import AcceleratorError
from accelerator.isa.instructions import INSTRUCTION_BYTES
from crosslab.cached_build import cached_build, default_cache
from crosslab.host.objects import run_compiler
from crosslab.host.toolchain import find_native
from groundwork.hashing import digest

SOURCES = ("vta/functional.cc", "extension/functional.cc")
HEADERS = ("vta/functional.h", "extension/functional.h", "runtime/spec.h")
FLAGS = ("-std=c++20", "-O3", "-fPIC", "-shared", "-Wall", "-Wextra")
Counts = TypeVar("Counts")
ORDERS = 6  # the permutations of three queues
_MESSAGE_BYTES = 512
_LIBRARY = "libaccelerator.so"


@dataclass(frozen=True)
class AcceleratorCounts:
    """Bytes moved by buffer, and steps of the GEMM core and of the ALU, in one run."""

    micro_op_bytes: int
    weight_bytes: int
    input_bytes: int
    sum_bytes: int
    output_bytes: int
    gemm_steps: int
    reset_steps: int
    alu_steps: int


class _Spec(ctypes.Structure):
    _fields_ = [
        (name, ctypes.c_uint32)
        for name in ("batch", "inputs", "outputs", "micro_ops", "weights", "values", "sums")
    ]


def spec_of(device: Device) -> tuple[int, ...]:
    """Return the simulator's description of a device: the GEMM block, then the buffers' depths."""
    depths = (MemoryId.MICRO_OP, MemoryId.WEIGHT, MemoryId.INPUT, MemoryId.ACCUMULATOR)
    return (device.batch, device.inputs, device.outputs, *(device.depth(m) for m in depths))


@lru_cache(maxsize=1)
def library() -> ctypes.CDLL:
    """Load the simulators' shared library, and compile it first if it is not in the cache.

    Raises:
        UserError: there is no C++ compiler.
        LabError: the sources do not compile.
    """
    tools = find_native()
    files = (NATIVE / name for name in (*SOURCES, *HEADERS))
    key = digest(tools.digest, shlex.join(FLAGS), *files)

    def make(out: Path) -> None:
        sources = [str(NATIVE / name) for name in SOURCES]
        command = [*tools.cxx, *FLAGS, f"-I{NATIVE}", *sources, "-o", str(out / _LIBRARY)]
        run_compiler("compiling the simulators", command, out)

    path = cached_build(default_cache(), "accelerator", key, make) / _LIBRARY
    simulators = ctypes.CDLL(str(path))
    simulators.accelerator_create.restype = ctypes.c_void_p
    simulators.accelerator_create.argtypes = [ctypes.POINTER(_Spec)]
    simulators.accelerator_destroy.restype = None
    simulators.accelerator_destroy.argtypes = [ctypes.c_void_p]
    program = (ctypes.c_void_p, ctypes.c_uint64, ctypes.c_char_p, ctypes.c_uint64)
    answer = (ctypes.POINTER(ctypes.c_uint64), ctypes.c_char_p, ctypes.c_size_t)
    simulators.accelerator_run.argtypes = [ctypes.c_void_p, *program, ctypes.c_uint32, *answer]
    simulators.extension_run.argtypes = [ctypes.c_uint32, *program, ctypes.c_uint64, *answer]
    return simulators


def run(device: Device, stream: bytes, memory: bytearray, order: int = 0) -> AcceleratorCounts:
    """Simulate a stream on a device with zeroed buffers; the run changes ``memory`` in place.

    Args:
        device: its block and buffers matter; its times do not.
        stream: encoded instructions.
        memory: DRAM from address 0; the simulator refuses an address behind its end.
        order: 0 to 5, the order in which the simulator polls the queues. A stream without races
            gives the same bytes in every order.

    Raises:
        AcceleratorError: a bad encoding, a deadlock, a buffer overrun, or an address outside of
            memory; the message names the instruction. Earlier instructions have changed ``memory``.
    """
    if len(stream) % INSTRUCTION_BYTES:
        raise AcceleratorError(f"a stream of {len(stream)} bytes: instructions have 16 each")
    spec, simulator = _Spec(*spec_of(device)), library()
    handle = simulator.accelerator_create(ctypes.byref(spec))
    if not handle:
        raise AcceleratorError(f"{device.name}: no memory for its buffers", exit_code=1)
    try:
        count = len(stream) // INSTRUCTION_BYTES
        run_on = partial(simulator.accelerator_run, handle)
        return counted(AcceleratorCounts, run_on, memory, stream, count, order)
    finally:
        simulator.accelerator_destroy(handle)


def counted(
    kind: type[Counts],
    function: Callable[..., int],
    memory: bytearray,
    stream: bytes,
    *numbers: int,
) -> Counts:
    """Run a program on ``memory`` with a simulator and return the simulator's counts.

    Args:
        kind: class of the counts, whose fields are in the simulator's order.
        function: the simulator, which returns 0, or writes a message and returns another number.
        memory: from address 0.
        stream: the program.
        numbers: further arguments of the simulator.

    Raises:
        AcceleratorError: the simulator refuses the program.
    """
    counts = (ctypes.c_uint64 * len(signature(kind).parameters))()
    message = ctypes.create_string_buffer(_MESSAGE_BYTES)
    pointer = ctypes.byref((ctypes.c_char * len(memory)).from_buffer(memory)) if memory else None
    if function(pointer, len(memory), stream, *numbers, counts, message, _MESSAGE_BYTES):
        raise AcceleratorError(message.value.decode())
    return kind(*counts)
