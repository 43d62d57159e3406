# SPDX-License-Identifier: Apache-2.0
"""A roofline plot of layers on a device: simulated rate over simulated traffic."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from accelerator.device import Device
from accelerator.study import StudiedLayer
from costmodel.studies.plots import COLOURS, MARKERS, plt, save

Points = Sequence[tuple[float, float]]
SMALLEST, LARGEST = 20.0, 260.0  # areas of markers, points squared


def points(studied: Sequence[StudiedLayer]) -> Points:
    """Return each layer's multiply-accumulates per byte of DRAM and per cycle."""
    return [(each.macs / each.timing.bytes, each.macs / each.timing.cycles) for each in studied]


def draw_roofline(path: Path, device: Device, phases: Mapping[str, Sequence[StudiedLayer]]) -> None:
    """Write a roofline plot as PNG; equal layers give equal bytes.

    Args:
        path: of the file; the function makes its folder.
        device: its peak and bandwidth are the roofs.
        phases: layers by phase. A marker's area shows a layer's part of its phase's time.
    """
    save(path, lambda _: _figure(device, phases), ())


def _figure(device: Device, phases: Mapping[str, Sequence[StudiedLayer]]) -> Any:
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
    low, high = min(intensities) / 3, max(intensities) * 3
    xs = np.geomspace(low, high, 200)
    axis.plot(xs, np.minimum(device.peak, xs * device.dram_bandwidth), color="black", lw=1.2)
    axis.set(xscale="log", yscale="log", xlim=(low, high), title=device.name)
    axis.set(xlabel="MACs per byte of DRAM", ylabel="MACs per cycle")
    text = f"{device.peak:,.0f} MACs/cycle, {device.dram_bandwidth:,.4g} B/cycle"
    axis.annotate(text, (0.03, 0.985), xycoords="axes fraction", va="top", fontsize=8)
    axis.margins(y=0.12)
    axis.legend(loc="lower right", frameon=False)
    return figure
