# SPDX-License-Identifier: Apache-2.0
"""Upstream's own tests on the pristine trees and on our trees, release by release."""

from __future__ import annotations

import nox
import nox.command

from groundwork.command_line import Parser
from groundwork.errors import USER_MISTAKE
from sessions.environments import install, install_torch, run_module
from sessions.requirements import ROOT, versions_lock

# Packages that upstream's tests import, beside TVM and the needs of MLC-LLM's compiler.
GROUPS = ("forkpatch", "tvm", "mlc", "test", "zoo", "upstream")


def install_suites(session: nox.Session, release: str) -> None:
    """Install the needs of upstream's tests on a release."""
    install(session, *GROUPS, release=release)
    install_torch(session, required=False)


def run(session: nox.Session) -> None:
    """Run upstream's tests for each release, or for the release in the options.

    Results are in ``out/upstream-tests``; tests with a result are not run again.

    Raises:
        SystemExit: with code 2, a mistake in the options.
        nox.command.CommandFailed: a test is worse on our trees, in any release.
    """
    parser = Parser(add_help=False, allow_abbrev=False)
    parser.add_argument("--release")
    chosen, options = parser.parse_known_args(session.posargs)
    releases = [chosen.release] if chosen.release else list(versions_lock()["releases"])
    if unknown := set(releases) - set(versions_lock()["releases"]):
        known = ", ".join(versions_lock()["releases"])
        print(f"nox: --release {min(unknown)}: there is no such release; releases: {known}")
        raise SystemExit(USER_MISTAKE)
    worse = []
    for release in releases:
        install_suites(session, release)
        report = ROOT / "out" / "upstream-tests" / f"{release}.json"
        words = ["upstream-tests", "--release", release, "--json", str(report), *options]
        try:
            run_module(session, "forkpatch", "--root", str(ROOT), *words)
        except nox.command.CommandFailed:
            worse.append(release)
    if worse:
        session.error(f"upstream's tests are worse on our trees: {', '.join(worse)}")
