# SPDX-License-Identifier: Apache-2.0
"""Applicability of patches: probes of one series, or of all series, on upstream versions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from forkpatch.errors import SourceError, UserError
from forkpatch.inspect.mapmodel import (
    SHADOW,
    ApplicabilityMap,
    MapCell,
    MapSettings,
    SeriesMap,
    TurningPoint,
    map_settings,
)
from forkpatch.inspect.probe import FITTING, Fit, PatchFit, ProbedSeries, probe
from forkpatch.inspect.snapshots import Prober, Snapshot, snapshots
from forkpatch.model.lock import Upstream, Wheel
from forkpatch.model.record import SymbolPlace
from forkpatch.output import warn
from forkpatch.pins.tags import series_of, version_of
from forkpatch.pins.versions import tags_of
from forkpatch.sources.history import History, UpstreamCommit
from forkpatch.sources.obtain import SourceOptions, mirrors_of
from forkpatch.sources.wheels import download_wheel, wheel_files
from forkpatch.symbols.outline import outline
from forkpatch.tree.derive import record_of
from forkpatch.tree.drift import Drift
from forkpatch.tree.fork import Fork

_SHORT = 12


@dataclass(frozen=True)
class ProbeScope:
    """Versions and commits on which a series is probed.

    Attributes:
        history: the upstream's history; None when only wheels are probed.
        versions: label and commit of each version to probe.
        wheels: versions of the wheel to probe.
        since: first commit of the scan before the base; empty: no scan there.
        until: last commit of the scan after the base; empty: no scan there.
        paths: paths of the files to read.
    """

    history: History | None
    versions: tuple[tuple[str, str], ...]
    wheels: tuple[str, ...]
    since: str
    until: str
    paths: tuple[str, ...]


def map_fork(fork: Fork, options: SourceOptions) -> ApplicabilityMap:
    """Probe every series of every upstream that the settings name.

    Raises:
        UserError: the history of an upstream, or a wheel, is not available.
    """
    sets: list[SeriesMap] = []
    rows: list[MapCell] = []
    for name, settings in map_settings(fork.settings.map).items():
        history = _full_history(fork, name, settings, options)
        prepared = [
            _prepared(fork, upstream, options)
            for upstream in fork.lock.versions(name).values()
            if fork.series(upstream)
        ]
        until = settings.until or history.resolve("HEAD") or ""
        versions = (*_tags(history, settings), (until[:_SHORT], until))
        paths = tuple(sorted({path for series in prepared for path in _paths(series)}))
        scope = ProbeScope(history, versions, settings.wheels, versions[0][1], until, paths)
        for series in prepared:
            result, cells = _map_series(fork, series, scope, options)
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
    places = [*mirrors_of(upstream, fork.cache, options), upstream.url]
    history = History.find(places, *([upstream.commit] if upstream.commit else []))
    wanted = wanted or ([] if upstream.commit else [upstream.version])
    if history is None and not wanted:
        raise UserError(
            f"no mirror of {upstream.name} with its history is known",
            remedy=f"name one: --mirror {upstream.name}=PATH; or wheels: --versions V",
        )
    versions = _versions(upstream, history, wanted) if history else ()
    labels = {label for label, _ in versions}
    wheels = tuple(name for name in wanted if name not in labels)
    until = (history.resolve(tip) or "") if history and upstream.commit else ""
    scope = ProbeScope(history, versions, wheels, "", until, _paths(series))
    result, cells = _map_series(fork, series, scope, options)
    return ApplicabilityMap((result,), tuple(cells))


def _versions(
    upstream: Upstream, history: History, wanted: Sequence[str]
) -> tuple[tuple[str, str], ...]:
    """Return label and commit of the wanted versions that the history has."""
    if not wanted:
        pinned = version_of(upstream.tag or upstream.version)
        tags = tags_of(str(history.git.git_dir))
        series = series_of(upstream.tag)
        newer = [
            tag
            for tag in tags
            if tag.version and pinned and tag.version >= pinned and tag.series == series
        ]
        versions = tuple((tag.name, tag.commit) for tag in newer)
        return versions or ((upstream.version, upstream.commit),)
    return tuple((name, commit) for name in wanted if (commit := _commit_of_version(history, name)))


def _commit_of_version(history: History, name: str) -> str | None:
    """Return the commit of a tag, branch or commit name; None for an unknown name."""
    candidates = (f"refs/tags/{name}", f"refs/tags/v{name}", f"refs/heads/{name}", name)
    return next(filter(None, map(history.resolve, candidates)), None)


def _prepared(fork: Fork, upstream: Upstream, options: SourceOptions) -> ProbedSeries:
    """Return the series of an upstream version, prepared for probing."""
    plan = fork.plan(upstream, options)
    return ProbedSeries(plan, record_of(fork, plan), tuple(plan.steps()))


def _paths(series: ProbedSeries) -> tuple[str, ...]:
    """Return the upstream files that a series changes or its overlays shadow."""
    return tuple(sorted({*series.paths, *(place.path for place in series.record.shadows)}))


def _map_series(
    fork: Fork, series: ProbedSeries, scope: ProbeScope, options: SourceOptions
) -> tuple[SeriesMap, list[MapCell]]:
    """Return the map of a series, and its cells."""
    upstream = series.plan.upstream
    names = tuple(patch.name for patch in series.plan.patches)
    result = SeriesMap(upstream.name, upstream.version, upstream.commit, scope.until, 0, names, ())
    blank = MapCell(upstream.name, "", "", "git", upstream.version, "", "", "")
    cells: list[MapCell] = []
    if scope.history is not None:
        git = scope.history.git
        probed = snapshots(git, scope.versions, scope.paths)
        scan = _scan(scope, scope.history, upstream, _paths(series))
        prober = Prober(series, git, [*probed, *scan.before, *scan.after])
        turns = tuple(_turning_points(prober, scan, names))
        result = replace(result, commits=len(scan.commits), turns=turns)
        for snapshot in probed:
            cell = replace(blank, version=snapshot.label, commit=snapshot.commit)
            cells += _cells(cell, series, prober.contents(snapshot), prober.fits(snapshot))
    for version in scope.wheels:
        contents = _wheel_contents(fork, upstream, version, scope.paths, options)
        cell = replace(blank, version=version, source="wheel")
        cells += _cells(cell, series, contents, probe(series, contents))
    return result, [_attributed(cell, result, scope.history) for cell in cells]


def _full_history(fork: Fork, name: str, settings: MapSettings, options: SourceOptions) -> History:
    """Return an upstream's history up to the configured commit."""
    upstream = next(iter(fork.lock.versions(name).values()))
    places = [*mirrors_of(upstream, fork.cache, options), upstream.url]
    history = History.find(places, *([settings.until] if settings.until else []))
    if history is None:
        newest = settings.until or "now"
        raise UserError(
            f"no mirror of {upstream.name} with its history up to {newest} is known",
            remedy=f"name a full clone of {upstream.url}: --mirror {upstream.name}=PATH",
        )
    return history


def _tags(history: History, settings: MapSettings) -> list[tuple[str, str]]:
    """Return name and commit of the tags from the first version on, up to ``until``."""
    first = version_of(settings.first)
    tags = [
        tag
        for tag in tags_of(str(history.git.git_dir))
        if tag.version and first and tag.version.release >= first.release
    ]
    if settings.until:
        dates = history.dates([settings.until, *(tag.commit for tag in tags)])
        tags = [tag for tag in tags if dates[tag.commit] <= dates[settings.until]]
    return [(tag.name, tag.commit) for tag in tags]


@dataclass(frozen=True)
class _Scan:
    """Upstream commits that change a series' files, oldest first.

    Attributes:
        before: commits before the series' base; the commit ``since`` itself comes first.
        after: commits after the base.
        commits: all scanned commits, by id.
    """

    before: tuple[Snapshot, ...]
    after: tuple[Snapshot, ...]
    commits: Mapping[str, UpstreamCommit]


def _scan(scope: ProbeScope, history: History, upstream: Upstream, paths: Sequence[str]) -> _Scan:
    """Return the commits of the scan before and after the series' base."""
    base = upstream.commit
    if not base or history.resolve(base) is None:
        return _Scan((), (), {})
    before = list(history.commits(scope.since, base, *paths)) if scope.since else []
    after = list(history.commits(base, scope.until, *paths)) if scope.until else []
    first = [scope.since] if scope.since else []
    ids = [*first, *(c.commit for c in (*before, *after))]
    taken = snapshots(history.git, [(oid, oid) for oid in ids], scope.paths)
    split = len(first) + len(before)
    return _Scan(taken[:split], taken[split:], {c.commit: c for c in (*before, *after)})


def _turning_points(prober: Prober, scan: _Scan, patches: Sequence[str]) -> Iterator[TurningPoint]:
    """Yield the commits at which each patch starts to apply before the base, or stops after it."""
    before = [(snapshot.commit, prober.fits(snapshot)) for snapshot in scan.before]
    after = [(snapshot.commit, prober.fits(snapshot)) for snapshot in scan.after]
    for index, patch in enumerate(patches):
        bad = [at for at, (_, fits) in enumerate(before) if fits[index].fit not in FITTING]
        if bad and bad[-1] + 1 < len(before):
            commit, fits = before[bad[-1] + 1]
            subject = scan.commits[commit].subject
            yield TurningPoint(patch, commit, subject, fits[index].fit, broke=False, again=False)
        later = [(commit, fits[index].fit) for commit, fits in after]
        for at, (commit, fit) in enumerate(later):
            if fit not in (*FITTING, Fit.UNKNOWN):
                again = any(other in FITTING for _, other in later[at:])
                subject = scan.commits[commit].subject
                yield TurningPoint(patch, commit, subject, fit, broke=True, again=again)
                break


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
    ask = ("merge-base", "--is-ancestor", cell.commit, series_map.base)
    return history.git.run(*ask, ok=(0, 1)).returncode == 1


def _cells(
    cell: MapCell,
    series: ProbedSeries,
    contents: Mapping[str, bytes | None],
    fits: Sequence[PatchFit],
) -> Iterator[MapCell]:
    """Yield a cell for each patch and for each shadowed symbol on a version."""
    for patch_fit in fits:
        places = series.record.patches[patch_fit.patch]
        drift = max((_drift(place, contents) for place in places), key=_ORDER.index, default="")
        yield replace(
            cell,
            patch=patch_fit.patch,
            outcome=str(patch_fit.fit),
            symbol_drift=drift,
            detail=patch_fit.detail,
        )
    for place in series.record.shadows:
        detail = f"{place.path}: {place.symbol}"
        yield replace(cell, patch=SHADOW, symbol_drift=_drift(place, contents), detail=detail)


#: Drift of a symbol, from the best to the worst.
_ORDER = ("", Drift.UNCHANGED, Drift.MOVED, Drift.CHANGED, Drift.GONE)


def _drift(place: SymbolPlace, contents: Mapping[str, bytes | None]) -> str:
    """Return the drift of a symbol; a lost symbol is searched in the series' other files."""
    if place.path not in contents:
        return ""
    data = contents[place.path]
    body = outline(place.path, data).body(place.symbol) if data is not None else None
    if body is not None:
        return Drift.UNCHANGED if body == place.body else Drift.CHANGED
    for path, other in contents.items():
        if other is not None and outline(path, other).body(place.symbol) is not None:
            return Drift.MOVED
    return Drift.GONE


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
    tree = fork.cache.find(pinned.tree) if pinned and pinned.wheel else None
    tree = tree or fork.cache.find(fork.cache.seen(f"{like.wheel.package}=={version}"))
    if tree is None:
        tree = fork.cache.find(_fetch(fork, like, like.wheel, version, options))
    assert tree is not None, "it has just been stored"
    return dict.fromkeys(paths) | tree.read(paths)


def _fetch(fork: Fork, like: Upstream, wheel: Wheel, version: str, options: SourceOptions) -> str:
    """Download a wheel into the cache; return the id of its tree."""
    name = f"{wheel.package}=={version}"
    if options.offline:
        raise UserError(f"the wheel {name} is not in the cache, and this run is offline")
    warn(f"fetching {name}")
    with fork.cache.scratch() as scratch:
        try:
            path: Path = download_wheel(wheel.package, version, scratch)
        except SourceError as error:
            raise UserError(f"the wheel {name} is not available: {error.what}") from error
        tree = fork.cache.store(wheel_files(like, wheel, path), "wheel", "").tree
    fork.cache.note(name, tree)
    return tree
