# SPDX-License-Identifier: Apache-2.0
"""A language model's greedy answer in the emulator, counted, beside the main job's."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from numpy.typing import NDArray
from rich.table import Table

from crosslab.build.recipe import Recipe
from crosslab.build.runner import Clock, build_runner, store_params
from crosslab.cores.core import Core
from crosslab.cores.cycles import Cycles, cycles_of
from crosslab.job.main_job import read_answer
from crosslab.run.counter import run_counted
from crosslab.run.emulator import GuestMachine
from crosslab.run.measurement import Counts, Measurement, PhaseRegions, phases_of


@dataclass(frozen=True)
class CountedPhase:
    """Counts of a phase of an answer.

    Attributes:
        name: "prefill" or "decode".
        tokens: that it read.
        counts: instructions of the prompt, or of a decoded token; None where nothing was counted.
        cycles: those of a core, where one was asked for.
    """

    name: str
    tokens: int
    counts: Counts | None
    cycles: Cycles | None

    @property
    def figures(self) -> dict[str, int | None]:
        """Each unit's figure."""
        return {
            "instructions": self.counts.insns if self.counts else None,
            "cycles": self.cycles.serial if self.cycles else None,
        }


@dataclass(frozen=True)
class CountedAnswer:
    """A language model's greedy answer in the emulator.

    Attributes:
        tokens: of it.
        logits: [len(tokens), vocab] float32.
        phases: prefill and decode.
    """

    tokens: tuple[int, ...]
    logits: NDArray[Any]
    phases: tuple[CountedPhase, ...]


def count_phases(
    counted: Measurement | None, prefills: int, names: Mapping[str, int], core: Core | None
) -> tuple[CountedPhase, ...]:
    """Counts of the calls that came first, and of one of those after them.

    Args:
        counted: calls of a run; None where nothing was counted.
        prefills: calls that came first.
        names: of both phases, with what they read.
        core: whose cycles are counted; None: none.
    """
    regions: tuple[PhaseRegions | None, ...] = (None, None)
    if counted:
        regions = phases_of(len(counted.regions), prefills)
    phases = []
    for (name, tokens), phase in zip(names.items(), regions, strict=True):
        counts = cycles = None
        if counted and phase:
            counts = phase.counts(counted.regions)
            histogram = counted.histogram(phase.regions)
            cycles = cycles_of(core, histogram, phase.calls) if core else None
        phases.append(CountedPhase(name, tokens, counts, cycles))
    return tuple(phases)


def ask(
    runner: Path,
    params: Path,
    prompt: Sequence[int],
    shape: tuple[int, ...],
    machine: GuestMachine,
    core: Core | None,
    cache: Path,
) -> CountedAnswer:
    """Let a language model answer greedily in the emulator.

    Args:
        runner: program with the model in it.
        params: folder of its parameters.
        prompt: token ids.
        shape: of the answer's logits, [tokens, vocab].
        machine: the emulated CPU.
        core: whose cycles are counted; None: none.
        cache: folder of finished builds.

    Raises:
        LabError: the run fails.
    """
    steps, vocab = shape
    with tempfile.TemporaryDirectory(prefix="answer-") as scratch:
        logits = Path(scratch) / "logits.bin"
        arguments = ["--params", str(params), "--tokens", ",".join(map(str, prompt))]
        arguments += ["--max-new", str(steps), "--vocab", str(vocab)]
        arguments += ["--logits", str(logits), "--json"]
        result, counted = run_counted(runner, arguments, machine, cache)
        found = read_answer(result.stdout, logits, counted)
    names = {"prefill": len(prompt), "decode": steps - 1}
    phases = count_phases(counted, len(found.prefill_seconds), names, core)
    return CountedAnswer(found.tokens, found.logits, phases)


@dataclass(frozen=True)
class AnswerComparison:
    """An answer beside the main job's to the same prompt, of the same weights.

    Attributes:
        same_tokens: both gave the same.
        rows: phase, unit, the main job's figure, this one's.
    """

    same_tokens: bool
    rows: tuple[tuple[str, str, int, int], ...]

    def shown(self) -> Table:
        """The same for a terminal."""
        told = "the same" if self.same_tokens else "[bold red]others[/]"
        table = Table(title=f"beside the main job, whose tokens are {told}")
        for title in ("phase", "main job", "this", "ratio"):
            table.add_column(title, justify="left" if title == "phase" else "right")
        for phase, unit, other, own in self.rows:
            table.add_row(f"{phase}, {unit}", f"{other:,}", f"{own:,}", f"{own / other:.2f}")
        return table


def compare_with_main_job(
    recipe: Recipe,
    prompt: Sequence[int],
    answer: CountedAnswer,
    machine: GuestMachine,
    core: Core | None,
    cache: Path,
    clock: Clock,
) -> AnswerComparison:
    """Let the main job's road answer the same prompt.

    Args:
        recipe: of the main job's runner, with the same weights.
        prompt: token ids.
        answer: to compare.
        machine: the emulated CPU.
        core: whose cycles are counted; None: none.
        cache: folder of finished builds.
        clock: gets the steps' times.

    Raises:
        UserError: a tree or a tool is missing.
        LabError: a step fails.
    """
    runner, params = build_runner(recipe, cache, clock), store_params(recipe, cache)
    other = ask(runner.program, params, prompt, answer.logits.shape, machine, core, cache)
    rows = []
    for one, beside in zip(answer.phases, other.phases, strict=True):
        figures = beside.figures
        for unit, own in one.figures.items():
            if own and (theirs := figures[unit]):
                rows.append((one.name, unit, theirs, own))
    return AnswerComparison(other.tokens == answer.tokens, tuple(rows))
