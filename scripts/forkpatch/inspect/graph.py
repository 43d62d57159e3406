# SPDX-License-Identifier: Apache-2.0
"""Which patch needs which: as text, for Graphviz, and as a picture."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from xml.sax.saxutils import escape

from forkpatch.inspect.drift import Record, touched_by
from forkpatch.model.fork import Plan

_ROW = 34
_LEFT = 16
_CHAR = 7.4
_ARC = 18


@dataclass(frozen=True)
class Edge:
    """``patch`` leans on the earlier patch ``on``.

    Attributes:
        hard: it cannot be applied without it; else both only change the same symbol.
        symbols: the symbols that both change.
    """

    patch: str
    on: str
    hard: bool
    symbols: tuple[str, ...]


@dataclass(frozen=True)
class Graph:
    """All patches of a series in order, and what each leans on."""

    patches: tuple[str, ...]
    edges: tuple[Edge, ...]


def graph_of(plan: Plan, record: Record) -> Graph:
    """The graph of a planned series."""
    touched: Mapping[str, set[tuple[str, str]]] = {
        patch.name: touched_by(patch, record) for patch in plan.patches
    }
    names = plan.weave.patches
    edges = []
    for at, patch in enumerate(names):
        hard = plan.weave.needs(patch)
        for on in names[:at]:
            shared = tuple(sorted(symbol for _, symbol in touched[patch] & touched[on]))
            if on in hard or shared:
                edges.append(Edge(patch, on, on in hard, shared))
    return Graph(names, tuple(edges))


def as_text(graph: Graph) -> str:
    """One patch a line, with what it leans on below it."""
    lines = []
    for patch in graph.patches:
        lines.append(patch)
        for edge in graph.edges:
            if edge.patch == patch:
                lines.append(f"  {_describe(edge)}")
    return "\n".join(lines)


def _describe(edge: Edge) -> str:
    shared = f": {', '.join(edge.symbols)}" if edge.symbols else ""
    if edge.hard:
        return f"needs {edge.on}" + (f" (both change{shared[1:]})" if shared else "")
    return f"changes the same as {edge.on}{shared}"


def as_dot(graph: Graph) -> str:
    """The graph for Graphviz."""
    lines = ["digraph series {", "  rankdir=BT;", "  node [shape=box, fontname=monospace];"]
    lines += [f'  "{patch}";' for patch in graph.patches]
    for edge in graph.edges:
        style = "" if edge.hard else ' [style=dashed, label="same symbol"]'
        lines.append(f'  "{edge.patch}" -> "{edge.on}"{style};')
    return "\n".join([*lines, "}"]) + "\n"


def as_svg(graph: Graph) -> str:
    """The graph as a picture: the series from top to bottom, an arc for each edge."""
    width = _LEFT + _CHAR * max((len(name) for name in graph.patches), default=1) + 24
    row = {name: at for at, name in enumerate(graph.patches)}
    reach = max((row[edge.patch] - row[edge.on] for edge in graph.edges), default=0)
    height = _ROW * max(len(graph.patches), 1) + 44
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width + _ARC * reach + 30:.0f}"'
        f' height="{height}" font-family="monospace" font-size="12">',
        '<rect width="100%" height="100%" fill="white"/>',
    ]
    for edge in graph.edges:
        top, bottom = (_ROW * row[name] + _ROW for name in (edge.on, edge.patch))
        out = width + _ARC * (row[edge.patch] - row[edge.on])
        dash = "" if edge.hard else ' stroke-dasharray="3 3"'
        color = "#b03030" if edge.hard else "#888888"
        parts.append(
            f'<path d="M {width:.0f} {bottom} C {out:.0f} {bottom}, {out:.0f} {top}, {width:.0f}'
            f' {top}" fill="none" stroke="{color}"{dash}><title>'
            f"{escape(edge.patch)} {escape(_describe(edge))}</title></path>"
            f'<path d="M {width:.0f} {top} l 7 -3 l 0 6 z" fill="{color}"/>'
        )
    for name, at in row.items():
        y = _ROW * at + _ROW
        parts.append(
            f'<rect x="{_LEFT - 8}" y="{y - 12}" width="{width - _LEFT + 6:.0f}" height="24"'
            f' rx="4" fill="#eef2f7" stroke="#8899aa"/>'
            f'<text x="{_LEFT}" y="{y + 4}">{escape(name)}</text>'
        )
    y = height - 14
    parts.append(
        f'<text x="{_LEFT}" y="{y}" fill="#555555">red: needs; dashed: changes the same symbol'
        "</text></svg>\n"
    )
    return "\n".join(parts)
