# SPDX-License-Identifier: Apache-2.0
"""Shapes of a real generation: recorded in the Relax VM, estimated as phases.

A :class:`Recorder` is a VM instrument: before each call it notes the callee and the shapes of
its arguments, and the caller says where a phase begins::

    recorder = Recorder()
    vm.set_instrument(recorder)
    recorder.begin("prefill")
    ...
    recorder.begin("decode")
    ...
    recorder.save(path, workloads)

``workloads`` is the report of the module that was compiled; the shapes give numbers to the
symbolic sizes of every callee. Attention needs the length of the sequence so far, which is
counted from the tokens that attention was called with.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Any

from crosslab.cost.workload import CONTEXT, Phase, bind_entry
from crosslab.errors import UserError

ATTENTION = "vm.builtin.attention_kv_cache_attention_with_fused_qkv"
BOOKKEEPING = ("vm.builtin.", "shape_func")

Shape = tuple[int, ...] | None


@dataclass
class Section:
    """One phase of a recording: its calls in order of first appearance, with their counts."""

    name: str
    calls: dict[tuple[str, tuple[Shape, ...]], int] = field(default_factory=dict)


class Recorder:
    """Instrument of a Relax VM that records the shapes of every call."""

    def __init__(self) -> None:
        self.sections: list[Section] = []

    def begin(self, name: str) -> None:
        """Begin a phase."""
        self.sections.append(Section(name))

    def __call__(self, _func: Any, symbol: str, before: bool, _result: Any, *args: Any) -> int:
        """Note a call; 0 tells the VM to go on."""
        if before and (symbol == ATTENTION or not symbol.startswith(BOOKKEEPING)):
            if not self.sections:
                self.begin("start")
            key = (str(symbol), tuple(_shape(a) for a in args))
            calls = self.sections[-1].calls
            calls[key] = calls.get(key, 0) + 1
        return 0

    def record(self, workloads: Mapping[str, Any]) -> dict[str, Any]:
        """What was recorded, with the descriptions of the callees, as plain data."""
        called = {name for s in self.sections for name, _ in s.calls}
        functions = workloads.get("functions", {})
        return {
            "schema": 1,
            "sections": [
                {
                    "name": s.name,
                    "calls": [
                        {"callee": name, "shapes": shapes, "count": count}
                        for (name, shapes), count in s.calls.items()
                    ],
                }
                for s in self.sections
            ],
            "functions": {n: f for n, f in functions.items() if n in called},
            "entries": sorted(workloads["entries"]),
        }

    def save(self, path: Path, workloads: Mapping[str, Any]) -> None:
        """Write the recording as JSON."""
        path.write_text(json.dumps(self.record(workloads), indent=1) + "\n", encoding="utf-8")


def _shape(argument: Any) -> Shape:
    shape = getattr(argument, "shape", None)
    if shape is None or not hasattr(argument, "dtype"):
        return None
    return tuple(int(n) for n in shape)


def trace_phases(path: Path) -> list[Phase]:
    """Read a recording as phases, in order.

    Raises:
        UserError: it is no recording, or a call has other shapes than its function takes.
    """
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: cannot be read: {error}") from error
    if not isinstance(record, dict) or record.get("schema") != 1 or "sections" not in record:
        raise UserError(f"{path}: not a recording of schema 1")
    return phases_of(record)


def phases_of(record: Mapping[str, Any]) -> list[Phase]:
    """Bind every recorded call, section by section."""
    found, tokens_so_far = [], 0
    for number, section in enumerate(record["sections"]):
        tokens = _tokens(section)
        tokens_so_far += tokens
        label = f"{number}:{section['name']}"
        found.append(_phase(record, section, label, tokens_so_far))
    return found


def _tokens(section: Mapping[str, Any]) -> int:
    """Tokens that a section adds to the sequence: the calls of one layer's attention."""
    calls = [c for c in section["calls"] if c["callee"] == ATTENTION]
    if not calls:
        return 0
    layers = max(1, min(int(c["count"]) for c in calls))
    return sum(_rows(c) * int(c["count"]) for c in calls) // layers


def _rows(call: Mapping[str, Any]) -> int:
    shape: list[int] = next(s for s in call["shapes"] if s)
    return prod(shape[:-2])


def _phase(
    record: Mapping[str, Any], section: Mapping[str, Any], label: str, context: int
) -> Phase:
    phases: list[Phase] = []
    missing: list[str] = []
    for call in section["calls"]:
        name, count = call["callee"], call["count"]
        if name in record["functions"]:
            function = record["functions"][name]
            sizes = {CONTEXT: context, **_sizes(name, function["params"], call["shapes"])}
            entry = {**_repeated(function, count), "unclassified": []}
            phases.append(bind_entry(name, entry, sizes, label))
        elif name not in record["entries"]:
            missing.append(f"{name} x{count}: not in the module's report")
    return Phase(
        name=label,
        entry=section["name"],
        sizes=((CONTEXT, context),),
        items=tuple(i for p in phases for i in p.items),
        others=tuple(o for p in phases for o in p.others),
        unclassified=tuple(missing),
    )


def _repeated(function: Mapping[str, Any], count: int) -> dict[str, Any]:
    return {
        part: [{**item, "count": item["count"] * count} for item in function[part]]
        for part in ("products", "others")
    }


def _sizes(name: str, params: list[Any], shapes: list[Any]) -> dict[str, int]:
    """Symbolic sizes of a function from the shapes of a call."""
    found: dict[str, int] = {}
    for wanted, actual in zip(params, shapes, strict=False):
        if wanted is None or actual is None:
            continue
        if len(wanted) != len(actual):
            raise UserError(f"trace: {name} was called with {actual}, it takes {wanted}")
        for extent, size in zip(wanted, actual, strict=True):
            known = extent if isinstance(extent, int) else found.get(extent)
            if isinstance(extent, str) and extent.isidentifier() and known is None:
                found[extent] = size
            elif known is not None and known != size:
                raise UserError(f"trace: {name} was called with {actual}, it takes {wanted}")
    return found
