# SPDX-License-Identifier: Apache-2.0
"""Models compiled for this machine by the project's passes and kernels, compared with torch's."""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import tvm
from numpy.typing import NDArray
from tvm import relax

from crosslab.compile.driver import CompiledModel
from crosslab.compile.overlaypass import load_pass
from crosslab.compile.pipeline import PASS_CONFIG, pipeline
from crosslab.compile.targets import LabTarget
from crosslab.errors import UserError
from crosslab.host.objects import shared_linker
from crosslab.host.toolchain import find_native
from torchroad.example import Example
from torchroad.importer import function_of
from torchroad.job import compare
from torchroad.multiply_adds import multiply_adds

# Largest allowed difference of an output, relative to the largest value of torch's output.
TOLERANCE = 1e-5
# Smaller numbers are 0: functions give 0 for some of them, see test_ulp.py.
LEAST = 2.0**-117
# Factors and shifts of the inputs of modules and operators: errors hide at the size of 1.
SCALES = ((1.0, 0.0), (1e-4, 0.0), (1e3, 0.0), (1.0, 100.0), (1.0, -20.0))
Arrays = Sequence[NDArray[Any]]


@dataclass(frozen=True)
class Judged:
    """The verdict on outputs.

    Attributes:
        error: largest difference, relative to an output's largest value.
        right: the error is within bounds.
        note: the inputs' scale, and the errors from float64 if they decided.
        share: part of the multiply-adds that kernels do; None without multiply-adds.
    """

    error: float
    right: bool
    note: str = ""
    share: float | None = None


class Compiled:
    """A module's library for this machine.

    Attributes:
        share: part of the multiply-adds that kernels do; None without multiply-adds.
    """

    def __init__(self, module: Any, params: Mapping[str, Any], folder: Path) -> None:
        """Compile a module in the folder of the passes' configuration."""
        # A process keeps a library that it loaded from a path.
        library = folder / f"{len(list(folder.glob('*.so')))}.so"
        target = tvm.target.Target(LabTarget("host").table())
        with target, tvm.transform.PassContext(config=PASS_CONFIG):
            built = relax.build(
                module,
                target,
                relax_pipeline=pipeline(target, {}, {}, gemv=False),
                tir_pipeline=load_pass("tir_pipeline").registered(),
            )
        linker = shared_linker(find_native().cc, target.attrs["mtriple"])
        built.export_library(str(library), fcompile=linker)
        report = json.loads((folder / "tensorized.json").read_text(encoding="utf-8"))
        work = multiply_adds(CompiledModel(folder, library, {}, report), "main", {})
        self.share = work.share if work.total else None
        self._machine = relax.VirtualMachine(tvm.runtime.load_module(str(library)), tvm.cpu())
        self._params = [list(params.values())] if params else []

    def __call__(self, inputs: Arrays) -> list[NDArray[Any]]:
        """Return the outputs."""
        tensors = [tvm.runtime.tensor(np.asarray(value, order="C")) for value in inputs]
        outputs = self._machine["main"](*tensors, *self._params)
        outputs = [outputs] if isinstance(outputs, tvm.runtime.Tensor) else list(outputs)
        return [output.numpy() for output in outputs]


def judged(example: Example, scales: Sequence[tuple[float, float]], folder: Path) -> Judged:
    """Return the worst verdict on a model of torch, for its inputs at some scales.

    Raises:
        UserError: the model is refused.
    """
    _, module, params = function_of(example, {})
    compiled = Compiled(module, params, folder)
    found = []
    for factor, shift in scales:
        scaled = with_inputs(example, lambda x, f=factor, s=shift: x * f + s)
        outputs = compiled([tensor.detach().numpy() for tensor in scaled.tensors()])
        one = judge_outputs(scaled, outputs)
        note = f"inputs * {factor:g} + {shift:g}; {one.note}"
        found.append(replace(one, note=note, share=compiled.share))
    return max(found, key=lambda one: (not one.right, one.error))


def with_inputs(example: Example, changed: Callable[[Any], Any]) -> Example:
    """Return the example with changed floating-point inputs."""

    def of(value: Any) -> Any:
        return changed(value) if value.is_floating_point() else value

    by_name = {name: of(value) for name, value in example.by_name.items()}
    return replace(example, by_place=tuple(map(of, example.by_place)), by_name=by_name)


def in_double(example: Example) -> Example:
    """Return the example with its floating-point weights and inputs in float64."""
    wide = replace(example, model=copy.deepcopy(example.model).double())
    return with_inputs(wide, lambda x: x.double())


def judge_outputs(example: Example, made: Arrays) -> Judged:
    """Compare outputs with torch's; if they differ, compare both with the model in float64.

    In a deep model, float32 sums in different orders differ by more than the tolerance. Outputs are
    also right if they are as near to the float64 model's outputs as torch's float32 outputs are.
    """
    expected = [output.detach().numpy() for output in example.outputs()]
    error, _ = compare(by_place(made), by_place(expected))
    if error <= TOLERANCE or not math.isfinite(error):
        return Judged(error, error <= TOLERANCE)
    try:
        exact = by_place([output.detach().numpy() for output in in_double(example).outputs()])
    except UserError as fault:  # a model can insist on float32
        return Judged(error, False, f"not computed in float64: {fault.what}")
    own_error, torch_error = (
        compare(by_place([_widened(output) for output in outputs]), exact)[0]
        for outputs in (made, expected)
    )
    note = f"from float64: ours {own_error:.1e}, torch's float32 {torch_error:.1e}"
    return Judged(own_error, own_error <= max(torch_error, TOLERANCE), note)


def by_place(outputs: Arrays) -> dict[str, NDArray[Any]]:
    """Return outputs by their numbers, with 0 for numbers that functions may give as 0."""
    return {
        str(place): np.where(np.abs(one) < LEAST, 0, one) if one.dtype.kind == "f" else one
        for place, one in enumerate(outputs)
    }


def _widened(output: NDArray[Any]) -> NDArray[Any]:
    return output.astype(np.float64) if output.dtype == np.float32 else output


def enliven(module: torch.nn.Module) -> None:
    """Change a module's weights so that every weight affects the outputs.

    Initial norms are ones and zeros, and initial weights of deep models are so small that the
    outputs hardly depend on the inputs: both hide errors.
    """
    for value in (*module.parameters(), *module.buffers()):
        if value.is_floating_point() and value.dim() > 1:
            torch.nn.init.kaiming_normal_(value.data)
        elif value.is_floating_point():
            value.data.add_(torch.rand_like(value), alpha=0.5)
