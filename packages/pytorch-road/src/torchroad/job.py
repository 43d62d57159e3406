# SPDX-License-Identifier: Apache-2.0
"""A PyTorch model from its file to a verdict: imported, compiled, run, compared, counted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from numpy.typing import NDArray
from safetensors.numpy import load_file

from crosslab.assemble.recipe import Recipe
from crosslab.assemble.runner import Runner
from crosslab.compile.driver import ImportedModule
from crosslab.compile.modes import ESTIMATE
from crosslab.cores.core import Core
from crosslab.cores.cycles import Cycles, cycles_of
from crosslab.models.compare import relative_error
from crosslab.run.counter import run_counted
from crosslab.run.emulator import GuestMachine
from crosslab.run.measurement import Counts, Measurement
from torchroad.answer import CountedAnswer, ask, count_phases
from torchroad.multiply_adds import MultiplyAdds, multiply_adds
from torchroad.program import ImportedProgram

# Largest allowed difference of an output, relative to the largest value of torch's output.
TOLERANCE = 1e-4


@dataclass(frozen=True)
class CaseResult:
    """The result of a run.

    Attributes:
        sizes: sizes that differ from the example's; for an answer, the phase and its tokens; for
            several calls, first or later calls and their number.
        error: largest difference from torch's outputs, relative to an output's largest value.
        right: shapes and dtypes are torch's, and the error is within bounds.
        counts: instructions of the call; None if the emulator cannot count.
        cycles: cycles of a core; None without a core.
    """

    sizes: Mapping[str, int]
    error: float
    right: bool
    counts: Counts | None
    cycles: Cycles | None


@dataclass(frozen=True)
class TorchResult:
    """The verdict on a model.

    Attributes:
        cases: results of all runs.
        work: multiply-adds of the example, and the kernels' part.
        answer: of a language model with a paged cache; None for other models.
    """

    cases: tuple[CaseResult, ...]
    work: MultiplyAdds
    answer: CountedAnswer | None = None

    @property
    def right(self) -> bool:
        """True if every case is right."""
        return all(case.right for case in self.cases)


def recipe_of(shared: Recipe, program: ImportedProgram) -> Recipe:
    """Return the recipe of a program's runner, derived from the options' recipe."""
    return replace(
        shared.of(program.folder),
        mlc_tree=None,
        mode=replace(shared.mode, extras=(ESTIMATE,)),
        require_tensorize=False,
        imported=ImportedModule(program.folder),
    )


def run_program(
    program: ImportedProgram,
    runner: Runner,
    machine: GuestMachine,
    cache: Path,
    inputs: Path,
    outputs: Path,
    *words: str,
) -> Measurement | None:
    """Run a program in the emulator, and return its counts; None if the emulator cannot count.

    Args:
        program: the imported model, whose folder has the parameters.
        runner: the built runner, which contains the compiled model.
        machine: the emulated CPU.
        cache: folder of finished builds.
        inputs: file of the inputs, in safetensors.
        outputs: file to write, in safetensors.
        words: further options of ``runner run``.

    Raises:
        LabError: the run fails.
    """
    files = ["--inputs", str(inputs), "--outputs", str(outputs)]
    arguments = ["run", "--params", str(program.params), *files, *words]
    _, counted = run_counted(runner.program, arguments, machine, cache)
    return counted


def judge(
    program: ImportedProgram,
    runner: Runner,
    machine: GuestMachine,
    core: Core | None,
    cache: Path,
    scratch: Path,
) -> TorchResult:
    """Run every case in the emulator and compare its outputs with torch's.

    Args:
        program: the imported model.
        runner: program that contains the model.
        machine: the emulated CPU.
        core: core for the cycles; None: no cycles.
        cache: folder of finished builds.
        scratch: folder for files of the runs.

    Raises:
        LabError: a run fails.
    """
    results = []
    for number, sizes in enumerate(program.sizes):
        inputs, expected = program.case(number)
        outputs = scratch / f"{number}-outputs.safetensors"
        feeds = ",".join(f"{name}={output}" for name, output in program.about["feeds"].items())
        calls = 1 if number else program.about["steps"]
        words = ["--steps", str(calls), *(("--feed", feeds) if feeds else ())]
        counted = run_program(program, runner, machine, cache, inputs, outputs, *words)
        error, right = compare(load_file(outputs), load_file(expected))
        if calls > 1:
            names = {"first call": 1, "later call": calls - 1}
            for phase in count_phases(counted, 1, names, core):
                which = {phase.name: phase.tokens}
                results.append(CaseResult(which, error, right, phase.counts, phase.cycles))
            continue
        cycles = cycles_of(core, counted.histogram(), 1) if core and counted else None
        counts = counted.region if counted else None
        results.append(CaseResult(sizes, error, right, counts, cycles))
    work = multiply_adds(runner.library, "main", program.example_sizes)
    return TorchResult(tuple(results), work)


def judge_answer(
    program: ImportedProgram,
    runner: Runner,
    machine: GuestMachine,
    core: Core | None,
    cache: Path,
) -> TorchResult:
    """Let a language model answer greedily in the emulator, and compare with torch's answer.

    The arguments are :func:`judge`'s. The result has a case for the prompt, and a case for the
    tokens after it, whose counts are the mean of a call; the error is that of the logits.

    Raises:
        LabError: the run fails.
    """
    wanted = load_file(program.answer)
    prompt = program.about["prompt"]
    answer = ask(
        runner.program, program.params, prompt, wanted["logits"].shape, machine, core, cache
    )
    error, right = compare({"logits": answer.logits}, {"logits": wanted["logits"]})
    right = right and answer.tokens == tuple(wanted["tokens"].tolist())
    results = tuple(
        CaseResult({phase.name: phase.tokens}, error, right, phase.counts, phase.cycles)
        for phase in answer.phases
    )
    sizes = {**program.example_sizes, "context": len(prompt)}
    return TorchResult(results, multiply_adds(runner.library, "prefill", sizes), answer)


def compare(
    outputs: Mapping[str, NDArray[Any]], expected: Mapping[str, NDArray[Any]]
) -> tuple[float, bool]:
    """Return the largest :func:`relative_error` of an output, and True if it is <= TOLERANCE.

    Other names, shapes or dtypes are an infinite error.
    """
    if {n: (v.shape, v.dtype) for n, v in outputs.items()} != {
        n: (v.shape, v.dtype) for n, v in expected.items()
    }:
        return float("inf"), False
    worst = max((relative_error(outputs[n], wanted) for n, wanted in expected.items()), default=0.0)
    return worst, worst <= TOLERANCE
