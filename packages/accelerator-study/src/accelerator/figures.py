# SPDX-License-Identifier: Apache-2.0
"""Figures of layers on a device: their rate over their traffic, and the queues' work over time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from accelerator.device import Device
from accelerator.isa.instructions import Multiply, Queue
from accelerator.study import StudiedLayer
from costmodel.results.plots import COLOURS, MARKERS, plt, roofs

Points = Sequence[tuple[float, float]]
SMALLEST, LARGEST = 20.0, 260.0  # areas of markers, points squared
COLUMNS = 640  # of a timeline
LEAST = 0.012  # part of the time of a layer with a name
ROWS = ("LOAD", "GEMM core", "ALU and its loads", "STORE")


def points(studied: Sequence[StudiedLayer]) -> Points:
    """Return each layer's multiply-accumulates per byte of DRAM and per cycle."""
    pairs = [(each.layer.macs, each.timing) for each in studied]
    return [(macs / timing.bytes, macs / timing.cycles) for macs, timing in pairs]


def roofline(device: Device, phases: Mapping[str, Sequence[StudiedLayer]]) -> Any:
    """Return a figure of each layer's rate over its traffic, under the roofs of the device.

    A marker's area shows a layer's part of its phase's time.
    """
    figure, axis = plt.subplots(figsize=(6.4, 4.2))
    intensities = []
    for number, (name, studied) in enumerate(phases.items()):
        coordinates = points(studied)
        intensities += [intensity for intensity, _ in coordinates]
        times = np.array([each.count * each.timing.cycles for each in studied])
        axis.scatter(
            *zip(*coordinates, strict=True),
            s=SMALLEST + (LARGEST - SMALLEST) * times / times.sum(),
            color=COLOURS[number % len(COLOURS)],
            marker=MARKERS[number % len(MARKERS)],
            alpha=0.75,
            linewidths=0,
            label=name,
        )
    roofs(axis, intensities, device.peak, device.dram_bandwidth, "B")
    axis.set(title=device.name, xlabel="MACs per byte of DRAM", ylabel="MACs per cycle")
    axis.legend(loc="lower right", frameon=False)
    return figure


def busy(studied: Sequence[StudiedLayer], columns: int) -> Any:
    """Return the part of the time of each of ``columns`` columns in which each of ROWS works."""
    ends = np.cumsum([each.count * each.timing.cycles for each in studied])
    edges, work = np.linspace(0, ends[-1], columns + 1), np.zeros((len(ROWS), columns + 1))
    for layer, end in zip(studied, ends, strict=True):
        start, times = end - layer.count * layer.timing.cycles, layer.count
        spans: list[list[tuple[float, float]]] = [[] for _ in ROWS]
        for span in layer.timing.spans:
            multiplies = isinstance(layer.program.instructions[span.index], Multiply)
            row = {Queue.LOAD: 0, Queue.STORE: 3}.get(span.queue, 1 if multiplies else 2)
            spans[row].append((span.begin, span.end))
        for row, listed in enumerate(spans):
            if listed:
                marks = start + times * np.array(sorted(listed)).ravel()
                done = np.cumsum(np.diff(marks, prepend=marks[0]) * (np.arange(len(marks)) % 2))
                work[row] += np.interp(edges, marks, done)
    return np.diff(work, axis=1) / np.diff(edges)


def timeline(device: Device, studied: Sequence[StudiedLayer]) -> Any:
    """Return a figure of the part of the time in which each queue works.

    Layers are in their order; layers of one kind are drawn once, as long as all of them.
    """
    figure, axes = plt.subplots(len(ROWS), 1, figsize=(10, 4.6), sharex=True, sharey=True)
    ends = np.cumsum([each.count * each.timing.cycles for each in studied]) * 1e3 / device.clock
    at = (np.arange(COLUMNS) + 0.5) * ends[-1] / COLUMNS
    for axis, row, title, colour in zip(axes, busy(studied, COLUMNS), ROWS, COLOURS, strict=False):
        axis.fill_between(at, row, step="mid", color=colour, linewidth=0)
        axis.set(xlim=(0, ends[-1]), ylim=(0, 1), yticks=(0, 1), yticklabels=("0", "1"))
        axis.set_title(title, fontsize=9, loc="left", pad=2)
        for end in ends[:-1]:
            axis.axvline(end, color="black", lw=0.4)
    axes[-1].set_xlabel(f"ms on {device.name}; height: part of the time in which the queue works")
    for each, end, before in zip(studied, ends, [0.0, *ends], strict=False):
        if end - before > LEAST * ends[-1]:
            times = f" x {each.count}" if each.count > 1 else ""
            place = ((before + end) / 2, 1.35)
            style = {"rotation": 55, "fontsize": 7, "ha": "left", "va": "bottom"}
            axes[0].text(*place, f"{each.layer.name}{times}", **style)
    return figure
