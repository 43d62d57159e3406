# SPDX-License-Identifier: Apache-2.0
"""Verbs that change or write a series: edit, export, rebase, submit, import-series."""

from __future__ import annotations

import argparse
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from forkpatch.cli.options import (
    RELEASE,
    SOURCES,
    UPSTREAM,
    VERSION,
    Verb,
    flag,
    known_sources,
    one_of,
    repeated,
    source_options,
    upstream_of,
    value,
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


def run_edit(fork: Fork, options: argparse.Namespace) -> int:
    """Open a patched tree as a git branch with one commit a patch."""
    from forkpatch.series.export import open_for_edit  # noqa: PLC0415 - for this verb only

    release, upstream = upstream_of(fork, options.release, options.upstream)
    chosen = source_options(options)
    applied = open_for_edit(fork, release, upstream.name, chosen)
    if applied.path is None:
        raise UserError(f"{upstream} is missing: {applied.reason}", remedy=applied.remedy)
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
            also=[upstream_of(fork, one, item.name)[1] for one in dict.fromkeys(options.also)],
        )
        for item in upstreams
    ]
    for report in reports:
        say(*(f"{report.upstream}: {line}" for line in (*report.changes, *report.notes)))
        done = "differs" if options.check else "written"
        state = done if report.changes else "unchanged"
        count = counted(len(report.patches), "patch")
        say(f"{report.upstream} {report.version}: {count}, {state}")
    write_report(options.json, reports)
    return 1 if options.check and any(report.changes for report in reports) else 0


def _export_foreign(fork: Fork, options: argparse.Namespace) -> int:
    """Write a series in the format of another tool."""
    from forkpatch.foreign.outlet import ExportFormat, export_foreign  # noqa: PLC0415

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
    plan = fork.plan(upstream)
    report = export_foreign(fork, plan, ExportFormat(options.format), options.output.absolute())
    for patch in plan.patches:
        if patch.condition.options:
            warn(f"{patch.name}: its condition {patch.condition} is not a part of the format")
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
    from forkpatch.rebase import execute, resolution, result, workspace  # noqa: PLC0415 - for this verb only
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
            resolution.run_merge_tool(current)
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
    """Raise if a tree of a version has commits that are not in its series."""
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
    from forkpatch.pins.versions import version_of as number_of  # noqa: PLC0415 - for this verb only

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
    versions = fork.lock.versions(name).values()
    return [pin for pin in versions if (fork.patch_folder(pin) / SERIES).exists()]


def _pinned(fork: Fork, old: Upstream, options: argparse.Namespace, chosen: SourceOptions) -> Fork:
    """Return the fork with the new version in its lock; look the version up if missing."""
    named = options.tag or options.commit
    known = fork.lock.versions(old.name).values()
    if not named and any(options.version in (version.version, version.tag) for version in known):
        return fork
    from forkpatch.pins.lockfile import NewVersion  # noqa: PLC0415 - rarely needed
    from forkpatch.pins.refresh import pin_version  # noqa: PLC0415

    wanted = NewVersion(options.version, options.tag, options.commit)
    fork = pin_version(fork, old, wanted, chosen)
    new = fork.lock.upstream(old.name, options.version)
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


VERBS = (
    Verb("edit", run_edit, *SOURCES, UPSTREAM, RELEASE, claim=Claim.WRITE),
    Verb(
        "export",
        run_export,
        value("upstream", "UPSTREAM", "default: every upstream with a patched tree", nargs="?"),
        RELEASE,
        flag("--check", "write nothing; exit with 1 if a file would change"),
        flag("--force", "overwrite patch files that changed since the last apply"),
        flag("--own", "write files also for the patches that another version shares"),
        repeated(
            "--also",
            "R",
            "add the new patches to the series of this release too, and record them there",
        ),
        value(
            "--format",
            None,
            "write the series in another tool's format",
            choices=("quilt", "debian", "format-patch"),
        ),
        value("--output", "DIR", "folder for --format; it must not exist", type=Path),
        value("--version", "V", "version for --format (default: the release's)"),
        claim=Claim.WRITE,
        reads="check",
    ),
    Verb(
        "rebase",
        run_rebase,
        *SOURCES,
        value("upstream", "NAME"),
        value("version", "VERSION", "the version to move to", nargs="?"),
        value("--from", "VERSION", "version to move from (default: the release's)", dest="old"),
        value(
            "--existing",
            None,
            "if VERSION has a series: keep it and add the missing patches, or replace it",
            choices=("keep", "replace"),
        ),
        one_of(
            value("--tag", "TAG", "tag of a VERSION to add", default=""),
            value("--commit", "ID", "commit of a VERSION to add", default=""),
        ),
        one_of(
            flag("--continue", "go on after you resolved a conflict", dest="go_on"),
            flag("--mergetool", "run your git mergetool on the conflicts, then go on"),
            value("--accept", "REASON", "go on, and leave the change where git put it"),
            value("--skip", "REASON", "drop the patch that stopped the rebase"),
            flag("--abort", "give up the rebase, and restore the state before it"),
            flag("--status", "print the progress of the rebase"),
        ),
        claim=Claim.WRITE,
        reads="status",
    ),
    Verb(
        "submit",
        run_submit,
        *SOURCES,
        UPSTREAM,
        VERSION,
        value(
            "--onto", "REV", "upstream commit to rebase onto; a mirror must have it", required=True
        ),
        one_of(
            value("--output", "DIR", "folder for the patches", type=Path),
            value("--branch", "NAME", "branch to create; it must not exist"),
            required=True,
        ),
        value(
            "--repository",
            "DIR",
            "clone that has REV and in which the branch is created (default: the mirror)",
            type=Path,
        ),
    ),
    Verb(
        "import-series",
        run_import,
        *SOURCES,
        UPSTREAM,
        value("folder", "FOLDER", "folder of patches, or a mailbox file", type=Path),
        one_of(
            repeated("--guard", "NAME", "guard to choose, of a series that has guards"),
            flag("--no-guards", "choose none of the guards"),
        ),
        flag("--nearest", "if a moved hunk fits several places, take the nearest"),
        VERSION,
        claim=Claim.WRITE,
    ),
)
