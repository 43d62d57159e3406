# SPDX-License-Identifier: Apache-2.0
"""The verb ``probe``: the versions of an upstream on which each patch of a series applies.

A probe of all series is configured in ``pyproject.toml``, by ``from``, ``until`` and ``wheels`` of
``[tool.forkpatch.map.upstreams.NAME]``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import PurePosixPath

from forkpatch.errors import SourceError, UserError
from forkpatch.git.calls import Git
from forkpatch.git.objects import TreeFile, list_tree, read_available
from forkpatch.model.lock import Upstream
from forkpatch.model.patchfile import Patch
from forkpatch.model.record import SymbolPlace
from forkpatch.model.stored import checked_table
from forkpatch.output import warn
from forkpatch.pins.versions import series_of, tags_of, version_of
from forkpatch.safety import GITLINK_MODE, check_object_id
from forkpatch.series.merge import MergeError, merged_patch
from forkpatch.sources.history import History, UpstreamCommit
from forkpatch.sources.obtain import SourceOptions, mirrors_of
from forkpatch.sources.repository import refs_of
from forkpatch.sources.wheels import download_wheel, wheel_files
from forkpatch.symbols.outline import outline
from forkpatch.tree.drift import Drift, became, record_of
from forkpatch.tree.fork import Fork, PatchStep

SHADOW = "overlay"
_SHORT = 12
#: Type of each key's value in an upstream's table of the settings.
_KEYS = {"from": str, "until": str, "wheels": list}

#: A version's files: None for a missing file, no entry for one that a mirror lacks.
Contents = Mapping[str, TreeFile | None]


class Fit(StrEnum):
    """Fit of a patch on a version of its upstream."""

    APPLIES = "applies"
    CHANGED = "body changed"
    MISPLACED = "misplaced"
    CONFLICT = "conflict"
    UPSTREAM = "already upstream"
    MISSING = "file missing"
    UNKNOWN = "not known"


#: Fits of a patch that applies unchanged.
FITTING = (Fit.APPLIES, Fit.CHANGED)

#: Fit of a patch, and the file or symbol that decides; by patch.
Fits = Mapping[str, tuple[Fit, str]]


@dataclass(frozen=True)
class MapCell:
    """Fit of a patch of a series on a version.

    Attributes:
        version: tag, commit or version of the wheel.
        commit: commit of the version; empty for a wheel.
        source: ``git`` or ``wheel``.
        set: the version of the patch's series.
        patch: file name of the patch; ``overlay`` for a symbol that an overlay replaces.
        outcome: a :class:`Fit`; empty for an overlay.
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


def map_fork(fork: Fork, options: SourceOptions) -> ApplicabilityMap:
    """Probe every series of every upstream that the settings name.

    Raises:
        UserError: the settings name no upstream, or are wrong; or the history of an upstream, or a
            wheel, is not available.
    """
    settings = checked_table(fork.settings.map, {"upstreams": dict}, "[tool.forkpatch.map]")
    tables = settings.get("upstreams", {})
    if not tables:
        raise UserError(
            "pyproject.toml configures no upstream for the map",
            remedy="name a patch series to probe, or add [tool.forkpatch.map.upstreams.NAME]",
        )
    every: list[ApplicabilityMap] = []
    for name, entries in tables.items():
        where = f"[tool.forkpatch.map.upstreams.{name}]"
        table = checked_table(entries, _KEYS, where)
        until = table.get("until", "")
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
        until = until or _tip(history, name, "HEAD")
        since = table.get("from", "0")
        if version_of(since) is None:
            raise UserError(
                f"{where}: from = {since!r} is not a version", remedy="write it as in 1.2"
            )
        first = f"{since}.dev0"  # its pre-releases, too
        probed = (*_tags(history, first, until), (until[:_SHORT], until))
        series = [ProbedSeries(fork, one, options) for one in versions if fork.series(one)]
        for one in series:  # a symbol may have moved to a file of another version's series
            one.paths = frozenset[str]().union(*(other.paths for other in series))
        wheels = table.get("wheels", ())
        every += [
            _mapped(fork, one, options, history, probed, wheels, until, since=probed[0][1])
            for one in series
        ]
    return ApplicabilityMap(
        tuple(one for each in every for one in each.sets),
        tuple(row for each in every for row in each.rows),
    )


def map_upstream(
    fork: Fork, upstream: Upstream, options: SourceOptions, wanted: Sequence[str], tip: str
) -> ApplicabilityMap:
    """Probe the series of an upstream version on newer versions.

    ``wanted`` has tags, commits or versions of the wheel; if empty, the tags from the version's own
    on are probed. The scan ends at the commit ``tip``; empty: the history's HEAD.

    Raises:
        UserError: no mirror has the history, or it lacks ``tip``; or a version is not available.
    """
    series = ProbedSeries(fork, upstream, options)
    history = _history(fork, upstream, options, upstream.commit)
    wanted = wanted or ([] if upstream.commit else [upstream.version])
    if history is None and not wanted:
        raise UserError(
            f"no mirror of {upstream.name} with its history is known",
            remedy=f"name one: --mirror {upstream.name}=PATH; or wheels: --versions V",
        )
    versions = _versions(upstream, history, wanted) if history else ()
    wheels = [name for name in wanted if name not in dict(versions)]
    scanned = history if upstream.commit else None
    if tip and scanned is None:
        what = "its base is a wheel" if history else "no mirror with its history is known"
        raise UserError(
            f"--to {tip}: no commits of {upstream} can be scanned: {what}", remedy="leave --to out"
        )
    until = _tip(scanned, upstream.name, tip or "HEAD") if scanned else ""
    return _mapped(fork, series, options, history, versions, wheels, until)


def _history(fork: Fork, upstream: Upstream, options: SourceOptions, commit: str) -> History | None:
    """Return an upstream's history, which has a commit; None if no mirror on this machine does."""
    places = [*mirrors_of(upstream, fork.cache, options), upstream.url]
    return History.find(places, *([commit] if commit else []))


def _tip(history: History, name: str, ref: str) -> str:
    """Return the commit that ``ref`` names in the history of the upstream ``name``.

    Raises:
        UserError: the history lacks it.
    """
    if commit := history.git.commit(ref):
        return commit
    raise UserError(
        f"the history of {name} in {history.git.git_dir} has no commit {ref!r}",
        remedy="name a branch, tag or commit of the mirror: --to REF",
    )


def _versions(
    upstream: Upstream, history: History, wanted: Sequence[str]
) -> Sequence[tuple[str, str]]:
    """Return label and commit of the wanted versions in the history; by default, of newer tags."""
    if not wanted:
        series = series_of(upstream.tag)
        tags = _tags(history, upstream.tag or upstream.version)
        newer = [(name, commit) for name, commit in tags if series_of(name) == series]
        return newer or ((upstream.version, upstream.commit),)
    named = (
        (name, (f"refs/tags/{name}", f"refs/tags/v{name}", f"refs/heads/{name}", name))
        for name in wanted
    )
    found = ((name, next(filter(None, map(history.git.commit, refs)), "")) for name, refs in named)
    return [(name, commit) for name, commit in found if commit]


def _tags(history: History, first: str, until: str = "") -> list[tuple[str, str]]:
    """Return name and commit of the tags from the version ``first`` on, up to a commit's date."""
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


class ProbedSeries:
    """A series prepared for probing.

    Attributes:
        paths: the upstream files to read; a lost symbol is searched in them.
    """

    def __init__(self, fork: Fork, upstream: Upstream, options: SourceOptions) -> None:
        self.plan = fork.plan(upstream, options)
        self.record = record_of(fork, self.plan)
        touched = {path for patch in self.plan.patches for path in patch.paths}
        touched |= {place.path for place in self.record.shadows}
        # Upstream may add a file where a patch makes a folder.
        self.paths = frozenset(touched | _folders(touched) - _folders(self.plan.pristine.listed))
        self._known: dict[frozenset[tuple[str, TreeFile | None]], Fits] = {}

    def contents(self, git: Git, commits: Iterable[str]) -> dict[str, Contents]:
        """Return, for each commit, the contents of :attr:`paths` as :data:`Contents` has them."""
        paths = self.paths
        listed = {
            one: list_tree(git, one, *paths) if paths else {} for one in dict.fromkeys(commits)
        }
        ids = {  # a partial mirror has these, but not every file
            commit: {path: entry for path, entry in files.items() if entry[0] != GITLINK_MODE}
            for commit, files in listed.items()
        }
        blobs = read_available(git, (oid for files in ids.values() for _, oid in files.values()))
        return {
            commit: {
                path: TreeFile(mode, data)
                for path, (mode, oid) in files.items()
                if (data := blobs[oid]) is not None
            }
            | dict.fromkeys(paths - files.keys())
            for commit, files in ids.items()
        }

    def fits(self, contents: Contents) -> Fits:
        """Return the fit of each patch on a version, with all earlier fitting patches applied."""
        key = frozenset(contents.items())
        if key not in self._known:
            state, fits = dict(contents), dict[str, tuple[Fit, str]]()
            for step in self.plan.steps.values():
                fit, detail, changed = self._fit(step, contents, state)
                fits[step.patch.name] = fit, detail
                state |= changed
            self._known[key] = fits
        return self._known[key]

    def _fit(
        self, step: PatchStep, contents: Contents, state: Contents
    ) -> tuple[Fit, str, Contents]:
        for path in step.patch.paths:
            if path not in contents:
                return Fit.UNKNOWN, path, {}

        def below(path: str) -> Iterator[str]:
            return (other for other in state if other.startswith(f"{path}/"))

        try:
            changes = merged_patch(step, state.get, below)
        except MergeError as error:
            return Fit(error.obstacle), error.detail, {}
        if all(state.get(path) == file for path, file in changes.items()):
            return Fit.UPSTREAM, "it changes nothing any more", {}
        drifted = self._drifted(step.patch, contents)
        return Fit.CHANGED if drifted else Fit.APPLIES, drifted, changes

    def _drifted(self, patch: Patch, contents: Contents) -> str:
        """Return the first symbol of a patch that differs from the series' own base; or ""."""
        places = self.record.patches[patch.name].places
        drifted = (one for one in places if _drift(one, contents) not in ("", Drift.UNCHANGED))
        return next((f"{place.path}: {place.symbol}" for place in drifted), "")


def _folders(paths: Iterable[str]) -> set[str]:
    """Return the folders that hold some files, but not the tree itself."""
    return {str(folder) for path in paths for folder in [*PurePosixPath(path).parents][:-1]}


def _mapped(
    fork: Fork,
    series: ProbedSeries,
    options: SourceOptions,
    history: History | None,
    versions: Sequence[tuple[str, str]],
    wheels: Sequence[str],
    until: str,
    since: str = "",
) -> ApplicabilityMap:
    """Probe a series on versions, given by label and commit, on wheels, and on a span of commits.

    ``since`` is the first commit before the base, ``until`` the last after it; empty: none there.
    """
    upstream = series.plan.upstream
    names = tuple(patch.name for patch in series.plan.patches)
    result = SeriesMap(upstream.name, upstream.version, upstream.commit, until, 0, names, ())
    cells: list[MapCell] = []
    if history is not None:
        before, after = list[UpstreamCommit](), list[UpstreamCommit]()
        if upstream.commit and history.git.commit(upstream.commit):
            if since:
                earlier = history.commits(since, upstream.commit, *series.paths)
                before = [UpstreamCommit(since, ""), *earlier]
            if until:
                after = [*history.commits(upstream.commit, until, *series.paths)]
        commits = [commit for _, commit in versions]
        contents = series.contents(
            history.git, (*commits, *(one.commit for one in (*before, *after)))
        )
        sides = (
            [(one, series.fits(contents[one.commit])) for one in side] for side in (before, after)
        )
        count = len(before) + len(after) - (1 if before else 0)
        result = replace(result, commits=count, turns=tuple(_turning_points(names, *sides)))
        for version, commit in versions:
            cell = MapCell(upstream.name, version, commit, "git", upstream.version)
            cells += _cells(cell, series, contents[commit])
    for version in wheels:
        files = _wheel_contents(fork, upstream, version, sorted(series.paths), options)
        cells += _cells(
            MapCell(upstream.name, version, "", "wheel", upstream.version), series, files
        )
    return ApplicabilityMap((result,), tuple(_attributed(cell, result, history) for cell in cells))


def _turning_points(
    patches: Sequence[str],
    before: Sequence[tuple[UpstreamCommit, Fits]],
    after: Sequence[tuple[UpstreamCommit, Fits]],
) -> Iterator[TurningPoint]:
    """Yield the commits at which each patch starts to apply before the base, or stops after it."""
    for patch in patches:
        old, new = ([fits[patch][0] for _, fits in side] for side in (before, after))
        start = max((at + 1 for at, fit in enumerate(old) if fit not in FITTING), default=0)
        if 0 < start < len(old):
            commit = before[start][0]
            yield TurningPoint(patch, commit.commit, commit.subject, old[start], False, False)
        bad = (at for at, fit in enumerate(new) if fit not in (*FITTING, Fit.UNKNOWN))
        if (at := next(bad, None)) is not None:
            again, commit = any(fit in FITTING for fit in new[at:]), after[at][0]
            yield TurningPoint(patch, commit.commit, commit.subject, new[at], True, again)


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
    return not history.git.is_ancestor(cell.commit, series_map.base)


def _cells(cell: MapCell, series: ProbedSeries, contents: Contents) -> Iterator[MapCell]:
    """Yield the cell with the fit of each patch, then with each symbol that an overlay replaces."""
    for patch, (fit, detail) in series.fits(contents).items():
        places = series.record.patches[patch].places
        drift = max((_drift(place, contents) for place in places), key=_ORDER.index, default="")
        yield replace(cell, patch=patch, outcome=str(fit), symbol_drift=drift, detail=detail)
    for place in series.record.shadows:
        detail = f"{place.path}: {place.symbol}"
        yield replace(cell, patch=SHADOW, symbol_drift=_drift(place, contents), detail=detail)


#: Drift of a symbol, from the best to the worst; empty where a mirror lacks its file.
_ORDER = ("", Drift.UNCHANGED, Drift.MOVED, Drift.CHANGED, Drift.GONE)


def _drift(place: SymbolPlace, contents: Contents) -> str:
    """Return a symbol's drift, searched in all files if lost; empty if a mirror lacks its file."""
    if place.path not in contents:
        return ""
    here = contents[place.path]
    is_there = here is not None and outline(place.path, here.data).body(place.symbol) is not None
    files = {place.path: here} if is_there else contents
    known = {path: outline(path, file.data) for path, file in files.items() if file is not None}
    return became(place, known)[0]


def _wheel_contents(
    fork: Fork, upstream: Upstream, version: str, paths: Sequence[str], options: SourceOptions
) -> dict[str, TreeFile | None]:
    """Return files of a version's wheel, kept in the cache; raise UserError if unavailable."""
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
    files = {path: TreeFile(tree.modes[path], data) for path, data in tree.read(paths).items()}
    return dict.fromkeys(paths) | files
