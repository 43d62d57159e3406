# SPDX-License-Identifier: Apache-2.0
"""The verb rebase."""

from __future__ import annotations

import argparse

from forkpatch.cli.options import SOURCES, Verb, known_sources, upstream_of
from forkpatch.command import typed
from forkpatch.errors import UserError
from forkpatch.model.lock import Upstream, write_lock
from forkpatch.model.patchfile import SERIES
from forkpatch.output import counted, say, write_report
from forkpatch.rebase import execute, resolution, result, workspace
from forkpatch.rebase.conflicts import backported
from forkpatch.rebase.plan import Existing, RebasePlan, read_plan
from forkpatch.sources.obtain import SourceOptions
from forkpatch.tree.claim import Claim
from forkpatch.tree.fork import Fork
from forkpatch.tree.worktree import has_other_commits, read_stamp
from groundwork.files import atomic_write

#: Options for a rebase that is under way.
_LATER = ("continue_", "mergetool", "accept", "skip", "abort", "status")
_MOST_LINES = 40  # changed lines of patches that a rebase's report shows


def run_rebase(fork: Fork, options: argparse.Namespace) -> tuple[object, int]:
    """Move a series to another version of its upstream, patch by patch."""
    name = options.upstream
    fork.lock.versions(name)
    _check_begins(options)
    chosen = known_sources(fork, options)
    if options.abort:
        say(f"{name}: {workspace.abort(fork, name) or 'no rebase to abort'}")
        return None, 0
    if options.status:
        return _rebase_status(fork, name), 0
    goes_on = options.continue_ or options.mergetool
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
        current = _started(fork, options, chosen)
    with workspace.at_work(current):
        current = execute.execute(current)
    if current.plan.conflicts:
        _say_stopped(current)
        return {"plan": current.plan, "tree": current.tree}, 1
    release = _released(current)  # before the plan's removal, for a killed run
    report = result.finish(current)
    kept = fork.settings.work / f"rebase-{name}-{report.old}-to-{report.new}.json"
    write_report(str(kept), report)
    _say_rebased(report, release)
    return report, 0


def _started(fork: Fork, options: argparse.Namespace, chosen: SourceOptions) -> workspace.Rebase:
    """Start a rebase; if it cannot start, take the version that it pinned out of the lock."""
    name = options.upstream
    if not options.version:
        raise UserError("no version was given", remedy=typed(f"rebase {name} VERSION"))
    if options.from_:
        old = fork.lock.upstream(name, options.from_)
    else:
        old = _newest_series(fork, name, options.version) or upstream_of(fork, None, name)[1]
    _check_exported(fork, old)
    lock, existing = fork.settings.lock, options.existing and Existing(options.existing)
    before = lock.read_bytes()
    try:
        pinned = _pinned(fork, old, options, chosen)
        new = pinned.lock.upstream(name, options.version)
        current = workspace.start(pinned, old, new, chosen, existing)
        workspace.keep_lock(current, before)
    except BaseException:
        if lock.read_bytes() != before:
            atomic_write(lock, before)
        raise
    if pinned is not fork:
        say(f"{lock.name}: {new} added, commit {new.commit[:12]}")
    say(_route(pinned, old, new, chosen=bool(options.from_)))
    return current


def _check_begins(options: argparse.Namespace) -> None:
    """Raise if words that begin a rebase are typed with an option for one that is under way."""
    later = [name for name in _LATER if vars(options)[name] not in (None, False)]
    words = [name for name in ("from_", "existing", "tag", "commit") if vars(options)[name]]
    given = ["VERSION"] if options.version else [f"--{name.strip('_')}" for name in words]
    if later and given:
        option = f"--{later[0].strip('_')}"
        raise UserError(
            f"{given[0]} begins a rebase, and {option} is for the rebase that is under way",
            remedy=f"leave out {given[0]}, or {option}",
        )


def _check_exported(fork: Fork, old: Upstream) -> None:
    """Raise UserError if a tree of a version has commits that are not in its series."""
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
    """Return the fork with the new version in its lock; look it up and add it if missing."""
    named = options.tag or options.commit
    known = fork.lock.versions(old.name).values()
    if not named and any(options.version in (version.version, version.tag) for version in known):
        return fork
    from forkpatch.pins.lockfile import NewVersion  # noqa: PLC0415 - rarely needed
    from forkpatch.pins.refresh import pin_version  # noqa: PLC0415

    wanted = NewVersion(options.version, options.tag or "", options.commit or "")
    return pin_version(fork, old, wanted, chosen)


def _released(current: workspace.Rebase) -> str:
    """Return the release that has the new version; if there is none, add one to the lock."""
    from forkpatch.pins.lockfile import with_release  # noqa: PLC0415 - for this verb only

    path = current.fork.settings.lock
    before = path.read_bytes()
    text, release = with_release(before.decode("utf-8"), current.fork.lock, current.new)
    if text.encode("utf-8") != before:
        write_lock(path, text)
        workspace.keep_lock(current, before)
    return release


def _route(fork: Fork, old: Upstream, new: Upstream, *, chosen: bool) -> str:
    """Return the versions of a rebase in words, and other possible versions to start from."""
    text = f"{old.name}: from {old.version} to {new.version}"
    if chosen:
        return text
    others = [pin.version for pin in _with_series(fork, old.name) if pin not in (old, new)]
    return f"{text}; from another: --from {' | '.join(others)}" if others else text


def _rebase_status(fork: Fork, name: str) -> RebasePlan | None:
    """Print the progress of an upstream's rebase; return its plan, None without a rebase."""
    plan = read_plan(workspace.rebase_folder(fork, name), name)
    if plan is None:
        say(f"no rebase of {name} is under way")
    else:
        say(
            f"{name}: from {plan.old} to {plan.new}:"
            f" {counted(len(plan.done), 'patch')} done, {len(plan.pending)} to come"
        )
        say(*(f"  {step.patch}: {step.outcome} {step.reason}".rstrip() for step in plan.done))
        say(*(f"  {item.patch}: {item.path}: {item.kind}" for item in plan.conflicts))
    return plan


def _say_stopped(current: workspace.Rebase) -> None:
    """Print why a rebase stopped, and how to continue."""
    again = typed(f"rebase {current.plan.upstream}")
    patch = current.plan.pending[0].patch
    say(*map(str, current.plan.conflicts))
    if commit := backported(current, patch):
        say(f"{patch}: its trailer calls it a backport of {commit}, which {current.new} has")
    say(f"resolve it in {current.tree}, then: {again} --continue")
    if any(conflict.lines for conflict in current.plan.conflicts):
        say(f"or in your merge tool: {again} --mergetool")
    if any(conflict.kind == "misplaced" for conflict in current.plan.conflicts):
        say(f"or leave it there:   {again} --accept 'REASON'")
    say(
        f"or drop the patch:   {again} --skip 'REASON'",
        f"or abandon it:       {again} --abort",
    )


def _say_rebased(report: result.RebaseReport, release: str) -> None:
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


VERBS = (
    Verb(
        "rebase",
        run_rebase,
        SOURCES,
        """
        UPSTREAM
        [VERSION]  the version to move to
        --from VERSION  version to move from (default: the newest older version with a series)
        --existing keep|replace  if VERSION has a series: keep it and add the missing patches, or
          replace it
        --tag TAG  tag of a VERSION to add
        | --commit ID  commit of a VERSION to add
        --continue  go on after you resolved a conflict
        | --mergetool  run your git mergetool on the conflicts, then go on
        | --accept REASON  go on, and leave the change where git put it
        | --skip REASON  drop the patch that stopped the rebase
        | --abort  give up the rebase, and restore the state before it
        | --status  print the progress of the rebase
        """,
        claim=Claim.WRITE,
        reads="status",
    ),
)
