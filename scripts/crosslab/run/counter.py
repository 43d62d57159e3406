# SPDX-License-Identifier: Apache-2.0
"""Run a guest under the plugin that counts its instructions."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from crosslab.cached_build import cached_build
from crosslab.errors import LabError, UserError
from crosslab.run.counter_plugin import Counter, build_counter
from crosslab.run.emulator import GuestMachine, GuestResult, run_guest
from crosslab.run.measurement import Measurement, read_measurement
from groundwork.hashing import digest

_console = Console(stderr=True, highlight=False, soft_wrap=True)

# The plugin's report, and what the guest printed.
COUNTS, ANSWER = "counts.json", "answer.txt"


def count_guest(
    program: Path,
    arguments: Sequence[str],
    machine: GuestMachine,
    cache: Path,
    *,
    cwd: Path | None = None,
    caches: str = "",
) -> tuple[GuestResult, Measurement]:
    """Run a program under the counter.

    Args:
        program: the guest.
        arguments: its arguments.
        machine: the CPU. One thread counts the same from run to run; several do not.
        cache: folder for the compiled plugin.
        cwd: where the guest runs.
        caches: simulate these, as native/counter/counter.c takes them; empty: none.

    Raises:
        LabError: see :func:`run_guest`; or the marks do not come in pairs.
    """
    return _count(program, arguments, machine, build_counter(cache), cwd, caches)


def count_guest_once(
    program: Path,
    arguments: Sequence[str],
    machine: GuestMachine,
    cache: Path,
    *,
    inputs: Path,
    cwd: Path,
    caches: str = "",
) -> tuple[str, Measurement]:
    """Run :func:`count_guest`, or reuse what an equal run of one thread counted.

    Args:
        program: the guest.
        arguments: its arguments.
        machine: the CPU.
        cache: folder of the compiled plugin, and of the counts.
        inputs: the file or folder that the guest reads.
        cwd: where the guest runs.
        caches: as in :func:`count_guest`.

    Returns:
        what the guest printed, and its counts.

    Raises:
        LabError: see :func:`count_guest`.
    """
    counter = build_counter(cache)

    def make(out: Path) -> None:
        result, _ = _run(program, arguments, machine, counter, out / COUNTS, cwd, caches)
        (out / ANSWER).write_text(result.stdout, encoding="utf-8")

    qemu = ".".join(map(str, counter.qemu.version))
    words = "\0".join(arguments)
    key = digest(program, inputs, counter.plugin, qemu, repr(machine), words, caches)
    counted = cached_build(cache, "counts", key, make)
    table = json.loads((counted / COUNTS).read_text(encoding="utf-8"))
    return (counted / ANSWER).read_text(encoding="utf-8"), read_measurement(table)


def _count(
    program: Path,
    arguments: Sequence[str],
    machine: GuestMachine,
    counter: Counter,
    cwd: Path | None = None,
    caches: str = "",
) -> tuple[GuestResult, Measurement]:
    with tempfile.TemporaryDirectory(prefix="counter-") as folder:
        report = Path(folder) / COUNTS
        result, table = _run(program, arguments, machine, counter, report, cwd, caches)
        return result, read_measurement(table)


def _run(
    program: Path,
    arguments: Sequence[str],
    machine: GuestMachine,
    counter: Counter,
    report: Path,
    cwd: Path | None,
    caches: str,
) -> tuple[GuestResult, dict[str, Any]]:
    """Run a guest; what it said, and the plugin's report, which is written to `report`."""
    option = f"{counter.plugin},out={report}" + (f",caches={caches}" if caches else "")
    plugin = ["-plugin", option]
    result = run_guest(program, arguments, machine, cwd=cwd, qemu=counter.qemu, plugin=plugin)
    try:
        table: dict[str, Any] = json.loads(report.read_text(encoding="utf-8"))
    except OSError as error:
        raise LabError(f"{program.name} ended without a report of the counter") from error
    if not table["balanced"]:
        raise LabError(f"{program.name}: the marks of regions are not in pairs")
    return result, table


def run_counted(
    program: Path, arguments: Sequence[str], machine: GuestMachine, cache: Path
) -> tuple[GuestResult, Measurement | None]:
    """Run :func:`count_guest`; without counting, and with a line that says so, if nothing counts.

    Returns:
        what the guest said, and its counts or None.

    Raises:
        LabError: see :func:`count_guest`.
    """
    try:
        counter = build_counter(cache)
    except UserError as error:
        _console.print(f"[yellow]not counted:[/] {error.what}")
        return run_guest(program, arguments, machine), None
    return _count(program, arguments, machine, counter)
