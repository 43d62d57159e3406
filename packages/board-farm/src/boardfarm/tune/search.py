# SPDX-License-Identifier: Apache-2.0
"""The search for a function's schedule: candidates, trials, and the check of the winner."""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import tvm
from tvm import ir, tirx
from tvm.s_tir import meta_schedule as ms

from boardfarm.tune.database import keep, open_database
from boardfarm.tune.runner import (
    ATTEMPTS,
    CandidateBuilder,
    FarmRunner,
    TrialAttempt,
    Trials,
    failure,
    is_attempt,
)
from boardfarm.tune.space import design_space
from boardfarm.tune.trial import (
    Arrays,
    SessionHungError,
    SessionLostError,
    TrialAnswer,
    TrialQuestion,
    answer_of,
)
from crosslab.address import Address
from crosslab.compile.overlaypass import load_pass
from crosslab.compile.targets import TRIPLE
from crosslab.errors import LabError
from crosslab.host.objects import shared_linker
from crosslab.host.toolchain import CompilerKind, find_cross

SEARCH_SEEDS, CHECK_SEEDS = (0,), (1, 2, 3)
BUILD_SECONDS = 60.0
PER_ITERATION = 16
# Without a cost model, a larger population only takes longer.
POPULATION = 48


INTRINSICS = "tvm.s_tir.tensor_intrin"


@contextmanager
def without_intrinsics() -> Iterator[None]:
    """Keep MetaSchedule from parsing 496 unused tensor intrinsics, which takes minutes."""
    if INTRINSICS in sys.modules:
        yield
        return
    sys.modules[INTRINSICS] = ModuleType(INTRINSICS)
    try:
        yield
    finally:
        del sys.modules[INTRINSICS]


@dataclass(frozen=True)
class Tuned:
    """The result of tuning a function.

    Attributes:
        name: of the function.
        before: cost of the untuned function.
        after: cost of the winner; ``before`` if no candidate was better.
        trials: number of measured candidates.
        repeated: number of lost sessions that were repeated.
        rejected: reasons of the rejected candidates.
    """

    name: str
    before: int
    after: int
    trials: int
    repeated: int = 0
    rejected: tuple[str, ...] = field(default=())


class NotTunableError(LabError):
    """The error for a function that MetaSchedule cannot schedule."""


def build_library(mod: ir.IRModule, target: Any) -> Any:
    """Compile a function with only :func:`tvm.compile`; upstream's builder reads 496 intrinsics."""
    mod = tvm.s_tir.transform.RemoveWeightLayoutRewriteBlock(skip_tensor_rewrite=True)(mod)
    return tvm.compile(mod, target=target)


def build_candidate(mod: ir.IRModule, target: Any, _params: Any = None) -> Any:
    """Compile a candidate in the form that a model's compile gives to its schedule."""
    return build_library(load_pass("apply_tuned_schedules").compiled_form(mod), target)


def export_library(library: Any) -> str:
    """Link a candidate for riscv64 in a new folder, and return the library's path."""
    cross = find_cross(CompilerKind.CLANG)
    file = Path(tempfile.mkdtemp(prefix="candidate-")) / "candidate.so"
    linker = shared_linker([*cross.cc, *cross.link], TRIPLE)
    library.export_library(str(file), fcompile=linker)
    return str(file)


def tune_function(
    name: str,
    function: tirx.PrimFunc,
    target: dict[str, Any],
    farm: tuple[Address, str, int],
    kept: Path,
    *,
    trials: int,
    seconds: float = 60.0,
    seed: int = 1,
) -> Tuned:
    """Search for a better schedule of a function, and keep the best right schedule.

    Args:
        name: name of the function, for messages.
        function: function with static shapes.
        target: target of the generated code, as a table.
        farm: the tracker, the boards' key, and the number of boards.
        kept: folder of the database.
        trials: number of candidates to measure.
        seconds: time limit of a session.
        seed: of the search.

    Raises:
        NotTunableError: MetaSchedule cannot schedule the function.
        LabError: the untuned function does not run, or the record cannot be written.
    """
    tracker, key, boards = farm
    # The search's rules need the number of cores; the generated code is for a single core.
    aim = tvm.target.Target({**target, "num-cores": 1})
    # The compiler's pass looks up records by the same workload.
    known = load_pass("apply_tuned_schedules")
    mod = known.workload_of(function)
    shapes = tuple(tuple(map(int, b.shape)) for b in buffers_of(function))
    dtypes = tuple(str(b.dtype) for b in buffers_of(function))
    question = TrialQuestion(tracker, key, shapes, dtypes, seconds)
    untuned = Path(export_library(build_library(known.alone(function), aim)))
    try:
        answer = untuned_answer(question, untuned)
    finally:
        shutil.rmtree(untuned.parent, ignore_errors=True)
    right, before, record = answer.arrays, answer.cost, Trials()
    searched = {s: right[s] for s in SEARCH_SEEDS}
    runner = FarmRunner(question, searched, boards, record)
    local = ms.builder.LocalBuilder(
        max_workers=boards,
        timeout_sec=BUILD_SECONDS,
        f_build=build_candidate,
        f_export=export_library,
    )
    with tempfile.TemporaryDirectory(prefix="tune-") as work, aim, without_intrinsics():
        database = open_database(Path(work))
        try:
            ms.tune_tir(
                mod,
                aim,
                work,
                max_trials_global=trials,
                num_trials_per_iter=min(PER_ITERATION, trials),
                builder=CandidateBuilder(local, record),
                runner=runner,
                database=database,
                cost_model=ms.cost_model.RandomModel(),
                space=design_space(),
                # A small space is searched to its end: one new candidate suffices to continue.
                strategy=ms.search_strategy.EvolutionarySearch(
                    population_size=POPULATION, init_min_unmeasured=1, genetic_num_iters=2
                ),
                num_tuning_cores=1,
                seed=seed,
            )
        except tvm.error.InternalError as error:
            why = str(error).strip().splitlines()[-1]
            raise NotTunableError(f"{name}: MetaSchedule cannot schedule it: {why}") from error
        after = _winner(database, mod, aim, runner, right, before, kept)
    reasons = tuple(reason for _, reason in record.rejected)
    return Tuned(name, before, after, record.measured, record.repeated, reasons)


def buffers_of(function: tirx.PrimFunc) -> list[Any]:
    """Return the buffers of a function's parameters, in order."""
    return list(ms.arg_info.ArgInfo.from_prim_func(function))


def untuned_answer(question: TrialQuestion, library: Path) -> TrialAnswer:
    """Return outputs and cost of the untuned function, on the inputs of search and check.

    Raises:
        LabError: the function hangs, or ATTEMPTS sessions are lost.
    """
    lost, left = "", ATTEMPTS
    # Repeat lost sessions, as for a candidate: a killed board is not the function's fault.
    while left:
        try:
            return answer_of(question, library, (*SEARCH_SEEDS, *CHECK_SEEDS))
        except SessionLostError as error:
            lost = str(error)
            left -= is_attempt(question, lost)
        except SessionHungError as error:
            raise LabError(f"the untuned function does not run: {error}") from error
    raise LabError(
        f"the untuned function {failure(lost)}", remedy="nox -s farm -- status says what runs"
    )


def _winner(
    database: Any,
    mod: ir.IRModule,
    target: Any,
    runner: Any,
    right: dict[int, Arrays],
    before: int,
    kept: Path,
) -> int:
    """Keep the best candidate that is right on new inputs, and return its cost, or ``before``."""
    if not database.has_workload(mod):
        return before
    checks = {seed: right[seed] for seed in CHECK_SEEDS}
    for candidate in database.get_top_k(database.commit_workload(mod), PER_ITERATION):
        if round(float(candidate.run_secs[0]) * 1e9) >= before:
            return before
        schedule = tvm.s_tir.Schedule(mod)
        candidate.trace.apply_to_schedule(schedule, remove_postproc=False)
        library = export_library(build_candidate(schedule.mod, target))
        checker = FarmRunner(runner.question, checks, 1, runner.trials)
        attempt: TrialAttempt = checker.attempt(library)
        cost, reason = attempt.result()
        shutil.rmtree(Path(library).parent, ignore_errors=True)
        if not reason and cost < before:
            keep(kept, candidate)
            return cost
    return before
