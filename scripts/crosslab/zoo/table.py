# SPDX-License-Identifier: Apache-2.0
"""The zoo's results: out/zoo.json, and docs/zoo.md drawn from it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from common.files import atomic_write_json
from crosslab.errors import UserError
from crosslab.models.formats import FORMATS, weight_formats
from crosslab.zoo.families import Family
from crosslab.zoo.outcome import FamilyOutcome, FamilyStatus, Fault


def read_report(path: Path) -> list[FamilyOutcome]:
    """The outcomes of a report; none when there is no report.

    Raises:
        UserError: it is not a report of the zoo.
    """
    if not path.is_file():
        return []
    try:
        return [FamilyOutcome.read(row) for row in json.loads(path.read_text("utf-8"))]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(
            f"{path} is not a report of the zoo ({error})", remedy="remove it, or give --json"
        ) from error


def merged(old: Iterable[FamilyOutcome], new: Iterable[FamilyOutcome]) -> list[FamilyOutcome]:
    """Outcomes by family and quantization; new ones take the place of old ones."""
    both = {(o.family, o.quantization): o for o in [*old, *new]}
    return [both[key] for key in sorted(both, key=lambda k: (k[0], FORMATS.index(k[1])))]


def write_report(path: Path, about: Mapping[str, Any], outcomes: Iterable[FamilyOutcome]) -> None:
    """Write the report, whole or not at all: a list of outcomes, each with what it is about."""
    table = [{**outcome.table(), **about} for outcome in outcomes]
    atomic_write_json(path, table)


def cell(outcome: FamilyOutcome | None) -> str:
    """An outcome in a word or two."""
    if outcome is None:
        return "not asked"
    whose = {Fault.UPSTREAM: ", upstream's", Fault.OURS: ", **ours**"}
    fault = whose.get(outcome.fault, "") if outcome.fault else ""
    error = outcome.max_logit_error
    if outcome.outcome is FamilyStatus.RIGHT:
        return f"right ({error:.0e})"
    if outcome.outcome is FamilyStatus.WRONG:
        return f"wrong ({error:.1e}){fault}"
    return f"{outcome.outcome}{fault}"


def document(families: Sequence[Family], outcomes: Sequence[FamilyOutcome], about: str) -> str:
    """docs/zoo.md.

    Args:
        families: in the table's order.
        outcomes: what is known of them.
        about: the text before the table.
    """
    known = {(o.family, o.quantization): o for o in outcomes}
    columns = [q for q in FORMATS if any(o.quantization == q for o in outcomes)]
    lines = [about.rstrip(), "", f"| family | shaped like | {' | '.join(columns)} | kernels |"]
    lines.append(f"|---|---|{'---|' * (len(columns) + 1)}")
    for family in families:
        row = [known.get((family.name, q)) for q in columns]
        called = " ".join(f"{o.tensorized}/{o.total}" if o else "-" for o in row)
        cells = " | ".join(map(cell, row))
        lines.append(f"| {family.name} | {family.like} | {cells} | {called} |")
    right = {
        q: sum(known[k].outcome is FamilyStatus.RIGHT for k in known if k[1] == q) for q in columns
    }
    asked = {q: sum(k[1] == q for k in known) for q in columns}
    counted = ", ".join(f"{q}: {right[q]} of {asked[q]} right" for q in columns)
    bounds = ", ".join(f"{q} {weight_formats()[q].tolerance:g}" for q in columns)
    lines += ["", f"{counted}. Largest error allowed: {bounds}."]
    lines += _reasons({f.name: f for f in families}, outcomes)
    return "\n".join(lines) + "\n"


def _reasons(families: Mapping[str, Family], outcomes: Sequence[FamilyOutcome]) -> list[str]:
    failed = [o for o in outcomes if o.reason]
    lines = ["", "## What is not right, and why", ""] if failed else []
    for o in failed:
        known = families[o.family].known if o.family in families else ""
        lines.append(f"* **{o.family}, {o.quantization}**: {cell(o)}: `{o.reason}`")
        lines += [f"  {known}."] if known else []
    plain: dict[str, list[str]] = {}
    for o in outcomes:
        for reason, count in (o.plain or {}).items():
            plain.setdefault(reason, []).append(f"{o.family} {o.quantization} ({count})")
    if plain:
        lines += ["", "## Products that call no kernel", ""]
        lines += [f"* {reason}: {', '.join(where)}" for reason, where in sorted(plain.items())]
    return lines
