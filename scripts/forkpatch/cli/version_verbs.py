# SPDX-License-Identifier: Apache-2.0
"""The verbs that look ahead: probe, watch."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from forkpatch.cli.main import Registry, add_source_options, source_options, upstream_of
from forkpatch.errors import UserError
from forkpatch.model.fork import Fork, plan_tree
from forkpatch.model.lock import Upstream
from forkpatch.output import counted, print_table, say, write_report
from forkpatch.sources.obtain import SourceOptions, mirrors_of, obtain

if TYPE_CHECKING:
    from forkpatch.inspect.probe import Break, ProbeReport, Row, Series
    from forkpatch.sources.history import Culprit, History


def register(verbs: Registry) -> None:
    """Add these verbs to the command line."""
    verb = verbs.add("probe", run_probe)
    add_source_options(verb)
    verb.add_argument(
        "upstream", nargs="?", metavar="NAME", help="default: the map of all sets of all upstreams"
    )
    verb.add_argument(
        "--check", action="store_true", help="the map: write nothing; 1 when the table differs"
    )
    verb.add_argument("--version", metavar="V", help="whose series (default: the release's)")
    verb.add_argument(
        "--versions", nargs="+", metavar="V", help="tags, commits or wheel versions to look at"
    )
    verb.add_argument("--to", metavar="REF", default="HEAD", help="scan the commits up to this one")
    verb = verbs.add("watch", run_watch)
    add_source_options(verb)


def run_probe(fork: Fork, options: argparse.Namespace) -> int:
    """Tell on which upstream versions each patch applies, and which commit broke it."""
    if options.upstream is None:
        return _run_map(fork, options)
    from forkpatch.inspect.drift import record_of  # noqa: PLC0415 - for this verb only
    from forkpatch.inspect.probe import Prober, ProbeReport, Row, breaks, prepare, snapshots  # noqa: PLC0415
    from forkpatch.sources.history import History  # noqa: PLC0415

    chosen = source_options(options)
    chosen.check(fork.lock)
    fork.cache.remember(chosen.mirrors)
    upstream = upstream_of(fork, None, options.upstream)[1]
    if options.version:
        upstream = fork.lock.upstream(options.upstream, options.version)
    plan = plan_tree(fork, upstream, obtain(upstream, fork.cache, chosen).pristine)
    series = prepare(plan, record_of(fork, plan))
    places = [*mirrors_of(upstream, fork.cache, chosen), upstream.url]
    history = History.find(places, *([upstream.commit] if upstream.commit else []))
    rows: list[Row] = []
    commits: list[Culprit] = []
    stops: tuple[Break, ...] = ()
    wanted = list(options.versions or ([] if upstream.commit else [upstream.version]))
    if history is not None:
        versions = _versions(upstream, history, wanted)
        tip = history.resolve(options.to)
        commits = _commits(history, upstream, tip, series)
        looked = snapshots(history.git, versions, series.paths)
        scan = snapshots(history.git, [(one.commit, one.commit) for one in commits], series.paths)
        prober = Prober(series, history.git, [*looked, *scan])
        rows = [Row(one.label, one.commit, prober.verdicts(one)) for one in looked]
        stops = breaks(prober, scan, {one.commit: one for one in commits})
    elif not wanted:
        raise UserError(
            f"no mirror of {upstream.name} with its history is known",
            remedy=f"name one: --mirror {upstream.name}=PATH; or wheels: --versions V",
        )
    rows += _wheel_rows(fork, upstream, series, wanted, options)
    report = ProbeReport(upstream.name, upstream.version, tuple(rows), stops, len(commits))
    if options.json != "-":
        _say_probe(report)
    write_report(options.json, report)
    return 0


def _run_map(fork: Fork, options: argparse.Namespace) -> int:
    """Write the table of all sets against all versions, or compare it with the one that is kept."""
    from common.files import atomic_write  # noqa: PLC0415
    from forkpatch.inspect.applicability import map_fork, table_path  # noqa: PLC0415 - for this verb only
    from forkpatch.inspect.maptable import page  # noqa: PLC0415

    chosen = source_options(options)
    chosen.check(fork.lock)
    if wrong := [name for name in ("version", "versions") if getattr(options, name)]:
        raise UserError(f"--{wrong[0]} is about one upstream", remedy="name it: probe NAME")
    fork.cache.remember(chosen.mirrors)
    path = table_path(fork)
    found = map_fork(fork, chosen)
    text = page(found)
    same = path.is_file() and path.read_text("utf-8") == text
    if not options.check and not same:
        atomic_write(path, text)
    if options.json != "-":
        sets = ", ".join(f"{one.upstream} {one.set}" for one in found.sets)
        say(f"{counted(len(found.rows), 'cell')} of {sets}")
        say(f"{path.name}: {'up to date' if same else 'differs' if options.check else 'written'}")
    write_report(options.json, found)
    return 1 if options.check and not same else 0


def _commits(
    history: History, upstream: Upstream, tip: str | None, series: Series
) -> list[Culprit]:
    """The upstream commits since the pinned one; none where no commit is pinned."""
    if not tip or not upstream.commit:
        return []
    return list(history.commits(upstream.commit, tip, *series.paths))


def _versions(upstream: Upstream, history: History, wanted: list[str]) -> list[tuple[str, str]]:
    """Label and commit of the versions to look at; takes what it knows out of ``wanted``."""
    from forkpatch.pins.versions import tags_of, version_of  # noqa: PLC0415 - for this verb only

    if not wanted:
        pinned = version_of(upstream.tag or upstream.version)
        tags = tags_of(str(history.git.git_dir))
        newer = [tag for tag in tags if tag.version and pinned and tag.version >= pinned]
        return [(tag.name, tag.commit) for tag in newer] or [(upstream.version, upstream.commit)]
    found = []
    for name in list(wanted):
        for candidate in (f"refs/tags/{name}", f"refs/tags/v{name}", f"refs/heads/{name}", name):
            commit = history.resolve(candidate)
            if commit:
                found.append((name, commit))
                wanted.remove(name)
                break
    return found


def _wheel_rows(
    fork: Fork, upstream: Upstream, series: Series, wanted: list[str], options: argparse.Namespace
) -> list[Row]:
    """The versions that no commit is known for, from their wheels."""
    from forkpatch.inspect.probe import Row, probe  # noqa: PLC0415 - for this verb only
    from forkpatch.sources.wheels import download_wheel, wheel_files  # noqa: PLC0415

    rows: list[Row] = []
    for version in wanted:
        wheel = upstream.wheel
        if wheel is None or options.offline:
            raise UserError(f"{upstream.name} has no version {version!r} that can be looked at")
        with fork.cache.scratch() as scratch:
            path = download_wheel(wheel.package, version, scratch)
            files = {name: file.data for name, file in wheel_files(upstream, wheel, path)}
        contents = {name: files.get(name) for name in series.paths}
        rows.append(Row(version, "", probe(series, contents)))
    return rows


def _say_probe(report: ProbeReport) -> None:
    cells: dict[str, list[str]] = {}
    for row in report.versions:
        for verdict in row.patches:
            cells.setdefault(verdict.patch, [verdict.patch]).append(verdict.fit)
    print_table(("patch", *(row.version for row in report.versions)), list(cells.values()))
    commits = counted(report.commits, "upstream commit")
    say(f"{commits} since {report.base} concerned these files; each was looked at")
    for stop in report.breaks:
        again = "; it applies again later" if stop.again else ""
        say(f"{stop.patch}: {stop.fit} since {stop.commit[:12]} {stop.subject}{again}")


def run_watch(fork: Fork, options: argparse.Namespace) -> int:
    """Tell which upstream versions are newer than the pinned ones."""
    from forkpatch.pins.versions import news_of  # noqa: PLC0415 - for this verb only

    chosen: SourceOptions = source_options(options)
    chosen.check(fork.lock)
    fork.cache.remember(chosen.mirrors)
    news = []
    for upstream in fork.lock.release()[1]:
        places = list(mirrors_of(upstream, fork.cache, chosen))
        if not options.offline:
            places.append(upstream.url)
        news.append(news_of(upstream, places, index=not options.offline))
    if options.json != "-":
        print_table(
            ("upstream", "pinned", "newer tags", "newer wheels", "newest commit"),
            [
                (
                    one.upstream,
                    one.version,
                    ", ".join(one.tags) or "-",
                    ", ".join(one.wheels) or "-",
                    one.head[:12] or "-",
                )
                for one in news
            ],
        )
        say(*(f"{one.upstream}: not asked: {note}" for one in news for note in one.notes))
    write_report(options.json, news)
    return 0
