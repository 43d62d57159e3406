# SPDX-License-Identifier: Apache-2.0
"""The command ``crosslab kernels``: compile the micro-kernels into one relocatable object."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from crosslab.assemble.kernels import OBJECT, KernelTarget, build_kernels, read_kernels
from groundwork.command_line import Parser, output_folder

_COMPILER_HELP = "a C compiler with its target options; default: what `crosslab` finds"


def main(argv: Sequence[str]) -> None:
    """Compile the kernels as the options say.

    Raises:
        LabError: see :func:`build_kernels`; the caller prints it and sets the exit code.
    """
    parser = Parser(prog="crosslab kernels", description=__doc__)
    parser.add_argument("--target", required=True, choices=[t.value for t in KernelTarget])
    parser.add_argument("--output", required=True, type=output_folder, metavar="DIR")
    parser.add_argument("--compiler", type=shlex.split, metavar="COMMAND", help=_COMPILER_HELP)
    parser.add_argument(
        "--no-relax",
        action="store_true",
        help="keep the targets of branches in the object, which crosslab core-loops reads",
    )
    arguments = parser.parse_args(argv)
    flags = ["-mno-relax"] if arguments.no_relax else []
    index = build_kernels(
        arguments.target, arguments.output, compiler=arguments.compiler, extra_flags=flags
    )
    print(f"{len(read_kernels())} kernels for {arguments.target}: {index.parent / OBJECT}")
