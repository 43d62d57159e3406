# SPDX-License-Identifier: Apache-2.0
"""Sessions of the patch engine, of locks, and of the report's state."""

from __future__ import annotations

import nox

from groundwork.errors import USER_MISTAKE
from sessions import requirements, trees
from sessions.environments import install, run_module
from sessions.requirements import ROOT

MAP = str(ROOT / "out" / "map.json")


def run_engine(session: nox.Session, *words: str) -> None:
    """Run a verb of the patch engine, with ``words`` and the session's options.

    ``necessity`` runs tests, so that the lab is prepared. ``probe`` writes the report's map.
    """
    arguments = [*words, *session.posargs] or ["--help"]
    if arguments[0] == "necessity":
        applied, arguments = trees.prepare(session, "forkpatch", "necessity")
        arguments += ["--release", applied.release]
        install(session, "test")
    elif arguments[0] == "probe" and not any(word.startswith("--json") for word in arguments):
        arguments += ["--json", MAP]
    install(session, "forkpatch")
    trees.run_engine(session, *arguments)


def refresh_locks(session: nox.Session) -> None:
    """Rewrite VERSIONS.lock, uv.lock and bootstrap.txt; packages get their newest versions.

    With ``--check``, write nothing, and fail at a pin that differs, or if uv.lock does not fit
    pyproject.toml, or bootstrap.txt does not fit uv.lock: nox's own error ends the session then.

    Raises:
        nox.command.CommandFailed: a pin in VERSIONS.lock differs, or a command fails.
        SystemExit: with 2, for a user's mistake.
    """
    check = "--check" in session.posargs
    install(session, "forkpatch", "crosslab")
    trees.run_engine(session, "lock", *session.posargs)
    if {"-h", "--help"} & set(session.posargs):
        return
    check_option = ["--check"] if check else []
    run_module(session, "crosslab", "lock", "--project", str(ROOT), *check_option)
    try:
        differences = requirements.lock(check=check)
    except LookupError as error:
        differences = [str(error)]
    if differences:
        session.error("\n".join(differences))


def write_status(session: nox.Session) -> None:
    """Write the state of trees and symbols for the report, which shows any drift.

    The session warns of missing facts, such as the symbols of a missing upstream.
    """
    out = ROOT / "out"
    out.mkdir(exist_ok=True)
    codes = (0, 1, USER_MISTAKE)
    for verb, *options in (("status",), ("record", "--check", "--offline")):
        report = out / f"{verb}.json"
        report.unlink(missing_ok=True)  # an old file would pass for today's
        words = (verb, *options, "--json", str(report))
        trees.run_engine(session, *words, success_codes=codes, silent=True)
        if not report.exists():
            session.warn(f"not in the report; why: nox -s patches -- {verb} {' '.join(options)}")
