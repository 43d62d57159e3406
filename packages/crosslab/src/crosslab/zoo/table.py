# SPDX-License-Identifier: Apache-2.0
"""Reports of the zoo: out/zoo.json, and docs/zoo.md."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from crosslab.errors import UserError
from crosslab.models.families import Family, refusals
from crosslab.models.formats import FORMATS
from crosslab.zoo.outcome import FamilyOutcome, FamilyStatus, Fault, MatrixKey, error_bound
from groundwork.files import atomic_write_json

REAL_SIZES = "## Real sizes"
# Memory that Python, PyTorch and TVM never exceed by themselves.
PROGRAMS_BYTES = 1e9
# Free memory of a PC of 24 GB.
PC_BYTES = 22e9


def read_report(path: Path) -> list[FamilyOutcome]:
    """Read the outcomes of a report; an empty list without a report.

    Raises:
        UserError: the file is not a report of the zoo.
    """
    if not path.is_file():
        return []
    try:
        outcomes = [FamilyOutcome.read(row) for row in json.loads(path.read_text("utf-8"))]
        return sorted(outcomes, key=lambda outcome: _column(outcome.key))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise UserError(
            f"{path} is not a report of the zoo ({error})", remedy="remove it, or give --json"
        ) from error


def merged(old: Iterable[FamilyOutcome], new: Iterable[FamilyOutcome]) -> list[FamilyOutcome]:
    """Merge outcomes by position in the matrix; new outcomes replace old ones."""
    both = {o.key: o for o in [*old, *new]}
    return [both[key] for key in sorted(both, key=lambda k: (k.family, *_column(k)))]


def _column(key: MatrixKey) -> tuple[int, str, int, int]:
    """Return the sort key of a column: format, release, VLEN, layers of real size."""
    return FORMATS.index(key.quantization), key.release, key.vlen, key.layers


def write_report(path: Path, outcomes: Iterable[FamilyOutcome]) -> None:
    """Write the report, a list of outcomes, atomically."""
    atomic_write_json(path, [outcome.table() for outcome in outcomes])


def cell(outcome: FamilyOutcome | None) -> str:
    """Return the text of a table's cell for an outcome; "not asked" without one."""
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
    """Return the text of docs/zoo.md.

    Args:
        families: families in the table's order.
        outcomes: known outcomes of the families.
        about: text before the table.
    """
    real = [o for o in outcomes if o.layers]
    outcomes = [o for o in outcomes if not o.layers]
    known = {o.key: o for o in outcomes}
    keys = sorted({o.key._replace(family="") for o in outcomes}, key=_column)
    columns = dict(zip(keys, _headings(keys), strict=True))
    lines = [
        about.rstrip(),
        "",
        f"| family | shaped like | {' | '.join(columns.values())} | kernels |",
    ]
    lines.append(f"|---|---|{'---|' * (len(columns) + 1)}")
    for family in families:
        row = [known.get(key._replace(family=family.name)) for key in columns]
        called = " ".join(f"{o.tensorized}/{o.total}" if o else "-" for o in row)
        cells = " | ".join(map(cell, row))
        lines.append(f"| {family.name} | {family.like} | {cells} | {called} |")
    counts = []
    for key, heading in columns.items():
        checked = [o for o in outcomes if o.key._replace(family="") == key]
        right = sum(o.outcome is FamilyStatus.RIGHT for o in checked)
        counts.append(f"{heading}: {right} of {len(checked)} right")
    counted, formats = ", ".join(counts), dict.fromkeys(key.quantization for key in columns)
    bounds = ", ".join(f"{q} {error_bound(q):g}" for q in formats)
    lines += ["", f"{counted}. Largest error allowed: {bounds}."]
    lines += _reasons({f.name: f for f in families}, outcomes, columns)
    lines += _real({f.name: f for f in families}, real)
    lines += _refused()
    return "\n".join(lines) + "\n"


def with_real_sizes(
    page: str, families: Sequence[Family], outcomes: Sequence[FamilyOutcome]
) -> str:
    """Return the text of docs/zoo.md with these outcomes in place of the table of real sizes.

    Raises:
        UserError: the page has no such table.
    """
    before, heading, rest = page.partition(f"\n{REAL_SIZES}\n")
    if not heading:
        why = f"the page has no heading {REAL_SIZES!r}"
        raise UserError(why, remedy="leave out --real, to write the whole page")
    after = "\n## ".join(["", *rest.split("\n## ")[1:]])
    real = _real({f.name: f for f in families}, [o for o in outcomes if o.layers])
    return before + "\n".join(real) + "\n" + after


def _real(families: Mapping[str, Family], outcomes: Sequence[FamilyOutcome]) -> list[str]:
    """Return the table of models of real size, with the memory and CPU time of each step."""
    if not outcomes:
        return []
    order = list(families)
    outcomes = sorted(outcomes, key=lambda o: (order.index(o.family), *_column(o.key)))
    lines = ["", REAL_SIZES, ""]
    lines += ["| family | format | layers | answer | largest tensor | conversion | compilation |"]
    lines += [f"|---|---|---|---|{'---:|' * 3}"]
    for o in outcomes:
        layers = f"{o.layers} of {families[o.family].real['layers']}"
        answer = f"{cell(o)}: `{o.reason}`" if o.reason else cell(o)
        costs = " | ".join(
            f"{cost.memory / 1e9:.1f} GB, {cost.cpu:.0f} s" if cost else "-"
            for cost in (o.converted, o.compiled)
        )
        largest = f"{o.largest / 1e6:.0f} MB"
        start = f"| {o.family} | {o.quantization} | {layers} | {answer} "
        lines.append(f"{start}| {largest} | {costs} |")
    return lines + _largest_tensors(outcomes)


def _largest_tensors(outcomes: Sequence[FamilyOutcome]) -> list[str]:
    """Return sentences on the largest tensor that a PC can convert, by the rows of each format."""
    lines = []
    for name in dict.fromkeys(o.quantization for o in outcomes):
        rows = [
            (o.converted.memory, o.largest)
            for o in outcomes
            if o.quantization == name and o.converted
        ]
        # Of a small model the memory is that of the programs.
        large = [(memory, size) for memory, size in rows if memory > PROGRAMS_BYTES]
        if large:
            most = max(memory / size for memory, size in large)
            measured = f"{max(large)[0] / 1e9:.1f} GB for {max(large)[1] / 1e6:.0f} MB"
            lines += ["", f"{name}: a conversion takes at most {most:.1f} times its largest tensor"]
            lines += [f"(measured up to {measured}). By this rule, {PC_BYTES / 1e9:.0f} GB of free"]
            lines += [f"memory are enough for a tensor of {PC_BYTES / most / 1e6:.0f} MB."]
    return lines


def _refused() -> list[str]:
    lines = ["", "## Refused", "", "`nox -s model` refuses models of MLC-LLM's other folders:", ""]
    lines += ["| folder | `model_type` | reason |", "|---|---|---|"]
    return lines + [f"| {r.folder} | {', '.join(r.kinds)} | {r.why} |" for r in refusals()]


def _headings(keys: Sequence[MatrixKey]) -> list[str]:
    """Return the columns' headings: the format, and other axes with several values."""
    several_vlens = len({key.vlen for key in keys}) > 1
    several = len({key.release for key in keys}) > 1
    return [
        key.quantization
        + (f", {key.release}" if several else "")
        + (f", VLEN {key.vlen}" if several_vlens else "")
        for key in keys
    ]


def _reasons(
    families: Mapping[str, Family],
    outcomes: Sequence[FamilyOutcome],
    heading: Mapping[MatrixKey, str],
) -> list[str]:
    failed = [o for o in outcomes if o.reason]
    lines = ["", "## What is not right, and why", ""] if failed else []
    for o in failed:
        known = families[o.family].known if o.family in families else ""
        lines.append(
            f"* **{o.family}, {heading[o.key._replace(family='')]}**: {cell(o)}: `{o.reason}`"
        )
        lines += [f"  {known}."] if known else []
    plain: dict[str, list[str]] = {}
    for o in outcomes:
        for reason, count in (o.plain or {}).items():
            where = f"{o.family} {heading[o.key._replace(family='')]} ({count})"
            plain.setdefault(reason, []).append(where)
    if plain:
        lines += ["", "## Products that call no kernel", ""]
        lines += [f"* {reason}: {', '.join(where)}" for reason, where in sorted(plain.items())]
    return lines
