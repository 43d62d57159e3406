# SPDX-License-Identifier: Apache-2.0
"""Tuning of TIR functions on a farm: MetaSchedule's search, its results compared."""

# Files of MetaSchedule's database.
WORKLOADS, RECORDS = "database_workload.json", "database_tuning_record.json"
