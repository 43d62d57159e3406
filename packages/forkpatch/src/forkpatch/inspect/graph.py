# SPDX-License-Identifier: Apache-2.0
"""Dependencies between the patches of a series, as text and for Graphviz."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from forkpatch.model.record import Record
from forkpatch.tree.derive import touched_by
from forkpatch.tree.fork import TreePlan


@dataclass(frozen=True)
class Edge:
    """Dependency of ``patch`` on the earlier patch ``on``.

    Attributes:
        hard: True when ``patch`` cannot be applied without ``on``; else both change the same
            symbol.
        symbols: the symbols that both patches change.
    """

    patch: str
    on: str
    hard: bool
    symbols: tuple[str, ...]


@dataclass(frozen=True)
class Graph:
    """Patches of a series in order, and their dependencies."""

    patches: tuple[str, ...]
    edges: tuple[Edge, ...]


def graph_of(plan: TreePlan, record: Record) -> Graph:
    """Return the graph of a planned series."""
    touched: Mapping[str, set[tuple[str, str]]] = {
        patch.name: touched_by(patch, record) for patch in plan.patches
    }
    names = plan.weave.patches
    edges = []
    for index, patch in enumerate(names):
        hard = plan.weave.needs(patch)
        for on in names[:index]:
            shared = tuple(sorted(symbol for _, symbol in touched[patch] & touched[on]))
            if on in hard or shared:
                edges.append(Edge(patch, on, on in hard, shared))
    return Graph(names, tuple(edges))


def as_text(graph: Graph) -> str:
    """Return the graph as text: a line per patch, with its dependencies below."""
    lines = []
    for patch in graph.patches:
        lines.append(patch)
        for edge in graph.edges:
            if edge.patch == patch:
                lines.append(f"  {_describe(edge)}")
    return "\n".join(lines)


def _describe(edge: Edge) -> str:
    """Return a dependency in words."""
    shared = f": {', '.join(edge.symbols)}" if edge.symbols else ""
    if edge.hard:
        return f"needs {edge.on}" + (f" (both change{shared[1:]})" if shared else "")
    return f"changes the same as {edge.on}{shared}"


def as_dot(graph: Graph) -> str:
    """Return the graph for Graphviz."""
    lines = ["digraph series {", "  rankdir=BT;", "  node [shape=box, fontname=monospace];"]
    lines += [f'  "{patch}";' for patch in graph.patches]
    for edge in graph.edges:
        style = "" if edge.hard else ' [style=dashed, label="same symbol"]'
        lines.append(f'  "{edge.patch}" -> "{edge.on}"{style};')
    return "\n".join([*lines, "}"]) + "\n"
