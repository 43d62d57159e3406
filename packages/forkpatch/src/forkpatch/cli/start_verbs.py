# SPDX-License-Identifier: Apache-2.0
"""Verbs that begin a fork: init, adopt."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

from forkpatch.cli.options import (
    SOURCES,
    UPSTREAM,
    Verb,
    flag,
    known_sources,
    one_of,
    source_options,
    value,
    values,
)
from forkpatch.command import typed
from forkpatch.errors import SourceError, UserError
from forkpatch.model.lock import parse_lock
from forkpatch.output import counted, say, write_report
from forkpatch.tree.claim import Claim
from forkpatch.tree.fork import Fork
from groundwork.files import atomic_write


def run_init(fork: Fork, options: argparse.Namespace) -> int:
    """Begin a fork here: pin a version of an upstream in a new lock."""
    from forkpatch.pins.lockfile import (  # noqa: PLC0415 - for this verb only
        first_lock,
        is_new,
        with_pins,
    )
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


VERBS = (
    Verb(
        "init",
        run_init,
        value("url", "URL", "the upstream's repository: a URL or a folder"),
        value("--name", "NAME", "the upstream's name (default: the URL's end)", default=""),
        one_of(
            value("--tag", "TAG", "the tag to pin (default: the newest)", default=""),
            value("--commit", "ID", "the commit to pin", default=""),
        ),
        values("--include", "PATH", "paths to take (default: the whole tree)"),
        values("--submodules", "PATH", "submodules to take; '*' takes all"),
        *SOURCES,
        claim=Claim.WRITE,
        begins=True,
    ),
    Verb(
        "adopt",
        run_adopt,
        UPSTREAM,
        value("repository", "REPOSITORY", "folder or URL that has the branch"),
        value("branch", "BRANCH", "branch, tag or commit of the existing fork"),
        value("--version", "V", "pinned version below the branch (default: the nearest)"),
        flag("--no-overlays", "keep the files that the branch adds in patches"),
        flag("--leave-out", "leave out changes outside the included paths"),
        value("--squash", "SUBJECT", "make one patch of all changes, with this subject"),
        *SOURCES,
        claim=Claim.WRITE,
    ),
)
