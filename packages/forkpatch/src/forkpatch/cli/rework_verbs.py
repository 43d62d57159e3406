# SPDX-License-Identifier: Apache-2.0
"""Verbs about the patches of a series: range-diff, absorb, split, bisect, push."""

from __future__ import annotations

import argparse
import shlex
from contextlib import ExitStack
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
    plans_of_release,
    upstream_of,
    value,
    values,
    version_of,
)
from forkpatch.command import typed
from forkpatch.errors import UserError
from forkpatch.output import counted, say, write_report
from forkpatch.sources.obtain import how_to_supply
from forkpatch.tree.claim import Claim
from forkpatch.tree.fork import Fork
from forkpatch.tree.worktree import OVERLAYS_REF

if TYPE_CHECKING:
    from forkpatch.regression.bisect import Bisection


def run_range_diff(fork: Fork, options: argparse.Namespace) -> int:
    """Compare the series of two versions, patch by patch."""
    from forkpatch.series.rangediff import compare_series  # noqa: PLC0415 - for this verb only
    from forkpatch.tree.fork import fork_at  # noqa: PLC0415 - for this verb only

    chosen = known_sources(fork, options)
    plans = []
    with ExitStack() as stack:
        for text in (options.old, options.new):
            revision, _, version = text.rpartition(":")
            source = stack.enter_context(fork_at(fork, revision)) if revision else fork
            upstream = source.lock.upstream(options.upstream, version)
            plans.append(source.plan(upstream, chosen))
    pairs = compare_series(*plans)
    for pair in pairs:
        renamed = pair.old and pair.new and pair.old != pair.new
        name = f"{pair.old} -> {pair.new}" if renamed else pair.new or pair.old
        say(f"{name}: {pair.fate}", *(f"    {line}" for line in pair.diff.splitlines()))
    write_report(options.json, pairs)
    return 0


def run_absorb(fork: Fork, options: argparse.Namespace) -> int:
    """Put changes of a patched tree into the patches whose lines they touch."""
    from forkpatch.series.rework import absorb, open_work_tree  # noqa: PLC0415 - for this verb only

    release, upstream = upstream_of(fork, options.release, options.upstream)
    tree = open_work_tree(fork, release, upstream, loose=True)
    changes = absorb(tree)
    left = [change for change in changes if not change.patch]
    for change in changes:
        place = f"{change.path}:{change.line}" if change.line else change.path
        say(f"{place}: {f'into {change.patch}' if change.patch else f'left: {change.reason}'}")
    if not changes:
        say(f"{tree.folder} has no change that is in no commit")
    elif left:
        say(
            f"{counted(len(left), 'change')} left in {tree.folder}; commit each to a patch:",
            "  git commit --fixup COMMIT, then git rebase -i --autosquash; or as a new patch",
        )
    else:
        say(f"look at the commits, then type: {typed(f'export {upstream.name}')}")
    write_report(options.json, changes)
    return 1 if left else 0


def run_split(fork: Fork, options: argparse.Namespace) -> int:
    """Split a patch of a patched tree into several, by files or hunks."""
    from forkpatch.series.rework import open_work_tree, split  # noqa: PLC0415 - for this verb only

    release, upstream = upstream_of(fork, options.release, options.upstream)
    tree = open_work_tree(fork, release, upstream, loose=True)
    parts = split(fork, tree, options.patch, hunks=options.hunks, take=options.take)
    for part in parts:
        say(f"{part.patch}: {', '.join(part.changes)}")
    say(
        "say in the messages what each part is for:",
        f"  git -C {shlex.quote(str(tree.folder))} rebase -i {OVERLAYS_REF}",
        f"then write the series: {typed(f'export {upstream.name}')}",
    )
    write_report(options.json, parts)
    return 0


def run_bisect(fork: Fork, options: argparse.Namespace) -> int:
    """Find the patch of a series since which a command fails."""
    from forkpatch.regression.bisect import Trial, bisect  # noqa: PLC0415 - for this verb only

    upstream = upstream_of(fork, options.release, options.upstream)[1]
    plans = plans_of_release(fork, options)
    if upstream.name not in plans:
        raise UserError(f"{upstream} is missing", remedy=how_to_supply(upstream))
    patches = plans[upstream.name].weave.patches

    def report_trial(trial: Trial) -> None:
        last = f", up to {patches[trial.count - 1]}" if trial.count else ""
        count = f"{trial.count} of {counted(len(patches), 'patch')}{last}"
        say(f"with {count}: the command {trial.outcome}")

    result = bisect(fork, plans, upstream.name, options.command, report_trial)
    say(f"{upstream}: {_in_words(result)}")
    write_report(options.json, result)
    return 0 if len(result.suspects) == 1 else 1


def _in_words(result: Bisection) -> str:
    if result.suspects:
        first, *later = result.suspects
        others = f", or one of the {len(later)} after it: {', '.join(later)}" if later else ""
        return f"it fails since {first}{others}"
    last = result.trials[-1]
    return f"no patch breaks it: it {last.outcome} with {'every' if last.count else 'no'} patch"


def run_push(fork: Fork, options: argparse.Namespace) -> int:
    """Push a series as a branch, on upstream's own commit, to a remote repository."""
    from forkpatch.series.submit import push  # noqa: PLC0415 - for this verb only

    chosen = known_sources(fork, options)
    upstream = version_of(fork, options)
    done = push(fork, upstream, options.remote, options.branch, chosen, force=options.force)
    count = counted(len(done.patches), "patch")
    say(f"{upstream}: {count} on {done.base[:12]}, as {done.branch} of {done.remote}")
    write_report(options.json, done)
    return 0


VERBS = (
    Verb(
        "range-diff",
        run_range_diff,
        *SOURCES,
        UPSTREAM,
        value("old", "OLD", "a version; or REV:VERSION, of a commit of the fork's repository"),
        value("new", "NEW", "the version, or REV:VERSION, to compare with"),
    ),
    Verb("absorb", run_absorb, UPSTREAM, RELEASE, claim=Claim.WRITE),
    Verb(
        "split",
        run_split,
        UPSTREAM,
        value("patch", "PATCH"),
        RELEASE,
        one_of(
            flag("--hunks", "a patch of each hunk (default: of each file)"),
            values(
                "--take",
                "PATH[:N]",
                "two patches; the second has these files, or the N-th hunk of a file",
            ),
        ),
        claim=Claim.WRITE,
    ),
    Verb(
        "bisect",
        run_bisect,
        *SOURCES,
        UPSTREAM,
        RELEASE,
        value(
            "command",
            "COMMAND",
            "runs in the tree, after --; exit code 0: passes, 125: cannot tell, else: fails",
            nargs="+",
        ),
    ),
    Verb(
        "push",
        run_push,
        *SOURCES,
        UPSTREAM,
        value("remote", "REMOTE", "repository to push to: a URL or a folder"),
        value("branch", "BRANCH"),
        VERSION,
        flag("--force", "replace a branch that has other commits"),
    ),
)
