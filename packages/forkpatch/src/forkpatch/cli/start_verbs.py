# SPDX-License-Identifier: Apache-2.0
"""Verbs that begin a fork: init, adopt."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

from forkpatch.cli.options import Registry, add_source_options, known_sources, source_options
from forkpatch.command import typed
from forkpatch.errors import SourceError, UserError
from forkpatch.model.lock import parse_lock
from forkpatch.output import counted, say, write_report
from forkpatch.tree.claim import Claim
from forkpatch.tree.fork import Fork
from groundwork.files import atomic_write


def register(verbs: Registry) -> None:
    """Add the verbs of this module to the command line."""
    verb = verbs.add("init", run_init, Claim.WRITE, begins=True)
    verb.add_argument("url", metavar="URL", help="the upstream's repository: a URL or a folder")
    verb.add_argument("--name", default="", help="the upstream's name (default: the URL's end)")
    choice = verb.add_mutually_exclusive_group()
    choice.add_argument("--tag", default="", help="the tag to pin (default: the newest version)")
    choice.add_argument("--commit", default="", metavar="ID", help="the commit to pin")
    verb.add_argument(
        "--include",
        nargs="+",
        default=[],
        metavar="PATH",
        help="paths to take (default: the whole tree)",
    )
    verb.add_argument(
        "--submodules",
        nargs="+",
        default=[],
        metavar="PATH",
        help="submodules to take; '*' takes all",
    )
    add_source_options(verb)
    verb = verbs.add("adopt", run_adopt, Claim.WRITE)
    verb.add_argument("upstream", metavar="UPSTREAM")
    verb.add_argument("repository", metavar="REPOSITORY", help="folder or URL that has the branch")
    verb.add_argument("branch", metavar="BRANCH", help="branch, tag or commit of the existing fork")
    verb.add_argument(
        "--version",
        metavar="V",
        help="pinned version that the branch is based on (default: the nearest)",
    )
    verb.add_argument(
        "--no-overlays", action="store_true", help="keep the files that the branch adds in patches"
    )
    verb.add_argument(
        "--leave-out", action="store_true", help="leave out changes outside the included paths"
    )
    verb.add_argument(
        "--squash", metavar="SUBJECT", help="make one patch of all changes, with this subject"
    )
    add_source_options(verb)


def run_init(fork: Fork, options: argparse.Namespace) -> int:
    """Begin a fork here: pin a version of an upstream in a new lock."""
    from forkpatch.pins.begin import first_lock, is_new  # noqa: PLC0415 - for this verb only
    from forkpatch.pins.lockfile import with_pins  # noqa: PLC0415
    from forkpatch.pins.refresh import relock  # noqa: PLC0415

    path = fork.settings.lock
    is_new(path)
    chosen = source_options(options)
    places = [*chosen.mirrors.values(), *([] if options.offline else [options.url])]
    text = first_lock(
        options.url,
        name=options.name,
        tag=options.tag,
        commit=options.commit,
        include=options.include,
        submodules=options.submodules,
        places=places,
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
    atomic_write(path, with_pins(text, result.upstreams))
    upstream = result.upstreams[0]
    if options.json != "-":
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
    write_report(options.json, upstream)
    return 0


def run_adopt(fork: Fork, options: argparse.Namespace) -> int:
    """Turn a branch of an existing fork into a series and overlays."""
    from forkpatch.series.adopt import adopt  # noqa: PLC0415 - for this verb only

    chosen = known_sources(fork, options)
    report = adopt(
        fork,
        options.upstream,
        options.version,
        options.repository,
        options.branch,
        chosen,
        with_overlays=not options.no_overlays,
        leave_out=options.leave_out,
        squash=options.squash,
    )
    if options.json != "-":
        for path, commits in report.overlays.items():
            say(f"overlay {path}: from {', '.join(commits)}")
        say(*(f"no patch of {commit}: {reason}" for commit, reason in report.left_out.items()))
        say(
            *(
                f"message of {commit}: a line that would end it in a patch file is indented"
                for commit in report.indented
            )
        )
        count = counted(len(report.patches), "patch")
        overlays = counted(len(report.overlays), "overlay")
        say(f"{report.upstream} {report.version}: {count} in {report.folder}, {overlays}")
    write_report(options.json, report)
    return 0
