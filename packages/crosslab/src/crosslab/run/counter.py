# SPDX-License-Identifier: Apache-2.0
"""Run a guest under the plugin that counts the guest's instructions."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.markup import escape

from crosslab.cached_build import cached_build
from crosslab.errors import LabError, UserError
from crosslab.run.counter_plugin import build_counter
from crosslab.run.emulator import GuestMachine, run_guest
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
    inputs: Path | None = None,
) -> tuple[str, Measurement]:
    """Run a program under the counter; return its output and the counts.

    Args:
        program: the guest.
        arguments: its arguments.
        machine: the CPU. Counts of one thread are reproducible; counts of several threads are not.
        cache: folder of the compiled plugin, and of reused counts.
        cwd: working folder of the guest.
        caches: caches to simulate, in the form of native/counter/counter.c; empty: none.
        inputs: file or folder that the guest reads: the counts of an equal run of one thread are
            reused; None: count each time.

    Raises:
        UserError: see :func:`build_counter`.
        LabError: see :func:`run_guest`; or the marks of regions do not come in pairs.
    """
    counter = build_counter(cache)

    def run(out: Path) -> None:
        option = f"{counter.plugin},out={out / COUNTS}" + (f",caches={caches}" if caches else "")
        plugin = ["-plugin", option]
        result = run_guest(program, arguments, machine, cwd=cwd, qemu=counter.qemu, plugin=plugin)
        (out / ANSWER).write_text(result.stdout, encoding="utf-8")
        if not (out / COUNTS).is_file():
            raise LabError(f"{program.name} ended without a report of the counter")

    def read(out: Path) -> tuple[str, Measurement]:
        table = json.loads((out / COUNTS).read_text(encoding="utf-8"))
        if not table["balanced"]:
            raise LabError(f"{program.name}: the marks of regions are not in pairs")
        return (out / ANSWER).read_text(encoding="utf-8"), read_measurement(table)

    if inputs is None:
        with tempfile.TemporaryDirectory(prefix="counter-") as folder:
            run(Path(folder))
            return read(Path(folder))
    qemu = ".".join(map(str, counter.qemu.version))
    words = "\0".join(arguments)
    key = digest(program, inputs, counter.plugin, qemu, repr(machine), words, caches)
    return read(cached_build(cache, "counts", key, run))


def run_counted(
    program: Path, arguments: Sequence[str], machine: GuestMachine, cache: Path
) -> tuple[str, Measurement | None]:
    """Run :func:`count_guest`; without a counter, print so and run without counting.

    Returns:
        the guest's output, and its counts or None.

    Raises:
        LabError: see :func:`count_guest`.
    """
    try:
        return count_guest(program, arguments, machine, cache)
    except UserError as error:
        _console.print(f"[yellow]not counted:[/] {escape(error.what)}")
        return run_guest(program, arguments, machine).stdout, None
