# SPDX-License-Identifier: Apache-2.0
"""Schedules of functions without a kernel: a compile's database, and the schedules that it used."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

# Files of MetaSchedule's database.
WORKLOADS, RECORDS = "database_workload.json", "database_tuning_record.json"
# Files that a pass writes to a library's folder.
UNSCHEDULED, TUNED = "unscheduled.py", "tuned.json"


@dataclass(frozen=True)
class Schedules:
    """Functions without a kernel that run as loops.

    Attributes:
        tuned: names of those that took a schedule from the database.
        unscheduled: TVMScript of the others whose shapes are static.
    """

    tuned: list[str]
    unscheduled: str

    @classmethod
    def read(cls, library: Path) -> Schedules:
        """The report of a library's compilation."""
        tuned = json.loads((library / TUNED).read_text(encoding="utf-8"))
        return cls(tuned, str(library / UNSCHEDULED))

    @property
    def told(self) -> str:
        """The numbers of both for messages."""
        text = Path(self.unscheduled).read_text(encoding="utf-8")
        names = f" ({', '.join(self.tuned)})" if self.tuned else ""
        return (
            f"functions with tuned schedules: {len(self.tuned)}{names}; "
            f"left to tune: {text.count('@T.prim_func')}, in {self.unscheduled}"
        )


def database_in(tuned: Path | None) -> Path | None:
    """The folder, if it has a database of schedules and not only values of kernels."""
    return tuned.resolve() if tuned and (tuned / WORKLOADS).is_file() else None
