# SPDX-License-Identifier: Apache-2.0
"""Calls of the functional simulator of matrix units, which is in C++."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from accelerator import functional
from accelerator.errors import AcceleratorError
from accelerator.extension.unit import MatrixUnit

WORD_BYTES = 4
MOST_INSTRUCTIONS = 1 << 40


@dataclass(frozen=True)
class ExtensionCounts:
    """The counts of a run: instructions, ``vmadot`` instructions, and loaded and stored bytes."""

    instructions: int
    products: int
    loaded_bytes: int
    stored_bytes: int


def run(
    unit: MatrixUnit, stream: bytes, memory: bytearray, most: int = MOST_INSTRUCTIONS
) -> ExtensionCounts:
    """Simulate a program up to its return; the run changes ``memory`` in place.

    Args:
        unit: the matrix unit, which determines the size of registers.
        stream: instructions of 32 bits.
        memory: from address 0.
        most: limit of executed instructions.

    Raises:
        AcceleratorError: an unknown instruction, an address outside of memory, an odd register for
            sums, or no return within ``most``; the message names the instruction.
    """
    if len(stream) % WORD_BYTES:
        raise AcceleratorError(f"a program of {len(stream)} bytes: instructions have 4 each")
    run_on = partial(functional.library().extension_run, unit.vlen)
    count = len(stream) // WORD_BYTES
    return functional.counted(ExtensionCounts, run_on, memory, stream, count, most)
