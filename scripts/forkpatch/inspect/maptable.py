# SPDX-License-Identifier: Apache-2.0
"""The applicability map as a page: for each series a table of versions against patches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

from forkpatch.inspect.applicability import (
    SHADOW,
    ApplicabilityMap,
    MapCell,
    SeriesMap,
    TurningPoint,
)
from forkpatch.inspect.drift import Drift
from forkpatch.inspect.probe import Fit

_FITS = {
    Fit.APPLIES: ("+", "applies"),
    Fit.CHANGED: ("~", "applies, but the function around it says something else than on its base"),
    Fit.MISPLACED: ("!", "its lines are in another function only"),
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
_DRIFT_MEANS = {
    Drift.CHANGED: "its body changed",
    Drift.MOVED: "it is in another of these files",
    Drift.GONE: "it is in none of these files",
}
_SHORT = 12


def page(found: ApplicabilityMap) -> str:
    """The map as Markdown."""
    lines = [
        "<!-- SPDX-License-Identifier: Apache-2.0 -->",
        "# Which patch applies where",
        "",
        "Made by `forkpatch probe`; do not edit it. `--json FILE` writes the same for programs.",
        "",
        "A cell says how a patch fits a version, those before it in the series that fit being in:",
        "",
        *(f"- `{sign}` {text}" for sign, text in _FITS.values()),
        "",
        "and, behind it, what became of the function or class that it changes since the base of"
        " its set:",
        *(f"`{_DRIFTS[drift]}` {text}," for drift, text in _DRIFT_MEANS.items()),
        "nothing when it is as it was.",
    ]
    for one in found.sets:
        rows = [row for row in found.rows if (row.upstream, row.set) == (one.upstream, one.set)]
        lines += ["", *_set(one, rows)]
    return "\n".join(lines) + "\n"


def _set(one: SeriesMap, rows: Sequence[MapCell]) -> Iterator[str]:
    yield f"## {one.upstream}: the set for {one.set}"
    yield ""
    base = f"commit {one.base[:_SHORT]}" if one.base else "a wheel"
    yield f"Base: {base}. Upstream is looked at up to commit {one.until[:_SHORT]}; {one.commits}"
    yield "commits concerned these files, and each was looked at."
    yield ""
    yield from (f"{number}. {name}" for number, name in enumerate(one.patches, 1))
    yield ""
    shadowed = list(dict.fromkeys(row.detail for row in rows if row.patch == SHADOW))
    if shadowed:
        yield "An overlay takes the place of:"
        yield ""
        yield from (f"- {_letter(at)}: `{detail}`" for at, detail in enumerate(shadowed))
        yield ""
    heads = [str(number + 1) for number in range(len(one.patches))]
    heads += [_letter(at) for at in range(len(shadowed))]
    yield f"| version | source | {' | '.join(heads)} |"
    yield f"|---|---|{'---|' * len(heads)}"
    for (version, source), cells in groupby(rows, key=lambda row: (row.version, row.source)):
        yield f"| {version} | {source} | {' | '.join(_cell(cell) for cell in cells)} |"
    yield ""
    yield from _turns(one)


def _letter(at: int) -> str:
    return chr(ord("A") + at)


def _cell(cell: MapCell) -> str:
    drift = _DRIFTS.get(Drift(cell.symbol_drift), "") if cell.symbol_drift else ""
    sign = _FITS[Fit(cell.outcome)][0] if cell.outcome else ""
    return f"`{sign}{drift}`" if sign or drift else ""


def _what(turn: TurningPoint) -> tuple[bool, str, str]:
    # How a patch stops to apply is told apart; where it begins to, it is one thing.
    return turn.broke, turn.commit, turn.fit if turn.broke else ""


def _turns(one: SeriesMap) -> Iterator[str]:
    if not one.turns:
        yield "No commit that was looked at makes one of them apply or stop to."
        return
    yield "| commit | what happened | patches |"
    yield "|---|---|---|"
    for (broke, commit, fit), turns in groupby(sorted(one.turns, key=_what), key=_what):
        same = list(turns)
        numbers = ", ".join(str(one.patches.index(turn.patch) + 1) for turn in same)
        what = f"from here on: {fit}" if broke else "from here on it applies"
        subject = same[0].subject.replace("|", "\\|")
        yield f"| {commit[:_SHORT]} {subject} | {what} | {numbers} |"
