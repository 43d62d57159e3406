# SPDX-License-Identifier: Apache-2.0
"""Sequences that are decoded in one batch, compared with the same sequences alone."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from itertools import product
from pathlib import Path

from rich.table import Table

from crosslab.bench.options import Bench
from crosslab.bench.rows import Function, top_functions
from crosslab.bench.subject import Subject
from crosslab.bench.table import profile_table
from crosslab.build.recipe import Recipe
from crosslab.build.runner import Runner, build_runner
from crosslab.cores.core import Core
from crosslab.cores.pipeline import all_cycles
from crosslab.errors import LabError
from crosslab.run.counter import count_guest
from crosslab.run.emulator import DAY, GuestMachine
from crosslab.run.measurement import Counts, Measurement
from crosslab.run.symbols import Symbols
from groundwork.files import atomic_write_json

HEADINGS = ("weights", "activations", "VLEN", "prompt", "alone", "together", "ratio")
MILLION = 1e6


@dataclass(frozen=True)
class StepCost:
    """The price of decode steps, each a token of every sequence of a batch.

    Attributes:
        insns: guest instructions.
        lmul_weighted: instructions weighted by LMUL.
        cycles_serial: cycles when nothing overlaps; None when no core was asked for.
        cycles_vec_serial: the larger of vector and scalar cycles; None likewise.
        cycles_pipeline: cycles of the core's pipeline; None also when that is not known.
    """

    insns: float
    lmul_weighted: float
    cycles_serial: float | None = None
    cycles_vec_serial: float | None = None
    cycles_pipeline: float | None = None


@dataclass(frozen=True)
class Batch:
    """A step of all sequences in one batch, and the same steps alone, one after the other.

    Attributes:
        model: as the user named it.
        quantization: of the weights.
        activations: of the products of linear layers.
        vlen: bits in a vector register.
        prompt: tokens of each prompt.
        sequences: in the batch.
        steps: of the batch, that the costs are the mean of.
        alone: cost of the sequences' steps alone, summed.
        together: cost of a step of the batch.
        functions: those that execute most in a step of the batch, when they were asked for.
    """

    model: str
    quantization: str
    activations: str
    vlen: int
    prompt: int
    sequences: int
    steps: int
    alone: StepCost
    together: StepCost
    functions: tuple[Function, ...] = ()


def measure_batches(subject: Subject, say: Callable[..., None]) -> Iterator[Batch]:
    """Count the last variant of a bench, for each of its quantizations, VLENs and prompts.

    Whole steps are counted: the embedding and the cache's bookkeeping, too. Each answer in the
    batch has to be the one that its prompt gets alone.

    Raises:
        LabError: an answer differs, or a step fails.
    """
    bench = subject.bench
    variant = bench.variants[-1]
    for quantization, vlen in product(bench.quantizations, bench.recipe.vlens):
        recipe = subject.recipe(variant, quantization, vlen)
        runner, params = build_runner(recipe, bench.cache), subject.params(recipe)
        for length in bench.prompts:
            say(f"counting: {bench.together} together, {quantization}, prompt of {length}")
            yield _measure(subject, recipe, runner, params, length)


def _measure(subject: Subject, recipe: Recipe, runner: Runner, params: Path, length: int) -> Batch:
    bench = subject.bench
    quantization, vlen = recipe.quantization, recipe.vlens[0]
    first = subject.prompt(length)
    # The others begin otherwise, so that the cache has no page of two sequences.
    prompts = [
        [(token + i) % subject.config.vocab for token in first] for i in range(bench.together)
    ]

    def count(asked: Sequence[Sequence[int]]) -> tuple[list[list[int]], Measurement]:
        words = ["--params", ".", "--roi", "decode", "--roi-span", "step", "--json"]
        words += ["--max-new", str(bench.decode)]
        for option, prompt in zip(("--tokens", *["--beside"] * len(asked)), asked, strict=False):
            words += [option, ",".join(map(str, prompt))]
        machine = GuestMachine(vlen, bench.threads, timeout=DAY, zvfh=recipe.zvfh)
        said, measured = count_guest(runner.program, words, machine, bench.cache, cwd=params)
        answer = json.loads(said.stdout)
        return [answer["tokens"], *answer["beside"]], measured

    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        *singles, (answers, batch) = pool.map(count, [*([p] for p in prompts), prompts])
    alone = [measured for _, measured in singles]
    for i, ((expected,), _) in enumerate(singles):
        if answers[i] != expected:
            raise LabError(
                f"{quantization}, VLEN {vlen}: sequence {i} is answered {answers[i]} in a batch, "
                f"and {expected} alone"
            )
    steps = bench.decode - 1 + bench.together - 1
    if len(batch.regions) != steps:
        raise LabError(
            f"{quantization}, VLEN {vlen}: {bench.together} sequences took {len(batch.regions)} "
            f"decode steps, not {steps}: they were not all decoded together"
        )
    # Step s of the batch decodes token s - i of sequence i: each round reads one prompt, then
    # decodes all that are read. The batch's first whole step, and each sequence's first, grow
    # the allocator's pools.
    whole = range(bench.together, bench.decode - 1)
    chosen = [(one, [s - i for s in whole]) for i, one in enumerate(alone)]
    symbols = Symbols.of(runner.program) if bench.core or bench.profile else None
    functions: tuple[Function, ...] = ()
    if bench.profile and symbols:
        functions = top_functions(batch.functions(symbols, whole), len(whole))
    return Batch(
        model=bench.model,
        quantization=quantization,
        activations=bench.recipe.mode.activations,
        vlen=vlen,
        prompt=length,
        sequences=bench.together,
        steps=len(whole),
        alone=_cost(chosen, len(whole), bench, symbols),
        together=_cost([(batch, list(whole))], len(whole), bench, symbols),
        functions=functions,
    )


def _cost(
    chosen: Sequence[tuple[Measurement, Sequence[int]]],
    steps: int,
    bench: Bench,
    symbols: Symbols | None,
) -> StepCost:
    """The cost of some regions of some runs, divided by a number of steps."""
    total = sum((one.regions[i] for one, regions in chosen for i in regions), Counts())
    cost = StepCost(total.insns / steps, total.lmul_weighted / steps)
    if bench.core is None:
        return cost
    cycles = [all_cycles(bench.core, one, r, symbols, steps) for one, r in chosen]
    return replace(
        cost,
        cycles_serial=sum(c.serial for c in cycles),
        cycles_vec_serial=sum(c.vec_serial for c in cycles),
        cycles_pipeline=sum(c.pipeline or 0 for c in cycles) if bench.core.pipeline else None,
    )


def batch_tables(batches: Sequence[Batch], core: Core | None) -> Iterator[Table]:
    """A table of each measure: instructions, weighted by LMUL, a core's cycles; and profiles."""
    kinds = {"insns": "guest instructions", "lmul_weighted": "guest instructions, LMUL-weighted"}
    if core:
        kinds["cycles_serial"] = f"cycles of {core.name}, serial"
        kinds["cycles_vec_serial"] = f"cycles of {core.name}, vec-serial"
    if core and core.pipeline:
        kinds["cycles_pipeline"] = f"cycles of {core.name}, pipeline"
    first = batches[0]
    for field, what in kinds.items():
        title = (
            f"model {first.model}, a decode step of {first.sequences} sequences: millions of {what}"
        )
        table = Table(title=title, box=None, padding=(0, 1, 0, 0))
        for heading in HEADINGS:
            left = heading in HEADINGS[:2]
            table.add_column(heading, justify="left" if left else "right", no_wrap=True)
        for one in batches:
            alone, together = getattr(one.alone, field), getattr(one.together, field)
            figures = (
                f"{alone / MILLION:.3f}",
                f"{together / MILLION:.3f}",
                f"{together / alone:.3f}",
            )
            sizes = (str(one.vlen), str(one.prompt))
            table.add_row(one.quantization, one.activations, *sizes, *figures)
        yield table
    for one in batches:
        if one.functions:
            where = f"{one.sequences} together, {one.quantization}, VLEN {one.vlen}"
            yield profile_table(where, one.functions)


def write_batches(batches: Sequence[Batch], report: Path) -> None:
    """Write the batches as a JSON list, atomically.

    Raises:
        OSError: it cannot be written.
    """
    atomic_write_json(report, [asdict(one) for one in batches])
