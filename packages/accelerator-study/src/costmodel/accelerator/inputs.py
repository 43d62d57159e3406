# SPDX-License-Identifier: Apache-2.0
"""Readers of hardware and dataflows by name or path, in TOML or in TENET's text files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from costmodel.accelerator.dataflow import Dataflow, load_dataflow
from costmodel.accelerator.hardware import Hardware, load_hardware
from costmodel.accelerator.tenet import hardware_from_pe_file, read_mapping_file
from costmodel.errors import CostError


def hardware_by_names(names: Sequence[str], lanes: int | None = None) -> tuple[Hardware, ...]:
    """Read hardware files; ``lanes`` overrides the multiply-accumulates of a PE.

    Raises:
        CostError: a file is wrong, or two hardware files have the same name.
    """
    hardware = [
        hardware_from_pe_file(Path(n)) if n.endswith(".p") else load_hardware(n) for n in names
    ]
    twice = sorted({h.name for h in hardware if sum(o.name == h.name for o in hardware) > 1})
    if twice:
        raise CostError(f"two hardware files are both named {', '.join(twice)}")
    if lanes is not None:
        hardware = [replace(h, fabric=replace(h.fabric, lanes=lanes)) for h in hardware]
    return tuple(hardware)


def dataflows_by_names(names: Sequence[str], factors: Mapping[str, int]) -> tuple[Dataflow, ...]:
    """Read dataflows; their maps may use the names in ``factors``.

    Raises:
        CostError: a file is wrong.
    """
    dataflows = []
    for name in names:
        if name.endswith(".m"):
            space, time = read_mapping_file(Path(name))
            numbers = tuple(sorted(factors.items()))
            dataflows.append(Dataflow(Path(name).stem, space, time, (), numbers))
        else:
            dataflows.append(load_dataflow(name, factors))
    return tuple(dataflows)
