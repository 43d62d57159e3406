# SPDX-License-Identifier: Apache-2.0
"""The functional simulator of matrix units, in C++, called from Python."""

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
    """Instructions that ran, ``vmadot`` among them, and bytes of vector loads and stores."""

    instructions: int
    products: int
    loaded_bytes: int
    stored_bytes: int


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
    run_on = partial(functional.library().extension_run, unit.vlen)
    count = len(stream) // WORD_BYTES
    return functional.counted(ExtensionCounts, run_on, memory, stream, count, most)
