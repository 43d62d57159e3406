# SPDX-License-Identifier: Apache-2.0
"""Energy and area by technology, from ``library/technology.toml``, which names its sources."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from math import exp, log

from costmodel.accelerator import settings
from costmodel.accelerator.settings import LIBRARY, read_toml


def of_width(figures: Sequence[tuple[int, float]], bits: int) -> float:
    """Return the figure of the narrowest width of at least ``bits``, or of the widest."""
    ascending = sorted(figures)
    return next((figure for width, figure in ascending if width >= bits), ascending[-1][1])


@dataclass(frozen=True)
class Memory:
    """A kind of memory: pJ a bit by capacity in bytes, and square micrometres a bit."""

    bytes: tuple[float, ...]
    energy: tuple[float, ...]
    area: float

    def energy_of(self, size: float) -> float:
        """Return the pJ a bit at ``size`` bytes, interpolated in logarithms above the least."""
        if len(self.bytes) == 1 or size <= self.bytes[0]:
            return self.energy[0]
        index = next((n for n, b in enumerate(self.bytes) if size <= b), len(self.bytes) - 1)
        (x0, x1), (y0, y1) = (
            [log(v) for v in values[index - 1 : index + 1]] for values in (self.bytes, self.energy)
        )
        return exp(y0 + (y1 - y0) * (log(size) - x0) / (x1 - x0))


@dataclass(frozen=True)
class Technology:
    """Energies and areas of multipliers by width, and memories by name."""

    mac_energy: tuple[tuple[int, float], ...]
    mac_area: tuple[tuple[int, float], ...]
    memories: dict[str, Memory]


@cache
def technology() -> Technology:
    """Read the shipped table of technology."""
    table = read_toml(LIBRARY / "technology.toml")
    mac = table.table("mac")
    energy, area = mac.table("energy"), mac.table("area")
    return Technology(
        mac_energy=tuple(
            sorted((int(k), energy.quantity(k, settings.ENERGIES)) for k in energy.values)
        ),
        mac_area=tuple(sorted((int(k), float(v)) for k, v in area.values.items())),
        memories={
            str(part.get("name", str)): Memory(
                tuple(float(v) for v in part.get("bytes", list)),
                tuple(float(v) for v in part.get("energy", list)),
                float(part.get("area", (int, float))),
            )
            for part in table.tables("memory")
        },
    )
