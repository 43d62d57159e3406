# SPDX-License-Identifier: Apache-2.0
"""Errors of functions in units in the last place (ulp), for several register lengths, in QEMU."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors.numpy import load_file
from support import shared_builds

from crosslab.assemble.recipe_options import read_recipe
from crosslab.assemble.runner import build_runner
from crosslab.run.emulator import GuestMachine
from torchroad.cli import parser
from torchroad.job import recipe_of, run_program
from torchroad.program import TorchModel, import_model

# Functions may give 0 for results below the first: below e^-86.25 they compute no digits. Numbers
# below the second are subnormal.
LEAST, LEAST_NORMAL = 2.0**-117, 2.0**-126
# Arguments of sine and cosine up to this are measured.
MOST_ANGLE = 2.0**17
MOST_ULPS = 6
FILE = Path(__file__).with_name("functions.py")


@pytest.mark.survey
@pytest.mark.usefixtures("emulator")
@pytest.mark.parametrize("vlen", [128, 256, 512, 1024])
def test_functions_have_the_last_digits(
    vlen: int, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    from functions import FUNCTIONS, exact  # noqa: PLC0415 - it needs torch

    shared_builds.cross()
    tree, cache = shared_builds.tvm_tree(), shared_builds.CACHE
    words = ["-", "--vlen", str(vlen), "--tvm-tree", str(tree), "--cache", str(cache)]
    shared = replace(read_recipe(parser().parse_args(words), "q0f32"), cores=(), strip=False)
    program = import_model(TorchModel.parse(f"{FILE}:functions", []), tree, tmp_path)
    inputs, expected = program.case(0)
    outputs = tmp_path / "outputs"
    runner = build_runner(recipe_of(shared, program), cache)
    run_program(program, runner, GuestMachine(vlen=vlen), cache, inputs, outputs)
    x, ours, theirs = (load_file(file) for file in (inputs, outputs, expected))
    wide = torch.from_numpy(x["x"])
    for number, name in enumerate(FUNCTIONS):
        output, wanted = f"output_{number}", exact(name, wide).numpy()
        counted = np.abs(x["x"]) <= (MOST_ANGLE if name in ("sin", "cos") else np.inf)
        errors = [ulps(each[output][counted], wanted[counted]) for each in (ours, theirs)]
        cells = [f"{e.max():.2g} at {x['x'][counted][e.argmax()]:.4g}" for e in errors]
        record_property("ulp", " | ".join((name, *cells)))
        assert errors[0].max() <= MOST_ULPS, f"{name}: {cells[0]}"


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


def test_a_unit_is_the_distance_to_the_next_float32() -> None:
    wanted = np.array([1.0, 1024.0, -1e-3, np.nan, np.inf, 1e-40, 1.0])
    made = wanted.astype(np.float32)
    made[:3] = np.nextafter(made[:3], np.float32(1e9))
    made[-2:] = 0, np.nan
    errors = ulps(made, wanted)
    assert np.allclose(errors[:2], 1)
    assert 0.5 <= errors[2] <= 1.5
    assert errors[3:6].tolist() == [0, 0, 0]
    assert errors[6] > 1e300
