# SPDX-License-Identifier: Apache-2.0
"""``crosslab torch``: compiles a PyTorch model for RVV, runs it under QEMU, compares with torch."""

from __future__ import annotations

import argparse
import math
import re
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table
from safetensors.numpy import load_file

from crosslab.assemble.kernel_values import told
from crosslab.assemble.recipe import Recipe
from crosslab.assemble.recipe_options import ONE_VLEN, read_recipe, recipe_options
from crosslab.assemble.runner import Clock, build_runner
from crosslab.compile.driver import IR_FOLDER
from crosslab.compile.schedules import Schedules
from crosslab.cores.core import Core
from crosslab.errors import UserError
from crosslab.host.toolchain import require_qemu
from crosslab.job.job_options import PROMPT
from crosslab.models.config import DEFAULT_CONTEXT, longest_of, read_table
from crosslab.models.sources.model_folder import CONFIG_FILE, check_source, name_of
from crosslab.models.sources.model_folder import import_model as import_folder
from crosslab.run.emulator import GuestMachine
from crosslab.tokenizer.chat_tokenizer import ChatTokenizer
from groundwork.command_line import Parser, output_file, output_folder
from groundwork.files import atomic_write_json
from torchroad import digits, pictures
from torchroad.answer import compare_with_main_job
from torchroad.job import TOLERANCE, TorchResult, judge, judge_answer, recipe_of
from torchroad.program import DEFAULT_STEPS, LENGTH, ONNX, ImportedProgram, TorchModel, import_model

EXAMPLES = 4  # random inputs that find a device's scales without pictures
# A word in place of a model, which trains a small classifier of pictures.
DIGITS = "digits"

_progress = Console(stderr=True, highlight=False)
_answers = Console(highlight=False)


def parser() -> Parser:
    """Return the parser of the command line of ``crosslab torch``."""
    shared = recipe_options(
        *("project", "release", "tvm-tree", "mlc-tree", "applied", "core", "vlen", "tuned"),
        "cache",
        mlc_tree={"help": argparse.SUPPRESS},
        applied={"help": argparse.SUPPRESS},
        core={"help": "count cycles of this core, by the name of its file in cores/"},
        vlen=ONE_VLEN,
    )
    options = Parser(
        prog="crosslab torch",
        description="Export a model of PyTorch or read one in ONNX, compile it for RVV, run it in "
        "the emulator, and compare its outputs with torch's or onnxruntime's. FACTORY is a "
        "function without parameters. It returns (module, inputs[, dynamic[, feeds]]). dynamic is "
        "{input: {axis: NAME}} and names the sizes that may vary. feeds is {input: NUMBER}: the "
        "input gets that output in the next call. `crosslab torch digits` trains a small "
        "classifier of pictures; it has a --help.",
        parents=[shared],
    )
    add = options.add_argument
    add(
        "model", metavar="MODEL",
        help="FILE.py:FACTORY, the function that makes the model; FILE.onnx, a model in ONNX; or a "
        "language model for transformers: a pinned name, a folder, a GGUF file, or hf:OWNER/NAME",
    )  # fmt: skip
    add(
        "--dynamic", action="append", default=[], metavar="NAME=MIN:MAX",
        help="let a size vary; the example, MIN and MAX are run",
    )  # fmt: skip
    add(
        "--paged", action="store_true",
        help="let a language model with the inputs input_ids and position_ids answer greedily; its "
        "attention reads TVM's paged KV cache",
    )  # fmt: skip
    add(
        "--steps", type=int, metavar="N",
        help="number of tokens of the answer with --paged, or of calls of a model with feeds "
        f"({DEFAULT_STEPS})",
    )  # fmt: skip
    add(
        "--prompt",
        help=f"the user's message to a model for transformers ({PROMPT})",
    )
    pictures.add_options(add)
    add(
        "--dump-ir",
        type=output_folder,
        metavar="DIR",
        help="new folder for the module after each pass",
    )
    add("--json", type=output_file, dest="report", help="report (PROJECT/out/torch.json)")
    return options


def main(argv: Sequence[str]) -> int:
    """Run the command; return 1 if outputs differ from torch's, or tokens from the main job's.

    Raises:
        UserError: an option or the model is wrong, or torch or a tool is missing.
        LabError: a step fails.
    """
    # After the name of an option, the word is the option's value.
    for place, (before, word) in enumerate(pairwise(["", *argv])):
        if word == DIGITS and not re.fullmatch(r"-[^=]*", before):
            return digits.main([*argv[:place], *argv[place + 1 :]])
    args = parser().read(argv, _checked)
    model = model_of(args)
    if not (args.tvm_tree / "python" / "tvm").is_dir():
        remedy = "make it with: nox -s apply_patches"
        raise UserError(f"{args.tvm_tree} is not a TVM tree", remedy=remedy)
    shown = pictures.read_options(args)
    if shown and shown.image:
        model = replace(model, picture=str(shown.image.resolve()))
    if args.dump_ir and args.dump_ir.exists():
        raise UserError(f"--dump-ir: {args.dump_ir} exists", remedy="name a new folder")
    report = args.report or args.project.resolve() / "out" / "torch.json"
    # Fail before the long work if the project's folder cannot be written.
    report.parent.mkdir(parents=True, exist_ok=True)
    require_qemu()
    with tempfile.TemporaryDirectory(prefix="torch-") as scratch:
        table, right = _judged(args, model, shown, Path(scratch))
    atomic_write_json(report, table)
    _progress.print(f"[bold]report[/] {report}", soft_wrap=True)
    return 0 if right else 1


def _judged(
    args: argparse.Namespace, model: TorchModel, shown: pictures.Options | None, scratch: Path
) -> tuple[dict[str, Any], bool]:
    """Compile a model, run it in QEMU, print the verdict; return the report, and True if right."""
    clock = Clock()
    core: Core | None = args.core
    # Kernels keep their default values, so that counts for all cores measure the same code.
    shared = replace(read_recipe(args, "q0f32"), cores=(), strip=False)
    machine = GuestMachine(vlen=shared.vlens[0])
    name = model.name if model.factory or model.is_onnx else args.model
    _progress.print(f"importing {name}")
    with clock.step("import"):
        program = import_model(model, args.tvm_tree, scratch)
    if trained := program.about["in_training_mode"]:
        _answers.print(told_of_modes(trained), soft_wrap=True)
    recipe = replace(recipe_of(shared, program), dump_ir=args.dump_ir is not None)
    runner = build_runner(recipe, args.cache, clock)
    if args.dump_ir:
        shutil.copytree(runner.library.folder / IR_FOLDER, args.dump_ir)
        _progress.print(f"[bold]passes[/] {args.dump_ir / 'README.md'}", soft_wrap=True)
    _progress.print("emulator: " + told_of(program))
    with clock.step("emulator"):
        if program.is_paged:
            result = judge_answer(program, runner, machine, core, args.cache)
        else:
            result = judge(program, runner, machine, core, args.cache, scratch)
    about = {
        "model": name,
        "release": args.release,
        "vlen": machine.vlen,
        "core": core.key if core else None,
        "language": program.about.get("language"),
        "in_training_mode": program.about["in_training_mode"],
    }
    show(result)
    right = result.right
    if shown:
        about["pictures"] = on_device(model.file, shown, shared, machine, args.cache, scratch)
    if result.answer and not model.factory:
        comparison = compare_with_main_job(
            main_job_recipe(shared.of(model.file), program),
            *(model.prompt, result.answer, machine, core, args.cache, clock),
        )
        about["main_job"] = asdict(comparison)
        _answers.print(comparison.shown())
        right = right and comparison.same_tokens
    schedules = Schedules.read(runner.library.folder)
    _answers.print(schedules.told, soft_wrap=True)
    if shared.tuned:
        _answers.print(told(shared.kernel_values), soft_wrap=True)
    table = {**about, **report_of(result), "seconds": clock.seconds, **asdict(schedules)}
    return table, right


def on_device(
    file: Path,
    options: pictures.Options,
    shared: Recipe,
    machine: GuestMachine,
    cache: Path,
    scratch: Path,
) -> dict[str, Any]:
    """Print a picture's classes, and a device's parts and errors; return them as a table.

    Args:
        file: the model in ONNX.
        options: on pictures and on the device.
        shared: recipe of the CPU's code.
        machine: the emulated CPU.
        cache: folder of finished builds.
        scratch: folder with the outputs of the emulator.

    Raises:
        UserError: the model is not a classifier, or the device cannot compute it.
        LabError: a part on the CPU fails, or its outputs are not onnxruntime's.
    """
    from torchroad.host_parts import HostParts  # noqa: PLC0415 - needs onnx
    from torchroad.onnx_file import inputs_of, read_onnx  # noqa: PLC0415 - needs onnx

    model = read_onnx(file)
    outputs = load_file(scratch / "0-outputs.safetensors")
    exact = [outputs[f"output_{number}"] for number in range(len(outputs))]
    feed, feeds = inputs_of(model), [inputs_of(model, seed) for seed in range(EXAMPLES)]
    if options.image:
        shape, source = pictures.input_shape(model), model.graph.input[0].name
        feed = {source: pictures.read_picture(options.image, shape)}
        feeds = [{source: each} for each in pictures.pictures_of(options, shape)]
    columns = {"float32 on the CPU": exact[0]}
    told: dict[str, Any] = {}
    if options.accelerator:
        _progress.print(f"calibrating {options.accelerator}")
        device_model = pictures.calibrated(file, feeds, options.accelerator)
        parts = device_model.host_parts
        _progress.print(f"compiling {len(parts)} groups of the CPU's operators for RVV")
        on_cpu = HostParts(parts, shared, machine, cache, scratch / "parts")
        found = replace(device_model, proved=True, on_cpu=on_cpu)(feed)
        device, steps = device_model.device, device_model.steps
        columns = {f"int8 on {device.name}": found[0], **columns}
        _answers.print(pictures.parts_table(steps, device.name))
        _answers.print(pictures.told_of_parts(steps, device.clock), soft_wrap=True)
        counted = f"{on_cpu.instructions:,}" if on_cpu.instructions else "uncounted"
        _answers.print(
            f"RVV code of the CPU's parts ({len(parts)}): {counted} instructions; its outputs "
            f"differ from onnxruntime's by at most {on_cpu.error:.1e}",
            soft_wrap=True,
        )
        errors = [relative_error(*pair) for pair in zip(found, exact, strict=True)]
        told |= {"parts": [asdict(step) for step in steps], "errors": [*map(reported, errors)]}
        told |= {"cpu_instructions": on_cpu.instructions, "cpu_error": reported(on_cpu.error)}
        worst = f"{max(errors):.2%} of an output's largest value"
        _answers.print(f"the device's outputs differ from float32's by at most {worst}")
        if options.accuracy:
            accuracy = pictures.judge(model, device_model, options, shape)
            _answers.print(accuracy.told, soft_wrap=True)
            told["accuracy"] = asdict(accuracy)
    if options.image is None:
        return told
    classes = {title: pictures.probabilities(logits) for title, logits in columns.items()}
    _answers.print(pictures.classes_table(classes, options))
    likeliest = {title: options.name(int(p.argmax())) for title, p in classes.items()}
    return {**told, "image": str(options.image), "classes": likeliest}


def relative_error(found: Any, exact: Any) -> float:
    """Return the largest difference, divided by the largest magnitude in ``exact``."""
    largest = max(float(np.abs(exact).max(initial=0.0)), 1e-30)
    return float(np.abs(found - exact).max(initial=0.0)) / largest


def main_job_recipe(recipe: Recipe, program: ImportedProgram) -> Recipe:
    """Print how the main job compiles, and return its recipe for the same weights."""
    road = "through MLC-LLM" if recipe.mlc_tree else "by the project's own definition"
    _progress.print(f"main job, {road}")
    context = int(program.about["language"]["context"])
    return replace(recipe, context=context, prefill_chunk=context, tuned=None)


def _names_module(model: str) -> bool:
    """Return True if a model's name has the form FILE.py:FACTORY, or lacks the factory only."""
    return re.search(r"\.py(:[^/:]*)?$", model) is not None


def _checked(args: argparse.Namespace) -> argparse.Namespace:
    """Return the options after a check of the model's name and of the picture."""
    pictures.read_options(args)
    if args.prompt is not None and (_names_module(args.model) or args.model.endswith(ONNX)):
        raise UserError(
            f"--prompt: {args.model} is not a model for transformers",
            remedy="let the factory return the prompt's tokens as the example, or leave it out",
        )
    if _names_module(args.model):
        TorchModel.parse(args.model, args.dynamic, paged=args.paged, steps=args.steps)
    elif args.model.endswith(ONNX):
        given = {"dynamic": args.dynamic, "paged": args.paged, "steps": args.steps is not None}
        for option in (name for name, is_given in given.items() if is_given):
            raise UserError(
                f"--{option}: a model in ONNX has fixed sizes, no paged cache, and one call",
                remedy=f"leave out --{option}",
            )
        if not Path(args.model).is_file():
            raise UserError(f"{args.model} does not exist", remedy="give the path of a model")
    else:
        check_source(args.model, args.project)
    return args


def model_of(args: argparse.Namespace) -> TorchModel:
    """Return the model that the options name; import one for transformers into the cache.

    Raises:
        UserError: the model does not exist, or an option does not fit it.
        LabError: the model cannot be downloaded, or its tokenizer or chat template fails.
    """
    if _names_module(args.model):
        return TorchModel.parse(args.model, args.dynamic, paged=args.paged, steps=args.steps)
    if args.model.endswith(ONNX):
        return TorchModel(Path(args.model).resolve(), "", {})
    if args.dynamic:
        raise UserError("--dynamic: a model for transformers has one size that varies, its length")
    folder = import_folder(args.model, name_of(args.model), args.project, args.cache).folder
    text = PROMPT if args.prompt is None else args.prompt
    prompt = tuple(ChatTokenizer.load(folder).chat_ids(text))
    context = longest_of(read_table(folder / CONFIG_FILE)) or DEFAULT_CONTEXT
    bounds = {LENGTH: (2, min(context, DEFAULT_CONTEXT))}
    return TorchModel(folder, "", bounds, True, args.steps, prompt)


def told_of_modes(trained: Sequence[str]) -> str:
    """Return a text about modules that the factory left in training mode."""
    first = ", ".join(trained[:3]) + (", ..." if len(trained) > 3 else "")
    return (
        f"the factory left {len(trained)} modules in training mode ({first}); they are compiled, "
        "and computed by torch, in evaluation mode, as after model.eval()"
    )


def told_of(program: ImportedProgram) -> str:
    """Return a text about the runs of a program."""
    if not program.is_paged:
        return f"{len(program.sizes)} runs"
    return f"{len(program.about['prompt'])} tokens of prompt, {program.about['steps']} of answer"


def report_of(result: TorchResult) -> dict[str, Any]:
    """Return the verdict as a table for the JSON report."""
    return {
        "right": result.right,
        "tolerance": TOLERANCE,
        "cases": [{**asdict(case), "error": reported(case.error)} for case in result.cases],
        "multiply_adds": asdict(result.work),
        "share_on_kernels": round(result.work.share, 4),
    }


def reported(error: float) -> float | None:
    """Return an error for a JSON report, which has no infinity and no NaN: None instead."""
    return error if math.isfinite(error) else None


def show(result: TorchResult) -> None:
    """Print a line for each case, and the kernels' share of the multiply-adds."""
    table = Table()
    for title in ("sizes", "error", "instructions", "by LMUL", "cycles", "verdict"):
        table.add_column(title, justify="left" if title in ("sizes", "verdict") else "right")
    for case in result.cases:
        sizes = ", ".join(f"{name}={size}" for name, size in case.sizes.items()) or "the example's"
        counts, cycles = case.counts, case.cycles
        table.add_row(
            sizes,
            f"{case.error:.1e}",
            f"{counts.insns:,}" if counts else "-",
            f"{counts.lmul_weighted:,}" if counts else "-",
            f"{cycles.serial:,}" if cycles else "-",
            "right" if case.right else f"[bold red]wrong[/] (bound {TOLERANCE:g})",
        )
    _answers.print(table)
    work = result.work
    _answers.print(
        f"{work.share:.1%} of {work.total:,} multiply-adds are done by kernels"
        + "".join(f"\n  not: {name}, {amount:,}" for name, amount in work.plain.items())
    )
