# SPDX-License-Identifier: Apache-2.0
"""Schedules of functions without a kernel: the compile's database, and a report of their use."""

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
    """Report of the functions without a kernel, which run as loops.

    Attributes:
        tuned: names of the functions with a schedule from the database.
        unscheduled: path of TVMScript of the other functions with static shapes.
    """

    tuned: list[str]
    unscheduled: str

    @classmethod
    def read(cls, library: Path) -> Schedules:
        """Read the report from a library's folder."""
        tuned = json.loads((library / TUNED).read_text(encoding="utf-8"))
        return cls(tuned, str(library / UNSCHEDULED))

    @property
    def told(self) -> str:
        """Message with the numbers of tuned and untuned functions."""
        text = Path(self.unscheduled).read_text(encoding="utf-8")
        names = f" ({', '.join(self.tuned)})" if self.tuned else ""
        return (
            f"functions with tuned schedules: {len(self.tuned)}{names}; "
            f"left to tune: {text.count('@T.prim_func')}, in {self.unscheduled}"
        )


def database_in(tuned: Path | None) -> Path | None:
    """Return the folder if it has a database of schedules, not only kernel values; else None."""
    return tuned.resolve() if tuned and (tuned / WORKLOADS).is_file() else None
