# SPDX-License-Identifier: Apache-2.0
"""Latencies of a core's instructions, from LLVM's scheduling model (``cores/latencies/*.toml``)."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from crosslab.errors import UserError

FOLDER = "latencies"
# Latency and occupancy of a vector instruction that LLVM's table lacks.
UNKNOWN = (4.0, 1.0)


@dataclass(frozen=True)
class ScalarLatency:
    """Cycles of a class of scalar instructions; ``unit`` is empty if the core has several."""

    latency: float
    occupancy: float
    unit: str


@dataclass(frozen=True)
class Latencies:
    """Latencies of scalar and vector instructions, from LLVM's model of a core.

    Attributes:
        scalar: latencies by class.
        vector: latency and occupancy by mnemonic and column.
    """

    scalar: Mapping[str, ScalarLatency]
    vector: Mapping[str, Mapping[str, tuple[float, float]]]

    def of(self, mnemonic: str, column: str) -> tuple[float, float]:
        """Return latency and occupancy of a vector instruction, in cycles; UNKNOWN if missing."""
        return self.vector.get(mnemonic, {}).get(column, UNKNOWN)

    def shortest(self, mnemonic: str, sew: int) -> float:
        """Return the latency of a vector instruction with LMUL 1, in cycles."""
        return self.of(mnemonic, f"e{sew}m1")[0]


@cache
def read_latencies(folder: Path, name: str) -> Latencies:
    """Read ``<folder>/latencies/<name>.toml``.

    Raises:
        UserError: the file is missing or malformed.
    """
    path = folder / FOLDER / f"{name}.toml"
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
        columns = table["columns"]
        return Latencies(
            {
                name: ScalarLatency(float(row[0]), float(row[1]), row[2])
                for name, row in table["scalar"].items()
            },
            {
                name: {
                    column: (float(pair[0]), float(pair[1]))
                    for column, pair in zip(columns, row, strict=True)
                }
                for name, row in table["vector"].items()
            },
        )
    except (OSError, KeyError, TypeError, ValueError, IndexError) as error:
        raise UserError(f"{path}: {error!r}") from error
