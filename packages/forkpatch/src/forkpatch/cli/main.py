# SPDX-License-Identifier: Apache-2.0
"""Command line: entry point."""

from __future__ import annotations

import argparse
import functools
import gc
import importlib
import io
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import forkpatch
from forkpatch.cli.options import Verb
from forkpatch.errors import UserError
from forkpatch.git.calls import drop_variables, require_git
from forkpatch.git.objects import end_readers
from forkpatch.model.settings import find_root, load_settings
from forkpatch.output import be_quiet, write_report
from forkpatch.tree.claim import claimed
from forkpatch.tree.fork import open_fork
from groundwork.command_line import Parser
from groundwork.errors import exit_code_of

#: New objects between two searches for cycles; the lines of a large patch have no cycles.
_OBJECTS = 5_000_000
#: The verbs of each module; only the module of the typed verb is loaded.
_VERBS = {
    "tree_verbs": ("init", "adopt", "apply", "status", "lock", "tree"),
    "check_verbs": ("check", "record", "necessity", "probe", "watch"),
    "rebase_verbs": ("rebase",),
    "series_verbs": (
        *("edit", "export", "submit", "import-series", "range-diff", "absorb", "split", "bisect"),
        "push",
    ),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run a verb.

    Returns:
        0 for success, 1 for a failure or a finding, 2 for a mistake in the input.
    """
    gc.set_threshold(_OBJECTS)
    _open_streams()
    words = sys.argv[1:] if argv is None else argv
    # Only the module of the verb in the first word, after --root DIR, is loaded.
    typed = "".join(words[2 if words[:1] == ["--root"] else 0 :][:1])
    modules = tuple(name for name, verbs in _VERBS.items() if typed in verbs) or tuple(_VERBS)
    # argparse would remove each ``--``; one after a word of the command is the command's own.
    end = words.index("--") if typed == "bisect" and "--" in words else len(words)
    options = _parser(modules).parse_args(words[:end])
    if typed == "bisect":
        options.command = [*options.command, *words[end + (not options.command) :]]
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # file names may be invalid text
            stream.reconfigure(errors="backslashreplace")
    drop_variables()
    command = f"forkpatch {options.verb}"
    return exit_code_of(functools.partial(_run, options), UserError, command)


def _run(options: argparse.Namespace) -> int:
    """Run the verb of parsed options on the fork."""
    require_git()
    verb: Verb = options.run
    root = options.root or (Path() if verb.begins else find_root(Path()))
    settings = load_settings(root, new=verb.begins)
    be_quiet(options.json == "-")
    with claimed(settings, verb.claim_of(options)):
        try:
            result, code = verb.run(open_fork(settings, new=verb.begins), options)
            write_report(options.json, result)
            return code
        finally:
            end_readers()


def _open_streams() -> None:
    """Open the standard streams that the caller closed, with their output discarded.

    Otherwise the next opened files would get the numbers of the streams.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest free number, which is ``number``
    for name, number in (("stdout", 1), ("stderr", 2)):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(number, "w"))


@functools.cache  # a program may run many verbs, and the parser takes a third of a quick verb
def _parser(modules: tuple[str, ...]) -> Parser:
    """Return the command line's parser with the verbs of these modules."""
    parser = Parser(
        prog="forkpatch",
        description=forkpatch.__doc__,
        epilog="Exit code 0: all is well; 1: a failure or a finding; 2: a mistake in the"
        " input: options, or the fork's own files.",
    )
    parser.add_argument("--version", action=_Version, nargs=0, help="print the version, and exit")
    parser.add_argument(
        "--root", type=Path, metavar="DIR", help="the fork's root (default: . or a folder above)"
    )
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")
    for name in modules:
        for verb in importlib.import_module(f"forkpatch.cli.{name}").VERBS:
            verb.add_to(verbs)
    return parser


class _Version(argparse.Action):
    """Print the version of the package."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        from importlib.metadata import version  # noqa: PLC0415 - takes as long as a quick verb

        print(f"forkpatch {version('forkpatch')}")
        parser.exit()
