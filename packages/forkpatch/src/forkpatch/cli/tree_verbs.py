# SPDX-License-Identifier: Apache-2.0
"""Verbs about pins and trees: init, adopt, apply, status, lock, tree."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from forkpatch.cli.options import (
    RELEASE,
    SOURCES,
    UPSTREAM,
    Verb,
    known_sources,
    source_options,
    upstream_of,
)
from forkpatch.command import typed
from forkpatch.errors import SourceError, UserError
from forkpatch.model.lock import parse_lock, write_lock
from forkpatch.model.patchfile import SERIES, unlisted
from forkpatch.output import counted, print_table, say, warn
from forkpatch.rebase.plan import under_way
from forkpatch.sources.obtain import SourceKind
from forkpatch.tree.apply import PatchedTree, TreeState, apply_release, release_status
from forkpatch.tree.claim import Claim
from forkpatch.tree.fork import Fork
from forkpatch.tree.variants import choose_patches, write_variant
from forkpatch.tree.worktree import OTHER_COMMITS
from groundwork.errors import printable
from groundwork.files import atomic_write

_MOST_NAMES = 3  # patches of a variant that are named


def run_init(fork: Fork, options: argparse.Namespace) -> tuple[object, int]:
    """Begin a fork here: pin a version of an upstream in a new lock."""
    from forkpatch.pins.lockfile import first_lock, with_pins  # noqa: PLC0415 - for this verb only
    from forkpatch.pins.refresh import relock  # noqa: PLC0415

    path = fork.settings.lock
    if path.exists():
        raise UserError(
            f"{path} exists: this folder is a fork already",
            remedy=f"pin one more version: {typed('lock --add NAME=VERSION')};"
            " or one more upstream: add its table to the lock",
        )
    chosen = source_options(options)
    text = first_lock(
        options.url,
        name=options.name or "",
        tag=options.tag or "",
        commit=options.commit or "",
        include=options.include,
        submodules=options.submodules,
        places=[*chosen.mirrors.values(), *([] if options.offline else [options.url])],
    )
    fork = replace(fork, lock=parse_lock(text, path))
    chosen.check(fork.lock)
    fork.cache.remember(chosen.mirrors)
    try:
        result = relock(fork, chosen)
    except SourceError as error:
        raise UserError(
            error.what,
            remedy="correct --commit or --include; or name a clone that has the commit:"
            f" --mirror {next(iter(fork.lock.upstreams))}=PATH_OR_URL",
        ) from error
    write_lock(path, with_pins(text, result.upstreams))
    upstream = result.upstreams[0]
    say(
        f"{path.name}: {upstream}, commit {upstream.commit[:12]}, tree {upstream.tree[:12]}",
        f"next: {typed('apply')}; then change the tree, commit, and write the series:",
        f"  {typed(f'export {upstream.name}')}",
        "or take over the branch of an existing fork:",
        f"  {typed(f'adopt {upstream.name} REPOSITORY BRANCH')}",
    )
    if Path(upstream.url).is_absolute():
        say(
            f"{path.name} has a folder of this machine as the url of {upstream.name}:"
            f" {upstream.url}",
            "before others use the fork, put the upstream's public URL there; to go on"
            " using this folder, name it as a mirror:",
            f"  {typed(f'apply --mirror {upstream.name}={upstream.url}')}",
        )
    return upstream, 0


def run_adopt(fork: Fork, options: argparse.Namespace) -> tuple[object, int]:
    """Turn a branch of an existing fork into a series and overlays."""
    from forkpatch.series.adopt import adopt  # noqa: PLC0415 - for this verb only

    report = adopt(
        fork,
        options.upstream,
        options.version,
        options.repository,
        options.branch,
        known_sources(fork, options),
        with_overlays=not options.no_overlays,
        leave_out=options.leave_out,
        squash=options.squash,
    )
    for path, commits in report.overlays.items():
        say(f"overlay {path}: from {', '.join(commits)}")
    say(*(f"no patch of {commit}: {reason}" for commit, reason in report.left_out.items()))
    indented = "a line that would end it in a patch file is indented"
    say(*(f"message of {commit}: {indented}" for commit in report.indented))
    count = counted(len(report.patches), "patch")
    overlays = counted(len(report.overlays), "overlay")
    say(f"{report.upstream} {report.version}: {count} in {report.folder}, {overlays}")
    return report, 0


def run_apply(fork: Fork, options: argparse.Namespace) -> tuple[object, int]:
    """Bring the patched trees of a release up to date."""
    chosen = source_options(options)
    release, trees = apply_release(
        fork, options.release, chosen, discard=options.discard, chosen=options.with_
    )
    for upstream in fork.lock.release(release)[1]:
        for path in unlisted(fork.patch_folder(upstream)):
            warn(f"{path} is not applied: {SERIES} does not list it; add it there, or delete it")
    for tree in trees:
        unused = tree.state is TreeState.CURRENT or tree.source.startswith(SourceKind.CACHE)
        if tree.name in chosen.mirrors and unused:
            known = f"{tree.version} is in the cache"
            warn(f"--mirror {tree.name}: remembered, but not used now: {known}")
    for tree in trees:
        if tree.state is TreeState.MISSING:
            why = fork.settings.work / f"{tree.name}-{tree.version}.missing"
            atomic_write(why, printable(f"{tree.reason}\n{tree.remedy}\n"))
            left = f"{tree.name} {tree.version} was left out"
            say(f"{left} ({fork.relative(why)} says why): {tree.remedy}")
    _print_trees(fork, release, trees)
    say(*(f"{tree.name}: left out: {', '.join(tree.left_out)}" for tree in trees if tree.left_out))
    if all(tree.state is TreeState.CURRENT for tree in trees):
        say("nothing changed, nothing done")
    return {"release": release, "root": fork.settings.root, "upstreams": trees}, 0


def run_status(fork: Fork, options: argparse.Namespace) -> tuple[object, int]:
    """Print release, sources, bases, patches and overlays, and the state of each tree."""
    release, trees = release_status(fork, options.release)
    _print_trees(fork, release, trees)
    for tree in trees:
        say(*(f"{tree.name}: {tree.state}: {reason}" for reason in tree.reasons))
    edited = [tree for tree in trees if tree.state is TreeState.EDITED]
    for tree in edited:
        open_changes = any(reason != OTHER_COMMITS for reason in tree.reasons)
        first = "commit the changes, then write" if open_changes else "write"
        say(f"{first} the commits to the series: {fork.command(f'export {tree.name}', release)}")
    states = (TreeState.STALE, TreeState.MISSING)
    if not edited and any(tree.state in states for tree in trees):
        say(f"bring it up to date: {fork.command('apply', release)}")
    for plan in under_way(fork.settings.work):
        about = f"a rebase of {plan.upstream} from {plan.old} to {plan.new} is under way"
        say(f"{about}: {typed(f'rebase {plan.upstream} --status')}")
    return {"release": release, "root": fork.settings.root, "upstreams": trees}, 0


def _print_trees(fork: Fork, release: str, trees: Sequence[PatchedTree]) -> None:
    heads = ("upstream", "version", "source", "base", "patches", "overlays", "state", "tree")
    rows = []
    for tree in trees:
        counts = str(len(tree.patches)), str(len(tree.overlays))
        path = fork.relative(tree.path) if tree.path else "-"
        commit, source = tree.commit[:12] or "-", tree.source or "-"
        rows.append((tree.name, tree.version, source, commit, *counts, tree.state, path))
    print_table(heads, rows, title=f"release {release}")


def run_lock(fork: Fork, options: argparse.Namespace) -> tuple[object, int]:
    """Look up every pin of the upstreams again, and rewrite or check the lock."""
    from forkpatch.pins.lockfile import NewVersion, with_pins  # noqa: PLC0415 - for this verb only
    from forkpatch.pins.refresh import relock, with_version  # noqa: PLC0415

    chosen = known_sources(fork, options)
    path = fork.settings.lock
    text = path.read_text("utf-8")
    for option in ("tag", "commit", "wheel_only", "no_wheel"):
        if getattr(options, option) and not options.add:
            raise UserError(
                f"--{option.replace('_', '-')} is for --add",
                remedy=f"type: {typed('lock --add NAME=VERSION')}",
            )
    if options.add:
        name, _, version = options.add.partition("=")
        if not version:
            raise UserError(f"--add {options.add}: it has the form NAME=VERSION")
        like = upstream_of(fork, None, name)[1]
        if options.no_wheel:
            like = replace(like, wheel=None)
        pins = options.tag or "", options.commit or ""
        fork, text = with_version(
            fork, like, NewVersion(version, *pins, options.wheel_only), chosen
        )
    result = relock(fork, chosen)
    if not options.check and result.differences:
        write_lock(path, with_pins(text, result.upstreams))
    say(*(f"not checked: {note}" for note in result.notes))
    say(*result.differences)
    done = "differs" if options.check else "rewritten"
    same = "no difference in what was looked up" if result.notes else "up to date"
    left = f"; not looked up: {len(result.notes)}" if result.notes else ""
    say(f"{path.name}: {done if result.differences else same}{left}")
    report = {"differences": result.differences, "notes": result.notes}
    return report, 1 if options.check and (result.differences or result.notes) else 0


def run_tree(fork: Fork, options: argparse.Namespace) -> tuple[object, int]:
    """Write a variant of one upstream's tree: without some patches, up to one, or pristine."""
    release, upstream = upstream_of(fork, options.release, options.upstream)
    plan = fork.plan(upstream, known_sources(fork, options))
    chosen = choose_patches(plan, without=options.without, only=options.only, upto=options.upto)
    kept = () if options.pristine else chosen
    overlays = not (options.no_overlays or options.pristine)
    write_variant(plan, kept, options.output.absolute(), with_overlays=overlays, durable=True)
    names = ", ".join(kept) if len(kept) <= _MOST_NAMES else f"{len(kept)} patches"
    say(f"{options.output}: {upstream} with {names or 'no patch'}")
    variant = {"upstream": upstream.name, "patches": kept, "path": options.output}
    return {"release": release, **variant}, 0


VERBS = (
    Verb(
        "init",
        run_init,
        """
        URL  the upstream's repository: a URL or a folder
        --name NAME  the upstream's name (default: the URL's end)
        --tag TAG  the tag to pin (default: the newest)
        | --commit ID  the commit to pin
        --include PATH...  paths to take (default: the whole tree)
        --submodules PATH...  submodules to take; '*' takes all
        """,
        SOURCES,
        claim=Claim.WRITE,
        begins=True,
    ),
    Verb(
        "adopt",
        run_adopt,
        UPSTREAM,
        """
        REPOSITORY  folder or URL that has the branch
        BRANCH  branch, tag or commit of the existing fork
        --version V  pinned version below the branch (default: the nearest)
        --no-overlays  keep the files that the branch adds in patches
        --leave-out  leave out changes outside the included paths
        --squash SUBJECT  make one patch of all changes, with this subject
        """,
        SOURCES,
        claim=Claim.WRITE,
    ),
    Verb(
        "apply",
        run_apply,
        SOURCES,
        RELEASE,
        """
        --discard  throw away work done inside a patched tree
        --with OPTION...  options that choose among the patches with conditions; all takes every
          patch (default: no option)
        """,
        claim=Claim.WRITE,
    ),
    Verb("status", run_status, RELEASE, claim=Claim.REPORT),
    Verb(
        "lock",
        run_lock,
        SOURCES,
        """
        --check  change nothing; print each difference; exit with 1 if a pin differs, or cannot be
          looked up
        | --add NAME=VERSION  pin one more version of an upstream
        --tag TAG  with --add: its tag
        | --commit ID  with --add: its commit
        | --wheel-only  with --add: pin the wheel; its commit is not known
        --no-wheel  with --add: there is no wheel; take git only
        """,
        claim=Claim.WRITE,
        reads="check",
    ),
    Verb(
        "tree",
        run_tree,
        SOURCES,
        UPSTREAM,
        """
        --without PATCH...  leave out these patches
        | --only PATCH...  apply these patches only
        | --upto PATCH  apply the series up to this patch
        | --pristine  apply no patch and no overlay
        --no-overlays  leave the overlays out
        ! --output DIR  folder for the tree; it must not exist
        """,
        RELEASE,
    ),
)
