# SPDX-License-Identifier: Apache-2.0
"""Estimates of recorded runs from the shapes of every call.

``accelerator.workload.recorder`` writes the recording. The cost of attention depends on the length
of the sequences so far, which follows from the tokens of all earlier calls of attention.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import ceil, prod
from pathlib import Path
from typing import Any

from costmodel.errors import CostError, read_json
from costmodel.estimate.workload import CONTEXT, Phase, bind_entry, undamaged

RECORD = "record a run with accelerator.workload.recorder.Recorder, as docs/cost/README.md says"
ATTENTION = "vm.builtin.attention_kv_cache_attention_with_fused_qkv"


def trace_phases(path: Path) -> list[Phase]:
    """Read a recording and return its sections as phases, in order.

    Raises:
        CostError: the file is not a recording, or a call's shapes do not fit its function.
    """
    record = read_json(path, RECORD)
    if not isinstance(record, dict) or record.get("schema") != 1 or "sections" not in record:
        raise CostError(f"{path}: not a recording of schema 1", remedy=RECORD)
    if not record["sections"]:
        raise CostError(f"{path}: contains no calls: 'sections' is empty", remedy=RECORD)
    with undamaged(f"{path}: damaged", RECORD):
        return phases_of(record)


def phases_of(record: Mapping[str, Any]) -> list[Phase]:
    """Return a phase for each section of a recording.

    Its context is the mean length of a sequence, rounded up: the tokens of all sections up to it,
    divided by the number of its sequences.
    """
    phases, tokens_so_far = [], 0
    for number, section in enumerate(record["sections"]):
        calls = [c for c in section["calls"] if c["callee"] == ATTENTION]
        tokens = _tokens(calls)
        tokens_so_far += tokens
        sequences = max((_sequences(call, section["name"]) for call in calls), default=1)
        label = f"{number}:{section['name']}"
        phases.append(_phase(record, section, label, tokens, ceil(tokens_so_far / sequences)))
    return phases


def _tokens(calls: Sequence[Mapping[str, Any]]) -> int:
    """Return the tokens that a section adds to its sequences, from a layer's attention calls."""
    if not calls:
        return 0
    layers = max(1, min(int(c["count"]) for c in calls))
    return sum(prod(_leading(c)) * int(c["count"]) for c in calls) // layers


def _sequences(call: Mapping[str, Any], section: str) -> int:
    """Return the sequences of an attention call: a decode has one token of each."""
    extents = _leading(call)
    return prod(extents[:1]) if len(extents) > 1 or "decode" in section else 1


def _leading(call: Mapping[str, Any]) -> list[int]:
    """Return the extents before heads and their length: sequences, tokens, or both."""
    shape: list[int] = next(s for s in call["shapes"] if s)
    return shape[:-2]


def _phase(
    record: Mapping[str, Any], section: Mapping[str, Any], label: str, tokens: int, context: int
) -> Phase:
    phases: list[Phase] = []
    missing: list[str] = []
    for call in section["calls"]:
        name, count = call["callee"], call["count"]
        if name in record["functions"]:
            function = record["functions"][name]
            sizes = {CONTEXT: context, **_sizes(name, function["params"], call["shapes"])}
            parts = {
                part: [{**item, "count": item["count"] * count} for item in function[part]]
                for part in ("products", "others")
            }
            entry = {**parts, "unclassified": []}
            phases.append(bind_entry(f"{section['name']}: {name}", entry, sizes, label))
        elif name not in record["entries"]:
            missing.append(f"{name} x{count}: not in the module's report")
    return Phase(
        name=label,
        entry=section["name"],
        sizes=((CONTEXT, context),),
        items=tuple(i for p in phases for i in p.items),
        others=tuple(o for p in phases for o in p.others),
        unclassified=tuple(missing),
        recorded=tokens,
    )


def _sizes(name: str, params: list[Any], shapes: list[Any]) -> dict[str, int]:
    """Return the symbolic sizes of a function from the shapes of a call."""
    sizes: dict[str, int] = {}
    for wanted, actual in zip(params, shapes, strict=False):
        if wanted is None or actual is None:
            continue
        if len(wanted) != len(actual):
            raise CostError(f"trace: {name} was called with {actual}, it takes {wanted}")
        for extent, size in zip(wanted, actual, strict=True):
            known = extent if isinstance(extent, int) else sizes.get(extent)
            if isinstance(extent, str) and extent.isidentifier() and known is None:
                sizes[extent] = size
            elif known is not None and known != size:
                raise CostError(f"trace: {name} was called with {actual}, it takes {wanted}")
    return sizes
