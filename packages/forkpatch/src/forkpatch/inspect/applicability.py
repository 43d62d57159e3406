# SPDX-License-Identifier: Apache-2.0
"""Applicability of patches: probes of one series, or of all series, on upstream versions.

The map of all series is configured in ``pyproject.toml``:

.. code-block:: toml

    [tool.forkpatch.map.upstreams.foo]
    from = "1.0"                             # the first version
    until = "<40 hexadecimal digits>"        # the newest commit; tags after it are left out
    wheels = ["1.1", "1.2"]                  # versions of the wheel

``until`` makes the map repeatable: later commits of the same history do not change it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from forkpatch.errors import SourceError, UserError
from forkpatch.inspect.probe import FITTING, Contents, Fit, Fits, ProbedSeries, Prober
from forkpatch.model.lock import Upstream
from forkpatch.model.record import SymbolPlace
from forkpatch.output import warn
from forkpatch.pins.versions import series_of, tags_of, version_of
from forkpatch.safety import check_object_id
from forkpatch.sources.history import History, UpstreamCommit
from forkpatch.sources.obtain import SourceOptions, mirrors_of
from forkpatch.sources.repository import refs_of
from forkpatch.sources.wheels import download_wheel, wheel_files
from forkpatch.symbols.outline import outline
from forkpatch.tree.drift import Drift, record_of
from forkpatch.tree.fork import Fork

SHADOW = "overlay"
_SHORT = 12


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
    patch: str = ""
    outcome: str = ""
    symbol_drift: str = ""
    detail: str = ""
    first_bad_commit: str = ""
    first_good_commit: str = ""


@dataclass(frozen=True)
class TurningPoint:
    """An upstream commit at which a patch starts, or stops (``broke``), to apply.

    Attributes:
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


@dataclass(frozen=True)
class _Scope:
    """Versions and commits on which a series is probed.

    Attributes:
        history: the upstream's history; None when only wheels are probed.
        versions: label and commit of each version to probe.
        wheels: versions of the wheel to probe.
        since: first commit of the scan before the base; empty: no scan there.
        until: last commit of the scan after the base; empty: no scan there.
    """

    history: History | None
    versions: Sequence[tuple[str, str]]
    wheels: Sequence[str]
    since: str
    until: str


def map_fork(fork: Fork, options: SourceOptions) -> ApplicabilityMap:
    """Probe every series of every upstream that the settings name.

    Raises:
        UserError: the history of an upstream, or a wheel, is not available.
    """
    tables: dict[str, dict[str, Any]] = fork.settings.map.get("upstreams", {})
    if not tables:
        raise UserError(
            "pyproject.toml configures no upstream for the map",
            remedy="name a patch series to probe, or add [tool.forkpatch.map.upstreams.NAME]",
        )
    sets: list[SeriesMap] = []
    rows: list[MapCell] = []
    for name, table in tables.items():
        where, until = f"[tool.forkpatch.map.upstreams.{name}]", table.get("until", "")
        if unknown := sorted(set(table) - {"from", "until", "wheels"}):
            raise UserError(f"{where}: unknown: {', '.join(unknown)}")
        if until:
            check_object_id(until, f"{where}: until")
        versions = fork.lock.versions(name).values()
        history = _history(fork, next(iter(versions)), options, until)
        if history is None:
            newest, url = until or "now", next(iter(versions)).url
            raise UserError(
                f"no mirror of {name} with its history up to {newest} is known",
                remedy=f"name a full clone of {url}: --mirror {name}=PATH",
            )
        until = until or history.resolve("HEAD") or ""
        first = f"{table.get('from', '0')}.dev0"  # its pre-releases, too
        probed = (*_tags(history, first, until), (until[:_SHORT], until))
        scope = _Scope(history, probed, table.get("wheels", ()), probed[0][1], until)
        every = [_prepared(fork, one, options) for one in versions if fork.series(one)]
        paths = frozenset[str]().union(*(series.paths for series in every))
        for series in every:
            result, cells = _map_series(fork, replace(series, paths=paths), scope, options)
            sets.append(result)
            rows += cells
    return ApplicabilityMap(tuple(sets), tuple(rows))


def map_upstream(
    fork: Fork, upstream: Upstream, options: SourceOptions, wanted: Sequence[str], tip: str
) -> ApplicabilityMap:
    """Probe the series of an upstream version on newer versions.

    ``wanted`` has tags, commits or versions of the wheel; if empty, the tags from the version's own
    on are probed. The scan ends at the commit ``tip``.

    Raises:
        UserError: no mirror has the history, or a version is not available.
    """
    series = _prepared(fork, upstream, options)
    history = _history(fork, upstream, options, upstream.commit)
    wanted = wanted or ([] if upstream.commit else [upstream.version])
    if history is None and not wanted:
        raise UserError(
            f"no mirror of {upstream.name} with its history is known",
            remedy=f"name one: --mirror {upstream.name}=PATH; or wheels: --versions V",
        )
    versions = _versions(upstream, history, wanted) if history else ()
    labels = {label for label, _ in versions}
    wheels = [name for name in wanted if name not in labels]
    until = (history.resolve(tip) or "") if history and upstream.commit else ""
    scope = _Scope(history, versions, wheels, "", until)
    result, cells = _map_series(fork, series, scope, options)
    return ApplicabilityMap((result,), tuple(cells))


def _history(fork: Fork, upstream: Upstream, options: SourceOptions, commit: str) -> History | None:
    """Return an upstream's history, which has a commit; None if no mirror on this machine does."""
    places = [*mirrors_of(upstream, fork.cache, options), upstream.url]
    return History.find(places, *([commit] if commit else []))


def _versions(
    upstream: Upstream, history: History, wanted: Sequence[str]
) -> Sequence[tuple[str, str]]:
    """Return label and commit of the wanted versions that the history has."""
    if not wanted:
        series = series_of(upstream.tag)
        tags = _tags(history, upstream.tag or upstream.version)
        newer = [(name, commit) for name, commit in tags if series_of(name) == series]
        return newer or ((upstream.version, upstream.commit),)
    named = (
        (name, (f"refs/tags/{name}", f"refs/tags/v{name}", f"refs/heads/{name}", name))
        for name in wanted
    )
    found = ((name, next(filter(None, map(history.resolve, refs)), "")) for name, refs in named)
    return [(name, commit) for name, commit in found if commit]


def _tags(history: History, first: str, until: str = "") -> list[tuple[str, str]]:
    """Return name and commit of the tags from the version ``first`` on, up to a commit."""
    least = version_of(first)
    tags = [
        tag
        for tag in tags_of(refs_of(str(history.git.git_dir)))
        if tag.version and least and tag.version >= least
    ]
    if until:
        dates = history.dates([until, *(tag.commit for tag in tags)])
        tags = [tag for tag in tags if dates[tag.commit] <= dates[until]]
    return [(tag.name, tag.commit) for tag in tags]


def _prepared(fork: Fork, upstream: Upstream, options: SourceOptions) -> ProbedSeries:
    plan = fork.plan(upstream, options)
    record = record_of(fork, plan)
    paths = frozenset({*plan.base, *(place.path for place in record.shadows)})
    return ProbedSeries(plan, record, tuple(plan.steps()), paths)


def _map_series(
    fork: Fork, series: ProbedSeries, scope: _Scope, options: SourceOptions
) -> tuple[SeriesMap, list[MapCell]]:
    upstream = series.plan.upstream
    names = tuple(patch.name for patch in series.plan.patches)
    result = SeriesMap(upstream.name, upstream.version, upstream.commit, scope.until, 0, names, ())
    cells: list[MapCell] = []
    if scope.history is not None:
        before, after = _scan(scope, scope.history, series)
        commits = [commit for _, commit in scope.versions]
        commits += [one.commit for one in (*before, *after)]
        prober = Prober(series, scope.history.git, dict.fromkeys(commits))
        turns = tuple(_turning_points(names, prober, before, after))
        count = len(before) + len(after) - (1 if before else 0)
        result = replace(result, commits=count, turns=turns)
        for version, commit in scope.versions:
            cell = MapCell(upstream.name, version, commit, "git", upstream.version)
            cells += _cells(cell, series, prober.contents(commit), prober.fits(commit))
    for version in scope.wheels:
        contents = _wheel_contents(fork, upstream, version, sorted(series.paths), options)
        cell = MapCell(upstream.name, version, "", "wheel", upstream.version)
        cells += _cells(cell, series, contents, series.fits(contents))
    return result, [_attributed(cell, result, scope.history) for cell in cells]


def _scan(
    scope: _Scope, history: History, series: ProbedSeries
) -> tuple[Sequence[UpstreamCommit], Sequence[UpstreamCommit]]:
    """Return the upstream commits that change a series' files before and after its base.

    The commit ``since`` itself comes first.
    """
    base = series.plan.upstream.commit
    if not base or history.resolve(base) is None:
        return (), ()
    first = UpstreamCommit(scope.since, "")
    before = [first, *history.commits(scope.since, base, *series.paths)] if scope.since else []
    return before, list(history.commits(base, scope.until, *series.paths)) if scope.until else []


def _turning_points(
    patches: Sequence[str],
    prober: Prober,
    before: Sequence[UpstreamCommit],
    after: Sequence[UpstreamCommit],
) -> Iterator[TurningPoint]:
    """Yield the commits at which each patch starts to apply before the base, or stops after it."""
    for patch in patches:
        old, new = ([prober.fits(one.commit)[patch][0] for one in side] for side in (before, after))
        start = max((at + 1 for at, fit in enumerate(old) if fit not in FITTING), default=0)
        if 0 < start < len(old):
            yield TurningPoint(
                patch, before[start].commit, before[start].subject, old[start], False, False
            )
        bad = (at for at, fit in enumerate(new) if fit not in (*FITTING, Fit.UNKNOWN))
        if (at := next(bad, None)) is not None:
            again = any(fit in FITTING for fit in new[at:])
            yield TurningPoint(patch, after[at].commit, after[at].subject, new[at], True, again)


def _attributed(cell: MapCell, series_map: SeriesMap, history: History | None) -> MapCell:
    """Return the cell with the commit that broke the patch, or made it apply."""
    if cell.outcome in ("", *FITTING, Fit.UNKNOWN):
        return cell
    newer = _is_newer(cell, series_map, history)
    for turn in series_map.turns:
        if turn.patch == cell.patch and turn.broke == newer:
            field = "first_bad_commit" if newer else "first_good_commit"
            return replace(cell, **{field: turn.commit})
    return cell


def _is_newer(cell: MapCell, series_map: SeriesMap, history: History | None) -> bool:
    """Return True if a version is newer than the series' base, by number or by history."""
    order, base = version_of(cell.version), version_of(cell.set)
    if order and base and cell.commit != series_map.until:
        return order > base
    if not (series_map.base and cell.commit and history):
        return False
    return not history.contains(series_map.base, cell.commit)


def _cells(
    cell: MapCell, series: ProbedSeries, contents: Contents, fits: Fits
) -> Iterator[MapCell]:
    """Yield the cell with the fit of each patch, then with each symbol that an overlay replaces."""
    for patch, (fit, detail) in fits.items():
        places = series.record.patches[patch]
        drift = max((_drift(place, contents) for place in places), key=_ORDER.index, default="")
        yield replace(cell, patch=patch, outcome=str(fit), symbol_drift=drift, detail=detail)
    for place in series.record.shadows:
        detail = f"{place.path}: {place.symbol}"
        yield replace(cell, patch=SHADOW, symbol_drift=_drift(place, contents), detail=detail)


#: Drift of a symbol, from the best to the worst.
_ORDER = ("", Drift.UNCHANGED, Drift.MOVED, Drift.CHANGED, Drift.GONE)


def _drift(place: SymbolPlace, contents: Contents) -> str:
    """Return the drift of a symbol; a lost symbol is searched in the series' other files."""
    if place.path not in contents:
        return ""
    data = contents[place.path]
    body = outline(place.path, data).body(place.symbol) if data is not None else None
    if body is not None:
        return Drift.UNCHANGED if body == place.body else Drift.CHANGED
    known = (outline(path, other) for path, other in contents.items() if other is not None)
    is_there = any(one.body(place.symbol) is not None for one in known)
    return Drift.MOVED if is_there else Drift.GONE


def _wheel_contents(
    fork: Fork, upstream: Upstream, version: str, paths: Sequence[str], options: SourceOptions
) -> dict[str, bytes | None]:
    """Return files of a version of the wheel; a downloaded wheel's tree stays in the cache."""
    versions = fork.lock.versions(upstream.name)
    pinned = versions.get(version)
    like = next((item for item in (upstream, *versions.values()) if item.wheel), None)
    if like is None or like.wheel is None:
        raise UserError(
            f"{upstream.name} has no version {version!r}, and the lock pins no wheel of it"
        )
    name = f"{like.wheel.package}=={version}"
    tree = fork.cache.find(pinned.tree) if pinned and pinned.wheel else None
    tree = tree or fork.cache.find(fork.cache.seen(name))
    if tree is None:
        if options.offline:
            raise UserError(f"the wheel {name} is not in the cache, and this run is offline")
        warn(f"fetching {name}")
        with fork.cache.scratch() as scratch:
            try:
                path = download_wheel(like.wheel.package, version, scratch)
            except SourceError as error:
                raise UserError(f"the wheel {name} is not available: {error.what}") from error
            tree = fork.cache.store(wheel_files(like, like.wheel, path), "wheel", "")
        fork.cache.note(name, tree.tree)
    return dict.fromkeys(paths) | tree.read(paths)
