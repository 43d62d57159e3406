# SPDX-License-Identifier: Apache-2.0
"""The kept database: MetaSchedule's JSON files, which are replaced as a whole."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any

from tvm.s_tir.meta_schedule.database import JSONDatabase, TuningRecord

from crosslab.compile.schedules import RECORDS, WORKLOADS
from crosslab.errors import LabError, UserError
from groundwork.files import atomic_write

# Unit of the records' costs, which only costs of the same unit can be compared with.
MEASURE = "measure.txt"


def open_database(folder: Path) -> Any:
    """Open the database in a folder; create it if missing."""
    folder.mkdir(parents=True, exist_ok=True)
    return JSONDatabase(work_dir=str(folder))


def claim(folder: Path, measure: str) -> None:
    """Note the unit of the records that will be kept in a folder, beside them.

    Raises:
        UserError: the folder has records that were measured in another unit.
    """
    file = folder / MEASURE
    known = file.read_text(encoding="utf-8").strip() if file.is_file() else "an unknown unit"
    if (folder / RECORDS).is_file() and known != measure:
        raise UserError(
            f"{folder} holds schedules measured in {known}, these boards measure {measure}",
            remedy="give another --database",
        )
    atomic_write(file, f"{measure}\n")


def keep(folder: Path, record: Any) -> None:
    """Add a record of another database to the kept database.

    The function writes a new database, reads it again and then replaces the old database, so that
    a full disk or an interruption loses no old record.

    Raises:
        LabError: the record cannot be written.
        OSError: the folder cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".keep-", dir=folder) as scratch_name:
        scratch = Path(scratch_name)
        for name in (WORKLOADS, RECORDS):
            if (folder / name).is_file():
                shutil.copyfile(folder / name, scratch / name)
        try:
            database = open_database(scratch)
            before = len(database)
            workload = database.commit_workload(record.workload.mod)
            database.commit_tuning_record(
                TuningRecord(
                    record.trace, workload, record.run_secs, record.target, record.args_info
                )
            )
            written = len(open_database(scratch))
        except OSError:
            raise
        except Exception as error:  # TVM raises its own classes for errors of the disk
            raise _not_written(folder, str(error).splitlines()[-1]) from error
        if written != before + 1:
            raise _not_written(folder, f"{written} records instead of {before + 1}")
        # Workloads first: records name them by their number, which never changes.
        for name in (WORKLOADS, RECORDS):
            (scratch / name).replace(folder / name)


def _not_written(folder: Path, why: str) -> LabError:
    return LabError(
        f"{folder}: the record was not written ({why}); those from before are kept",
        remedy="free some space there, then tune again",
    )
