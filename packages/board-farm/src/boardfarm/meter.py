# SPDX-License-Identifier: Apache-2.0
"""The cost of the code between two marks on an emulated board, from the counter's report."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from crosslab.cores.core import Core
from crosslab.cores.cycles import cycles_of
from crosslab.run.measurement import read_measurement
from groundwork.hashing import digest

INSTRUCTIONS = "instructions"


@dataclass(frozen=True)
class Meter:
    """A reader of the counter's reports.

    Attributes:
        core: core for the cycles; None: count instructions.
    """

    core: Core | None

    @property
    def unit(self) -> str:
        """The unit of the cost: instructions, or serial cycles by a table with this digest.

        Costs by different tables of a core cannot be compared.
        """
        if self.core is None:
            return INSTRUCTIONS
        table = digest(repr((self.core.cycles, self.core.assumptions)))
        return f"cycles of {self.core.name} (table {table})"

    @property
    def database(self) -> str:
        """The name of the database for schedules that this meter measured."""
        return self.core.key if self.core else INSTRUCTIONS

    def read(self, report: Path) -> int:
        """Return the cost of the regions in a report, in :attr:`unit`.

        Raises:
            KeyError: the report lacks a field.
            ValueError: the report is missing or counts several threads, or the core's table lacks
                the cost of an instruction: a candidate must not win by instructions without a cost.
        """
        try:
            table = json.loads(report.read_text(encoding="utf-8"))
        except OSError as error:
            raise ValueError(f"the counter left no report: {error.strerror}") from error
        if not table["balanced"] or table["threads"] != 1:
            raise ValueError("other threads ran between the marks")
        measured = read_measurement(table)
        if self.core is None:
            return measured.region.insns
        cycles = cycles_of(self.core, measured.histogram(), 1)
        if cycles.marked:
            names = ", ".join(cycles.unmeasured)
            raise ValueError(f"{self.core.name} has no measured cost of {names}")
        return cycles.serial
