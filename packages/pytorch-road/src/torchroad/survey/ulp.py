# SPDX-License-Identifier: Apache-2.0
"""Errors of functions in units in the last place (ulp), for several register lengths, in QEMU."""

from __future__ import annotations

import tempfile
from argparse import Namespace
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load_file

from crosslab.assemble.recipe_options import read_recipe, recipe_options
from crosslab.assemble.runner import Clock, build_runner
from crosslab.run.emulator import GuestMachine
from groundwork.command_line import Parser
from torchroad.job import recipe_of, run_program
from torchroad.program import TorchModel, import_model

VLENS = (128, 256, 512, 1024)
# Functions may give 0 for results below the first: below e^-86.25 they compute no digits. Numbers
# below the second are subnormal.
LEAST, LEAST_NORMAL = 2.0**-117, 2.0**-126
# Arguments of sine and cosine up to this are measured.
MOST_ANGLE = 2.0**17
FILE = Path(__file__).with_name("functions.py")


def table(args: Namespace) -> str:
    """Return a Markdown table of the largest error of each function.

    Raises:
        LabError: a build or a run fails.
    """
    from torchroad.survey import functions  # noqa: PLC0415 - it needs torch

    rows = {name: [name] for name in functions.FUNCTIONS}
    with tempfile.TemporaryDirectory(prefix="ulp-") as scratch:
        model = TorchModel.parse(f"{FILE}:functions", [])
        program = import_model(model, args.tvm_tree, Path(scratch))
        inputs, expected = program.case(0)
        x = load_file(inputs)["x"]
        theirs = load_file(expected)
        for vlen in VLENS:
            shared = replace(read_recipe(_options(args, vlen), "q0f32"), cores=(), strip=False)
            runner = build_runner(recipe_of(shared, program), args.cache, Clock())
            outputs = Path(scratch) / f"{vlen}.safetensors"
            machine = GuestMachine(vlen=vlen)
            run_program(program, runner, machine, args.cache, inputs, outputs)
            ours = load_file(outputs)
            for number, name in enumerate(functions.FUNCTIONS):
                rows[name].append(_cell(name, x, ours[f"output_{number}"]))
        for number, name in enumerate(functions.FUNCTIONS):
            rows[name].append(_cell(name, x, theirs[f"output_{number}"]))
    titles = ["function", *(f"VLEN {vlen}" for vlen in VLENS), "torch, this machine"]
    lines = [titles, ["---"] * len(titles), *rows.values()]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _options(args: Namespace, vlen: int) -> Namespace:
    """Return the options of a build for a register length."""
    names = ("project", "release", "tvm-tree", "mlc-tree", "applied", "core", "vlen", "tuned")
    parser = Parser(parents=[recipe_options(*names, "cache")], allow_abbrev=False)
    words = ["--vlen", str(vlen), "--project", str(args.project), "--tvm-tree", str(args.tvm_tree)]
    parsed: Namespace = parser.parse_args([*words, "--cache", str(args.cache)])
    return parsed


def _cell(name: str, x: NDArray[Any], made: NDArray[Any]) -> str:
    import torch  # noqa: PLC0415

    from torchroad.survey.functions import exact  # noqa: PLC0415 - it needs torch

    wanted = exact(name, torch.from_numpy(x)).numpy()
    counted = np.abs(x) <= MOST_ANGLE if name in ("sin", "cos") else np.ones(x.shape, bool)
    errors = ulps(made[counted], wanted[counted])
    at = int(errors.argmax())
    return f"{errors[at]:.2g} at {x[counted][at]:.4g}"


def ulps(made: NDArray[Any], wanted: NDArray[Any]) -> NDArray[Any]:
    """Return errors in units in the last place of a float32; 0 where both are below LEAST.

    Args:
        made: float32 results.
        wanted: results in float64.
    """
    with np.errstate(all="ignore"):
        rounded = wanted.astype(np.float32)
        unit = np.spacing(np.maximum(np.abs(rounded), np.float32(LEAST_NORMAL)))
        errors = np.abs(made.astype(np.float64) - wanted) / unit.astype(np.float64)
        small = np.maximum(np.abs(made), np.abs(wanted)) < LEAST
    same = (made == rounded) | (np.isnan(made) & np.isnan(wanted)) | small
    return np.where(same, 0, np.nan_to_num(errors, nan=np.inf))
