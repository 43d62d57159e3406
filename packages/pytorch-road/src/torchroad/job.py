# SPDX-License-Identifier: Apache-2.0
"""A model of PyTorch from its file to a verdict: imported, compiled, run, compared, counted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load_file

from crosslab.build.recipe import Recipe
from crosslab.build.runner import Runner
from crosslab.compile.driver import ImportedModule
from crosslab.compile.modes import ESTIMATE
from crosslab.cores.core import Core
from crosslab.cores.cycles import Cycles, cycles_of
from crosslab.run.counter import run_counted
from crosslab.run.emulator import GuestMachine
from crosslab.run.measurement import Counts
from torchroad.answer import CountedAnswer, ask, count_phases
from torchroad.multiply_adds import MultiplyAdds, multiply_adds
from torchroad.program import ImportedProgram

# Largest difference of an output, as a part of the largest of torch's.
TOLERANCE = 1e-4


@dataclass(frozen=True)
class CaseResult:
    """One run.

    Attributes:
        sizes: those that are not the example's; of an answer the phase and its tokens, of several
            calls which of them.
        error: largest difference of any output from torch's, as a part of that output's largest.
        right: shapes and dtypes are torch's, and the error is within bounds.
        counts: instructions of the call; None where the emulator cannot count.
        cycles: those of a core, where one was asked for.
    """

    sizes: Mapping[str, int]
    error: float
    right: bool
    counts: Counts | None
    cycles: Cycles | None


@dataclass(frozen=True)
class TorchResult:
    """Verdict on a model.

    Attributes:
        cases: of each size.
        work: multiply-adds of the example, and those that kernels do.
        answer: of a language model with a paged cache.
    """

    cases: tuple[CaseResult, ...]
    work: MultiplyAdds
    answer: CountedAnswer | None = None

    @property
    def right(self) -> bool:
        """Every case is."""
        return all(case.right for case in self.cases)


def recipe_of(shared: Recipe, program: ImportedProgram) -> Recipe:
    """The recipe of a program's runner, whose multiply-adds are counted, from that of options."""
    return replace(
        shared.of(program.folder),
        mlc_tree=None,
        mode=replace(shared.mode, extras=(ESTIMATE,)),
        require_tensorize=False,
        imported=ImportedModule(program.folder),
    )


def judge(
    program: ImportedProgram,
    runner: Runner,
    machine: GuestMachine,
    core: Core | None,
    cache: Path,
    scratch: Path,
) -> TorchResult:
    """Run every case in the emulator and compare with torch.

    Args:
        program: the imported model.
        runner: with it in it.
        machine: the emulated CPU.
        core: whose cycles are counted; None: none.
        cache: folder of finished builds.
        scratch: folder for files of the runs.

    Raises:
        LabError: a run fails.
    """
    results = []
    for number, sizes in enumerate(program.sizes):
        inputs, expected = program.case(number)
        outputs = scratch / f"{number}-outputs.safetensors"
        arguments = ["run", "--params", str(program.params), "--inputs", str(inputs)]
        arguments += ["--outputs", str(outputs)]
        feeds = ",".join(f"{name}={one}" for name, one in program.about["feeds"].items())
        calls = 1 if number else program.about["steps"]
        arguments += ["--steps", str(calls), *(("--feed", feeds) if feeds else ())]
        _, counted = run_counted(runner.program, arguments, machine, cache)
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
    """Let a language model answer greedily in the emulator and compare with torch.

    The arguments are :func:`judge`'s. There is a case for the prompt and one for the tokens
    after it, whose counts are the mean of a call; the error is that of the logits.

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
    """Largest relative difference of all outputs, and whether they are torch's."""
    if {n: (v.shape, v.dtype) for n, v in outputs.items()} != {
        n: (v.shape, v.dtype) for n, v in expected.items()
    }:
        return float("inf"), False
    worst = 0.0
    for name, wanted in expected.items():
        if not wanted.size:
            continue
        made, asked = outputs[name].astype(np.float64), wanted.astype(np.float64)
        # Infinities and NaNs of torch's are no errors.
        same = (made == asked) | (np.isnan(made) & np.isnan(asked))
        apart = np.abs(np.where(same, 0, made) - np.where(same, 0, asked)).max()
        scale = np.abs(asked[np.isfinite(asked)]).max(initial=0)
        error = float(apart / scale) if scale else float(apart)
        # A NaN is an error without bound.
        worst = max(worst, error if np.isfinite(error) else float("inf"))
    return worst, worst <= TOLERANCE
