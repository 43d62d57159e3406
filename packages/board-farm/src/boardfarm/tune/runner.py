# SPDX-License-Identifier: Apache-2.0
"""MetaSchedule's builder and runner; they repeat lost sessions and name faulty candidates."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tvm.ir.utils import derived_object
from tvm.s_tir.meta_schedule.builder import PyBuilder
from tvm.s_tir.meta_schedule.runner import PyRunner, RunnerResult
from tvm.s_tir.meta_schedule.runner.runner import PyRunnerFuture
from tvm.support.popen_pool import PopenPoolExecutor

from boardfarm.tune.trial import Arrays, TrialQuestion, trial

# A candidate that loses as many sessions, each on the next free board, is at fault itself.
ATTEMPTS = 3
LOST = "lost: "


@dataclass
class Trials:
    """Record of a task's trials.

    Attributes:
        measured: candidates with a cost.
        repeated: sessions that were lost and asked for again.
        rejected: rejected candidates: library and reason.
    """

    measured: int = 0
    repeated: int = 0
    rejected: list[tuple[str, str]] = field(default_factory=list)


class TrialAttempt:
    """A candidate that is measured; it is measured again when its session is lost."""

    def __init__(self, submit: Callable[[], Any], library: str, trials: Trials) -> None:
        self._submit, self._library, self._trials = submit, library, trials
        self._left, self._future = ATTEMPTS, submit()

    def done(self) -> bool:
        """True when the trial has ended; start it again if its session was lost."""
        if not self._future.done():
            return False
        if self._outcome()[1].startswith(LOST) and self._left > 1:
            self._left -= 1
            self._trials.repeated += 1
            self._future = self._submit()
            return False
        return True

    def result(self) -> tuple[int, str]:
        """Wait for the trial; return the cost, or 0 and a reason."""
        while True:
            cost, reason = self._outcome()
            if self.done():
                break
        if reason.startswith(LOST):
            reason = f"crashed {ATTEMPTS} boards: {reason.removeprefix(LOST)}"
        if reason:
            self._trials.rejected.append((self._library, reason))
        else:
            self._trials.measured += 1
        return cost, reason

    def _outcome(self) -> tuple[int, str]:
        try:
            cost, reason = self._future.result()
        except TimeoutError:
            return 0, f"{LOST}no board answered"
        except Exception as error:  # the process that measures has ended
            return 0, f"{LOST}{error}"
        return cost, reason


@derived_object
class CandidateBuilder(PyBuilder):  # type: ignore[misc]
    """Builds candidates as another builder does, and writes down those that do not compile."""

    def __init__(self, builder: Any, trials: Trials) -> None:
        """Keep the builder, and the record of its failures."""
        super().__init__()
        self.builder, self.trials = builder, trials

    def build(self, build_inputs: Any) -> Any:
        """Build these candidates."""
        built = self.builder.build(build_inputs)
        for one in built:
            if one.error_msg:
                last = str(one.error_msg).strip().splitlines()[-1]
                self.trials.rejected.append(("", f"does not compile: {last}"))
        return built


@derived_object
class FarmFuture(PyRunnerFuture):  # type: ignore[misc]
    """A candidate's result as MetaSchedule asks for it."""

    def __init__(self, attempt: TrialAttempt) -> None:
        super().__init__()
        self.attempt = attempt

    def done(self) -> bool:
        """True when the result can be fetched."""
        return self.attempt.done()

    def result(self) -> Any:
        """Cost in seconds, 1e9 of the board's unit each; or the reason of a failure."""
        cost, reason = self.attempt.result()
        return RunnerResult(None, reason) if reason else RunnerResult([cost / 1e9], None)


@derived_object
class FarmRunner(PyRunner):  # type: ignore[misc]
    """Measures the candidates of one task, as many at once as there are boards."""

    def __init__(
        self, question: TrialQuestion, untuned: Mapping[int, Arrays], boards: int, trials: Trials
    ) -> None:
        """Start the processes.

        Args:
            question: the task's arguments, and the farm.
            untuned: right outputs by seed.
            boards: candidates that are measured at once.
            trials: gets what happens.
        """
        super().__init__()
        self.question, self.untuned, self.trials = question, dict(untuned), trials
        # Waiting for a board, or for the tracker to come back, takes time of its own.
        patience = 120 + 2 * len(self.untuned) * question.seconds
        self.pool = PopenPoolExecutor(max_workers=boards, timeout=patience)

    def run(self, runner_inputs: Any) -> Any:
        """Measure these candidates."""
        return [FarmFuture(self.attempt(str(one.artifact_path))) for one in runner_inputs]

    def attempt(self, library: str) -> TrialAttempt:
        """Measure one library."""
        return TrialAttempt(
            lambda: self.pool.submit(trial, self.question, library, self.untuned),
            library,
            self.trials,
        )
