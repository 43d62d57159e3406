# SPDX-License-Identifier: Apache-2.0
"""Verbs about trees and pins: apply, status, lock, tree."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

from forkpatch.cli.options import (
    RELEASE,
    SOURCES,
    UPSTREAM,
    Verb,
    flag,
    known_sources,
    one_of,
    source_options,
    upstream_of,
    value,
    values,
)
from forkpatch.command import typed
from forkpatch.errors import UserError
from forkpatch.model.patchfile import SERIES, unlisted
from forkpatch.output import print_table, say, warn, write_report
from forkpatch.rebase.plan import under_way
from forkpatch.sources.obtain import SourceKind
from forkpatch.tree.apply import Applied, ApplyState, TreeCondition, apply_release, release_status
from forkpatch.tree.claim import Claim
from forkpatch.tree.fork import Fork
from forkpatch.tree.variants import choose_patches, write_variant
from forkpatch.tree.worktree import OTHER_COMMITS
from groundwork.files import atomic_write

_MOST_NAMES = 3  # patches of a variant that are named


def run_apply(fork: Fork, options: argparse.Namespace) -> int:
    """Bring the patched trees of a release up to date."""
    chosen = source_options(options)
    release, applied = apply_release(
        fork, options.release, chosen, discard=options.discard, chosen=options.chosen
    )
    value = {"release": release, "root": fork.settings.root, "upstreams": applied}
    for upstream in fork.lock.release(release)[1]:
        for path in unlisted(fork.patch_folder(upstream)):
            warn(f"{path} is not applied: {SERIES} does not list it; add it there, or delete it")
    for tree in applied:
        unused = tree.state is ApplyState.CURRENT or tree.source.startswith(SourceKind.CACHE)
        if tree.name in chosen.mirrors and unused:
            warn(
                f"--mirror {tree.name}: remembered, but not used now:"
                f" {tree.version} is in the cache"
            )
    for tree in applied:
        if tree.state is ApplyState.MISSING:
            _say_missing(tree, fork)
    print_table(
        ("upstream", "version", "source", "patches", "overlays", "state", "tree"),
        [
            (
                tree.name,
                tree.version,
                tree.source or "-",
                str(len(tree.patches)),
                str(len(tree.overlays)),
                tree.state,
                _short(tree.path, fork) if tree.path else "-",
            )
            for tree in applied
        ],
        title=f"release {release}",
    )
    say(
        *(f"{tree.name}: left out: {', '.join(tree.left_out)}" for tree in applied if tree.left_out)
    )
    if all(tree.state is ApplyState.CURRENT for tree in applied):
        say("nothing changed, nothing done")
    write_report(options.json, value)
    return 0


def _say_missing(item: Applied, fork: Fork) -> None:
    """Print a line about a missing upstream; write the sources' answers to a file."""
    report = fork.settings.work / f"{item.name}-{item.version}.missing"
    atomic_write(report, f"{item.reason}\n{item.remedy}\n")
    say(f"{item.name} {item.version} was left out ({_short(report, fork)} says why): {item.remedy}")


def run_status(fork: Fork, options: argparse.Namespace) -> int:
    """Print release, sources, bases, patches and overlays, and the state of each tree."""
    release, trees = release_status(fork, options.release)
    value = {"release": release, "root": fork.settings.root, "upstreams": trees}
    print_table(
        ("upstream", "version", "source", "base", "patches", "overlays", "state"),
        [
            (
                tree.name,
                tree.version,
                tree.source or "-",
                tree.commit[:12] or "-",
                str(len(tree.patches)),
                str(len(tree.overlays)),
                tree.state,
            )
            for tree in trees
        ],
        title=f"release {release}",
    )
    for tree in trees:
        say(*(f"{tree.name}: {tree.state}: {reason}" for reason in tree.reasons))
    edited = [tree for tree in trees if tree.state is TreeCondition.EDITED]
    for tree in edited:
        open_changes = any(reason != OTHER_COMMITS for reason in tree.reasons)
        first = "commit the changes, then write" if open_changes else "write"
        say(f"{first} the commits to the series: {typed(f'export {tree.name}')}")
    states = (TreeCondition.STALE, TreeCondition.MISSING)
    if not edited and any(tree.state in states for tree in trees):
        say(f"bring it up to date: {typed('apply')}")
    for plan in under_way(fork.settings.work):
        about = f"a rebase of {plan.upstream} from {plan.old} to {plan.new} is under way"
        say(f"{about}: {typed(f'rebase {plan.upstream} --status')}")
    write_report(options.json, value)
    return 0


def run_lock(fork: Fork, options: argparse.Namespace) -> int:
    """Look up every pin of the upstreams again, and rewrite or check the lock."""
    from forkpatch.pins.lockfile import NewVersion, with_pins  # noqa: PLC0415 - for this verb only
    from forkpatch.pins.refresh import relock, with_version  # noqa: PLC0415

    chosen = known_sources(fork, options)
    path = fork.settings.lock
    text = path.read_text("utf-8")
    if options.add:
        name, _, version = options.add.partition("=")
        if not version:
            raise UserError(f"--add {options.add}: it has the form NAME=VERSION")
        like = upstream_of(fork, None, name)[1]
        if options.no_wheel:
            like = replace(like, wheel=None)
        new = NewVersion(version, options.tag, options.commit, options.wheel_only)
        fork, text = with_version(fork, like, new, chosen)
    result = relock(fork, chosen)
    if not options.check and result.differences:
        atomic_write(path, with_pins(text, result.upstreams))
    say(*(f"not checked: {note}" for note in result.notes))
    say(*result.differences)
    done = "differs" if options.check else "rewritten"
    say(f"{path.name}: {done if result.differences else 'up to date'}")
    write_report(options.json, {"differences": result.differences, "notes": result.notes})
    return 1 if options.check and result.differences else 0


def run_tree(fork: Fork, options: argparse.Namespace) -> int:
    """Write a variant of one upstream's tree: without some patches, up to one, or pristine."""
    release, upstream = upstream_of(fork, options.release, options.upstream)
    chosen = known_sources(fork, options)
    plan = fork.plan(upstream, chosen)
    kept = choose_patches(
        plan,
        without=options.without,
        only=options.only,
        upto=options.upto,
        pristine=options.pristine,
    )
    overlays = not (options.no_overlays or options.pristine)
    write_variant(plan, kept, options.output.absolute(), with_overlays=overlays, durable=True)
    names = ", ".join(kept) if len(kept) <= _MOST_NAMES else f"{len(kept)} patches"
    say(f"{options.output}: {upstream} with {names or 'no patch'}")
    write_report(
        options.json,
        {"release": release, "upstream": upstream.name, "patches": kept, "path": options.output},
    )
    return 0


def _short(path: Path, fork: Fork) -> str:
    """Return a path relative to the fork's root if possible."""
    root = fork.settings.root
    return str(path.relative_to(root)) if path.is_relative_to(root) else str(path)


VERBS = (
    Verb(
        "apply",
        run_apply,
        *SOURCES,
        RELEASE,
        flag("--discard", "throw away work done inside a patched tree"),
        value(
            "--with",
            "OPTION",
            "options that choose among the patches with conditions; all takes every patch"
            " (default: no option)",
            dest="chosen",
            nargs="+",
            default=[],
        ),
        claim=Claim.WRITE,
    ),
    Verb("status", run_status, RELEASE, claim=Claim.REPORT),
    Verb(
        "lock",
        run_lock,
        *SOURCES,
        one_of(
            flag("--check", "change nothing; print each difference"),
            value("--add", "NAME=VERSION", "pin one more version of an upstream"),
        ),
        one_of(
            value("--tag", "TAG", "with --add: its tag", default=""),
            value("--commit", "ID", "with --add: its commit", default=""),
            flag("--wheel-only", "with --add: pin the wheel; its commit is not known"),
        ),
        flag("--no-wheel", "with --add: there is no wheel; take git only"),
        claim=Claim.WRITE,
        reads="check",
    ),
    Verb(
        "tree",
        run_tree,
        *SOURCES,
        UPSTREAM,
        one_of(
            values("--without", "PATCH", "leave out these patches"),
            values("--only", "PATCH", "apply these patches only"),
            value("--upto", "PATCH", "apply the series up to this patch"),
            flag("--pristine", "apply no patch and no overlay"),
        ),
        flag("--no-overlays", "leave the overlays out"),
        RELEASE,
        value(
            "--output", "DIR", "folder for the tree; it must not exist", type=Path, required=True
        ),
    ),
)
