# SPDX-License-Identifier: Apache-2.0
"""Verbs that change or write a series: edit, export, rebase, submit, import-series."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from forkpatch.cli.options import (
    Registry,
    add_source_options,
    known_sources,
    source_options,
    upstream_of,
    version_of,
)
from forkpatch.command import typed
from forkpatch.errors import UserError
from forkpatch.git.calls import knows_author
from forkpatch.model.lock import Upstream
from forkpatch.model.patchfile import SERIES
from forkpatch.output import counted, say, warn, write_report
from forkpatch.tree.claim import Claim
from forkpatch.tree.fork import Fork
from forkpatch.tree.worktree import OVERLAYS_REF
from groundwork.files import atomic_write

if TYPE_CHECKING:
    from forkpatch.rebase.result import RebaseReport
    from forkpatch.rebase.workspace import Rebase
    from forkpatch.sources.obtain import SourceOptions

_MOST_LINES = 40  # changed lines of patches that a rebase's report shows


def register(verbs: Registry) -> None:
    """Add the verbs of this module to the command line."""
    verb = verbs.add("edit", run_edit, Claim.WRITE)
    add_source_options(verb)
    verb.add_argument("upstream", metavar="UPSTREAM")
    verb.add_argument("--release", metavar="R", help="the release (default: the lock's)")
    verb = verbs.add("export", run_export, Claim.WRITE, reads="check")
    verb.add_argument(
        "upstream",
        nargs="?",
        metavar="UPSTREAM",
        help="default: every upstream that has a patched tree",
    )
    verb.add_argument("--release", metavar="R", help="the release (default: the lock's)")
    verb.add_argument(
        "--check", action="store_true", help="write nothing; exit with 1 if a file would change"
    )
    verb.add_argument(
        "--force",
        action="store_true",
        help="overwrite patch files that changed since the last apply",
    )
    verb.add_argument(
        "--own",
        action="store_true",
        help="write files also for the patches that another version shares with this one",
    )
    verb.add_argument(
        "--also",
        action="append",
        default=[],
        metavar="R",
        help="add the new patches to the series of this release too, and record them there",
    )
    verb.add_argument(
        "--format",
        choices=("quilt", "debian", "format-patch"),
        help="write the series in another tool's format",
    )
    verb.add_argument(
        "--output", type=Path, metavar="DIR", help="folder for --format; it must not exist"
    )
    verb.add_argument(
        "--version", metavar="V", help="version for --format (default: the release's)"
    )
    verb = verbs.add("rebase", run_rebase, Claim.WRITE, reads="status")
    add_source_options(verb)
    verb.add_argument("upstream", metavar="NAME")
    verb.add_argument("version", nargs="?", metavar="VERSION", help="the version to move to")
    verb.add_argument(
        "--from",
        dest="old",
        metavar="VERSION",
        help="version to move from (default: the release's)",
    )
    verb.add_argument(
        "--existing",
        choices=("keep", "replace"),
        help="if VERSION has a series: keep it and add the missing patches, or replace it",
    )
    choice = verb.add_mutually_exclusive_group()
    choice.add_argument("--tag", default="", metavar="TAG", help="tag of a VERSION to add")
    choice.add_argument("--commit", default="", metavar="ID", help="commit of a VERSION to add")
    choice = verb.add_mutually_exclusive_group()
    choice.add_argument(
        "--continue", dest="go_on", action="store_true", help="go on after you resolved a conflict"
    )
    choice.add_argument(
        "--mergetool",
        action="store_true",
        help="run your git mergetool on the conflicts, then go on",
    )
    choice.add_argument(
        "--accept", metavar="REASON", help="go on, and leave the change where git put it"
    )
    choice.add_argument("--skip", metavar="REASON", help="drop the patch that stopped the rebase")
    choice.add_argument(
        "--abort", action="store_true", help="give up the rebase, and restore the state before it"
    )
    choice.add_argument("--status", action="store_true", help="print the progress of the rebase")
    verb = verbs.add("submit", run_submit)
    add_source_options(verb)
    verb.add_argument("upstream", metavar="UPSTREAM")
    verb.add_argument("--version", metavar="V", help="default: the default release's version")
    verb.add_argument(
        "--onto",
        required=True,
        metavar="REV",
        help="upstream commit to rebase onto; a mirror must have it",
    )
    choice = verb.add_mutually_exclusive_group(required=True)
    choice.add_argument(
        "--output", type=Path, metavar="DIR", help="folder for the patches; it must not exist"
    )
    choice.add_argument("--branch", metavar="NAME", help="branch to create; it must not exist")
    verb.add_argument(
        "--repository",
        type=Path,
        metavar="DIR",
        help="clone that has REV and in which the branch is created (default: the mirror)",
    )
    verb = verbs.add("import-series", run_import, Claim.WRITE)
    add_source_options(verb)
    verb.add_argument("upstream", metavar="UPSTREAM")
    verb.add_argument(
        "folder", type=Path, metavar="FOLDER", help="folder of patches, or a mailbox file"
    )
    choice = verb.add_mutually_exclusive_group()
    choice.add_argument(
        "--guard",
        action="append",
        default=[],
        metavar="NAME",
        help="guard to choose, of a series that has guards",
    )
    verb.add_argument(
        "--nearest",
        action="store_true",
        help="if a moved hunk fits several places, take the nearest, as patch(1) does",
    )
    choice.add_argument("--no-guards", action="store_true", help="choose none of the guards")
    verb.add_argument("--version", metavar="V", help="default: the default release's version")


def run_edit(fork: Fork, options: argparse.Namespace) -> int:
    """Open a patched tree as a git branch with one commit a patch."""
    from forkpatch.series.export import open_for_edit  # noqa: PLC0415 - for this verb only

    release, upstream = upstream_of(fork, options.release, options.upstream)
    chosen = source_options(options)
    applied = open_for_edit(fork, release, upstream.name, chosen)
    if applied.path is None:
        raise UserError(f"{upstream} is missing: {applied.reason}", remedy=applied.remedy)
    if options.json != "-":
        say(
            f"{applied.path}: {counted(len(applied.patches), 'patch')}, one commit each",
            "change them with git:",
            f"  git -C {shlex.quote(str(applied.path))} rebase -i {OVERLAYS_REF}",
            "or add a commit; then write the series:",
            f"  {typed(f'export {upstream.name}')}",
        )
        if not knows_author(applied.path):
            config = f"git -C {shlex.quote(str(applied.path))} config"
            say(
                "git has no name and address for your commits; set them first:",
                f"  {config} user.name NAME && {config} user.email ADDRESS",
            )
    write_report(
        options.json,
        {"upstream": upstream.name, "path": applied.path, "patches": applied.patches},
    )
    return 0


def run_export(fork: Fork, options: argparse.Namespace) -> int:
    """Write the commits of a patched tree to the patch files of its series."""
    from forkpatch.series.export import export_upstream  # noqa: PLC0415 - for this verb only

    if options.format or options.output or options.version:
        return _export_foreign(fork, options)
    if options.also and options.check:
        raise UserError("--also writes, and --check does not", remedy="leave out one of them")
    release, upstreams = fork.lock.release(options.release)
    if options.upstream:
        upstreams = (upstream_of(fork, options.release, options.upstream)[1],)
    else:
        upstreams = tuple(item for item in upstreams if fork.tree_folder(release, item).exists())
    reports = [
        export_upstream(
            fork,
            release,
            item,
            check=options.check,
            force=options.force,
            own=options.own,
            also=_also(fork, item, options.also),
        )
        for item in upstreams
    ]
    if options.json != "-":
        for report in reports:
            say(*(f"{report.upstream}: {line}" for line in (*report.changes, *report.notes)))
            done = "differs" if options.check else "written"
            state = done if report.changes else "unchanged"
            count = counted(len(report.patches), "patch")
            say(f"{report.upstream} {report.version}: {count}, {state}")
    write_report(options.json, reports)
    return 1 if options.check and any(report.changes for report in reports) else 0


def _also(fork: Fork, upstream: Upstream, releases: Sequence[str]) -> tuple[Upstream, ...]:
    """Return the other versions of an upstream in these releases."""
    upstreams = [upstream_of(fork, release, upstream.name)[1] for release in releases]
    return tuple({item.version: item for item in upstreams if item != upstream}.values())


def _export_foreign(fork: Fork, options: argparse.Namespace) -> int:
    """Write a series in the format of another tool."""
    from forkpatch.foreign.outlet import ExportFormat, export_foreign  # noqa: PLC0415
    from forkpatch.sources.obtain import SourceOptions, obtain  # noqa: PLC0415
    from forkpatch.tree.fork import plan_tree  # noqa: PLC0415

    if not (options.format and options.output and options.upstream):
        raise UserError(
            "an export for another tool needs an upstream, a format and a folder",
            remedy=typed("export UPSTREAM --format quilt|debian|format-patch --output DIR"),
        )
    if options.check or options.force or options.own or options.also:
        raise UserError("--check, --force, --own and --also are about the fork's own files")
    if options.version:
        upstream = fork.lock.upstream(options.upstream, options.version)
    else:
        upstream = upstream_of(fork, options.release, options.upstream)[1]
    plan = plan_tree(fork, upstream, obtain(upstream, fork.cache, SourceOptions()).pristine)
    report = export_foreign(fork, plan, ExportFormat(options.format), options.output.absolute())
    for patch in plan.patches:
        if patch.condition.options:
            warn(f"{patch.name}: its condition {patch.condition} is not a part of the format")
    if options.json != "-":
        count = counted(len(plan.patches), "patch")
        say(f"{upstream}: {count} in {report.folder}, {len(report.kept)} as imported")
        if report.overlays:
            files = f"{counted(report.overlays, 'overlay file')} of {fork.overlay_folder(upstream)}"
            say(f"{upstream}: {report.written[0]} adds the {files}")
    write_report(options.json, report)
    return 0


def run_import(fork: Fork, options: argparse.Namespace) -> int:
    """Import a series of another tool: quilt, Debian, format-patch, a mailbox, .patches."""
    from forkpatch.foreign.intake import import_series  # noqa: PLC0415 - for this verb only

    chosen = known_sources(fork, options)
    upstream = version_of(fork, options)
    guards = frozenset(options.guard) if options.guard or options.no_guards else None
    report = import_series(fork, upstream, options.folder, chosen, guards, nearest=options.nearest)
    if options.json != "-":
        say(*(f"left out: {line}" for line in report.left_out))
        say(*(f"moved: {line}" for line in report.shifted))
        say(f"{upstream}: {counted(len(report.patches), 'patch')} imported to {report.folder}")
    write_report(options.json, report)
    return 0


def run_submit(fork: Fork, options: argparse.Namespace) -> int:
    """Write the patches that are meant for upstream, rebased onto one of its commits."""
    from forkpatch.series.submit import NewBranch, submit  # noqa: PLC0415 - for this verb only

    if options.repository and not options.branch:
        raise UserError("--repository is for --branch", remedy="name the branch, or leave it out")
    chosen = known_sources(fork, options)
    upstream = version_of(fork, options)
    output = (
        NewBranch(options.branch, options.repository)
        if options.branch
        else options.output.absolute()
    )
    report = submit(fork, upstream, options.onto, output, chosen)
    if options.json != "-":
        say(*(f"left out: {name}: {reason}" for name, reason in report.left_out.items()))
        say(*(f"{name}: conflict: {reason}" for name, reason in report.conflicts.items()))
        say(*report.notes)
        count = counted(len(report.patches), "patch")
        where = "nothing was written" if report.conflicts else f"{count} in {report.place}"
        say(f"{upstream} onto {report.commit[:12]}: {where}")
    write_report(options.json, report)
    return 1 if report.conflicts else 0


def run_rebase(fork: Fork, options: argparse.Namespace) -> int:
    """Move a series to another version of its upstream, patch by patch."""
    from forkpatch.rebase import execute, resolution, result, tools, workspace  # noqa: PLC0415 - for this verb only
    from forkpatch.rebase.plan import Existing  # noqa: PLC0415

    name = options.upstream
    fork.lock.versions(name)
    chosen = known_sources(fork, options)
    if options.abort:
        say(f"{name}: {workspace.abort(fork, name) or 'no rebase to abort'}")
        return 0
    if options.status:
        return _rebase_status(fork, name, options.json)
    goes_on = options.go_on or options.mergetool
    if goes_on or options.skip is not None or options.accept is not None:
        current = workspace.resume(fork, name, chosen)
        if options.mergetool:
            tools.run_merge_tool(current)
        with workspace.at_work(current):
            current = (
                execute.skip(current, options.skip)
                if options.skip is not None
                else resolution.resolve(current, options.accept)
            )
    else:
        if not options.version:
            raise UserError("no version was given", remedy=typed(f"rebase {name} VERSION"))
        if options.old:
            old = fork.lock.upstream(name, options.old)
        else:
            old = _newest_series(fork, name, options.version) or upstream_of(fork, None, name)[1]
        _check_exported(fork, old)
        lock_before = fork.settings.lock.read_bytes()
        fork = _pinned(fork, old, options, chosen)
        new = fork.lock.upstream(name, options.version)
        existing = Existing(options.existing) if options.existing else None
        current = workspace.start(fork, old, new, chosen, existing)
        workspace.keep_lock(current, lock_before)
        if options.json != "-":
            say(_route(fork, old, new, chosen=bool(options.old)))
    with workspace.at_work(current):
        current = execute.execute(current)
    if current.plan.conflicts:
        _say_stopped(current, options.json)
        return 1
    release = _released(fork, current.new)  # before the plan's removal, for a killed run
    report = result.finish(current)
    write_report(
        str(fork.settings.work / f"rebase-{name}-{report.old}-to-{report.new}.json"), report
    )
    _say_rebased(report, release, options.json)
    return 0


def _check_exported(fork: Fork, old: Upstream) -> None:
    """Raise if a tree of a version has commits that are not in its series.

    Raises:
        UserError: a rebase of the series would leave out the commits.
    """
    from forkpatch.tree.worktree import has_other_commits, read_stamp  # noqa: PLC0415

    for release, versions in fork.lock.releases.items():
        folder = fork.tree_folder(release, old)
        stamp = read_stamp(folder) if versions.get(old.name) == old.version else None
        if stamp is None or stamp.version != old.version:
            continue
        if has_other_commits(folder, stamp):
            raise UserError(
                f"{folder} has commits that are not in the series, and the rebase would leave them"
                " out",
                remedy=f"write them first: {typed(f'export {old.name} --release {release}')}",
            )


def _newest_series(fork: Fork, name: str, new: str) -> Upstream | None:
    """Return the newest version with a series that is older than ``new``; None without one."""
    from forkpatch.pins.tags import version_of as number_of  # noqa: PLC0415 - for this verb only

    limit = number_of(new)
    older = [
        (number, pin)
        for pin in _with_series(fork, name)
        if new not in (pin.version, pin.tag)
        and (number := number_of(pin.version))
        and (limit is None or number < limit)
    ]
    return max(older, key=lambda pair: pair[0])[1] if older else None


def _with_series(fork: Fork, name: str) -> list[Upstream]:
    """Return the versions of an upstream that have a series."""
    versions = fork.lock.versions(name).values()
    return [pin for pin in versions if (fork.patch_folder(pin) / SERIES).exists()]


def _pinned(fork: Fork, old: Upstream, options: argparse.Namespace, chosen: SourceOptions) -> Fork:
    """Return the fork with the new version in its lock; look the version up if missing."""
    named = options.tag or options.commit
    known = fork.lock.versions(old.name).values()
    if not named and any(options.version in (version.version, version.tag) for version in known):
        return fork
    from forkpatch.pins.refresh import pin_version  # noqa: PLC0415 - rarely needed

    fork = pin_version(fork, old, options.version, chosen, tag=options.tag, commit=options.commit)
    new = fork.lock.upstream(old.name, options.version)
    if options.json != "-":
        say(f"{fork.settings.lock.name}: {new} added, commit {new.commit[:12]}")
    return fork


def _released(fork: Fork, new: Upstream) -> str:
    """Return the release that has a version; add a release to the lock without one."""
    from forkpatch.pins.lockfile import with_release  # noqa: PLC0415 - for this verb only

    path = fork.settings.lock
    before = path.read_text("utf-8")
    text, release = with_release(before, fork.lock, new)
    if text != before:
        atomic_write(path, text)
    return release


def _route(fork: Fork, old: Upstream, new: Upstream, *, chosen: bool) -> str:
    """Return the versions of a rebase in words, and other possible versions to start from."""
    text = f"{old.name}: from {old.version} to {new.version}"
    if chosen:
        return text
    others = [pin.version for pin in _with_series(fork, old.name) if pin not in (old, new)]
    return f"{text}; from another: --from {' | '.join(others)}" if others else text


def _rebase_status(fork: Fork, name: str, target: str | None) -> int:
    """Print the progress of an upstream's rebase."""
    from forkpatch.rebase.plan import read_plan  # noqa: PLC0415 - for this verb only
    from forkpatch.rebase.workspace import rebase_folder  # noqa: PLC0415

    plan = read_plan(rebase_folder(fork, name), name)
    if target != "-":
        if plan is None:
            say(f"no rebase of {name} is under way")
        else:
            say(
                f"{name}: from {plan.old} to {plan.new}:"
                f" {counted(len(plan.done), 'patch')} done, {len(plan.pending)} to come"
            )
            say(*(f"  {step.patch}: {step.outcome} {step.reason}".rstrip() for step in plan.done))
            say(*(f"  {item.patch}: {item.path}: {item.kind}" for item in plan.conflicts))
    write_report(target, plan)
    return 0


def _say_stopped(current: Rebase, target: str | None) -> None:
    """Print why a rebase stopped, and how to continue."""
    from forkpatch.rebase.conflicts import backported  # noqa: PLC0415 - for this verb only

    again = typed(f"rebase {current.plan.upstream}")
    patch = current.plan.pending[0].patch
    if target != "-":
        say(*map(str, current.plan.conflicts))
        if commit := backported(current, patch):
            say(f"{patch}: its trailer calls it a backport of {commit}, which {current.new} has")
        say(
            f"resolve it in {current.tree}, then: {again} --continue",
            *(
                [f"or in your merge tool: {again} --mergetool"]
                if any(conflict.lines for conflict in current.plan.conflicts)
                else []
            ),
            *(
                [f"or leave it there:   {again} --accept 'REASON'"]
                if any(conflict.kind == "misplaced" for conflict in current.plan.conflicts)
                else []
            ),
            f"or drop the patch:   {again} --skip 'REASON'",
            f"or abandon it:       {again} --abort",
        )
    write_report(target, {"plan": current.plan, "tree": current.tree})


def _say_rebased(report: RebaseReport, release: str, target: str | None) -> None:
    """Print the result of a rebase."""
    if target != "-":
        items = (*report.existing, *report.patches)
        whole = sum(len(item.diff.splitlines()) for item in items) <= _MOST_LINES
        for item in items:
            lines = f" ({counted(item.by_hand, 'line')})" if item.by_hand else ""
            say(f"{item.patch}: {item.outcome}{f': {item.reason}' if item.reason else ''}{lines}")
            say(*(f"    {line}" for line in item.diff.splitlines() if whole))
        if not whole:
            words = typed(f"range-diff {report.upstream} {report.old} {report.new}")
            say(f"what changed in the patches: {words}")
        say(*(str(finding) for finding in report.symbols), *report.notes)
        say(
            f"{report.upstream} {report.new}: the series is in {report.folder}",
            f"release {release} has it; next: {typed(f'apply --release {release}')}",
        )
    write_report(target, report)
