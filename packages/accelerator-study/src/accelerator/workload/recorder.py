# SPDX-License-Identifier: Apache-2.0
"""Recording of a generation: the shapes of every call in the Relax VM.

A :class:`Recorder` is a VM instrument, which records the callee and the argument shapes of each
call. The program that runs the VM marks the begin of each phase::

    recorder = Recorder()
    vm.set_instrument(recorder)
    recorder.begin("prefill")
    ...
    recorder.begin("decode")
    ...
    recorder.save(path, workloads)

``workloads`` is the work file's content for the compiled module; the shapes give numbers to the
symbolic sizes of every callee. ``python -m costmodel --trace`` reads the recording.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from costmodel.estimate.trace import ATTENTION
from groundwork.files import atomic_write_json

BOOKKEEPING = ("vm.builtin.", "shape_func")

Shape = tuple[int, ...] | None


class Recorder:
    """An instrument of a Relax VM that records the shapes of every call."""

    def __init__(self) -> None:
        # Phases: the name, and the calls in order of first appearance, with their counts.
        self.sections: list[tuple[str, Counter[tuple[str, tuple[Shape, ...]]]]] = []

    def begin(self, name: str) -> None:
        """Begin a phase of the recording."""
        self.sections.append((name, Counter()))

    def __call__(self, _func: Any, symbol: str, before: bool, _result: Any, *args: Any) -> int:
        """Record a call before it runs, unless it is bookkeeping; return 0: the VM continues."""
        if before and (symbol == ATTENTION or not symbol.startswith(BOOKKEEPING)):
            if not self.sections:
                self.begin("start")
            self.sections[-1][1][str(symbol), tuple(_shape(a) for a in args)] += 1
        return 0

    def record(self, workloads: Mapping[str, Any]) -> dict[str, Any]:
        """Return the recording and the descriptions of the called functions as plain data."""
        called = {name for _, calls in self.sections for name, _ in calls}
        functions = workloads.get("functions", {})
        return {
            "schema": 1,
            "sections": [
                {
                    "name": phase,
                    "calls": [
                        {"callee": name, "shapes": shapes, "count": count}
                        for (name, shapes), count in calls.items()
                    ],
                }
                for phase, calls in self.sections
            ],
            "functions": {n: f for n, f in functions.items() if n in called},
            "entries": sorted(workloads["entries"]),
        }

    def save(self, path: Path, workloads: Mapping[str, Any]) -> None:
        """Write the recording to a JSON file."""
        atomic_write_json(path, self.record(workloads))


def _shape(argument: Any) -> Shape:
    shape = getattr(argument, "shape", None)
    if shape is None or not hasattr(argument, "dtype"):
        return None
    return tuple(int(n) for n in shape)
