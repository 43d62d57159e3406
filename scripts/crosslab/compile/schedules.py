# SPDX-License-Identifier: Apache-2.0
"""Schedules of functions without a kernel: the database of a compile, and what it took of it."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from crosslab.build.kernel_values import FILE
from crosslab.errors import UserError

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
        """Both for people."""
        text = Path(self.unscheduled).read_text(encoding="utf-8")
        names = f" ({', '.join(self.tuned)})" if self.tuned else ""
        return (
            f"functions that take tuned schedules: {len(self.tuned)}{names}; "
            f"left to tune: {text.count('@T.prim_func')}, in {self.unscheduled}"
        )


def database_in(tuned: Path | None) -> Path | None:
    """The folder, if it has a database of schedules and not only values of kernels."""
    return tuned.resolve() if tuned and (tuned / WORKLOADS).is_file() else None


def add_tuned(add: Callable[..., Any]) -> None:
    """Add the option that names a database."""
    about = "what nox -s farm -- tune and tune-kernels found for a core: their --database"
    add("--tuned", type=Path, metavar="DIR", help=about)


def find_database(folder: Path | None, cores: str | None) -> Path | None:
    """The database that a compile reads: the folder itself, or that of a core in it.

    Args:
        folder: that was named; None: no database.
        cores: value of ``--core``, as it was typed; None: none was named.

    Raises:
        UserError: there is none.
    """
    if folder is None or _is_database(folder):
        return folder
    if cores and _is_database(folder / cores):
        return folder / cores
    there = sorted(one.name for one in folder.glob("*") if _is_database(one))
    if not there:
        raise UserError(f"--tuned: no database in {folder}", remedy="nox -s farm -- tune")
    others = f"--tuned {folder / there[0]} takes what was found for {there[0]}"
    raise UserError(
        f"--tuned {folder} has databases for {', '.join(there)}, and "
        + (f"none for {cores}" if cores else "no --core says which is meant"),
        remedy=f"nox -s farm -- tune finds schedules for another; {others}",
    )


def _is_database(folder: Path) -> bool:
    return any((folder / name).is_file() for name in (WORKLOADS, FILE))
