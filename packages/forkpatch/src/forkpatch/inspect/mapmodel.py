# SPDX-License-Identifier: Apache-2.0
"""The map of applicability: its settings, and its results as ``--json`` writes them.

The map of all series is configured in ``pyproject.toml``:

.. code-block:: toml

    [tool.forkpatch.map]
    table = "docs/applicability.md"          # path of the table; this is the default

    [tool.forkpatch.map.upstreams.foo]
    from = "1.0"                             # the first version
    until = "<40 hexadecimal digits>"        # the newest commit; tags after it are left out
    wheels = ["1.1", "1.2"]                  # versions of the wheel

``until`` makes the map repeatable: later commits of the same history do not change it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from forkpatch.errors import UserError
from forkpatch.safety import check_object_id, check_path
from forkpatch.tree.fork import Fork

SHADOW = "overlay"


@dataclass(frozen=True)
class MapSettings:
    """Settings of the map for one upstream; the module docstring describes them."""

    first: str
    until: str
    wheels: tuple[str, ...]


@dataclass(frozen=True)
class MapCell:
    """Fit of one patch of one series on one version.

    Attributes:
        version: tag, commit or version of the wheel.
        commit: empty for a wheel.
        source: ``git`` or ``wheel``.
        set: the version that the patch's series is for.
        patch: its file; ``overlay`` for a symbol that an overlay replaces.
        outcome: a ``probe.Fit``; empty for an overlay.
        symbol_drift: the worst ``drift.Drift`` of the symbols it changes, against the series'
            own base; empty when they cannot be read.
        detail: the file or symbol that decides.
        first_bad_commit: the upstream commit since which it does not apply, when the version is
            newer than the series' base; empty when it applies or the history is not known.
        first_good_commit: for an older version, the upstream commit since which it applies.
    """

    upstream: str
    version: str
    commit: str
    source: str
    set: str
    patch: str
    outcome: str
    symbol_drift: str
    detail: str = ""
    first_bad_commit: str = ""
    first_good_commit: str = ""


@dataclass(frozen=True)
class TurningPoint:
    """Upstream commit at which a patch stops, or starts, to apply.

    Attributes:
        broke: True when it stops there, False when it starts.
        again: True when it stops there and applies again at a later commit.
    """

    patch: str
    commit: str
    subject: str
    fit: str
    broke: bool
    again: bool


@dataclass(frozen=True)
class SeriesMap:
    """One series and the upstream commits that were probed for it.

    Attributes:
        set: the version that the series is for.
        patches: in the order of the series.
        commits: number of upstream commits that changed its files; all were probed. 0 when its
            base is no commit of the history.
    """

    upstream: str
    set: str
    base: str
    until: str
    commits: int
    patches: tuple[str, ...]
    turns: tuple[TurningPoint, ...]


@dataclass(frozen=True)
class ApplicabilityMap:
    """Result of a probe, as ``--json`` writes it."""

    sets: tuple[SeriesMap, ...]
    rows: tuple[MapCell, ...]


def map_settings(table: Mapping[str, Any]) -> dict[str, MapSettings]:
    """Settings of the map by upstream, from ``[tool.forkpatch.map]``.

    Raises:
        UserError: no upstream is configured, or a key or value is wrong.
    """
    found = {}
    for name, entry in table.get("upstreams", {}).items():
        if unknown := sorted(set(entry) - {"from", "until", "wheels"}):
            raise UserError(f"[tool.forkpatch.map.upstreams.{name}]: unknown: {', '.join(unknown)}")
        until = entry.get("until", "")
        if until:
            check_object_id(until, f"[tool.forkpatch.map.upstreams.{name}]: until")
        found[name] = MapSettings(entry.get("from", "0"), until, tuple(entry.get("wheels", ())))
    if not found:
        raise UserError(
            "pyproject.toml configures no upstream for the map",
            remedy="name a patch series to probe, or add [tool.forkpatch.map.upstreams.NAME]",
        )
    return found


def table_path(fork: Fork) -> Path:
    """Path of the map's table."""
    return fork.settings.root / check_path(
        fork.settings.map.get("table", "docs/applicability.md"), "[tool.forkpatch.map]: table"
    )
