# SPDX-License-Identifier: Apache-2.0
"""Upstream's own tests on the pristine trees and on our trees, release by release."""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Sequence
from contextlib import chdir
from functools import partial
from pathlib import Path

import nox
from platformdirs import user_cache_path

from groundwork.command_line import Parser, seconds_of
from groundwork.errors import CommandError
from groundwork.files import atomic_write_json
from sessions.environments import first_look, install, install_torch
from sessions.options import TREE_OPTIONS, check_trees, mistake
from sessions.requirements import ROOT, versions_lock
from sessions.trees import WORK, Trees, apply, variant
from sessions.upstream_runs import Change, ComparedTest, Outcome, Runner, Side, SuiteFile, compare
from sessions.upstream_suite import (
    TABLE,
    Suite,
    choose,
    mirror_with,
    places_of,
    read_table,
    reason_to_run,
    touched_by,
    write_suite,
)

# Packages that upstream's tests import, beside TVM and the needs of MLC-LLM's compiler.
GROUPS = ("forkpatch", "tvm", "mlc", "test", "zoo", "upstream")
OUT = ROOT / "out" / "upstream-tests"


def read_options(words: Sequence[str] | None = None) -> argparse.Namespace:
    """Return the options of the session."""
    parser = Parser(prog="nox -s upstream_tests --", description=__doc__)
    parser.add_argument("files", nargs="*", metavar="FILE", help="part of a path (default: all)")
    parser.add_argument("--release", metavar="R", help="the only release (default: every one)")
    parser.add_argument("--jobs", type=_count, default=1, metavar="N", help="files at a time (1)")
    parser.add_argument(
        "--test-timeout",
        type=seconds_of,
        default=600,
        metavar="S",
        help="seconds for one test (600)",
    )
    parser.add_argument("--only", default="", metavar="TEXT", help="choose tests as pytest's -k")
    parser.add_argument(
        "--choose", action="store_true", help="run nothing; list the tests that touch our changes"
    )
    parser.add_argument(
        "--without",
        action="append",
        default=[],
        metavar="PATCH",
        help="compare our trees without this patch with ours: which tests notice?",
    )
    for option, metavar, text in TREE_OPTIONS:
        if option != "--release":
            parser.add_argument(option, action="append", default=[], metavar=metavar, help=text)
    parser.add_argument("--offline", action="store_true", help="contact no server")
    return parser.read(words, partial(_checked, parser))


def _count(word: str) -> int:
    if not word.isdecimal() or int(word) < 1:
        raise argparse.ArgumentTypeError(f"{word!r} is not a whole number of 1 or more")
    return int(word)


def _checked(parser: Parser, options: argparse.Namespace) -> argparse.Namespace:
    """Return the options after a check of their names and of their effect.

    Raises:
        CommandError: a name of an option does not exist.
    """
    if options.choose:
        trees = {option.removeprefix("--") for option, *_ in TREE_OPTIONS}
        parser.refuse_unused(options, {"choose", "offline", *trees}, "--choose")
        if options.files:
            parser.error("FILE has no effect with --choose; leave it out")
    named = {"release": _releases(options) if options.release else [], "with": []}
    check_trees(argparse.Namespace(**{**vars(options), **named}))
    for release in _releases(options) if options.without else ():
        names = (path.read_text("utf-8").split() for path in _all_series(release))
        listed = {Path(name).stem for one in names for name in one}
        for name in options.without:
            if name.removesuffix(".patch") not in listed:
                raise mistake(
                    f"--without {name}: no series of release {release} has it",
                    "name a patch of patches/UPSTREAM/VERSION/series; --release R chooses "
                    "the release",
                )
    tables = [read_table(path) for path in ROOT.glob(f"patches/*/{TABLE}")]
    for name in options.files:
        if not any(name in path for table in tables if table for path in table.run):
            raise mistake(
                f"{name} is part of no path that patches/UPSTREAM/{TABLE} lists to run",
                "name another file, or leave it out for all",
            )
    return options


def _releases(options: argparse.Namespace) -> list[str]:
    """Return the releases to run: the requested one, or all."""
    return [options.release] if options.release else [*versions_lock()["releases"]]


def _all_series(release: str) -> list[Path]:
    """Return the files of a release's series."""
    versions = versions_lock()["releases"][release].items()
    paths = (ROOT / "patches" / upstream / version / "series" for upstream, version in versions)
    return [path for path in paths if path.is_file()]


def _absolute(mirror: str) -> str:
    """Return ``NAME=PATH`` with an absolute path; a URL stays as it is."""
    name, _, place = mirror.partition("=")
    return mirror if ":" in place else f"{name}={Path(place).expanduser().resolve()}"


#: For the first look at the options.
main = read_options


def run(session: nox.Session) -> None:
    """Run upstream's tests for each release, or for the release in the options.

    Results are in ``out/upstream-tests``; tests with a result are not run again.

    Raises:
        SystemExit: with code 2, a mistake in the options.
        nox.command.CommandFailed: a test is worse on our trees, in any release.
    """
    first_look(session)
    with chdir(session.invoked_from):
        options = read_options(session.posargs)
        options.mirror = list(map(_absolute, options.mirror))
    wrong = []
    for release in _releases(options):
        install(session, *GROUPS, release=release)
        install_torch(session, required=False)
        words = ["--offline"] if options.offline else []
        for option, _, _ in TREE_OPTIONS:
            values = [release] if option == "--release" else vars(options)[option[2:]]
            words += [word for value in values for word in (option, value)]
        try:
            wrong += _run(session, apply(session, words), options)
        except CommandError as error:
            session.warn(str(error))
            raise SystemExit(error.exit_code) from None
    if wrong:
        session.error("\n".join(wrong))


def _run(session: nox.Session, trees: Trees, options: argparse.Namespace) -> list[str]:
    """Compare the tests of a release on both sides; return what is wrong."""
    wrong, files = list[str](), list[tuple[Suite, str]]()
    suites = [suite for name in trees.paths if (suite := _suite(session, trees, name, options))]
    if not suites:
        raise mistake(
            f"release {trees.release}: no upstream has tests here that can be run",
            f"write patches/UPSTREAM/{TABLE}, and name clones: --mirror UPSTREAM=PATH",
        )
    for suite in suites:
        names = [f"{one.removesuffix('.patch')}.patch" for one in options.without]
        series, overlays = _series(trees, suite.upstream), ROOT / "overlays" / suite.upstream
        touched = touched_by(places_of(series, overlays, names), suite.table)
        reasons = {} if names else choose(suite, touched)
        unlisted = {*reasons} - {*suite.table.run, *suite.table.left_out}
        wrong += [f"{path} is in no list of {TABLE}, and it {reasons[path]}" for path in unlisted]
        for path, reason in reasons.items() if options.choose else ():
            print(f"{path}: {reason}")
        for path in suite.table.run:
            if path in suite.absent:
                session.warn(f"not run: {path}: the mirror of {suite.upstream} lacks it")
            elif data := suite.files.get(path):
                is_wanted = any(name in path for name in options.files or [""])
                notices = not names or reason_to_run(data, touched, suite.table, wide=False)
                files += [(suite, path)] if is_wanted and notices else []
    if options.choose:
        return wrong
    sides = _sides(session, trees, options.without)
    runner = Runner(
        Path(session.bin) / "python",
        OUT / trees.release,
        *(options.test_timeout, options.jobs, options.only),
    )
    jobs = [[SuiteFile(suite, side, path) for suite, path in files] for side in sides]
    results = runner.run([job for both in zip(*jobs, strict=True) for job in both])
    compared = compare(*({job: results[job] for job in side} for side in jobs))
    rows = [vars(one) | {"before": vars(one.before), "after": vars(one.after)} for one in compared]
    atomic_write_json(OUT / f"{trees.release}.json", {"release": trees.release, "tests": rows})
    _print(compared, sides)
    wrong += [f"worse: {test}" for test in compared if test.change is Change.WORSE]
    if not any(test.before.outcome is Outcome.PASSED for test in compared):
        wrong.append(f"no test passes on the {sides[0].name} trees: nothing was compared")
    return wrong


def _series(trees: Trees, upstream: str) -> Path:
    """Return the folder of a release's series."""
    version: str = versions_lock()["releases"][trees.release][upstream]
    return ROOT / "patches" / upstream / version


def _suite(
    session: nox.Session, trees: Trees, upstream: str, options: argparse.Namespace
) -> Suite | None:
    """Return the tests of an upstream; None without a table, or without a mirror of the tests."""
    series = _series(trees, upstream)
    table = read_table(series.with_name(TABLE))
    if table is None:
        return None
    pin = versions_lock()["upstreams"][upstream]["versions"][series.name]
    commit = table.commits.get(series.name) or pin.get("commit", "")
    mirrors = [one.partition("=")[2] for one in options.mirror if one.startswith(f"{upstream}=")]
    remembered = user_cache_path("mlc-rvv") / "forkpatch" / "mirrors.json"
    if remembered.is_file():
        mirrors += json.loads(remembered.read_text("utf-8")).get(upstream, [])
    mirror = mirror_with(mirrors, commit)
    if mirror is None:
        what = f"no mirror of {upstream} has {commit or 'the commit of its tests'}"
        remedy = f"name a clone: --mirror {upstream}=PATH"
        if upstream in options.require:
            raise mistake(what, remedy)
        session.warn(f"not run: {what}; {remedy}")
        return None
    folder = WORK / "upstream-tests" / f"{upstream}-{commit[:12]}"
    return write_suite(upstream, table, mirror, commit, folder)


def _sides(session: nox.Session, trees: Trees, without: Sequence[str]) -> tuple[Side, Side]:
    """Return the sides to compare: upstream's trees and ours, or ours and ours without patches."""
    packages = next(Path(session.virtualenv.location).glob("lib/python*/site-packages"))
    ours, others = Side("ours", trees.paths, packages), dict(trees.paths)
    if not without:
        made = {name: variant(session, trees, name, "pristine", "--pristine") for name in others}
        return Side("pristine", made, packages), ours
    left = {one.removesuffix(".patch") for one in without}
    for name in trees.paths:
        listed = {
            Path(w).stem for w in (_series(trees, name) / "series").read_text("utf-8").split()
        }
        gone = sorted(left & listed)
        left -= {*gone}
        if gone:
            others[name] = variant(session, trees, name, "without", "--without", *gone)
    if left:
        raise mistake(
            f"--without {min(left)}: the tree of its upstream is missing",
            "name a clone of it: --mirror UPSTREAM=PATH",
        )
    return ours, Side("without", others, packages)


def _print(compared: Sequence[ComparedTest], sides: Sequence[Side]) -> None:
    """Print the changed tests, and the number of each outcome on both sides."""
    for change in (Change.FAILS_ON_BOTH, Change.BETTER, Change.WORSE):
        for test in compared:
            if test.change is change:
                print(f"{change}: {test}")
    for side, results in zip(sides, ("before", "after"), strict=True):
        counts = Counter(str(getattr(test, results).outcome) for test in compared)
        print(f"{side.name}: {', '.join(f'{count} {what}' for what, count in counts.items())}")
    print(f"{len(compared)} tests compared")
