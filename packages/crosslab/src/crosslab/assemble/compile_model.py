# SPDX-License-Identifier: Apache-2.0
"""``crosslab compile-model``: a Llama-like ``config.json`` becomes a model library."""

from __future__ import annotations

import argparse
import shlex
import shutil
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from crosslab.assemble.recipe_options import DEFAULT_VLEN, ONE_VLEN, recipe_options
from crosslab.compile.driver import DEFAULT_CHUNK, CompileRequest, compile_llama
from crosslab.compile.targets import NAMES, LabTarget
from crosslab.errors import UserError
from crosslab.models.config import read_config
from crosslab.models.llama_params import random_params
from groundwork.command_line import Parser, output_folder

_console = Console(highlight=False)


def parser() -> Parser:
    """Return the parser of the command's options."""
    shared = recipe_options(
        *("tvm-tree", "vlen", "cache"),
        tvm_tree={"help": "TVM tree to compile with"},
        vlen=ONE_VLEN,
    )
    options = Parser(
        prog="crosslab compile-model",
        description="Compile a Llama-like config.json to a model library.",
        parents=[shared],
    )
    add = options.add_argument
    add("--config", type=Path, required=True, help="the model's config.json")
    add(
        "--output",
        type=output_folder,
        required=True,
        help="folder of the library; created if missing",
    )
    add("--target", choices=NAMES, default="riscv64", help="machine to compile for (riscv64)")
    add(
        "--form",
        choices=("static", "shared"),
        default="static",
        help="model.tar or model.so (static)",
    )
    add("--linker", type=shlex.split, default=[], help="compiler command to link model.so")
    add("--prefill-chunk", type=int, default=DEFAULT_CHUNK, help="most tokens of a prefill call")
    add("--steps", help="steps of the passes that run, or -NAME for all but one (all)")
    add("--kernels", type=Path, help="folder of compiled kernels that the passes call")
    add("--require-tensorize", action="store_true", help="fail when nothing is tensorized")
    add("--no-gemv", action="store_true", help="leave matrix-vector products unscheduled")
    add(
        "--random-weights",
        type=int,
        metavar="SEED",
        help="write random parameters, too",
    )
    return options


def _steps(args: argparse.Namespace) -> tuple[str, ...] | None:
    if args.steps is None:
        # On the host this promise gained nothing and made LLVM 2.4 times slower.
        return ("-noalias",) if args.target == "host" else None
    return tuple(filter(None, args.steps.split(",")))


def main(argv: Sequence[str]) -> None:
    """Compile a model of a ``config.json``, and copy library and report to ``--output``.

    With ``--random-weights``, copy random parameters to the folder ``params`` in it, too.

    Raises:
        UserError: an option does not fit another one, or a file is missing.
        LabError: the compilation fails.
    """
    args = parser().parse_args(argv)
    if args.vlen and args.target != "riscv64":
        raise UserError(f"--vlen {args.vlen} is for --target riscv64", remedy="leave out --vlen")
    if args.linker and args.form != "shared":
        raise UserError("--linker links model.so", remedy="add --form shared")
    config = read_config(args.config)
    vlen = (args.vlen or DEFAULT_VLEN) if args.target == "riscv64" else 0
    request = CompileRequest(
        tvm_tree=args.tvm_tree,
        config=config,
        target=LabTarget(args.target, vlen),
        form=args.form,
        prefill_chunk=args.prefill_chunk,
        steps=_steps(args),
        kernels=args.kernels,
        require_tensorize=args.require_tensorize,
        gemv=not args.no_gemv,
        linker=tuple(args.linker),
    )
    made = compile_llama(request, args.cache)
    shutil.copytree(made.folder, args.output, dirs_exist_ok=True)
    if args.random_weights is not None:
        params = random_params(config, args.random_weights, args.cache)
        shutil.copytree(params, args.output / "params", dirs_exist_ok=True)
    count = sum(1 for entry in made.tensorized if entry.get("symbol"))
    _console.print(
        f"{args.output / made.library.name}: {request.target.label}, {count} blocks tensorized"
    )
