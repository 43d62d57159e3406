# SPDX-License-Identifier: Apache-2.0
"""Verbs that change, write or compare a series."""

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
    known_sources,
    plans_of_release,
    source_options,
    upstream_of,
    version_of,
)
from forkpatch.command import typed
from forkpatch.errors import UserError
from forkpatch.git.calls import knows_author
from forkpatch.output import counted, say, warn
from forkpatch.sources.obtain import how_to_supply
from forkpatch.tree.claim import Claim
from forkpatch.tree.fork import Fork, fork_at
from forkpatch.tree.worktree import OVERLAYS_REF

if TYPE_CHECKING:
    from forkpatch.regression.bisect import Bisection


def run_edit(fork: Fork, options: argparse.Namespace) -> tuple[object, int]:
    """Open a patched tree as a git branch with one commit a patch."""
    from forkpatch.series.export import open_for_edit  # noqa: PLC0415 - for this verb only

    release, upstream = upstream_of(fork, options.release, options.upstream)
    applied = open_for_edit(fork, release, upstream, source_options(options))
    if applied.path is None:
        raise UserError(f"{upstream} is missing: {applied.reason}", remedy=applied.remedy)
    say(
        f"{applied.path}: {counted(len(applied.patches), 'patch')}, one commit each",
        "change them with git:",
        f"  git -C {shlex.quote(str(applied.path))} rebase -i {OVERLAYS_REF}",
        "or add a commit; then write the series:",
        f"  {fork.command(f'export {upstream.name}', release)}",
    )
    if not knows_author(applied.path):
        config = f"git -C {shlex.quote(str(applied.path))} config"
        say(
            "git has no name and address for your commits; set them first:",
            f"  {config} user.name NAME && {config} user.email ADDRESS",
        )
    return {"upstream": upstream.name, "path": applied.path, "patches": applied.patches}, 0


def run_export(fork: Fork, options: argparse.Namespace) -> tuple[object, int]:
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
        if not upstreams:
            raise UserError(
                f"no upstream of release {release} has a patched tree",
                remedy=f"type: {typed(f'apply --release {release}')}",
            )
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
    return reports, 1 if options.check and any(report.changes for report in reports) else 0


def _export_foreign(fork: Fork, options: argparse.Namespace) -> tuple[object, int]:
    """Write a series in the format of another tool."""
    from forkpatch.foreign.outlet import ExportFormat, export_foreign  # noqa: PLC0415

    if not (options.format and options.output and options.upstream):
        raise UserError(
            "an export for another tool needs an upstream, a format and a folder",
            remedy=typed("export UPSTREAM --format quilt|debian|format-patch --output DIR"),
        )
    if options.check or options.force or options.own or options.also:
        raise UserError("--check, --force, --own and --also are about the fork's own files")
    upstream = version_of(fork, options)
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
    return report, 0


def run_import(fork: Fork, options: argparse.Namespace) -> tuple[object, int]:
    """Import a series of another tool: quilt, Debian, format-patch, a mailbox, .patches."""
    from forkpatch.foreign.intake import import_series  # noqa: PLC0415 - for this verb only

    chosen = known_sources(fork, options)
    upstream = version_of(fork, options)
    guards = frozenset(options.guard) if options.guard or options.no_guards else None
    report = import_series(fork, upstream, options.folder, chosen, guards, nearest=options.nearest)
    say(*(f"left out: {line}" for line in report.left_out))
    say(*(f"moved: {line}" for line in report.shifted))
    say(f"{upstream}: {counted(len(report.patches), 'patch')} imported to {report.folder}")
    return report, 0


def run_submit(fork: Fork, options: argparse.Namespace) -> tuple[object, int]:
    """Write the patches that are meant for upstream, rebased onto one of its commits."""
    from forkpatch.series.submit import NewBranch, submit  # noqa: PLC0415 - for this verb only

    if options.repository and options.branch is None:
        raise UserError("--repository is for --branch", remedy="name the branch, or leave it out")
    chosen = known_sources(fork, options)
    upstream = version_of(fork, options)
    output = (
        NewBranch(options.branch, options.repository)
        if options.branch is not None
        else options.output.absolute()
    )
    report = submit(fork, upstream, options.onto, output, chosen)
    say(*(f"left out: {name}: {reason}" for name, reason in report.left_out.items()))
    say(*(f"{name}: conflict: {reason}" for name, reason in report.conflicts.items()))
    say(*report.notes)
    count = counted(len(report.patches), "patch")
    where = "nothing was written" if report.conflicts else f"{count} in {report.place}"
    say(f"{upstream} onto {report.commit[:12]}: {where}")
    return report, 1 if report.conflicts else 0


def run_range_diff(fork: Fork, options: argparse.Namespace) -> tuple[object, int]:
    """Compare the series of two versions, patch by patch."""
    from forkpatch.series.rangediff import compare_series  # noqa: PLC0415 - for this verb only

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
    return pairs, 0


def run_absorb(fork: Fork, options: argparse.Namespace) -> tuple[object, int]:
    """Put changes of a patched tree into the patches whose lines they touch."""
    from forkpatch.series.rework import absorb, open_work_tree  # noqa: PLC0415 - for this verb only

    release, upstream = upstream_of(fork, options.release, options.upstream)
    tree = open_work_tree(fork, release, upstream)
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
        say(f"look at the commits, then type: {fork.command(f'export {upstream.name}', release)}")
    return changes, 1 if left else 0


def run_split(fork: Fork, options: argparse.Namespace) -> tuple[object, int]:
    """Split a patch of a patched tree into several, by files or hunks."""
    from forkpatch.series.rework import open_work_tree, split  # noqa: PLC0415 - for this verb only

    release, upstream = upstream_of(fork, options.release, options.upstream)
    tree = open_work_tree(fork, release, upstream)
    parts = split(fork, tree, options.patch, hunks=options.hunks, take=options.take)
    for part in parts:
        say(f"{part.patch}: {', '.join(part.changes)}")
    say(
        "say in the messages what each part is for:",
        f"  git -C {shlex.quote(str(tree.folder))} rebase -i {OVERLAYS_REF}",
        f"then write the series: {fork.command(f'export {upstream.name}', release)}",
    )
    return parts, 0


def run_bisect(fork: Fork, options: argparse.Namespace) -> tuple[object, int]:
    """Find the patch of a series since which a command fails."""
    from forkpatch.regression.bisect import Trial, bisect  # noqa: PLC0415 - for this verb only

    if not options.command:
        raise UserError("no command was given", remedy=typed("bisect UPSTREAM -- COMMAND"))
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
    return result, 0 if len(result.suspects) == 1 else 1


def _in_words(result: Bisection) -> str:
    if result.suspects:
        first, *later = result.suspects
        others = f", or one of the {len(later)} after it: {', '.join(later)}" if later else ""
        return f"it fails since {first}{others}"
    last = result.trials[-1]
    return f"no patch breaks it: it {last.outcome} with {'every' if last.count else 'no'} patch"


def run_push(fork: Fork, options: argparse.Namespace) -> tuple[object, int]:
    """Push a series as a branch, on upstream's own commit, to a remote repository."""
    from forkpatch.series.submit import push  # noqa: PLC0415 - for this verb only

    chosen = known_sources(fork, options)
    upstream = version_of(fork, options)
    done = push(fork, upstream, options.remote, options.branch, chosen, force=options.force)
    count = counted(len(done.patches), "patch")
    say(f"{upstream}: {count} on {done.base[:12]}, as {done.branch} of {done.remote}")
    return done, 0


VERBS = (
    Verb("edit", run_edit, SOURCES, UPSTREAM, RELEASE, claim=Claim.WRITE),
    Verb(
        "export",
        run_export,
        "[UPSTREAM]  default: every upstream with a patched tree",
        RELEASE,
        """
        --check  write nothing; exit with 1 if a file would change
        --force  overwrite patch files that changed since the last apply
        --own  write files also for the patches that another version shares
        --also* R  add the new patches to the series of this release too, and record them there
        --format quilt|debian|format-patch  write the series in another tool's format
        --output DIR  folder for --format; it must not exist
        --version V  version for --format (default: the release's)
        """,
        claim=Claim.WRITE,
        reads="check",
    ),
    Verb(
        "submit",
        run_submit,
        SOURCES,
        UPSTREAM,
        VERSION,
        """
        ! --onto REV  upstream commit to rebase onto; a mirror must have it
        ! --output DIR  folder for the patches
        | --branch NAME  branch to create; it must not exist
        --repository DIR  clone that has REV and in which the branch is created (default: the
          mirror)
        """,
    ),
    Verb(
        "import-series",
        run_import,
        SOURCES,
        UPSTREAM,
        """
        FOLDER  folder of patches, or a mailbox file
        --guard* NAME  guard to choose, of a series that has guards
        | --no-guards  choose none of the guards
        --nearest  if a moved hunk fits several places, take the nearest
        """,
        VERSION,
        claim=Claim.WRITE,
    ),
    Verb(
        "range-diff",
        run_range_diff,
        SOURCES,
        UPSTREAM,
        """
        OLD  a version; or REV:VERSION, of a commit of the fork's repository
        NEW  the version, or REV:VERSION, to compare with
        """,
    ),
    Verb("absorb", run_absorb, UPSTREAM, RELEASE, claim=Claim.WRITE),
    Verb(
        "split",
        run_split,
        UPSTREAM,
        "PATCH",
        RELEASE,
        """
        --hunks  a patch of each hunk (default: of each file)
        | --take PATH[:N]...  two patches; the second has these files, or the N-th hunk of a file
        """,
        claim=Claim.WRITE,
    ),
    Verb(
        "bisect",
        run_bisect,
        SOURCES,
        UPSTREAM,
        RELEASE,
        "[COMMAND...]  run in the tree, after --; exit code 0 passes, 125 cannot tell, others fail",
    ),
    Verb(
        "push",
        run_push,
        SOURCES,
        UPSTREAM,
        """
        REMOTE  repository to push to: a URL or a folder
        BRANCH
        """,
        VERSION,
        "--force  replace a branch that has other commits",
    ),
)
