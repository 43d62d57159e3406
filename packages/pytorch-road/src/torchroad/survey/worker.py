# SPDX-License-Identifier: Apache-2.0
"""The surveying process: ``python -m torchroad.survey.worker SPEC.json``.

The process runs on the patched tree. Each case runs in a separate process, which may fail: export,
import, compilation for this machine with the project's passes and kernels, comparison with torch.
SPEC chooses the cases, see :mod:`torchroad.survey.cli`; each outcome is a line of JSON on standard
output.
"""

from __future__ import annotations

import json
import logging
import math
import multiprocessing
import os
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import tvm
from numpy.typing import NDArray
from tvm import relax

from crosslab.compile.driver import CompiledModel, LibraryRequest
from crosslab.compile.modes import ESTIMATE, KernelMode
from crosslab.compile.overlaypass import load_pass
from crosslab.compile.pipeline import PASS_CONFIG, pipeline
from crosslab.compile.targets import LabTarget
from crosslab.errors import LabError, UserError
from crosslab.host.objects import shared_linker
from crosslab.host.toolchain import find_native
from groundwork.interrupts import end_with_parent
from torchroad.example import Example, make_example
from torchroad.importer import export, function_of
from torchroad.job import compare
from torchroad.multiply_adds import multiply_adds
from torchroad.onnx_model import import_onnx
from torchroad.survey.architectures.outputs import Factory
from torchroad.survey.cases import all_cases
from torchroad.survey.onnx_cases import OnnxCase
from torchroad.survey.outcome import MARK, TOLERANCE, Outcome, Verdict

# Smaller numbers are 0: functions give 0 for some of them, see ``--ulp``.
LEAST = 2.0**-117
# Factors and shifts of the inputs of modules and operators: errors hide at the size of 1.
SCALES = ((1.0, 0.0), (1e-4, 0.0), (1e3, 0.0), (1.0, 100.0), (1.0, -20.0))


def settings_of(kernels: Path) -> LibraryRequest:
    """Return the passes' settings for this machine, with compiled kernels."""
    # The attribute noalias slows LLVM down on this machine without a gain.
    mode = KernelMode(extras=(ESTIMATE,))
    return LibraryRequest(form="shared", kernels=kernels, steps=("-noalias",), mode=mode)


def judge(name: str, kind: str, factory: Factory, kernels: Path) -> Outcome:
    """Return the outcome of a case, computed in this process."""
    begin = time.perf_counter()
    torch.manual_seed(0)
    outcome = Outcome(name, kind, Verdict.FAILED)
    try:
        with tempfile.TemporaryDirectory(prefix="survey-") as folder:
            os.environ |= settings_of(kernels).configure(Path(folder))
            if kind.startswith("onnx"):
                case: Any = factory()
                outcome = _onnx_compared(outcome, case, Path(folder))
            else:
                outcome = _compared(outcome, make_example(factory, Path(name)), Path(folder))
    except UserError as refused:
        outcome = replace(outcome, verdict=Verdict.REFUSED, told=refused.what)
    except LabError as fault:
        outcome = replace(outcome, told=fault.what)
    except Exception as fault:
        outcome = replace(outcome, told=f"{type(fault).__name__}: {fault}")
    return replace(outcome, seconds=round(time.perf_counter() - begin, 2))


def _compared(outcome: Outcome, example: Example, folder: Path) -> Outcome:
    """Compile an example in a folder for this machine, run it, and return its outcome."""
    _, module, params = function_of(example, {})
    library, call = _compiled(module, params, folder)
    judgements = []
    for factor, shift in SCALES if outcome.kind != "architecture" else SCALES[:1]:
        scaled = example.scaled(factor, shift)
        outputs = call([tensor.detach().numpy() for tensor in scaled.tensors()])
        one = judge_outputs(scaled, outputs)
        where = (f"inputs * {factor:g} + {shift:g}",) if (factor, shift) != SCALES[0] else ()
        judgements.append(replace(one, told=(*where, *one.told)))
    judged = max(judgements, key=lambda one: (not one.right, one.error))
    return _told(outcome, judged, library, folder)


def _onnx_compared(outcome: Outcome, case: OnnxCase, folder: Path) -> Outcome:
    """Compile a model in ONNX in a folder for this machine, run it, and return its outcome."""
    module, params, _ = import_onnx({"main": (case.model, case.inputs)})
    library, call = _compiled(module, params, folder)
    outputs = call(list(case.inputs.values()))
    error, right = compare(_by_place(outputs), _by_place(case.outputs))
    return _told(outcome, Judged(error, right), library, folder)


Call = Callable[[Sequence[NDArray[Any]]], list[NDArray[Any]]]


def _compiled(module: Any, params: dict[str, Any], folder: Path) -> tuple[Path, Call]:
    """Return a module's library for this machine, and a function that calls it."""
    library = compile_for_host(module, folder)
    machine = relax.VirtualMachine(tvm.runtime.load_module(str(library)), tvm.cpu())

    def call(inputs: Sequence[NDArray[Any]]) -> list[NDArray[Any]]:
        tensors = [tvm.runtime.tensor(np.ascontiguousarray(value)) for value in inputs]
        outputs = machine["main"](*tensors, *([list(params.values())] if params else []))
        outputs = [outputs] if isinstance(outputs, tvm.runtime.Tensor) else list(outputs)
        return [output.numpy() for output in outputs]

    return library, call


def _told(outcome: Outcome, judged: Judged, library: Path, folder: Path) -> Outcome:
    """Return the outcome of a comparison, with the kernels' share of the multiply-adds."""
    report = json.loads((folder / "tensorized.json").read_text(encoding="utf-8"))
    work = multiply_adds(CompiledModel(folder, library, {}, report), "main", {})
    plain = (f"{name}: {amount:,}" for name, amount in work.plain.items())
    return replace(
        outcome,
        verdict=Verdict.RIGHT if judged.right else Verdict.WRONG,
        error=judged.error,
        share=round(work.share, 4) if work.total else None,
        told=", ".join((*judged.told, *plain)),
    )


@dataclass(frozen=True)
class Judged:
    """The verdict on outputs.

    Attributes:
        error: largest difference, relative to an output's largest value.
        right: the error is within bounds.
        told: texts on the bound, if the comparison with float64 decided.
    """

    error: float
    right: bool
    told: tuple[str, ...] = ()


def judge_outputs(example: Example, made: Sequence[NDArray[Any]]) -> Judged:
    """Compare outputs with torch's; if they differ, compare both with the model in float64.

    In a deep model, float32 sums in different orders differ by more than the tolerance. Outputs are
    also right if they are as near to the float64 model's outputs as torch's float32 outputs are.

    Args:
        example: the model and its inputs.
        made: the outputs.
    """
    expected = [output.detach().numpy() for output in example.outputs()]
    error, _ = compare(_by_place(made), _by_place(expected))
    if error <= TOLERANCE or not math.isfinite(error):
        return Judged(error, error <= TOLERANCE)
    try:
        exact = _by_place([output.detach().numpy() for output in example.in_double().outputs()])
    except UserError as fault:  # a model can insist on float32
        return Judged(error, False, (f"not computed in float64: {fault.what}",))
    own_error, torch_error = (
        compare(_by_place([_widened(output) for output in outputs]), exact)[0]
        for outputs in (made, expected)
    )
    note = f"from float64: ours {own_error:.1e}, torch's float32 {torch_error:.1e}"
    return Judged(own_error, own_error <= max(torch_error, TOLERANCE), (note,))


def _by_place(outputs: Sequence[NDArray[Any]]) -> dict[str, NDArray[Any]]:
    return {
        str(place): np.where(np.abs(one) < LEAST, 0, one) if one.dtype.kind == "f" else one
        for place, one in enumerate(outputs)
    }


def _widened(output: NDArray[Any]) -> NDArray[Any]:
    return output.astype(np.float64) if output.dtype == np.float32 else output


def compile_for_host(module: Any, folder: Path) -> Path:
    """Compile a module for this machine as the command does; write reports to the folder."""
    target = tvm.target.Target(LabTarget("host").table())
    with target, tvm.transform.PassContext(config=PASS_CONFIG):
        built = relax.build(
            module,
            target,
            relax_pipeline=pipeline(target, {}, {}, gemv=False),
            tir_pipeline=load_pass("tir_pipeline").registered(),
        )
    library = folder / "model.so"
    built.export_library(
        str(library), fcompile=shared_linker(find_native().cc, target.attrs["mtriple"])
    )
    return library


def _judge_into(parent: int, pipe: Any, *case: Any) -> None:
    end_with_parent(parent)  # the parent ends cases that take too long
    torch.set_num_threads(1)
    pipe.send(judge(*case))


def judged(name: str, kind: str, factory: Factory, kernels: Path, seconds: float) -> Outcome:
    """Return the outcome of a case, computed in a separate process within ``seconds``."""
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    case = (name, kind, factory, kernels)
    process = context.Process(target=_judge_into, args=(os.getpid(), sender, *case))
    process.start()
    sender.close()
    try:
        if receiver.poll(seconds):
            outcome: Outcome = receiver.recv()
            return outcome
        problem = f"no result in {seconds:.0f} s"
    except EOFError:
        process.join()
        problem = f"the process ended with {process.exitcode}"
    finally:
        process.kill()
        process.join()
    return Outcome(name, kind, Verdict.FAILED, told=problem)


def chosen(spec: dict[str, Any], cases: dict[str, Any]) -> list[str]:
    """Return the names of the cases that the specification chooses.

    Raises:
        UserError: no case has a given name.
    """
    for wanted in spec["names"]:
        if not any(_is(name, wanted) for name in cases):
            raise UserError(f"{wanted!r} is no case of the survey")
    names = [n for n in cases if not spec["names"] or any(_is(n, w) for w in spec["names"])]
    return [name for name in names if name not in spec["done"]][: spec["first"]]


def _is(name: str, wanted: str) -> bool:
    """Return True if a case has the name ``wanted``, or is a setting of the module ``wanted``."""
    return wanted in (name, name.rpartition(" ")[0])


def main(arguments: list[str]) -> int:
    """Run the chosen cases, and print an outcome for each."""
    spec = json.loads(Path(arguments[0]).read_text(encoding="utf-8"))
    end_with_parent(spec["parent"])
    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
    cases, kernels = all_cases(spec["kinds"]), Path(spec["kernels"])
    try:
        names = chosen(spec, cases)
    except UserError as error:
        print(MARK + json.dumps({"what": error.what}), flush=True)
        return 0
    # Each case's process inherits the modules that torch imports at its first export.
    export(make_example(lambda: (torch.nn.Linear(2, 2), (torch.zeros(1, 2),)), Path()), {})
    for name in names:
        kind, factory = cases[name]
        outcome = judged(name, kind, factory, kernels, spec["seconds"])
        print(MARK + json.dumps(asdict(outcome)), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
