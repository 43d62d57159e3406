# SPDX-License-Identifier: Apache-2.0
"""Options of the sessions, read before any package is installed, to answer mistakes at once.

``python3 options.py SESSION [OPTIONS]`` reads them with the command's own parser, in a Python
without packages: stand-ins replace the packages that our modules import.
"""

from __future__ import annotations

import abc
import argparse
import importlib
import subprocess
import sys
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
if __name__ == "__main__":  # replaces this file's folder
    sys.path[:1] = [str(ROOT / "scripts"), *map(str, sorted(ROOT.glob("packages/*/src")))]

from groundwork import command_line  # noqa: E402
from groundwork.command_line import Parser, meant  # noqa: E402
from groundwork.errors import INTERRUPTED, USER_MISTAKE, CommandError  # noqa: E402
from sessions import machine  # noqa: E402
from sessions.ladder import LADDER  # noqa: E402
from sessions.requirements import members, versions_lock  # noqa: E402

#: Options of a session that go to `forkpatch apply`.
TREE_OPTIONS = (
    ("--release", "R", "the release (default: the lock's)"),
    ("--source", "NAME=wheel|git", "take the upstream from this source only"),
    ("--mirror", "NAME=PATH_OR_URL", "a git repository that has the upstream; remembered"),
    ("--require", "NAME", "fail when the optional upstream is missing"),
)
HELP = {"-h", "--help"}
#: Set for nox by the bootstrap after its first look.
LOOKED = "MLC_RVV_LOOKED"
# Folders that a session gives to its command; a first look opens no folder.
_PLACE = ROOT / ".work"
_TREES = ("--project", str(ROOT), "--tvm-tree", str(_PLACE / "tvm"))
_BOTH = (*_TREES, "--mlc-tree", str(_PLACE / "mlc-llm"))
_VARIANTS = tuple(
    word
    for step in LADDER
    for word in ("--variant", f"{step.name}={_PLACE},mlc={_PLACE}{step.switches}")
)


@dataclass(frozen=True)
class Command:
    """The command of a session.

    Attributes:
        module: module with the function ``main``, which reads the options.
        words: words before the user's words.
        given: options that the session adds.
        before: module of the session with a function ``main``, which reads the options first.
        trees: True if options about the patched trees come first, and tools for RISC-V are needed.
        heeded: True if the command has no ``--offline``: the session alone heeds it.
    """

    module: str
    words: tuple[str, ...] = ()
    given: tuple[str, ...] = ()
    before: str = ""
    trees: bool = False
    heeded: bool = False


COMMANDS = {
    "build_and_test": Command("crosslab.job.main_job", given=_BOTH, trees=True),
    "apply_patches": Command("forkpatch.cli.main", ("apply",)),
    "patches": Command("forkpatch.cli.main"),
    "rebase": Command("forkpatch.cli.main", ("rebase",)),
    "upstream_tests": Command("sessions.upstream_tests"),
    "bench": Command("crosslab.bench.cli", given=(*_TREES, *_VARIANTS), trees=True),
    "host_bench": Command(
        "crosslab.bench.host_bench", given=(*_TREES, "--upstream-tree", str(_PLACE)), trees=True
    ),
    "zoo": Command("crosslab.zoo.cli", given=_BOTH, trees=True),
    "farm": Command("boardfarm.cli", given=_BOTH, trees=True),
    "cost": Command("accelerator.cli", heeded=True),
    "report": Command("report.__main__", heeded=True),
    "model": Command("crosslab.job.model_job", given=_BOTH, trees=True),
    "torch": Command("torchroad.cli", given=_BOTH, trees=True),
    "package": Command("crosslab.artifact.package", heeded=True),
    "reproduce": Command(
        "crosslab.job.main_job", given=_BOTH, before="sessions.reproduce", heeded=True
    ),
    "lint": Command("sessions.options"),
    "lock": Command("forkpatch.cli.main", ("lock",)),
}


class _StandIn(abc.ABCMeta):
    """Type of the names in a missing package: classes that accept calls and subclasses."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return stand_in(name)

    def __call__(cls, *_: Any, **__: Any) -> Any:
        return cls

    def __truediv__(cls, _: Any) -> Any:
        return cls

    __getitem__ = __or__ = __ror__ = __truediv__


def stand_in(name: str) -> _StandIn:
    """Return a class that replaces a name in a missing package."""
    return _StandIn(name, (), {})


class MissingPackages(MetaPathFinder, Loader):
    """Import finder of stand-ins for modules of packages that are not ours."""

    def find_spec(self, fullname: str, *_: Any) -> ModuleSpec | None:
        """Return a stand-in's spec for any module but Python's and ours, even an installed one."""
        top = fullname.partition(".")[0]
        if top in sys.stdlib_module_names or any(ROOT.glob(f"packages/*/src/{top}")):
            return None
        is_script = (ROOT / "scripts" / top).exists()
        return None if is_script else ModuleSpec(fullname, self, is_package=True)

    def exec_module(self, module: ModuleType) -> None:
        """Give the module every attribute, except dunder names."""

        def attribute(name: str) -> Any:
            if name.startswith("__"):
                raise AttributeError(name)
            return stand_in(name)

        module.__dict__["__getattr__"] = attribute


@contextmanager
def stand_ins() -> Iterator[None]:
    """Replace other packages by stand-ins during the block."""
    finder = MissingPackages()
    sys.meta_path.insert(0, finder)  # first, because installed packages take time to load
    try:
        yield
    finally:
        sys.meta_path.remove(finder)


def tree_parser(session: str) -> Parser:
    """Return the parser of the options about trees, which precede the command's options."""
    parser = Parser(
        prog=f"nox -s {session} --",
        description="Options of the patched trees come first:",
        add_help=False,
    )
    for option, metavar, text in TREE_OPTIONS:
        parser.add_argument(option, action="append", default=[], metavar=metavar, help=text)
    parser.add_argument("--offline", action="store_true", help="ask no index and no server")
    companion = "install this package, too: accelerator-study, board-farm, ..."
    parser.add_argument("--with", action="append", default=[], metavar="PACKAGE", help=companion)
    parser.add_argument("-h", "--help", action="store_true", help="this text")
    return parser


def check_trees(known: argparse.Namespace) -> None:
    """Check that named releases, upstreams, mirrors and packages exist.

    Raises:
        CommandError: a name does not exist.
    """
    lock = versions_lock()
    for release in known.release:
        _check_name("--release", release, lock["releases"], "release")
    for name in vars(known)["with"]:
        _check_name("--with", name, members(), "package")
    for option in ("--mirror", "--source", "--require"):
        for value in getattr(known, option.removeprefix("--")):
            name, _, place = value.partition("=")
            _check_name(option, name.partition("/")[0], lock["upstreams"], "upstream")
            is_there = ":" in place or (place and Path(place).expanduser().is_dir())
            if option == "--mirror" and not is_there:
                raise mistake(
                    f"--mirror {value}: there is no such folder",
                    "give a folder that holds a git repository, or a URL",
                )
            if option == "--source" and place not in ("wheel", "git"):
                raise mistake(f"--source {value}: no such source", "sources: wheel, git")


def _check_name(option: str, name: str, known: Collection[str], what: str) -> None:
    """Raise when a name of an option is unknown."""
    if name not in known:
        remedy = meant(name, known, f"{what}s", f"{option} ")
        raise mistake(f"{option} {name}: there is no such {what}", remedy)


def mistake(what: str, remedy: str) -> CommandError:
    """Return the error for a mistake in the options."""
    return CommandError(what, remedy=remedy, exit_code=USER_MISTAKE)


def main(words: Sequence[str]) -> None:
    """Read the options of a session whose tools have no options."""
    parser = Parser(prog="nox -s lint --", description="Check the whole checkout.")
    parser.add_argument("--offline", action="store_true", help="ask no index")
    parser.parse_args(words)


def first_look(session: str, words: Sequence[str], folder: str = ".") -> int:
    """Call :func:`look` in a new process in ``folder``; return its exit code."""
    command = [sys.executable, "-S", __file__, session, *words]
    return subprocess.run(command, cwd=folder, check=False).returncode


def look(session: str, words: Sequence[str]) -> int:
    """Read a session's options; return 2 after a mistake, and 0 without a visible mistake.

    With ``--help``, print the options. A command that needs its packages to read the options
    reports mistakes later.
    """
    command = COMMANDS.get(session)
    trees = command.trees if command else session == "tests"
    trees = trees or (session == "patches" and list(words[:1]) == ["necessity"])
    typed = f"nox -s {session}"
    try:
        known, rest = tree_parser(session).parse_known_args(words) if trees else (None, [*words])
        if command and command.heeded:
            rest = [word for word in rest if word != "--offline"]
        if known:
            check_trees(known)
        if command and known and known.help:
            tree_parser(session).print_help()
            print("\nThen the options of the command; the session gives those that name trees:\n")
            rest = ["--help"]
        if command and command.before:
            _read(Command(command.before), typed, rest, checks=True)
        if command and (rest or command.words or command.given):  # else main prints help
            _read(command, typed, rest, checks=not (known and vars(known)["with"]))
        if not HELP & set(words):
            machine.check_room(ROOT, session, lab=trees)
            machine.check_tools(_doctor() if trees else None)
    except CommandError as error:
        print(f"{typed}: {error}", file=sys.stderr)
        return error.exit_code
    return 0


def _doctor() -> Any:
    """Return the module that finds missing tools, imported with stand-ins."""
    with stand_ins():
        return importlib.import_module("crosslab.host.doctor")


def _read(command: Command, typed: str, words: Sequence[str], *, checks: bool) -> None:
    """Let a command read its options, up to the beginning of its work.

    Raises:
        CommandError: the command refuses the options.
        SystemExit: the parser refuses the options.
    """
    names = [option for option, *_ in TREE_OPTIONS] + ["--offline", "--with"]
    extra = [] if HELP & set(words) else command.given
    with stand_ins(), command_line.looking(typed, names * command.trees, checks=checks):
        try:
            main = importlib.import_module(command.module).main
            code = main([*command.words, *words, *extra])
        except SystemExit as ended:
            code = ended.code
        except CommandError as error:
            if error.exit_code == USER_MISTAKE:
                raise
            return
        except Exception:  # a stand-in failed: the session itself reads the options
            return
    if code == USER_MISTAKE:
        raise SystemExit(USER_MISTAKE)


if __name__ == "__main__":
    try:
        sys.exit(look(sys.argv[1], sys.argv[2:]))
    except KeyboardInterrupt:  # the parent process reports it
        sys.exit(INTERRUPTED)
