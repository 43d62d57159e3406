# SPDX-License-Identifier: Apache-2.0
"""The surveying process: ``python -m torchroad.survey.worker SPEC.json``.

It runs on the patched tree. Each case has a process of its own, in which it may fail: exported,
imported, compiled for this machine by the project's passes and kernels, and compared with torch.
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
from collections.abc import Sequence
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
from torchroad.survey.architectures.outputs import Factory
from torchroad.survey.cases import all_cases
from torchroad.survey.outcome import MARK, TOLERANCE, Outcome, Verdict


def settings_of(kernels: Path) -> LibraryRequest:
    """The passes' settings for this machine, with compiled kernels."""
    # The promise of no aliases makes LLVM slower on this machine, and gains nothing.
    mode = KernelMode(extras=(ESTIMATE,))
    return LibraryRequest(form="shared", kernels=kernels, steps=("-noalias",), mode=mode)


def judge(name: str, kind: str, factory: Factory, kernels: Path) -> Outcome:
    """The verdict on one case, in this process."""
    begin = time.perf_counter()
    torch.manual_seed(0)
    found = Outcome(name, kind, Verdict.FAILED)
    try:
        example = make_example(factory, Path(name))
        with tempfile.TemporaryDirectory(prefix="survey-") as folder:
            os.environ |= settings_of(kernels).configure(Path(folder))
            found = _compared(found, example, Path(folder))
    except UserError as refused:
        found = replace(found, verdict=Verdict.REFUSED, told=refused.what)
    except LabError as fault:
        found = replace(found, told=fault.what)
    except Exception as fault:
        found = replace(found, told=f"{type(fault).__name__}: {fault}")
    return replace(found, seconds=round(time.perf_counter() - begin, 2))


def _compared(found: Outcome, example: Example, folder: Path) -> Outcome:
    """The outcome of an example that is compiled in a folder, for this machine."""
    _, module, params = function_of(example, {})
    library = compile_for_host(module, folder)
    machine = relax.VirtualMachine(tvm.runtime.load_module(str(library)), tvm.cpu())
    inputs = [tvm.runtime.tensor(t.detach().contiguous().numpy()) for t in example.tensors()]
    made = machine["main"](*inputs, *([list(params.values())] if params else []))
    made = [made] if isinstance(made, tvm.runtime.Tensor) else list(made)
    judged = judge_outputs(example, [one.numpy() for one in made])
    report = json.loads((folder / "tensorized.json").read_text(encoding="utf-8"))
    work = multiply_adds(CompiledModel(folder, library, {}, report), "main", {})
    plain = (f"{name}: {amount:,}" for name, amount in work.plain.items())
    return replace(
        found,
        verdict=Verdict.RIGHT if judged.right else Verdict.WRONG,
        error=judged.error,
        share=round(work.share, 4) if work.total else None,
        told=", ".join((*judged.told, *plain)),
    )


@dataclass(frozen=True)
class Judged:
    """Whether outputs are right.

    Attributes:
        error: largest difference in relation to an output's largest value.
        right: the error is within bounds.
        told: what the bound was, where it is not :data:`TOLERANCE` from torch's outputs.
    """

    error: float
    right: bool
    told: tuple[str, ...] = ()


def judge_outputs(example: Example, made: Sequence[NDArray[Any]]) -> Judged:
    """Compare outputs with torch's, and if they differ both with the same model in float64.

    In a deep model sums of float32 in any order are apart by more than the tolerance. Outputs are
    right, too, if they are as near to the model's in float64 as torch's own float32 are.

    Args:
        example: the model and its inputs.
        made: the outputs.
    """
    expected = [one.detach().numpy() for one in example.outputs()]
    error, _ = compare(_by_place(made), _by_place(expected))
    if error <= TOLERANCE or not math.isfinite(error):
        return Judged(error, error <= TOLERANCE)
    try:
        exact = _by_place([one.detach().numpy() for one in example.in_double().outputs()])
    except UserError as fault:  # a model can insist on float32
        return Judged(error, False, (f"not computed in float64: {fault.what}",))
    ours, theirs = (
        compare(_by_place([_widened(one) for one in outputs]), exact)[0]
        for outputs in (made, expected)
    )
    told = f"from float64: ours {ours:.1e}, torch's float32 {theirs:.1e}"
    return Judged(ours, ours <= max(theirs, TOLERANCE), (told,))


def _by_place(outputs: Sequence[NDArray[Any]]) -> dict[str, NDArray[Any]]:
    return {str(place): one for place, one in enumerate(outputs)}


def _widened(output: NDArray[Any]) -> NDArray[Any]:
    return output.astype(np.float64) if output.dtype == np.float32 else output


def compile_for_host(module: Any, folder: Path) -> Path:
    """Compile a module as the road does, for this machine; the passes' reports go to the folder."""
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
    end_with_parent(parent)  # which alone ends a case that takes too long
    torch.set_num_threads(1)
    pipe.send(judge(*case))


def judged(name: str, kind: str, factory: Factory, kernels: Path, seconds: float) -> Outcome:
    """The verdict on one case, in a process of its own that may take so many seconds."""
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe(duplex=False)
    case = (name, kind, factory, kernels)
    process = context.Process(target=_judge_into, args=(os.getpid(), theirs, *case))
    process.start()
    theirs.close()
    try:
        if ours.poll(seconds):
            found: Outcome = ours.recv()
            return found
        told = f"no result in {seconds:.0f} s"
    except EOFError:
        process.join()
        told = f"the process ended with {process.exitcode}"
    finally:
        process.kill()
        process.join()
    return Outcome(name, kind, Verdict.FAILED, told=told)


def chosen(spec: dict[str, Any], cases: dict[str, Any]) -> list[str]:
    """Names of the cases that the specification chooses.

    Raises:
        UserError: there is no case of a name.
    """
    for wanted in spec["names"]:
        if not any(_is(name, wanted) for name in cases):
            raise UserError(f"{wanted!r} is no case of the survey")
    names = [n for n in cases if not spec["names"] or any(_is(n, w) for w in spec["names"])]
    return [name for name in names if name not in spec["done"]][: spec["first"]]


def _is(name: str, wanted: str) -> bool:
    """True if a case has a name, or is a setting of the module that has it."""
    return wanted in (name, name.rpartition(" ")[0])


def main(arguments: list[str]) -> int:
    """Print an outcome for each case that the specification chooses."""
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
    # What torch imports at its first export, it then has in each case's process.
    export(make_example(lambda: (torch.nn.Linear(2, 2), (torch.zeros(1, 2),)), Path()), {})
    for name in names:
        kind, factory = cases[name]
        outcome = judged(name, kind, factory, kernels, spec["seconds"])
        print(MARK + json.dumps(asdict(outcome)), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
