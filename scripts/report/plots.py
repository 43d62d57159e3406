# SPDX-License-Identifier: Apache-2.0
"""Drawings as inline SVG, with the colours of the page's theme."""

from __future__ import annotations

import importlib
import io
import re
from collections.abc import Sequence
from typing import Any

# Imported by name, because the backend must be chosen before the import of pyplot.
importlib.import_module("matplotlib").use("Agg")
plt: Any = importlib.import_module("matplotlib.pyplot")

# Placeholders for the page's colours, which differ by theme and on paper.
INK = "#010203"
COLOURS = {"step": "#010204", "ours": "#010205", "peer": "#010206"}
VARIABLES = {INK: "--ink", **{value: f"--bar-{name}" for name, value in COLOURS.items()}}
# Inches. Narrow enough for readable letters on a phone; bars of a quarter inch.
WIDTH, BAR, MARGIN = 4.6, 0.27, 0.75
STYLE = {
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "font.size": 9,
    "svg.hashsalt": "mlc-rvv",
    "svg.fonttype": "none",
    "figure.constrained_layout.use": True,
}


def bars(
    labels: Sequence[str], values: Sequence[float], unit: str, marks: Sequence[str], name: str
) -> str:
    """Return a drawing of horizontal bars with values, the first bar on top; the axis starts at 0.

    Args:
        labels: label of each bar.
        values: value of each bar, in ``unit``.
        unit: title of the axis.
        marks: kind of each bar: ``step``, ``ours`` or ``peer``.
        name: name that is unique on the page; the ids of the drawing begin with it.
    """
    with plt.rc_context(STYLE):
        figure, axis = plt.subplots(figsize=(WIDTH, MARGIN + BAR * len(values)))
        places = range(len(values))
        drawn = axis.barh(places, values, height=0.7, color=[COLOURS[mark] for mark in marks])
        axis.bar_label(drawn, labels=[f"{value:.3g}" for value in values], padding=3, color=INK)
        axis.set_yticks(places, labels)
        axis.invert_yaxis()
        axis.margins(x=0.15)
        axis.set_xlabel(unit)
        stream = io.StringIO()
        figure.savefig(stream, format="svg", transparent=True, metadata={"Date": None})
        plt.close(figure)
    return _themed(stream.getvalue(), name)


def _themed(svg: str, name: str) -> str:
    """Return the SVG without size and metadata, with unique ids and the page's colours."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    head, rest = svg.split(">", 1)
    head = re.sub(r' (width|height|xmlns:xlink|version)="[^"]*"', "", head)
    prefix = re.sub(r"\W+", "-", name)
    rest = re.sub(r'\bid="', f'id="{prefix}-', rest)
    rest = re.sub(r"url\(#", f"url(#{prefix}-", rest)
    rest = re.sub(r'xlink:href="#', f'href="#{prefix}-', rest)
    for colour, variable in VARIABLES.items():
        rest = rest.replace(colour, f"var({variable})")
    return f'{head} aria-hidden="true" focusable="false">{rest}'
