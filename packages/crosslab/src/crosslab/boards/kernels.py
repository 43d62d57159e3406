# SPDX-License-Identifier: Apache-2.0
"""Counted cycles of kernels of llama.cpp and ours, from ``cores/boards/kernels.csv``."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from crosslab.boards.board import BOARDS
from crosslab.errors import UserError

FILE = BOARDS / "kernels.csv"
MEASURES = ("pipeline", "serial", "vec-serial")
HEADER = ("core", "kernel", *MEASURES)


@cache
def kernel_cycles(core: str, measure: str = MEASURES[0], file: Path = FILE) -> Mapping[str, float]:
    """Return cycles of a core by kernel: of a multiply-add in products, else of an element.

    Args:
        core: key of the core's file.
        measure: one of :data:`MEASURES`; a core without a pipeline has the serial sum in its place.
        file: the table.

    Raises:
        UserError: the file is missing or malformed, or has no such core.
    """
    try:
        with file.open(encoding="utf-8", newline="") as rows:
            table = list(csv.DictReader(rows))
        cycles = {row["kernel"]: float(row[measure]) for row in table if row["core"] == core}
    except (OSError, KeyError, TypeError, ValueError) as error:
        raise UserError(f"{file}: {error!r}") from error
    if not cycles:
        raise UserError(
            f"{file.name} has no kernels of the core {core}",
            remedy="type: uv run crosslab board-kernels",
        )
    return cycles


def cycles_of(core: str, kernel: str, measure: str = MEASURES[0]) -> float:
    """Return a kernel's cycles on a core, of a multiply-add or an element: :func:`kernel_cycles`.

    Raises:
        UserError: nobody counted the kernel on the core.
    """
    cycles = kernel_cycles(core, measure)
    if kernel not in cycles:
        raise UserError(
            f"{FILE.name} has no kernel {kernel!r} of the core {core}",
            remedy="type: uv run crosslab board-kernels",
        )
    return cycles[kernel]
