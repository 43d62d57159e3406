# SPDX-License-Identifier: Apache-2.0
"""Figures as PNG: roofline, latency by kind of layer, bandwidth over the decode."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from costmodel.estimate.model import PhaseCost
from groundwork.files import atomic_path

# Imported by name: the backend must be chosen first, and costmodel must start without matplotlib.
importlib.import_module("matplotlib").use("Agg")
plt: Any = importlib.import_module("matplotlib.pyplot")

# Okabe and Ito's colours, which colour-blind readers can tell apart.
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442", "#999999")
MARKERS = "osD^vP*X"
DOTS = 110  # an inch
STYLE = {
    "axes.spines.top": False,
    "axes.spines.right": False,
    "font.size": 9,
    "figure.constrained_layout.use": True,
}


def draw_all(folder: Path, results: Sequence[PhaseCost]) -> None:
    """Write the figures that the results allow: the decode's needs several contexts."""
    save(folder / "roofline.png", lambda: roofline(results))
    save(folder / "latency.png", lambda: latency(results))
    if len({r.phase.name for r in results if "decode" in r.phase.name}) > 1:
        save(folder / "decode_bandwidth.png", lambda: decode_bandwidth(results))


def save(path: Path, draw: Callable[[], Any]) -> None:
    """Write the figure that ``draw`` returns as PNG, and make the file's folder.

    Equal figures give equal bytes.
    """
    with plt.rc_context(STYLE), atomic_path(path) as scratch:
        figure = draw()
        figure.savefig(scratch, format="png", dpi=DOTS, metadata={"Software": None})
        plt.close(figure)


def _unique(values: Sequence[str]) -> list[str]:
    return list(dict.fromkeys(values))


def roofline(results: Sequence[PhaseCost]) -> Any:
    """Return a figure of each product's intensity and rate, under the roofs of the hardware."""
    machines = list({r.hardware.name: r.hardware for r in results}.values())
    size = (4.4 * len(machines) + 1.6, 4.0)
    figure, axes = plt.subplots(1, len(machines), figsize=size, squeeze=False)
    groups = _unique([f"{r.phase.name.split(':')[0]}, {r.scheme}" for r in results])
    for axis, machine in zip(axes[0], machines, strict=True):
        costs = [r for r in results if r.hardware.name == machine.name]
        for result in costs:
            group = f"{result.phase.name.split(':')[0]}, {result.scheme}"
            _points(axis, result, groups.index(group), group)
        intensities = [i.cost.intensity for r in costs for i in r.items]
        if intensities:
            roofs(axis, intensities, machine.peak, machine.levels[-1].read, "bit")
        axis.set(title=machine.name, xlabel="MACs per bit of outer traffic (busier direction)")
    axes[0][0].set_ylabel("MACs per cycle")
    handles, labels = axes[0][-1].get_legend_handles_labels()
    chosen = dict(zip(labels, handles, strict=True))
    figure.legend(chosen.values(), chosen.keys(), loc="outside right upper", frameon=False)
    return figure


def _points(axis: Any, result: PhaseCost, number: int, label: str) -> None:
    dots = {(i.cost.intensity, i.cost.macs / i.cost.latency) for i in result.items}
    if not dots:
        return
    axis.scatter(
        *zip(*sorted(dots), strict=True),
        s=22,
        color=COLOURS[number % len(COLOURS)],
        marker=MARKERS[number % len(MARKERS)],
        alpha=0.8,
        linewidths=0,
        label=label,
    )


def roofs(
    axis: Any, intensities: Sequence[float], peak: float, bandwidth: float, unit: str
) -> None:
    """Draw the roofs of a machine, whose bandwidth is in units a cycle."""
    low, high = min(intensities) / 3, max(intensities) * 3
    xs = np.geomspace(low, high, 200)
    axis.plot(xs, np.minimum(peak, xs * bandwidth), color="black", lw=1.2)
    axis.set(xscale="log", yscale="log", xlim=(low, high))
    text = f"{peak:,.0f} MACs/cycle, {bandwidth:,.4g} {unit}/cycle"
    axis.annotate(text, (0.03, 0.985), xycoords="axes fraction", va="top", fontsize=8)
    axis.margins(y=0.12)


def latency(results: Sequence[PhaseCost]) -> Any:
    """Return a figure of milliseconds by kind of layer, a bar for each scheme and dataflow."""
    panels = _unique([f"{r.phase.name}\n{r.hardware.name}" for r in results])
    schemes = _unique([r.scheme for r in results])
    flows = _unique([r.dataflow.name for r in results])
    kinds = _unique([k for r in results for k in r.by_kind()])
    columns = min(3, len(panels))
    rows = -(-len(panels) // columns)
    size = (0.9 + 3.6 * columns, 0.8 + 0.24 * rows * (len(schemes) * len(flows) + 5))
    figure, axes = plt.subplots(rows, columns, figsize=size, squeeze=False)
    for axis in axes.flat[len(panels) :]:
        axis.set_visible(False)
    for panel, axis in zip(panels, axes.flat, strict=False):
        costs = [r for r in results if f"{r.phase.name}\n{r.hardware.name}" == panel]
        costs.sort(key=lambda r: (flows.index(r.dataflow.name), schemes.index(r.scheme)))
        _bars(axis, costs, kinds)
        axis.set_title(panel, fontsize=9)
    for axis in axes[-1]:
        axis.set_xlabel("ms")
    handles, labels = axes[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=5, frameon=False)
    return figure


def _bars(axis: Any, bars: Sequence[PhaseCost], kinds: Sequence[str]) -> None:
    rows = np.arange(len(bars))
    start = np.zeros(len(bars))
    for number, kind in enumerate(kinds):
        cycles = [r.by_kind()[kind].latency if kind in r.by_kind() else 0 for r in bars]
        width = np.array([c / r.hardware.clock * 1e3 for c, r in zip(cycles, bars, strict=True)])
        colour = COLOURS[number % len(COLOURS)]
        hatch = "////" if number >= len(COLOURS) else None
        axis.barh(rows, width, left=start, color=colour, hatch=hatch, height=0.75, label=kind)
        start += width
    flows = _unique([r.dataflow.name for r in bars])
    names = [r.scheme if len(flows) == 1 else f"{_short(r.dataflow.name)} {r.scheme}" for r in bars]
    axis.set_yticks(rows, names, fontsize=7)
    axis.invert_yaxis()


def _short(name: str) -> str:
    """Return initials: OS for output-stationary."""
    return "".join(part[0] for part in name.split("-")).upper()


def decode_bandwidth(results: Sequence[PhaseCost]) -> Any:
    """Return a figure of the GB/s that keep the array busy, over the decode's context."""
    decode = [r for r in results if "decode" in r.phase.name]
    machines = _unique([r.hardware.name for r in decode])
    size = (3.9 * len(machines) + 1.6, 3.6)
    figure, axes = plt.subplots(1, len(machines), figsize=size, squeeze=False)
    lines = _unique([f"{_short(r.dataflow.name)} {r.scheme}" for r in decode])
    for axis, name in zip(axes[0], machines, strict=True):
        costs = [r for r in decode if r.hardware.name == name]
        for number, line in enumerate(lines):
            steps = sorted(
                (dict(r.phase.sizes).get("context", 0), _needed(r))
                for r in costs
                if f"{_short(r.dataflow.name)} {r.scheme}" == line
            )
            style = ("-", "--", ":")[number // len(COLOURS) % 3]
            colour = COLOURS[number % len(COLOURS)]
            axis.plot(*zip(*steps, strict=True), style, color=colour, label=line)
        machine = costs[0].hardware
        rate = machine.levels[-1].read * machine.clock / 8e9
        axis.axhline(rate, color="black", lw=1)
        axis.annotate("available", (0.02, rate), xycoords=("axes fraction", "data"), va="bottom")
        axis.set(title=name, xlabel="context (tokens)", yscale="log")
    axes[0][0].set_ylabel("GB/s needed")
    handles, labels = axes[0][-1].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside right upper", frameon=False)
    return figure


def _needed(result: PhaseCost) -> float:
    total = result.total
    return total.bits / max(total.compute, 1) * result.hardware.clock / 8e9
