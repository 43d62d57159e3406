# SPDX-License-Identifier: Apache-2.0
"""A language model's greedy answer in the emulator, with counts; a comparison of two answers."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from numpy.typing import NDArray
from rich.table import Table

from crosslab.assemble.recipe import Recipe
from crosslab.assemble.runner import Clock, build_runner, store_params
from crosslab.cores.core import Core
from crosslab.cores.cycles import Cycles, cycles_of
from crosslab.job.main_job import read_answer
from crosslab.run.counter import run_counted
from crosslab.run.emulator import GuestMachine
from crosslab.run.measurement import Counts, Measurement, PhaseRegions, phases_of


@dataclass(frozen=True)
class CountedPhase:
    """The counts of a phase of an answer.

    Attributes:
        name: "prefill" or "decode".
        tokens: number of tokens that the phase read.
        counts: instructions of the prompt, or of a decoded token; None without counting.
        cycles: cycles of a core; None without a core.
    """

    name: str
    tokens: int
    counts: Counts | None
    cycles: Cycles | None

    @property
    def figures(self) -> dict[str, int | None]:
        """The phase's instructions and serial cycles by unit; None if not counted."""
        return {
            "instructions": self.counts.insns if self.counts else None,
            "cycles": self.cycles.serial if self.cycles else None,
        }


@dataclass(frozen=True)
class CountedAnswer:
    """A language model's greedy answer in the emulator.

    Attributes:
        tokens: ids of the answer's tokens.
        logits: [len(tokens), vocab] float32.
        phases: prefill and decode.
    """

    tokens: tuple[int, ...]
    logits: NDArray[Any]
    phases: tuple[CountedPhase, ...]


def count_phases(
    counted: Measurement | None, prefills: int, names: Mapping[str, int], core: Core | None
) -> tuple[CountedPhase, ...]:
    """Return the counts of a run's first calls together, and the mean of the calls after them.

    Args:
        counted: measured calls of a run; None without counting.
        prefills: number of the first calls.
        names: names of both phases, with the number of tokens that each reads.
        core: core for the cycles; None: no cycles.
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
    """Let a language model answer a prompt greedily in the emulator.

    Args:
        runner: program that contains the model.
        params: folder of the model's parameters.
        prompt: token ids.
        shape: of the answer's logits, [tokens, vocab].
        machine: the emulated CPU.
        core: core for the cycles; None: no cycles.
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
        output, counted = run_counted(runner, arguments, machine, cache)
        answer = read_answer(output, logits, counted)
    names = {"prefill": len(prompt), "decode": steps - 1}
    phases = count_phases(counted, len(answer.prefill_seconds), names, core)
    return CountedAnswer(answer.tokens, answer.logits, phases)


@dataclass(frozen=True)
class AnswerComparison:
    """An answer compared with the main job's answer to the same prompt, with equal weights.

    Attributes:
        same_tokens: both answers have the same tokens.
        rows: phase, unit, the main job's figure, this answer's figure.
    """

    same_tokens: bool
    rows: tuple[tuple[str, str, int, int], ...]

    def shown(self) -> Table:
        """Return the comparison as a table for a terminal."""
        verdict = "the same" if self.same_tokens else "[bold red]others[/]"
        table = Table(title=f"beside the main job, whose tokens are {verdict}")
        for title in ("phase", "main job", "this", "ratio"):
            table.add_column(title, justify="left" if title == "phase" else "right")
        for phase, unit, main, here in self.rows:
            table.add_row(f"{phase}, {unit}", f"{main:,}", f"{here:,}", f"{here / main:.2f}")
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
    """Compile the main job's model, let it answer the same prompt, and compare.

    Args:
        recipe: of the main job's runner, with the same weights.
        prompt: token ids.
        answer: the answer to compare.
        machine: the emulated CPU.
        core: core for the cycles; None: no cycles.
        cache: folder of finished builds.
        clock: receives the steps' times.

    Raises:
        UserError: a tree or a tool is missing.
        LabError: a step fails.
    """
    runner, params = build_runner(recipe, cache, clock), store_params(recipe, cache)
    other = ask(runner.program, params, prompt, answer.logits.shape, machine, core, cache)
    rows = []
    for phase, main_phase in zip(answer.phases, other.phases, strict=True):
        figures = main_phase.figures
        for unit, figure in phase.figures.items():
            if figure and (reference := figures[unit]):
                rows.append((phase.name, unit, reference, figure))
    return AnswerComparison(other.tokens == answer.tokens, tuple(rows))
