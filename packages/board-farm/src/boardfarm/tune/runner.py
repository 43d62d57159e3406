# SPDX-License-Identifier: Apache-2.0
"""MetaSchedule's builder and runner, which repeat lost sessions and record faulty candidates."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tvm.ir.utils import derived_object
from tvm.s_tir.meta_schedule.builder import PyBuilder
from tvm.s_tir.meta_schedule.runner import PyRunner, RunnerResult
from tvm.s_tir.meta_schedule.runner.runner import PyRunnerFuture
from tvm.support.popen_pool import PopenPoolExecutor

from boardfarm.processes import joined_boards
from boardfarm.tune.trial import NO_BOARD, Arrays, TrialQuestion, trial

# A candidate that loses this many sessions, each on the next free board, is faulty. While no board
# has joined, it loses none.
ATTEMPTS = 3
LOST = "lost: "


@dataclass
class Trials:
    """The record of a task's trials.

    Attributes:
        measured: number of candidates with a cost.
        repeated: number of lost sessions that were repeated.
        rejected: library and reason of each rejected candidate.
    """

    measured: int = 0
    repeated: int = 0
    rejected: list[tuple[str, str]] = field(default_factory=list)


def is_attempt(question: TrialQuestion, reason: str) -> bool:
    """Return False if a session was lost because no board has joined: then the search waits."""
    waits = reason.removeprefix(LOST).startswith(NO_BOARD)
    return not waits or bool(joined_boards(question.tracker, question.key))


def failure(reason: str) -> str:
    """Return the message for a library whose ATTEMPTS sessions were lost for a reason."""
    if reason.startswith(NO_BOARD):
        return f"was not measured in {ATTEMPTS} attempts: {reason}"
    return f"crashed {ATTEMPTS} boards: {reason}"


class TrialAttempt:
    """A trial of a candidate, which is repeated if its session is lost."""

    def __init__(
        self, submit: Callable[[], Any], question: TrialQuestion, library: str, trials: Trials
    ) -> None:
        self._submit, self._question, self._library = submit, question, library
        self._trials = trials
        self._left, self._future = ATTEMPTS, submit()

    def done(self) -> bool:
        """Return True if the trial has ended; else, if its session was lost, start it again."""
        if not self._future.done():
            return False
        reason = self._outcome()[1]
        if not reason.startswith(LOST):
            return True
        if is_attempt(self._question, reason):
            if self._left == 1:
                return True
            self._left -= 1
        self._trials.repeated += 1
        self._future = self._submit()
        return False

    def result(self) -> tuple[int, str]:
        """Wait for the trial; return the cost and "", or 0 and the reason of the rejection."""
        while True:
            cost, reason = self._outcome()
            if self.done():
                break
        if reason.startswith(LOST):
            reason = failure(reason.removeprefix(LOST))
        if reason:
            self._trials.rejected.append((self._library, reason))
        else:
            self._trials.measured += 1
        return cost, reason

    def _outcome(self) -> tuple[int, str]:
        try:
            cost, reason = self._future.result()
        except TimeoutError:
            return 0, f"{LOST}{NO_BOARD}"
        except Exception as error:  # the process that measures has ended
            return 0, f"{LOST}{error}"
        return cost, reason


@derived_object
class CandidateBuilder(PyBuilder):  # type: ignore[misc]
    """A builder that delegates to another builder and records candidates that do not compile."""

    def __init__(self, builder: Any, trials: Trials) -> None:
        """Wrap ``builder``; failures are added to ``trials``."""
        super().__init__()
        self.builder, self.trials = builder, trials

    def build(self, build_inputs: Any) -> Any:
        """Build candidates and return MetaSchedule's results."""
        built = self.builder.build(build_inputs)
        for result in built:
            if result.error_msg:
                last = str(result.error_msg).strip().splitlines()[-1]
                self.trials.rejected.append(("", f"does not compile: {last}"))
        return built


@derived_object
class FarmFuture(PyRunnerFuture):  # type: ignore[misc]
    """A candidate's result in the form of MetaSchedule."""

    def __init__(self, attempt: TrialAttempt) -> None:
        super().__init__()
        self.attempt = attempt

    def done(self) -> bool:
        """Return True if the result can be fetched."""
        return self.attempt.done()

    def result(self) -> Any:
        """Return a RunnerResult: the cost in seconds, 1e-9 a unit, or the reason of a failure."""
        cost, reason = self.attempt.result()
        return RunnerResult(None, reason) if reason else RunnerResult([cost / 1e9], None)


@derived_object
class FarmRunner(PyRunner):  # type: ignore[misc]
    """A runner that measures a task's candidates, as many at once as there are boards."""

    def __init__(
        self, question: TrialQuestion, untuned: Mapping[int, Arrays], boards: int, trials: Trials
    ) -> None:
        """Start the measuring processes.

        Args:
            question: the task's arguments, and the farm.
            untuned: right outputs by seed.
            boards: number of candidates that are measured at once.
            trials: record of the trials.
        """
        super().__init__()
        self.question, self.untuned, self.trials = question, dict(untuned), trials
        # Includes the wait for a board, or for the tracker's restart.
        patience = 120 + 2 * len(self.untuned) * question.seconds
        self.pool = PopenPoolExecutor(max_workers=boards, timeout=patience)

    def run(self, runner_inputs: Any) -> Any:
        """Start to measure candidates, and return a future for each."""
        return [FarmFuture(self.attempt(str(entry.artifact_path))) for entry in runner_inputs]

    def attempt(self, library: str) -> TrialAttempt:
        """Start to measure a library, and return the trial."""
        return TrialAttempt(
            lambda: self.pool.submit(trial, self.question, library, self.untuned),
            self.question,
            library,
            self.trials,
        )
