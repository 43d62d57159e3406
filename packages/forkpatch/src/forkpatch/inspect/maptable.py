# SPDX-License-Identifier: Apache-2.0
"""The applicability map as a page: for each series, a table of versions and patches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

from forkpatch.inspect.mapmodel import (
    SHADOW,
    ApplicabilityMap,
    MapCell,
    SeriesMap,
    TurningPoint,
)
from forkpatch.inspect.probe import Fit
from forkpatch.tree.drift import Drift

_FITS = {
    Fit.APPLIES: ("+", "applies"),
    Fit.CHANGED: ("~", "applies, but the body of its function differs from the base's"),
    Fit.MISPLACED: ("!", "its lines are only in another function"),
    Fit.CONFLICT: ("x", "its lines are not there"),
    Fit.UPSTREAM: ("=", "upstream has the change already"),
    Fit.MISSING: ("-", "its file is not there"),
    Fit.UNKNOWN: ("?", "its file's content is not in the mirror"),
}
_DRIFTS = {
    Drift.UNCHANGED: "",
    Drift.CHANGED: "c",
    Drift.MOVED: "m",
    Drift.GONE: "g",
}
_DRIFT_MEANINGS = {
    Drift.CHANGED: "its body changed",
    Drift.MOVED: "it is in another of these files",
    Drift.GONE: "it is in none of these files",
}
_SHORT = 12


def page(result: ApplicabilityMap) -> str:
    """Return the map as Markdown."""
    lines = [
        "<!-- SPDX-License-Identifier: Apache-2.0 -->",
        "# Applicability of patches",
        "",
        "Made by `forkpatch probe`; do not edit it. `--json FILE` writes the same for programs.",
        "",
        "A cell shows the fit of a patch on a version after the fitting patches before it:",
        "",
        *(f"- `{sign}` {text}" for sign, text in _FITS.values()),
        "",
        "followed by the drift of the function or class that it changes, against the base of its"
        " series:",
        *(f"`{_DRIFTS[drift]}` {text}," for drift, text in _DRIFT_MEANINGS.items()),
        "nothing when it is unchanged.",
    ]
    for series in result.sets:
        rows = [
            row for row in result.rows if (row.upstream, row.set) == (series.upstream, series.set)
        ]
        lines += ["", *_set(series, rows)]
    return "\n".join(lines) + "\n"


def _set(series: SeriesMap, rows: Sequence[MapCell]) -> Iterator[str]:
    """Yield the lines of a series."""
    yield f"## {series.upstream}: the series for {series.set}"
    yield ""
    base = f"commit {series.base[:_SHORT]}" if series.base else "a wheel"
    yield f"Base: {base}. Probed up to commit {series.until[:_SHORT]}: {series.commits}"
    yield "commits changed these files, and each was probed."
    yield ""
    yield from (f"{number}. {name}" for number, name in enumerate(series.patches, 1))
    yield ""
    shadowed = list(dict.fromkeys(row.detail for row in rows if row.patch == SHADOW))
    if shadowed:
        yield "Replaced by an overlay:"
        yield ""
        yield from (f"- {_letter(index)}: `{detail}`" for index, detail in enumerate(shadowed))
        yield ""
    heads = [str(number + 1) for number in range(len(series.patches))]
    heads += [_letter(index) for index in range(len(shadowed))]
    yield f"| version | source | {' | '.join(heads)} |"
    yield f"|---|---|{'---|' * len(heads)}"
    for (version, source), cells in groupby(rows, key=lambda row: (row.version, row.source)):
        yield f"| {version} | {source} | {' | '.join(_cell(cell) for cell in cells)} |"
    yield ""
    yield from _turns(series)


def _letter(index: int) -> str:
    """Return the letter of a shadowed symbol's column."""
    return chr(ord("A") + index)


def _cell(cell: MapCell) -> str:
    """Return the text of a table cell: fit and drift."""
    drift = _DRIFTS.get(Drift(cell.symbol_drift), "") if cell.symbol_drift else ""
    sign = _FITS[Fit(cell.outcome)][0] if cell.outcome else ""
    return f"`{sign}{drift}`" if sign or drift else ""


def _turn_key(turn: TurningPoint) -> tuple[bool, str, str]:
    """Return the key by which turning points are grouped."""
    # Only commits that stop a patch are also grouped by fit.
    return turn.broke, turn.commit, turn.fit if turn.broke else ""


def _turns(series: SeriesMap) -> Iterator[str]:
    """Yield the lines of a series' turning points."""
    if not series.turns:
        yield "No probed commit makes a patch start or stop to apply."
        return
    yield "| commit | change | patches |"
    yield "|---|---|---|"
    for (broke, commit, fit), turns in groupby(sorted(series.turns, key=_turn_key), key=_turn_key):
        same = list(turns)
        numbers = ", ".join(str(series.patches.index(turn.patch) + 1) for turn in same)
        what = f"from here on: {fit}" if broke else "from here on it applies"
        subject = same[0].subject.replace("|", "\\|")
        yield f"| {commit[:_SHORT]} {subject} | {what} | {numbers} |"
