# SPDX-License-Identifier: Apache-2.0
"""The map of applicability: its settings, and its results as ``--json`` writes them.

The map of all series is configured in ``pyproject.toml``:

.. code-block:: toml

    [tool.forkpatch.map.upstreams.foo]
    from = "1.0"                             # the first version
    until = "<40 hexadecimal digits>"        # the newest commit; tags after it are left out
    wheels = ["1.1", "1.2"]                  # versions of the wheel

``until`` makes the map repeatable: later commits of the same history do not change it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from forkpatch.errors import UserError
from forkpatch.safety import check_object_id

SHADOW = "overlay"


@dataclass(frozen=True)
class MapSettings:
    """Settings of the map for an upstream; the module docstring describes them."""

    first: str
    until: str
    wheels: tuple[str, ...]


@dataclass(frozen=True)
class MapCell:
    """Fit of a patch of a series on a version.

    Attributes:
        version: tag, commit or version of the wheel.
        commit: commit of the version; empty for a wheel.
        source: ``git`` or ``wheel``.
        set: the version of the patch's series.
        patch: file name of the patch; ``overlay`` for a symbol that an overlay replaces.
        outcome: a ``probe.Fit``; empty for an overlay.
        symbol_drift: the worst ``drift.Drift`` of the patch's symbols, against the series' own
            base; empty when they cannot be read.
        detail: the file or symbol that decides the outcome.
        first_bad_commit: for a version newer than the base, the upstream commit since which the
            patch does not apply; empty when it applies or the history is unknown.
        first_good_commit: for an older version, the upstream commit since which the patch applies.
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
    """An upstream commit at which a patch starts, or stops, to apply.

    Attributes:
        broke: True when the patch stops to apply, False when it starts.
        again: True when the patch stops here and applies again at a later commit.
    """

    patch: str
    commit: str
    subject: str
    fit: str
    broke: bool
    again: bool


@dataclass(frozen=True)
class SeriesMap:
    """A series and the upstream commits that were probed for it.

    Attributes:
        set: the version of the series.
        patches: names of the patches, in the order of the series.
        commits: number of upstream commits that changed the series' files, all probed; 0 when the
            base is not a commit of the history.
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
    """Return the settings of the map by upstream, from ``[tool.forkpatch.map]``.

    Raises:
        UserError: no upstream is configured, or a key or value is wrong.
    """
    settings = {}
    for name, entry in table.get("upstreams", {}).items():
        if unknown := sorted(set(entry) - {"from", "until", "wheels"}):
            raise UserError(f"[tool.forkpatch.map.upstreams.{name}]: unknown: {', '.join(unknown)}")
        until = entry.get("until", "")
        if until:
            check_object_id(until, f"[tool.forkpatch.map.upstreams.{name}]: until")
        settings[name] = MapSettings(entry.get("from", "0"), until, tuple(entry.get("wheels", ())))
    if not settings:
        raise UserError(
            "pyproject.toml configures no upstream for the map",
            remedy="name a patch series to probe, or add [tool.forkpatch.map.upstreams.NAME]",
        )
    return settings
