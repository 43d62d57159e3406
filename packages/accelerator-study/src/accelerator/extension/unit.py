# SPDX-License-Identifier: Apache-2.0
"""Description of a matrix unit that works on the vector registers of a CPU."""

from __future__ import annotations

from dataclasses import dataclass
from math import isqrt

from accelerator.device import DEVICES, Device, device_from, name_from
from costmodel.accelerator.settings import SIZES, TomlTable, library_file, read_toml

REGISTERS = 32
SUM_REGISTERS = 2
_VLENS = (256, 1024, 4096)


@dataclass(frozen=True)
class MatrixUnit:
    """A unit that multiplies a register of int8 values by a register of int8 weights.

    Attributes:
        vlen: bits of a vector register.
    """

    name: str
    description: str
    vlen: int

    @property
    def rows(self) -> int:
        """The rows of values, or of weights, in a register."""
        return isqrt(self.vlen // 16)

    @property
    def inputs(self) -> int:
        """The values of a row in a register."""
        return 2 * self.rows

    @property
    def register(self) -> int:
        """The bytes of a vector register."""
        return self.vlen // 8

    def tile(self, blocks: int, wide: int | None = None) -> tuple[int, int]:
        """Return the registers of values and of weights in the best tile.

        All sums of a tile, its values and its weights are in registers; the best tile has the most
        products a load.

        Args:
            blocks: most registers of values, as many as all rows need.
            wide: registers of weights; None: any number.
        """
        fitting = [
            (values, weights)
            for values in range(1, min(blocks, REGISTERS) + 1)
            for weights in (range(1, REGISTERS) if wide is None else (wide,))
            # Sums begin at an even register.
            if SUM_REGISTERS * (values * weights + -(-(values + weights) // 2)) <= REGISTERS
        ]
        return max(fitting, key=lambda t: (t[0] * t[1] / (t[0] + t[1]), t[0]))


def load_target(name: str) -> Device | MatrixUnit:
    """Read the device or matrix unit of a shipped name or of a TOML file.

    Raises:
        CostError: no device has that name, or a file is wrong; the message names the line.
    """
    table = read_toml(library_file(DEVICES, name))
    return _unit_from(table) if "extension" in table.values else device_from(table)


def _unit_from(table: TomlTable) -> MatrixUnit:
    table.only(["schema", "name", "description", "extension"])
    extension = table.table("extension")
    extension.only(["vlen"])
    vlen = extension.quantity("vlen", {**SIZES, "bit": 1})
    if vlen not in _VLENS:
        known = ", ".join(f"{vlen_bits} bit" for vlen_bits in _VLENS)
        reason = f"'vlen' is {extension.values['vlen']!r}: registers of other sizes hold two blocks"
        raise extension.error("vlen", reason, f"simulated are: {known}")
    return MatrixUnit(name_from(table), table.get("description", str, ""), int(vlen))
