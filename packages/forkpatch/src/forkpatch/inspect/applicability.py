# SPDX-License-Identifier: Apache-2.0
"""Applicability of patches: a series, or all of them, against versions of the upstream."""

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
from forkpatch.sources.obtain import SourceOptions, mirrors_of, obtain
from forkpatch.sources.wheels import download_wheel, wheel_files
from forkpatch.symbols.outline import outline
from forkpatch.tree.derive import record_of
from forkpatch.tree.drift import Drift
from forkpatch.tree.fork import Fork, plan_tree

_SHORT = 12


@dataclass(frozen=True)
class ProbeScope:
    """Versions and commits on which a series is probed.

    Attributes:
        history: the upstream's history; None when there are only wheels to probe.
        versions: label and commit of each version.
        wheels: versions of the wheel.
        since: the commits after this one and before the base are scanned; empty: none.
        until: the commits after the base up to this one are scanned; empty: none.
        paths: the files to read.
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
        every = [
            _prepared(fork, upstream, options)
            for upstream in fork.lock.versions(name).values()
            if fork.series(upstream)
        ]
        until = settings.until or history.resolve("HEAD") or ""
        versions = (*_tags(history, settings), (until[:_SHORT], until))
        paths = tuple(sorted({path for series in every for path in _paths(series)}))
        scope = ProbeScope(history, versions, settings.wheels, versions[0][1], until, paths)
        for series in every:
            one, cells = _map_series(fork, series, scope, options)
            sets.append(one)
            rows += cells
    return ApplicabilityMap(tuple(sets), tuple(rows))


def map_upstream(
    fork: Fork, upstream: Upstream, options: SourceOptions, wanted: Sequence[str], tip: str
) -> ApplicabilityMap:
    """Probe the series of one upstream version on newer versions.

    Args:
        fork: the fork.
        upstream: the version whose series is probed.
        options: sources of the upstream.
        wanted: tags, commits or versions of the wheel; empty: the tags from its own on.
        tip: the newest commit to scan.

    Raises:
        UserError: there is no history, or a version is not available.
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
    known = {label for label, _ in versions}
    wheels = tuple(name for name in wanted if name not in known)
    until = (history.resolve(tip) or "") if history and upstream.commit else ""
    scope = ProbeScope(history, versions, wheels, "", until, _paths(series))
    one, cells = _map_series(fork, series, scope, options)
    return ApplicabilityMap((one,), tuple(cells))


def _versions(
    upstream: Upstream, history: History, wanted: Sequence[str]
) -> tuple[tuple[str, str], ...]:
    """Label and commit of the versions that the history has."""
    if not wanted:
        pinned = version_of(upstream.tag or upstream.version)
        tags = tags_of(str(history.git.git_dir))
        series = series_of(upstream.tag)
        newer = [
            tag
            for tag in tags
            if tag.version and pinned and tag.version >= pinned and tag.series == series
        ]
        found = tuple((tag.name, tag.commit) for tag in newer)
        return found or ((upstream.version, upstream.commit),)
    return tuple((name, commit) for name in wanted if (commit := _commit_of_version(history, name)))


def _commit_of_version(history: History, name: str) -> str | None:
    candidates = (f"refs/tags/{name}", f"refs/tags/v{name}", f"refs/heads/{name}", name)
    return next(filter(None, map(history.resolve, candidates)), None)


def _prepared(fork: Fork, upstream: Upstream, options: SourceOptions) -> ProbedSeries:
    plan = plan_tree(fork, upstream, obtain(upstream, fork.cache, options).pristine)
    return ProbedSeries(plan, record_of(fork, plan), tuple(plan.steps()))


def _paths(series: ProbedSeries) -> tuple[str, ...]:
    """The upstream files that a series changes or that an overlay of it shadows."""
    return tuple(sorted({*series.paths, *(place.path for place in series.record.shadows)}))


def _map_series(
    fork: Fork, series: ProbedSeries, scope: ProbeScope, options: SourceOptions
) -> tuple[SeriesMap, list[MapCell]]:
    upstream = series.plan.upstream
    names = tuple(patch.name for patch in series.plan.patches)
    one = SeriesMap(upstream.name, upstream.version, upstream.commit, scope.until, 0, names, ())
    blank = MapCell(upstream.name, "", "", "git", upstream.version, "", "", "")
    cells: list[MapCell] = []
    if scope.history is not None:
        git = scope.history.git
        looked = snapshots(git, scope.versions, scope.paths)
        scan = _scan(scope, scope.history, upstream, _paths(series))
        prober = Prober(series, git, [*looked, *scan.before, *scan.after])
        turns = tuple(_turning_points(prober, scan, names))
        one = replace(one, commits=len(scan.commits), turns=turns)
        for snapshot in looked:
            cell = replace(blank, version=snapshot.label, commit=snapshot.commit)
            cells += _cells(cell, series, prober.contents(snapshot), prober.fits(snapshot))
    for version in scope.wheels:
        contents = _wheel_contents(fork, upstream, version, scope.paths, options)
        cell = replace(blank, version=version, source="wheel")
        cells += _cells(cell, series, contents, probe(series, contents))
    return one, [_attributed(cell, one, scope.history) for cell in cells]


def _full_history(fork: Fork, name: str, settings: MapSettings, options: SourceOptions) -> History:
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
    """Name and commit of the tags from the first version on, no younger than ``until``."""
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
        before: those before the series' base; the commit ``since`` itself comes first.
        after: those after the base.
        commits: all of them, by id.
    """

    before: tuple[Snapshot, ...]
    after: tuple[Snapshot, ...]
    commits: Mapping[str, UpstreamCommit]


def _scan(scope: ProbeScope, history: History, upstream: Upstream, paths: Sequence[str]) -> _Scan:
    base = upstream.commit
    if not base or history.resolve(base) is None:
        return _Scan((), (), {})
    before = list(history.commits(scope.since, base, *paths)) if scope.since else []
    after = list(history.commits(base, scope.until, *paths)) if scope.until else []
    first = [scope.since] if scope.since else []
    ids = [*first, *(one.commit for one in (*before, *after))]
    taken = snapshots(history.git, [(oid, oid) for oid in ids], scope.paths)
    split = len(first) + len(before)
    return _Scan(taken[:split], taken[split:], {one.commit: one for one in (*before, *after)})


def _turning_points(prober: Prober, scan: _Scan, patches: Sequence[str]) -> Iterator[TurningPoint]:
    """Commits at which each patch starts to apply before the base, and stops after it."""
    before = [(one.commit, prober.fits(one)) for one in scan.before]
    after = [(one.commit, prober.fits(one)) for one in scan.after]
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


def _attributed(cell: MapCell, one: SeriesMap, history: History | None) -> MapCell:
    """The cell with the commit since which, or until which, the patch does not apply."""
    if cell.outcome in ("", *FITTING, Fit.UNKNOWN):
        return cell
    newer = _is_newer(cell, one, history)
    for turn in one.turns:
        if turn.patch == cell.patch and turn.broke == newer:
            field = "first_bad_commit" if newer else "first_good_commit"
            return replace(cell, **{field: turn.commit})
    return cell


def _is_newer(cell: MapCell, one: SeriesMap, history: History | None) -> bool:
    """Order of a version and the series' base: by their numbers, else by the history."""
    order, base = version_of(cell.version), version_of(cell.set)
    if order and base and cell.commit != one.until:
        return order > base
    if not (one.base and cell.commit and history):
        return False
    ask = ("merge-base", "--is-ancestor", cell.commit, one.base)
    return history.git.run(*ask, ok=(0, 1)).returncode == 1


def _cells(
    cell: MapCell,
    series: ProbedSeries,
    contents: Mapping[str, bytes | None],
    fits: Sequence[PatchFit],
) -> Iterator[MapCell]:
    for one in fits:
        places = series.record.patches[one.patch]
        drift = max((_drift(place, contents) for place in places), key=_ORDER.index, default="")
        yield replace(
            cell,
            patch=one.patch,
            outcome=str(one.fit),
            symbol_drift=drift,
            detail=one.detail,
        )
    for place in series.record.shadows:
        detail = f"{place.path}: {place.symbol}"
        yield replace(cell, patch=SHADOW, symbol_drift=_drift(place, contents), detail=detail)


#: Drift of a symbol, from the best to the worst.
_ORDER = ("", Drift.UNCHANGED, Drift.MOVED, Drift.CHANGED, Drift.GONE)


def _drift(place: SymbolPlace, contents: Mapping[str, bytes | None]) -> str:
    """Drift of a symbol; a lost one is looked for in the other files of the series too."""
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
    """Files of a version of the wheel; the tree of a downloaded wheel stays in the cache."""
    every = fork.lock.versions(upstream.name)
    pinned = every.get(version)
    like = next((one for one in (upstream, *every.values()) if one.wheel), None)
    if like is None or like.wheel is None:
        raise UserError(
            f"{upstream.name} has no version {version!r}, and the lock pins no wheel of it"
        )
    known = fork.cache.find(pinned.tree) if pinned and pinned.wheel else None
    known = known or fork.cache.find(fork.cache.seen(f"{like.wheel.package}=={version}"))
    if known is None:
        known = fork.cache.find(_fetch(fork, like, like.wheel, version, options))
    assert known is not None, "it has just been stored"
    return dict.fromkeys(paths) | known.read(paths)


def _fetch(fork: Fork, like: Upstream, wheel: Wheel, version: str, options: SourceOptions) -> str:
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
