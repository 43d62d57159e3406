# SPDX-License-Identifier: Apache-2.0
"""The map: every series of a fork against every version of its upstream.

.. code-block:: toml

    [tool.forkpatch.map]
    table = "docs/applicability.md"          # where the table is kept; this is the default

    [tool.forkpatch.map.upstreams.foo]
    from = "1.0"                             # the first version that is looked at
    until = "<40 hexadecimal digits>"        # the newest commit; tags after it are left out
    wheels = ["1.1", "1.2"]                  # versions of the wheel that are looked at too

``until`` makes the map repeat: the same history gives the same map, whatever came after.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from forkpatch.errors import SourceError, UserError
from forkpatch.git.objects import list_tree, read_blobs
from forkpatch.inspect.drift import Drift, Place, record_of
from forkpatch.inspect.probe import (
    FITTING,
    Fit,
    Prober,
    Series,
    Snapshot,
    Verdict,
    prepare,
    probe,
    snapshots,
)
from forkpatch.inspect.symbols import outline
from forkpatch.model.fork import Fork, plan_tree
from forkpatch.model.lock import Upstream, Wheel
from forkpatch.output import warn
from forkpatch.pins.versions import tags_of, version_of
from forkpatch.safety import check_object_id, check_path
from forkpatch.sources.history import Culprit, History
from forkpatch.sources.obtain import SourceOptions, mirrors_of, obtain
from forkpatch.sources.wheels import download_wheel, wheel_files

SCHEMA = 1
SHADOW = "overlay"
_SHORT = 12


@dataclass(frozen=True)
class Span:
    """What is looked at of one upstream; see the module."""

    first: str
    until: str
    wheels: tuple[str, ...]


@dataclass(frozen=True)
class Cell:
    """How one patch of one set fits one version.

    Attributes:
        version: tag, commit or version of the wheel.
        commit: empty for a wheel.
        source: ``git`` or ``wheel``.
        set: the version that the patch's series is for.
        patch: its file; ``overlay`` for a symbol that an overlay takes the place of.
        outcome: a ``probe.Fit``; empty for an overlay.
        symbol_drift: what became of the symbols it changes since the set's own base, the worst
            of a ``drift.Drift`` each; empty when they cannot be read.
        detail: the file or symbol that decides.
        first_bad_commit: the upstream commit since which it does not apply, when the version is
            newer than the set's base; empty when it applies or the history is not known.
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
class Turn:
    """An upstream commit at which a patch stops, or starts, to apply.

    Attributes:
        broke: whether it stops; else it starts.
    """

    patch: str
    commit: str
    subject: str
    fit: str
    broke: bool


@dataclass(frozen=True)
class SetMap:
    """One set and what was scanned for it.

    Attributes:
        patches: in the order of the series.
        commits: how many upstream commits concerned its files; all were looked at. 0 when its
            base is no commit of the history.
    """

    upstream: str
    set: str
    base: str
    until: str
    commits: int
    patches: tuple[str, ...]
    turns: tuple[Turn, ...]


@dataclass(frozen=True)
class Map:
    """The whole map, as ``--json`` writes it."""

    schema: int
    sets: tuple[SetMap, ...]
    rows: tuple[Cell, ...]


def spans_of(table: Mapping[str, Any]) -> dict[str, Span]:
    """What ``[tool.forkpatch.map]`` says of each upstream.

    Raises:
        UserError: it names none, or says something else than it can.
    """
    spans = {}
    for name, entry in table.get("upstreams", {}).items():
        if unknown := sorted(set(entry) - {"from", "until", "wheels"}):
            raise UserError(f"[tool.forkpatch.map.upstreams.{name}]: unknown: {', '.join(unknown)}")
        until = entry.get("until", "")
        where = f"[tool.forkpatch.map.upstreams.{name}]: until"
        wheels = tuple(entry.get("wheels", ()))
        spans[name] = Span(
            entry.get("from", "0"), check_object_id(until, where) if until else "", wheels
        )
    if not spans:
        raise UserError(
            "pyproject.toml says of no upstream what the map is to look at",
            remedy="name a patch series to probe, or add [tool.forkpatch.map.upstreams.NAME]",
        )
    return spans


def table_path(fork: Fork) -> Path:
    """Where the fork keeps the map's table."""
    return fork.settings.root / check_path(
        fork.settings.map.get("table", "docs/applicability.md"), "[tool.forkpatch.map]: table"
    )


def map_fork(fork: Fork, options: SourceOptions) -> Map:
    """Look at every set of every upstream that the settings name.

    Raises:
        UserError: the history of an upstream, or a wheel, is not to be had.
    """
    sets: list[SetMap] = []
    rows: list[Cell] = []
    for name, span in spans_of(fork.settings.map).items():
        history = _history(fork, name, span, options)
        every = [
            _prepared(fork, upstream, options)
            for upstream in fork.lock.versions(name).values()
            if fork.series(upstream)
        ]
        paths = tuple(sorted({path for series in every for path in _paths(series)}))
        for series in every:
            one, cells = _map_set(fork, series, _Look(history, span, paths), options)
            sets.append(one)
            rows += cells
    return Map(SCHEMA, tuple(sets), tuple(rows))


def _prepared(fork: Fork, upstream: Upstream, options: SourceOptions) -> Series:
    plan = plan_tree(fork, upstream, obtain(upstream, fork.cache, options).pristine)
    return prepare(plan, record_of(fork, plan))


def _paths(series: Series) -> tuple[str, ...]:
    """The upstream files that a set changes or that an overlay of it shadows."""
    return tuple(sorted({*series.paths, *(place.path for place in series.record.shadows)}))


@dataclass(frozen=True)
class _Look:
    """What is looked at for each set of an upstream: ``paths`` are those of all its sets."""

    history: History
    span: Span
    paths: tuple[str, ...]


def _map_set(
    fork: Fork, series: Series, look: _Look, options: SourceOptions
) -> tuple[SetMap, list[Cell]]:
    upstream, git = series.plan.upstream, look.history.git
    tags = _tags(look.history, look.span)
    until = look.span.until or look.history.resolve("HEAD") or ""
    looked = snapshots(git, [*tags, (until[:_SHORT], until)], look.paths)
    scan = _scan(look, upstream, _paths(series), looked)
    prober = Prober(series, git, [*looked, *scan.before, *scan.after])
    names = tuple(patch.name for patch in series.plan.patches)
    turns = tuple(_turns(prober, scan, names))
    blank = Cell(upstream.name, "", "", "git", upstream.version, "", "", "")
    cells: list[Cell] = []
    for snapshot in looked:
        cell = replace(blank, version=snapshot.label, commit=snapshot.commit)
        cells += _cells(cell, series, prober.contents(snapshot), prober.verdicts(snapshot))
    for version in look.span.wheels:
        contents = _wheel_contents(fork, upstream, version, look.paths, options)
        cell = replace(blank, version=version, source="wheel")
        cells += _cells(cell, series, contents, probe(series, contents))
    one = SetMap(
        upstream.name, upstream.version, upstream.commit, until, len(scan.subjects), names, turns
    )
    return one, [_attributed(cell, one, look.history) for cell in cells]


def _history(fork: Fork, name: str, span: Span, options: SourceOptions) -> History:
    upstream = next(iter(fork.lock.versions(name).values()))
    places = [*mirrors_of(upstream, fork.cache, options), upstream.url]
    wanted = [commit for commit in (span.until,) if commit]
    history = History.find(places, *wanted)
    if history is None:
        raise UserError(
            f"no mirror of {upstream.name} with its history up to {span.until or 'now'} is known",
            remedy=f"name a full clone of {upstream.url}: --mirror {upstream.name}=PATH",
        )
    return history


def _tags(history: History, span: Span) -> list[tuple[str, str]]:
    """Name and commit of the tags from the first version on, as they were at ``until``."""
    first = version_of(span.first)
    tags = [
        tag
        for tag in tags_of(str(history.git.git_dir))
        if tag.version and first and tag.version.release >= first.release
    ]
    if span.until:
        dates = history.dates([span.until, *(tag.commit for tag in tags)])
        tags = [tag for tag in tags if dates[tag.commit] <= dates[span.until]]
    return [(tag.name, tag.commit) for tag in tags]


@dataclass(frozen=True)
class _Scan:
    """The upstream commits that concern a set's files, oldest first.

    Attributes:
        before: from the first version on to the set's base; that version itself comes first.
        after: those after the base.
        subjects: by commit.
    """

    before: tuple[Snapshot, ...]
    after: tuple[Snapshot, ...]
    subjects: Mapping[str, Culprit]


def _scan(
    look: _Look, upstream: Upstream, paths: Sequence[str], looked: Sequence[Snapshot]
) -> _Scan:
    history, (first, *_, last) = look.history, looked
    if not upstream.commit or history.resolve(upstream.commit) is None:
        return _Scan((), (), {})
    before = list(history.commits(first.commit, upstream.commit, *paths))
    after = list(history.commits(upstream.commit, last.commit, *paths))
    labels = [(one.commit, one.commit) for one in (*before, *after)]
    taken = snapshots(history.git, labels, look.paths)
    subjects = {one.commit: one for one in (*before, *after)}
    return _Scan((first, *taken[: len(before)]), taken[len(before) :], subjects)


def _turns(prober: Prober, scan: _Scan, patches: Sequence[str]) -> Iterator[Turn]:
    """Where each patch begins to apply before the base, and where it stops after it."""
    before = [(one.commit, prober.verdicts(one)) for one in scan.before]
    after = [(one.commit, prober.verdicts(one)) for one in scan.after]
    for index, patch in enumerate(patches):
        bad = [at for at, (_, one) in enumerate(before) if one[index].fit not in FITTING]
        if bad and bad[-1] + 1 < len(before):
            commit, one = before[bad[-1] + 1]
            subject = scan.subjects[commit].subject
            yield Turn(patch, commit, subject, str(one[index].fit), broke=False)
        for commit, one in after:
            if one[index].fit not in (*FITTING, Fit.UNKNOWN):
                subject = scan.subjects[commit].subject
                yield Turn(patch, commit, subject, str(one[index].fit), broke=True)
                break


def _attributed(cell: Cell, one: SetMap, history: History) -> Cell:
    """The cell with the commit that is to blame, when the patch does not apply."""
    if cell.outcome in ("", *FITTING, Fit.UNKNOWN):
        return cell
    newer = _is_newer(cell, one, history)
    for turn in one.turns:
        if turn.patch == cell.patch and turn.broke == newer:
            field = "first_bad_commit" if newer else "first_good_commit"
            return replace(cell, **{field: turn.commit})
    return cell


def _is_newer(cell: Cell, one: SetMap, history: History) -> bool:
    """Whether a version comes after the set's base: by its number where both have one."""
    order, base = version_of(cell.version), version_of(cell.set)
    if order and base and cell.commit != one.until:
        return order > base
    ask = ("merge-base", "--is-ancestor", cell.commit, one.base)
    return bool(one.base and cell.commit) and history.git.run(*ask, ok=(0, 1)).returncode == 1


def _cells(
    cell: Cell,
    series: Series,
    contents: Mapping[str, bytes | None],
    verdicts: Sequence[Verdict],
) -> Iterator[Cell]:
    for verdict in verdicts:
        places = series.record.patches[verdict.patch]
        drift = max((_drift(place, contents) for place in places), key=_ORDER.index, default="")
        yield replace(
            cell,
            patch=verdict.patch,
            outcome=str(verdict.fit),
            symbol_drift=drift,
            detail=verdict.detail,
        )
    for place in series.record.shadows:
        detail = f"{place.path}: {place.symbol}"
        yield replace(cell, patch=SHADOW, symbol_drift=_drift(place, contents), detail=detail)


#: What can become of a symbol, from good to bad.
_ORDER = ("", Drift.UNCHANGED, Drift.MOVED, Drift.CHANGED, Drift.GONE)


def _drift(place: Place, contents: Mapping[str, bytes | None]) -> str:
    """What became of a symbol; it is looked for in the other files of the set too."""
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
    """The files of a version of the wheel; what was taken out of one is kept in the cache."""
    every = fork.lock.versions(upstream.name)
    pinned = every.get(version)
    like = next((one for one in (upstream, *every.values()) if one.wheel), None)
    if like is None or like.wheel is None:
        raise UserError(f"the lock pins no wheel of {upstream.name}, so there is none to look at")
    known = fork.cache.find(pinned.tree) if pinned and pinned.wheel else None
    known = known or fork.cache.find(fork.cache.seen(f"{like.wheel.package}=={version}"))
    if known is None:
        known = fork.cache.find(_fetch(fork, like, like.wheel, version, options))
    assert known is not None, "it has just been kept"
    listed = list_tree(known.git, known.tree, *paths)
    blobs = read_blobs(known.git, (oid for _, oid in listed.values()))
    return {path: blobs[listed[path][1]] if path in listed else None for path in paths}


def _fetch(fork: Fork, like: Upstream, wheel: Wheel, version: str, options: SourceOptions) -> str:
    name = f"{wheel.package}=={version}"
    if options.offline:
        raise UserError(f"the wheel {name} is not in the cache, and this run is offline")
    warn(f"fetching {name}")
    with fork.cache.scratch() as scratch:
        try:
            path: Path = download_wheel(wheel.package, version, scratch)
        except SourceError as error:
            raise UserError(f"the wheel {name} is not to be had: {error.what}") from error
        tree = fork.cache.store(wheel_files(like, wheel, path), "wheel", "").tree
    fork.cache.note(name, tree)
    return tree
