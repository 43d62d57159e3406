# SPDX-License-Identifier: Apache-2.0
"""Cost of decoding sequences in one batch, compared with decoding each sequence alone."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path

from rich.table import Table

from crosslab.assemble.recipe import Recipe
from crosslab.assemble.runner import Runner, build_runner
from crosslab.bench.options import Bench
from crosslab.bench.plain_table import plain_table
from crosslab.bench.rows import Function, top_functions
from crosslab.bench.subject import Subject
from crosslab.bench.table import profile_table
from crosslab.cores.core import Core
from crosslab.cores.pipeline import all_cycles
from crosslab.errors import LabError
from crosslab.run.counter import count_guest
from crosslab.run.emulator import DAY, GuestMachine
from crosslab.run.measurement import Counts, Measurement
from crosslab.run.symbols import Symbols

HEADINGS = ("weights", "activations", "VLEN", "prompt", "alone", "together", "ratio")
MILLION = 1e6


@dataclass(frozen=True)
class StepCost:
    """Cost of a decode step, which generates a token of every sequence.

    Attributes:
        insns: guest instructions.
        lmul_weighted: instructions weighted by LMUL.
        cycles_serial: cycles without overlap; None without a core.
        cycles_vec_serial: the larger of vector and scalar cycles; None without a core.
        cycles_pipeline: cycles of the core's pipeline; None without a core or its pipeline.
    """

    insns: float
    lmul_weighted: float
    cycles_serial: float | None = None
    cycles_vec_serial: float | None = None
    cycles_pipeline: float | None = None


@dataclass(frozen=True)
class Batch:
    """Cost of a decode step of all sequences in one batch, and of the same steps alone.

    Attributes:
        model: model name that the user gave.
        quantization: format of the weights.
        activations: activations of linear layers.
        vlen: bits in a vector register.
        prompt: tokens of each prompt.
        sequences: number of sequences in the batch.
        steps: number of batch steps that the costs are the mean of.
        alone: summed cost of a step of each sequence alone.
        together: cost of a step of the batch.
        functions: functions with most instructions in a step of the batch, if requested.
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
    """Measure batches with the last variant, for each quantization, VLEN and prompt length.

    The counts cover whole steps, with the embedding and the cache's bookkeeping. Each answer in the
    batch must equal the answer to the same prompt alone.

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
    # The prompts begin with different tokens, so that sequences share no page of the cache.
    prompts = [[(token + i) % subject.vocab for token in first] for i in range(bench.together)]

    def count(texts: Sequence[Sequence[int]]) -> tuple[list[list[int]], Measurement]:
        words = ["--params", ".", "--roi", "decode", "--roi-span", "step", "--json"]
        words += ["--max-new", str(bench.decode)]
        for option, prompt in zip(("--tokens", *["--beside"] * len(texts)), texts, strict=False):
            words += [option, ",".join(map(str, prompt))]
        machine = GuestMachine(vlen, bench.threads, timeout=DAY, zvfh=recipe.zvfh)
        output, measured = count_guest(runner.program, words, machine, bench.cache, cwd=params)
        answer = json.loads(output)
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
    # decodes all sequences read so far. The first step of the whole batch, and of each sequence,
    # is left out, because it grows the allocator's pools.
    whole = range(bench.together, bench.decode - 1)
    chosen = [(single, [s - i for s in whole]) for i, single in enumerate(alone)]
    symbols = Symbols.of(runner.program) if bench.core or bench.profile else None
    functions: tuple[Function, ...] = ()
    if bench.profile and symbols:
        functions = top_functions(batch.functions(symbols, whole), len(whole))
    return Batch(
        model=bench.model,
        quantization=quantization,
        activations=recipe.mode.activations,
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
    """Return the cost of the chosen regions of runs, divided by a number of steps."""
    total = sum((measured.regions[i] for measured, regions in chosen for i in regions), Counts())
    cost = StepCost(total.insns / steps, total.lmul_weighted / steps)
    if bench.core is None:
        return cost
    cycles = [all_cycles(bench.core, measured, r, symbols, steps) for measured, r in chosen]
    return replace(
        cost,
        cycles_serial=sum(c.serial for c in cycles),
        cycles_vec_serial=sum(c.vec_serial for c in cycles),
        cycles_pipeline=sum(c.pipeline or 0 for c in cycles) if bench.core.pipeline else None,
    )


def batch_tables(batches: Sequence[Batch], core: Core | None) -> Iterator[Table]:
    """Yield a table each for instructions, weighted instructions, cycles; then profiles."""
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
        table = plain_table(title, HEADINGS)
        for batch in batches:
            alone, together = getattr(batch.alone, field), getattr(batch.together, field)
            figures = (
                f"{alone / MILLION:.3f}",
                f"{together / MILLION:.3f}",
                f"{together / alone:.3f}",
            )
            sizes = (str(batch.vlen), str(batch.prompt))
            table.add_row(batch.quantization, batch.activations, *sizes, *figures)
        yield table
    for batch in batches:
        if batch.functions:
            where = f"{batch.sequences} together, {batch.quantization}, VLEN {batch.vlen}"
            yield profile_table(where, batch.functions)
