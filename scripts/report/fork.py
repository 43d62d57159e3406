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

# How a place that was looked at again compares with the record.
UNCHANGED = str(Drift.UNCHANGED)
NEEDED = "needed"
# A cell names at most this many patches; for more it gives their number.
NAMED = 3
FITTING = {str(fit) for fit in (*probe.FITTING, probe.Fit.UPSTREAM)}
DRIFTED = {str(drift) for drift in Drift} - {str(Drift.UNCHANGED)}


def releases(root: Path, lock: Mapping[str, Any], status: Evidence, necessity: Evidence) -> Section:
    """Each release with the state of its trees, and each series with the reason of every patch."""
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
    if state is None:
        return text("not looked at")
    good = state["state"] == "applied"
    return text(state["state"], Status.GOOD if good else Status.NOTE)


def _judgements(found: Any) -> list[Mapping[str, Any]]:
    return list(found["patches"] if isinstance(found, dict) else found)


def _series(folder: Path, judged: Mapping[tuple[str, str], str]) -> Table:
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
    """Hunks that are no longer in their recorded function."""
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


def applicability(found: Evidence) -> Content:
    """The upstream versions on which each series applies, and the first commit that breaks it."""
    cells = found.first["rows"]
    tables = [
        _map(name, [cell for cell in cells if f"{cell['upstream']} {cell['set']}" == name])
        for name in distinct(f"{cell['upstream']} {cell['set']}" for cell in cells)
    ]
    return Content(tables=tables)


def _map(name: str, cells: list[Mapping[str, Any]]) -> Table:
    rows = []
    for version in distinct(cell["version"] for cell in cells):
        # A symbol that an overlay takes the place of has no outcome: nothing is put there.
        own = [cell for cell in cells if cell["version"] == version and cell["outcome"]]
        bad = [cell for cell in own if cell["outcome"] not in FITTING]
        commits = distinct(
            cell["first_bad_commit"][:12] for cell in bad if cell["first_bad_commit"]
        )
        drifted = [c for c in cells if c["version"] == version and c["symbol_drift"] in DRIFTED]
        rows.append(
            [
                text(version),
                text(own[0]["source"]),
                Cell(f"{len(own) - len(bad)} of {len(own)}", number=True),
                number(len(drifted), 0),
                verdict(not bad, "all", _told(bad)),
                code(", ".join(commits) or NONE),
            ]
        )
    heads = ("version", "source", "apply", "symbols drifted", "what does not", "since commit")
    return Table(f"Patches of {name}", heads, rows)


def _told(bad: list[Mapping[str, Any]]) -> str:
    """The patches by their problem; only the number of many."""
    groups = []
    for outcome in distinct(cell["outcome"] for cell in bad):
        names = [c["patch"].removesuffix(".patch") for c in bad if c["outcome"] == outcome]
        few = len(names) <= NAMED
        groups.append(f"{outcome}: {', '.join(names) if few else f'{len(names)} patches'}")
    return "; ".join(groups)
