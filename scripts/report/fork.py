# SPDX-License-Identifier: Apache-2.0
"""The sections about the fork: releases and their patches, symbol drift, the map of versions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from forkpatch.inspect import probe
from forkpatch.model.patchfile import SERIES, load_series
from forkpatch.tree.drift import Drift
from report.blocks import (
    NONE,
    Cell,
    Content,
    Section,
    Status,
    Table,
    code,
    distinct,
    number,
    text,
    verdict,
)
from report.evidence import Evidence

# Drift of a place that equals the record.
UNCHANGED = str(Drift.UNCHANGED)
NEEDED = "needed"
# Most patches that a cell names; a longer list is replaced by its length.
NAMED = 3
FITTING = {str(fit) for fit in (*probe.FITTING, probe.Fit.UPSTREAM)}
DRIFTED = {str(drift) for drift in Drift} - {str(Drift.UNCHANGED)}


def releases(root: Path, lock: Mapping[str, Any], status: Evidence, necessity: Evidence) -> Section:
    """Return the section of all releases with their trees' state, and of all series' patches."""
    default = str(lock["default-release"])
    states = {}
    if status.found:
        states = {(u["name"], u["version"]): u for u in status.first["upstreams"]}
    rows = []
    for name, versions in lock["releases"].items():
        for upstream, version in versions.items():
            state = states.get((upstream, version)) if name == default else None
            rows.append(
                [
                    text(f"{name} (default)" if name == default else name),
                    text(upstream),
                    code(version),
                    text(state["source"] if state else NONE),
                    _state(state),
                ]
            )
    tables = [Table("Releases", ("release", "upstream", "version", "source", "trees"), rows)]
    judged = {}
    if necessity.found:
        judged = {(j["upstream"], j["patch"]): j["verdict"] for j in _judgements(necessity.first)}
    for series in sorted(root.glob(f"patches/*/*/{SERIES}")):
        tables.append(_series(series.parent, judged))
    lead = "A release names one version of each upstream that work together. "
    if not necessity.found:
        lead += f"Whether each patch is still needed is not known here: {necessity.command}."
    return Section(
        "releases", "Releases and patches", lead, status.command, body=Content(tables=tables)
    )


def _state(state: Mapping[str, Any] | None) -> Cell:
    """Return the cell with the state of a tree."""
    if state is None:
        return text("not looked at")
    good = state["state"] == "applied"
    return text(state["state"], Status.GOOD if good else Status.NOTE)


def _judgements(report: Any) -> list[Mapping[str, Any]]:
    """Return the judgements of the patches from a report of ``necessity``."""
    return list(report["patches"] if isinstance(report, dict) else report)


def _series(folder: Path, judged: Mapping[tuple[str, str], str]) -> Table:
    """Return the table of the patches of a series."""
    upstream, version = folder.parts[-2:]
    rows = []
    for patch in load_series(folder):
        verdict_of = judged.get((upstream, patch.name))
        status = Status.GOOD if verdict_of == NEEDED else Status.BAD
        rows.append(
            [
                code(patch.name.removesuffix(".patch")),
                text(patch.subject),
                text(patch.trailer("Upstream-Status") or NONE),
                number(len(patch.files), 0),
                text(verdict_of, status) if verdict_of else text(NONE),
            ]
        )
    heads = ("patch", "what it does", "upstream status", "files", "needed")
    return Table(f"{upstream} {version}: {len(rows)} patches, in order", heads, rows)


def drift(symbols: Evidence) -> Content:
    """Return a table of each series' places: all, unchanged, and those that drifted, by name."""
    rows = []
    for series in symbols.first:
        counts = Counter(place["drift"] for place in series["places"])
        moved = [p for p in series["places"] if p["drift"] != UNCHANGED]
        rows.append(
            [
                text(f"{series['upstream']} {series['version']}"),
                number(len(series["places"]), 0),
                number(counts[UNCHANGED], 0),
                verdict(not moved, "none", ", ".join(f"{p['what']}: {p['drift']}" for p in moved)),
            ]
        )
    table = Table("Places compared", ("series", "places", "unchanged", "drift"), rows)
    return Content(tables=[table])


def applicability(evidence: Evidence) -> Content:
    """Return tables of the versions on which each series applies, and of breaking commits."""
    cells = evidence.first["rows"]
    tables = [
        _map(name, [cell for cell in cells if f"{cell['upstream']} {cell['set']}" == name])
        for name in distinct(f"{cell['upstream']} {cell['set']}" for cell in cells)
    ]
    return Content(tables=tables)


def _map(name: str, cells: list[Mapping[str, Any]]) -> Table:
    """Return the table of the versions on which a series applies."""
    rows = []
    for version in distinct(cell["version"] for cell in cells):
        # A symbol that an overlay replaces has no outcome, because no patch is applied there.
        outcomes = [cell for cell in cells if cell["version"] == version and cell["outcome"]]
        bad = [cell for cell in outcomes if cell["outcome"] not in FITTING]
        commits = distinct(
            cell["first_bad_commit"][:12] for cell in bad if cell["first_bad_commit"]
        )
        drifted = [c for c in cells if c["version"] == version and c["symbol_drift"] in DRIFTED]
        rows.append(
            [
                text(version),
                text(outcomes[0]["source"]),
                Cell(f"{len(outcomes) - len(bad)} of {len(outcomes)}", number=True),
                number(len(drifted), 0),
                verdict(not bad, "all", _told(bad)),
                code(", ".join(commits) or NONE),
            ]
        )
    heads = ("version", "source", "apply", "symbols drifted", "what does not", "since commit")
    return Table(f"Patches of {name}", heads, rows)


def _told(bad: list[Mapping[str, Any]]) -> str:
    """Return the patches in words, grouped by problem; of a long list only the number."""
    groups = []
    for outcome in distinct(cell["outcome"] for cell in bad):
        names = [c["patch"].removesuffix(".patch") for c in bad if c["outcome"] == outcome]
        few = len(names) <= NAMED
        groups.append(f"{outcome}: {', '.join(names) if few else f'{len(names)} patches'}")
    return "; ".join(groups)
