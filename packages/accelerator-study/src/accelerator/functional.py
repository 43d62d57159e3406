# SPDX-License-Identifier: Apache-2.0
"""The functional simulators in C++, built once for this machine, and their calls."""

from __future__ import annotations

import ctypes
import shlex
from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import lru_cache
from pathlib import Path

from accelerator.device import NATIVE, Device, MemoryId
from accelerator.errors import AcceleratorError
from accelerator.extension.unit import MatrixUnit
from accelerator.isa.instructions import INSTRUCTION_BYTES
from crosslab.cached_build import cached_build, default_cache
from crosslab.host.objects import run_compiler
from crosslab.host.toolchain import find_native
from groundwork.hashing import digest

SOURCES = ("vta/functional.cc", "extension/functional.cc")
HEADERS = ("vta/functional.h", "extension/functional.h", "runtime/simulation.h")
FLAGS = ("-std=c++20", "-O3", "-fPIC", "-shared", "-Wall", "-Wextra")
WORD_BYTES = 4  # of a matrix unit's instruction
MOST_INSTRUCTIONS = 1 << 40
ORDERS = 6  # the permutations of three queues
_MESSAGE_BYTES = 512
_LIBRARY = "libaccelerator.so"


@dataclass(frozen=True)
class Counts:
    """The counts of a run.

    Attributes:
        instructions: executed.
        gemm_steps: products of blocks; reset_steps, alu_steps: of a device only.
        read_bytes, written_bytes: of the memory.
    """

    instructions: int
    gemm_steps: int
    reset_steps: int
    alu_steps: int
    read_bytes: int
    written_bytes: int


class _Spec(ctypes.Structure):
    _fields_ = [
        (name, ctypes.c_uint32)
        for name in ("batch", "inputs", "outputs", "micro_ops", "weights", "values", "sums")
    ]


def spec_of(target: Device | MatrixUnit) -> tuple[int, ...]:
    """Return the sides of a step's block, then the depths of the buffers; 0 for a matrix unit."""
    if isinstance(target, MatrixUnit):
        return (target.rows, target.inputs, target.rows, 0, 0, 0, 0)
    depths = (MemoryId.MICRO_OP, MemoryId.WEIGHT, MemoryId.INPUT, MemoryId.ACCUMULATOR)
    return (target.batch, target.inputs, target.outputs, *(target.depth(m) for m in depths))


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


def run(
    target: Device | MatrixUnit,
    stream: bytes,
    memory: bytearray,
    order: int = 0,
    most: int = MOST_INSTRUCTIONS,
) -> Counts:
    """Simulate a stream with zeroed buffers or registers; the run changes ``memory`` in place.

    Args:
        target: a device's block and buffers matter, or the size of a matrix unit's registers.
        stream: encoded instructions.
        memory: from address 0; the simulator refuses an address behind its end.
        order: 0 to 5, the order in which a device's queues are polled. A stream without races gives
            the same bytes in every order.
        most: limit of a matrix unit's executed instructions.

    Raises:
        AcceleratorError: a bad encoding, a deadlock, a buffer overrun, an address outside of
            memory, an odd register for sums, or no return within ``most``; the message names the
            instruction. Earlier instructions have changed ``memory``.
    """
    size = WORD_BYTES if isinstance(target, MatrixUnit) else INSTRUCTION_BYTES
    if len(stream) % size:
        raise AcceleratorError(f"a stream of {len(stream)} bytes: instructions have {size} each")
    simulators = library()

    def called(function: Callable[..., int], whole: object, number: int) -> Counts:
        """Run the program; the function returns 0, or writes a message and returns another one."""
        counts = (ctypes.c_uint64 * len(fields(Counts)))()
        message = ctypes.create_string_buffer(_MESSAGE_BYTES)
        of = ctypes.c_char * len(memory)
        pointer = ctypes.byref(of.from_buffer(memory)) if memory else None
        given = (whole, pointer, len(memory), stream, len(stream) // size, number)
        if function(*given, counts, message, _MESSAGE_BYTES):
            raise AcceleratorError(message.value.decode())
        return Counts(*counts)

    if isinstance(target, MatrixUnit):
        return called(simulators.extension_run, target.vlen, most)
    handle = simulators.accelerator_create(ctypes.byref(_Spec(*spec_of(target))))
    if not handle:
        raise AcceleratorError(f"{target.name}: no memory for its buffers", exit_code=1)
    try:
        return called(simulators.accelerator_run, handle, order)
    finally:
        simulators.accelerator_destroy(handle)
