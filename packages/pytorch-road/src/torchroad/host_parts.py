# SPDX-License-Identifier: Apache-2.0
"""The CPU's parts of a model that a device computes, as code for RVV in the emulator."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from safetensors.numpy import load_file

from crosslab.assemble.recipe import Recipe
from crosslab.assemble.runner import Runner, build_runner
from crosslab.errors import LabError
from crosslab.run.emulator import GuestMachine
from torchroad.job import compare, recipe_of, run_program
from torchroad.program import ONNX, ImportedProgram, TorchModel, import_model, save_arrays

Array = NDArray[Any]


@dataclass
class HostParts:
    """Computes parts by a library with a function for each, which the emulator runs.

    Attributes:
        parts: of a companion package's classifier.
        shared: recipe with the options of the command.
        machine: the emulated CPU.
        cache: folder of finished builds.
        folder: new folder for the parts in ONNX, the imported parts, and the runs.
        instructions: of all runs; error: the largest difference from onnxruntime, relative to an
            output's largest value.
    """

    parts: Sequence[Any]
    shared: Recipe
    machine: GuestMachine
    cache: Path
    folder: Path
    instructions: int = 0
    error: float = 0.0

    @cached_property
    def program(self) -> ImportedProgram:
        """The imported parts.

        Raises:
            UserError: TVM cannot import a part.
        """
        models = self.folder / f"parts{ONNX}"
        models.mkdir(parents=True)
        for part in self.parts:
            onnx.save(part.model, models / f"{_function(part)}{ONNX}")
        return import_model(TorchModel(models, "", {}), self.shared.tvm_tree, self.folder)

    @cached_property
    def runner(self) -> Runner:
        """The program that contains the parts."""
        return build_runner(recipe_of(self.shared, self.program), self.cache)

    def __call__(self, part: Any, feed: Mapping[str, Array]) -> list[Array]:
        """Return the outputs of a part for its inputs by name.

        Raises:
            UserError: TVM cannot import a part.
            LabError: a build or the run fails, or the outputs are not onnxruntime's.
        """
        name = _function(part)
        inputs, outputs = (self.folder / f"{name}-{word}" for word in ("in", "out"))
        names = [entry["name"] for entry in self.program.about["inputs"][name]]
        save_arrays(dict(zip(names, feed.values(), strict=True)), inputs)
        words = ("--function", name)
        counted = run_program(
            self.program, self.runner, self.machine, self.cache, inputs, outputs, *words
        )
        found = load_file(outputs)
        expected = {f"output_{i}": np.asarray(each) for i, each in enumerate(part(feed))}
        error, right = compare(found, expected)
        if not right:
            operators = ", ".join(node.op_type for node in part.model.graph.node)
            raise LabError(
                f"the CPU's part of {operators} differs from onnxruntime by {error:.1e} of an "
                "output's largest value"
            )
        self.instructions += counted.region.insns if counted else 0
        self.error = max(self.error, error)
        return [found[each] for each in expected]


def _function(part: Any) -> str:
    """Return the name of a part's function."""
    return f"part_{part.number}"
