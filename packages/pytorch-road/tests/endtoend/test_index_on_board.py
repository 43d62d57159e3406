# SPDX-License-Identifier: Apache-2.0
"""The runner refuses an index beyond the axis that it is for, as other bad input."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file
from support import shared_builds

from crosslab.assemble.recipe_options import read_recipe
from crosslab.assemble.runner import build_runner
from crosslab.run.emulator import run_guest
from torchroad.cli import parser
from torchroad.job import recipe_of
from torchroad.program import TorchModel, import_model

MODELS = Path(__file__).parents[4] / "tests" / "support" / "models" / "odd_torch_models.py"
pytestmark = [pytest.mark.slow, pytest.mark.thorough]


@pytest.mark.usefixtures("emulator")
def test_the_runner_refuses_an_index_beyond_its_axis(tmp_path: Path) -> None:
    if importlib.util.find_spec("torch") is None:
        pytest.skip("torch is not installed: nox -s torch and nox -s tests install it")
    shared_builds.cross()
    tree, cache = shared_builds.tvm_tree(), shared_builds.CACHE
    args = parser().parse_args(["-", "--tvm-tree", str(tree), "--cache", str(cache)])
    folder, inputs, outputs = (tmp_path / name for name in ("program", "in", "out"))
    folder.mkdir()
    program = import_model(TorchModel(MODELS, "places_of_a_table", {}), tree, folder)
    runner = build_runner(recipe_of(read_recipe(args, "q0f32"), program), cache)
    words = ["run", "--params", str(program.params), "--inputs", str(inputs)]
    words += ["--outputs", str(outputs)]

    (name,) = (entry["name"] for entry in program.about["inputs"]["main"])
    for place, code in ((8, 0), (9, 2), (-1, 2)):
        outputs.unlink(missing_ok=True)
        save_file({name: np.array([[0, place, 1]])}, inputs)
        done = run_guest(runner.program, words, check=False)
        assert done.returncode == code, done.stderr
        assert outputs.exists() == (code == 0)
    assert done.stderr == (
        "runner: aten.embedding.default in module function: index -1 is beyond its axis, "
        "whose indices are 0 to 8\n"
    )
