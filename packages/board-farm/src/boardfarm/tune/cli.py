# SPDX-License-Identifier: Apache-2.0
"""``crosslab farm tune``: searches faster schedules of TIR functions on the boards."""

from __future__ import annotations

import argparse
import ast
import logging
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import geometric_mean
from typing import Any

import tvm
from tvm import tirx

from boardfarm.options import DATABASE, trees
from boardfarm.processes import FarmState, JoinedBoard, joined_boards, state_file
from boardfarm.tune.database import claim
from boardfarm.tune.search import NotTunableError, Tuned, tune_function
from boardfarm.tune.watch import watched
from crosslab.assemble.recipe import Recipe
from crosslab.assemble.recipe_options import ONE_VLEN, read_recipe
from crosslab.assemble.runner import compile_library
from crosslab.compile.driver import tree_environment
from crosslab.compile.schedules import Schedules
from crosslab.compile.targets import LabTarget
from crosslab.cores.core import CORES, core_names, read_core
from crosslab.errors import UserError, supply_mlc
from crosslab.job.job_options import MODEL, MODEL_FORMAT, parse_job
from crosslab.job.model_check import check_model
from crosslab.models.sources.model_folder import import_model
from crosslab.zoo.job import Spec, library_recipe
from groundwork.command_line import Parser, output_file
from groundwork.files import atomic_write_json

ZOO = "zoo:"


def parser() -> Parser:
    """Return the parser of the command line of ``crosslab farm tune``."""
    changes = {
        "core": {"help": "core whose cycles the boards count (the core of farm -- up)"},
        "quantization": {"help": f"format of the model's weights ({MODEL_FORMAT})"},
        "vlen": ONE_VLEN,
    }
    options = Parser(
        prog="crosslab farm tune",
        parents=[trees("core", "quantization", "vlen", **changes)],
        description="Search faster schedules of TIR functions on the boards. A schedule "
        "is kept in the database if it is faster and gives the right results on new inputs.",
    )
    add = options.add_argument
    add("functions", type=Path, nargs="?", help="TVMScript file of functions with static shapes")
    about = "tune the functions of this model that no micro-kernel computes; a name as for model"
    add("--model", help=f"{about}, or {ZOO}FAMILY")
    add("--trials", type=int, default=32, help="candidates to measure for each function (32)")
    add("--seconds", type=float, default=60.0, help="time limit of a candidate on a board (60)")
    add("--database", **DATABASE)
    add("--json", type=output_file, dest="report", help="report (PROJECT/out/tune.json)")
    return options


def main(argv: Sequence[str]) -> int:
    """Tune each function, and write the report after each; return 0.

    Raises:
        UserError: an option is wrong, no farm is up, the file has no tunable function, or the
            database has records of another unit.
        LabError: a function does not run, or a record cannot be written.
    """
    args = parser().parse_args(argv)
    if args.trials < 1 or args.seconds <= 0:
        raise UserError("--trials and --seconds must be greater than 0")
    if (args.functions is None) == (args.model is None):
        raise UserError("give either FILE.py or --model MODEL")
    _use_tree(args.tvm_tree, argv)
    state = FarmState.read(state_file(args.project))
    if state is None:
        raise UserError("no farm is up", remedy="nox -s farm -- up --boards N --core NAME")
    boards, (measure, core) = _joined(state)
    if args.core and args.core.key != core:
        raise UserError(
            f"--core {args.core.key}: the boards measure for {core}",
            remedy=f"leave --core out, or: nox -s farm -- up --core {args.core.key}",
        )
    args.core = read_core(CORES, core) if core in core_names(CORES) else None
    if state.boards:
        if args.vlen not in (None, state.vlen):
            raise UserError(
                f"--vlen {args.vlen}: the boards have vector registers of {state.vlen} bits",
                remedy=f"leave --vlen out, or: nox -s farm -- up --vlen {args.vlen}",
            )
        args.vlen = state.vlen
    recipe = read_recipe(args, args.quantization or MODEL_FORMAT)
    target = LabTarget("riscv64", recipe.vlens[0], recipe.halves)
    functions = read_functions(args.functions or functions_of(args, recipe))
    logging.getLogger("tvm").setLevel(logging.WARNING)
    out = args.project.resolve() / "out"
    kept = (args.database or out / "tuned") / core
    claim(kept, measure)
    report = args.report or out / "tune.json"
    done, refused, start = list[Tuned](), list[str](), time.monotonic()
    limits = {"trials": args.trials, "seconds": args.seconds}
    farm = (state.tracker, state.key, boards)
    with watched(lambda: len(joined_boards(state.tracker, state.key)), _say) as watch:
        for name, function in functions.items():
            try:
                done.append(tune_function(name, function, target.table(), farm, kept, **limits))
            except NotTunableError as error:
                refused.append(error.what)
            tuned = [asdict(result) for result in done]
            about = {"measure": measure, "database": str(kept)}
            atomic_write_json(report, {**about, "functions": tuned, "refused": refused})
    minutes = (time.monotonic() - start) / 60
    trials = sum(result.trials for result in done)
    pace = f"{trials} trials on {watch}: {trials / minutes:.1f} a minute, all included"
    print("\n".join([*table(done, measure), *(f"* {why}" for why in refused), pace]))
    return 0


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _joined(farm: FarmState) -> tuple[int, JoinedBoard]:
    """Return the number of joined boards, and their unit and database.

    Raises:
        UserError: no board has joined, boards measure different things, or a board has no unit or
            a database whose name cannot be a folder's.
    """
    joined = joined_boards(farm.tracker, farm.key)
    if not joined:
        raise UserError(
            f"no board has joined {farm.tracker} as {farm.key}",
            remedy="nox -s farm -- status says what runs; on a board: join.sh of farm -- pack",
        )
    if unfit := [board for board in joined if not board.named]:
        raise UserError(
            f"a board that joined as {farm.key} measures {unfit[0].measure!r} for the database "
            f"{unfit[0].core!r}: the unit is missing, or the database cannot name a folder",
            remedy="end that board; the join.sh of nox -s farm -- pack checks its names",
        )
    if others := sorted({board for board in joined if board != joined[0]}):
        units = [f"{board.measure} (for {board.core})" for board in (joined[0], others[0])]
        raise UserError(
            f"boards that joined as {farm.key} measure different units: {' and '.join(units)}",
            remedy="give boards of different units different --key names",
        )
    return len(joined), joined[0]


def _use_tree(tree: Path | None, argv: Sequence[str]) -> None:
    """Restart this process with the tree's ``tvm`` if another ``tvm`` is imported."""
    if tree is None or not (tree / "python" / "tvm" / "__init__.py").is_file():
        problem = f"{tree} is not a TVM tree" if tree else "no TVM tree was given"
        raise UserError(problem, remedy="run nox -s farm -- tune FILE, or give --tvm-tree DIR")
    if not Path(tvm.__file__).is_relative_to(tree.resolve()):
        command = [sys.executable, "-m", "crosslab", "farm", "tune", *argv]
        os.execve(sys.executable, command, tree_environment(tree))


def functions_of(args: argparse.Namespace, recipe: Recipe) -> Path:
    """Compile a model; return the TVMScript file of the functions without a kernel.

    Raises:
        UserError: the model cannot be compiled, or no function without a kernel has static shapes.
        LabError: the compile fails.
    """
    if args.model.startswith(ZOO):
        return _left_of(zoo_recipe(args, recipe), args)
    words = [args.model, "--tvm-tree", str(args.tvm_tree), "--project", str(args.project)]
    words += ["--cache", str(args.cache), "--vlen", str(recipe.vlens[0])]
    words += ["--core", str(args.core)] if args.core else []
    for option in ("mlc_tree", "quantization"):
        if value := getattr(args, option):
            words += [f"--{option.replace('_', '-')}", str(value)]
    job = parse_job(words, MODEL)
    model = import_model(job.source, job.model, job.project, job.cache).folder
    check_model(job, model)
    return _left_of(job.recipe.of(model), args)


def zoo_recipe(args: argparse.Namespace, recipe: Recipe) -> Recipe:
    """Return the recipe of the library of a family of the zoo.

    Raises:
        UserError: the family does not exist, or MLC-LLM, which compiles it, is not installed.
    """
    if recipe.mlc_tree is None:
        raise UserError(f"{args.model}: MLC-LLM is not here", remedy=supply_mlc("farm"))
    return library_recipe(Spec(args.model.removeprefix(ZOO), recipe, args.cache, ""))


def _left_of(recipe: Recipe, args: argparse.Namespace) -> Path:
    left = Schedules.read(compile_library(recipe, args.cache).folder).unscheduled
    if "@T.prim_func" not in Path(left).read_text(encoding="utf-8"):
        raise UserError(f"{args.model}: no function to tune: all with static shapes call kernels")
    return Path(left)


def read_functions(file: Path) -> dict[str, Any]:
    """Return the TIR functions of a TVMScript file by name.

    Raises:
        UserError: the file cannot be read, is not TVMScript, or has no function, or a function has
            a shape that is not static.
    """
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"cannot read {file}: {error}") from error
    try:
        # TVM's parser predefines I, T and R, and accepts only decorated definitions.
        parsed = ast.parse(text)
        parsed.body = [part for part in parsed.body if hasattr(part, "decorator_list")]
        mod = tvm.script.from_source(ast.unparse(parsed)) if parsed.body else tvm.IRModule()
    except Exception as error:
        last = str(error).strip().splitlines() or [type(error).__name__]
        raise UserError(
            f"{file} is not TVMScript: {last[0]}",
            remedy="give what IRModule.script() prints: functions with blocks are "
            "@T.prim_func(s_tir=True)",
        ) from error
    if isinstance(mod, tirx.PrimFunc):
        mod = tvm.IRModule({"main": mod})
    functions = {g.name_hint: f for g, f in mod.functions_items() if isinstance(f, tirx.PrimFunc)}
    if not functions:
        raise UserError(f"{file} holds no TIR function")
    for name, function in functions.items():
        shapes = [p.ty.shape if hasattr(p.ty, "shape") else () for p in function.params]
        if not all(isinstance(extent, int | tirx.IntImm) for s in shapes for extent in s):
            raise UserError(
                f"{file}: {name} has a shape that is not static",
                remedy="bind the sizes first with function.specialize",
            )
    return functions


def table(done: Sequence[Tuned], measure: str) -> list[str]:
    """Return Markdown lines: cost before and after and trials of functions, totals, rejections."""
    lines = [
        f"| function | before, {measure} | after | times fewer | trials | rejected |",
        "|---|---|---|---|---|---|",
    ]
    for r in done:
        ratio = r.before / max(1, r.after)
        cells = (r.name, f"{r.before}", f"{r.after}", f"{ratio:.2f}", f"{r.trials}")
        lines.append(f"| {' | '.join(cells)} | {len(r.rejected)} |")
    if not done:
        return ["no function was tuned"]
    ratios = [r.before / max(1, r.after) for r in done]
    before, after = sum(r.before for r in done), sum(r.after for r in done)
    total = f"all together: {before} to {after}, {before / max(1, after):.2f} times fewer"
    lines += ["", f"{total}; geometric mean: {geometric_mean(ratios):.2f} times fewer"]
    lines += [f"* {r.name}: {reason}" for r in done for reason in r.rejected]
    return lines
