# SPDX-License-Identifier: Apache-2.0
"""Run a guest under the plugin that counts the guest's instructions."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape

from crosslab.cached_build import cached_build
from crosslab.errors import LabError, UserError
from crosslab.run.counter_plugin import Counter, build_counter
from crosslab.run.emulator import GuestMachine, GuestResult, run_guest
from crosslab.run.measurement import Measurement, read_measurement
from groundwork.hashing import digest

_console = Console(stderr=True, highlight=False, soft_wrap=True)

# Files of the plugin's report and of the guest's output.
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
    """Run a program under the counter; return its result and the counts.

    Args:
        program: the guest.
        arguments: its arguments.
        machine: the CPU. Counts of one thread are reproducible; counts of several threads are not.
        cache: folder for the compiled plugin.
        cwd: working folder of the guest.
        caches: caches to simulate, in the form of native/counter/counter.c; empty: none.

    Raises:
        UserError: see :func:`build_counter`.
        LabError: see :func:`run_guest`; or the marks of regions do not come in pairs.
    """
    counter = build_counter(cache)
    with tempfile.TemporaryDirectory(prefix="counter-") as folder:
        report = Path(folder) / COUNTS
        result, table = _run(program, arguments, machine, counter, report, cwd, caches)
        return result, read_measurement(table)


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
    """Run :func:`count_guest`, or return the cached counts of an equal run.

    Args:
        program: the guest.
        arguments: its arguments.
        machine: the CPU, with one thread, as other counts are not reproducible.
        cache: folder of the compiled plugin, and of the counts.
        inputs: file or folder that the guest reads.
        cwd: working folder of the guest.
        caches: as in :func:`count_guest`.

    Returns:
        the guest's output, and its counts.

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


def _run(
    program: Path,
    arguments: Sequence[str],
    machine: GuestMachine,
    counter: Counter,
    report: Path,
    cwd: Path | None,
    caches: str,
) -> tuple[GuestResult, dict[str, Any]]:
    """Run a guest under the plugin; return its result, and the report from the file `report`."""
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
    """Run :func:`count_guest`; without a counter, print so and run without counting.

    Returns:
        the guest's result, and its counts or None.

    Raises:
        LabError: see :func:`count_guest`.
    """
    try:
        build_counter(cache)
    except UserError as error:
        _console.print(f"[yellow]not counted:[/] {escape(error.what)}")
        return run_guest(program, arguments, machine), None
    return count_guest(program, arguments, machine, cache)
