# SPDX-License-Identifier: Apache-2.0
"""The functional simulator of matrix units, in C++, called from Python."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

from accelerator import functional
from accelerator.errors import AcceleratorError
from accelerator.extension.unit import MatrixUnit

WORD_BYTES = 4
MOST_INSTRUCTIONS = 1 << 40
_MESSAGE_BYTES = 256


@dataclass(frozen=True)
class ExtensionCounts:
    """Instructions that ran, ``vmadot`` among them, and bytes of vector loads and stores."""

    instructions: int
    products: int
    loaded_bytes: int
    stored_bytes: int


class _Counts(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint64) for name in ExtensionCounts.__dataclass_fields__]


def run(
    unit: MatrixUnit, stream: bytes, memory: bytearray, most: int = MOST_INSTRUCTIONS
) -> ExtensionCounts:
    """Run a program from its first word to its return; ``memory`` is changed in place.

    Args:
        unit: its registers.
        stream: instructions of 32 bits.
        memory: from address 0.
        most: instructions after which it is ended.

    Raises:
        AcceleratorError: an instruction that is not simulated, an address outside of memory, an
            odd register for sums, no return; names the instruction.
    """
    if len(stream) % WORD_BYTES:
        raise AcceleratorError(f"a program of {len(stream)} bytes: instructions have 4 each")
    counts, message = _Counts(), ctypes.create_string_buffer(_MESSAGE_BYTES)
    place = ctypes.byref((ctypes.c_char * len(memory)).from_buffer(memory)) if memory else None
    failed = functional.library().extension_run(
        unit.vlen,
        place,
        len(memory),
        stream,
        len(stream) // WORD_BYTES,
        most,
        ctypes.byref(counts),
        message,
        _MESSAGE_BYTES,
    )
    if failed:
        raise AcceleratorError(message.value.decode())
    return ExtensionCounts(
        *(getattr(counts, name) for name in ExtensionCounts.__dataclass_fields__)
    )
