# SPDX-License-Identifier: Apache-2.0
"""Verbs about the patches of a series: range-diff, absorb, split, bisect, push."""

from __future__ import annotations

import argparse
import shlex
from contextlib import ExitStack
from typing import TYPE_CHECKING

from forkpatch.cli.options import (
    Registry,
    add_source_options,
    known_sources,
    plans_of_release,
    upstream_of,
    version_of,
)
from forkpatch.command import typed
from forkpatch.errors import UserError
from forkpatch.output import counted, say, write_report
from forkpatch.sources.obtain import how_to_supply, obtain
from forkpatch.tree.claim import Claim
from forkpatch.tree.fork import Fork, plan_tree
from forkpatch.tree.worktree import OVERLAYS_REF

if TYPE_CHECKING:
    from forkpatch.regression.bisect import Bisection


def register(verbs: Registry) -> None:
    """Add the verbs of this module to the command line."""
    verb = verbs.add("range-diff", run_range_diff)
    add_source_options(verb)
    verb.add_argument("upstream", metavar="UPSTREAM")
    verb.add_argument(
        "old",
        metavar="OLD",
        help="a version; or REV:VERSION, as a commit of the fork's own repository has it",
    )
    verb.add_argument("new", metavar="NEW", help="the version, or REV:VERSION, to compare with")
    verb = verbs.add("absorb", run_absorb, Claim.WRITE)
    verb.add_argument("upstream", metavar="UPSTREAM")
    verb.add_argument("--release", metavar="R", help="the release (default: the lock's)")
    verb = verbs.add("split", run_split, Claim.WRITE)
    verb.add_argument("upstream", metavar="UPSTREAM")
    verb.add_argument("patch", metavar="PATCH")
    verb.add_argument("--release", metavar="R", help="the release (default: the lock's)")
    choice = verb.add_mutually_exclusive_group()
    choice.add_argument(
        "--hunks", action="store_true", help="a patch of each hunk (default: of each file)"
    )
    choice.add_argument(
        "--take",
        nargs="+",
        default=[],
        metavar="PATH[:N]",
        help="two patches; the second has these files, or the N-th hunk of a file",
    )
    verb = verbs.add("bisect", run_bisect)
    add_source_options(verb)
    verb.add_argument("upstream", metavar="UPSTREAM")
    verb.add_argument("--release", metavar="R", help="the release (default: the lock's)")
    verb.add_argument(
        "command",
        nargs="+",
        metavar="COMMAND",
        help="runs in the tree, after --; exit code 0: passes, 125: cannot tell, else: fails",
    )
    verb = verbs.add("push", run_push)
    add_source_options(verb)
    verb.add_argument("upstream", metavar="UPSTREAM")
    verb.add_argument("remote", metavar="REMOTE", help="repository to push to: a URL or a folder")
    verb.add_argument("branch", metavar="BRANCH")
    verb.add_argument("--version", metavar="V", help="default: the default release's version")
    verb.add_argument(
        "--force", action="store_true", help="replace a branch that has other commits"
    )


def run_range_diff(fork: Fork, options: argparse.Namespace) -> int:
    """Compare the series of two versions, patch by patch."""
    from forkpatch.series.rangediff import compare_series  # noqa: PLC0415 - for this verb only
    from forkpatch.tree.revision import fork_at  # noqa: PLC0415

    chosen = known_sources(fork, options)
    plans = []
    with ExitStack() as stack:
        for text in (options.old, options.new):
            revision, _, version = text.rpartition(":")
            source = stack.enter_context(fork_at(fork, revision)) if revision else fork
            upstream = source.lock.upstream(options.upstream, version)
            plans.append(plan_tree(source, upstream, obtain(upstream, fork.cache, chosen).pristine))
    pairs = compare_series(*plans)
    if options.json != "-":
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
    if options.json != "-":
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
    if options.json != "-":
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
        if options.json != "-":
            print(f"with {count}: the command {trial.outcome}", flush=True)

    result = bisect(fork, plans, upstream.name, options.command, report_trial)
    if options.json != "-":
        say(f"{upstream}: {_in_words(result)}")
    write_report(options.json, result)
    return 0 if len(result.suspects) == 1 else 1


def _in_words(result: Bisection) -> str:
    """Return the result of a bisection in words."""
    if result.suspects:
        first, *later = result.suspects
        others = f", or one of the {len(later)} after it: {', '.join(later)}" if later else ""
        return f"it fails since {first}{others}"
    last = result.trials[-1]
    return f"no patch breaks it: it {last.outcome} with {'every' if last.count else 'no'} patch"


def run_push(fork: Fork, options: argparse.Namespace) -> int:
    """Push a series as a branch, on upstream's own commit, to a remote repository."""
    from forkpatch.series.push import push  # noqa: PLC0415 - for this verb only

    chosen = known_sources(fork, options)
    upstream = version_of(fork, options)
    done = push(fork, upstream, options.remote, options.branch, chosen, force=options.force)
    if options.json != "-":
        count = counted(len(done.patches), "patch")
        say(f"{upstream}: {count} on {done.base[:12]}, as {done.branch} of {done.remote}")
    write_report(options.json, done)
    return 0
