# SPDX-License-Identifier: Apache-2.0
"""The fronts of a search as an HTML page: plots with labelled points, and tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from math import log10
from typing import Any

WIDTH, HEIGHT, EDGE = 720, 420, 60
LEGEND = 170  # right of the plot, so that it covers no point
RADIUS = 5
LEAST = 1e-30  # in place of 0, whose logarithm does not exist
# Okabe and Ito's colours, which colour-blind readers can tell apart.
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#999999", "#000000")
STYLE = (
    "body{font:15px sans-serif;max-width:60em;margin:2em auto;padding:0 1em}"
    "table{border-collapse:collapse}td,th{padding:.2em .7em;text-align:right}"
    "td:nth-child(-n+3),th:nth-child(-n+3){text-align:left}circle:hover{stroke:#000;stroke-width:2}"
)
Row = Mapping[str, Any]


def page(fronts: Sequence[Row], title: str, note: str = "") -> str:
    """Return the page: note, then a plot of energy over latency and a table for each phase."""
    parts = [
        "<!doctype html>",
        f'<html lang="en"><meta charset="utf-8"><title>{escape(title)}</title>',
        f"<style>{STYLE}</style><h1>{escape(title)}</h1>",
        "<p>No design in a plot is better in everything than another: latency, energy, area of"
        " multipliers and buffer, perplexity. Point at one to see what it is.</p>",
        *([f"<p>{escape(note)}</p>"] if note else []),
    ]
    for phase in dict.fromkeys(r["phase"] for r in fronts):
        rows = [r for r in fronts if r["phase"] == phase]
        parts += [f"<h2>{escape(phase)}</h2>", _plot(rows), _table(rows)]
    return "\n".join([*parts, "</html>", ""])


def _scaled(values: Sequence[float], start: float, end: float) -> list[float]:
    logs = [log10(max(v, LEAST)) for v in values]
    low, high = min(logs), max(logs)
    span = high - low or 1.0
    return [start + (v - low) / span * (end - start) for v in logs]


def _plot(rows: Sequence[Row]) -> str:
    across = _scaled([r["latency_ms"] for r in rows], EDGE + 10, WIDTH - 20)
    down = _scaled([r["energy_mj"] for r in rows], HEIGHT - EDGE - 10, 20)
    names = list(dict.fromkeys(r["scheme"] for r in rows))
    parts = [
        f'<svg viewBox="0 0 {WIDTH + LEGEND} {HEIGHT}" role="img" aria-label="energy over latency">'
    ]
    parts.append(
        f'<path d="M{EDGE} 10V{HEIGHT - EDGE}H{WIDTH - 10}" fill="none" stroke="#000"/>'
        f'<text x="{WIDTH / 2}" y="{HEIGHT - 15}">latency, ms (logarithmic)</text>'
        f'<text transform="translate(14 {HEIGHT / 2}) rotate(-90)">energy, mJ (logarithmic)</text>'
    )
    for values, positions, start in (("latency_ms", across, True), ("energy_mj", down, False)):
        figures = [r[values] for r in rows]
        for at in (figures.index(min(figures)), figures.index(max(figures))):
            x, y = (positions[at] - 15, HEIGHT - EDGE + 18) if start else (18, positions[at] + 4)
            parts.append(
                f'<text x="{x:.0f}" y="{y:.0f}" font-size="12">{rows[at][values]:.3g}</text>'
            )
    for r, x, y in zip(rows, across, down, strict=True):
        colour = COLOURS[names.index(r["scheme"]) % len(COLOURS)]
        parts.append(
            f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{RADIUS}" fill="{colour}" fill-opacity=".8">'
            f"<title>{escape(describe(r))}\n{escape(_mapping(r))}</title></circle>"
        )
    for n, name in enumerate(names):
        parts.append(
            f'<circle cx="{WIDTH + 12}" cy="{20 + 18 * n}" r="{RADIUS}" '
            f'fill="{COLOURS[n % len(COLOURS)]}"/>'
            f'<text x="{WIDTH + 24}" y="{24 + 18 * n}" font-size="13">{escape(name)}</text>'
        )
    return "".join([*parts, "</svg>"])


def buffer(row: Row) -> str:
    """Return the buffer's size in KiB, and the eighths of A, B and C if the buffer is split."""
    split = row["mapping"]["split"]
    size = str(row["mapping"]["buffer_bytes"] >> 10)
    return f"{size}, split {':'.join(map(str, split))}" if split else size


def describe(row: Row) -> str:
    """Return a row as a line of text."""
    array = "x".join(map(str, row["array"]))
    quality = "" if row["perplexity"] is None else f", perplexity {row['perplexity']:.4g}"
    return (
        f"{row['scheme']}, {row['dataflow']}, {array} PEs, "
        f"buffer of {buffer(row)} KiB: {row['latency_ms']:.4g} ms, "
        f"{row['energy_mj']:.4g} mJ, {row['area_mm2']:.3g} mm2{quality}"
    )


def _mapping(row: Row) -> str:
    """Return the mapping of each product as a line of text."""
    return "\n".join(
        f"{name}: tile {'x'.join(map(str, held['tile']))}, loops {' '.join(held['order'])}"
        for name, plan in row["mapping"]["products"].items()
        for held in plan
    )


def _table(rows: Sequence[Row]) -> str:
    heads = ("scheme", "dataflow", "array", "buffer, KiB", "ms", "mJ", "mm2", "perplexity")
    lines = ["<table><tr>" + "".join(f"<th>{h}</th>" for h in heads) + "</tr>"]
    for r in rows:
        perplexity = "" if r["perplexity"] is None else f"{r['perplexity']:.4g}"
        cells = (
            *(r["scheme"], r["dataflow"], "x".join(map(str, r["array"]))),
            *(buffer(r), f"{r['latency_ms']:.4g}"),
            *(f"{r['energy_mj']:.4g}", f"{r['area_mm2']:.3g}", perplexity),
        )
        lines.append("<tr>" + "".join(f"<td>{escape(c)}</td>" for c in cells) + "</tr>")
    return "\n".join([*lines, "</table>"])
