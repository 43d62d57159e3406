# SPDX-License-Identifier: Apache-2.0
"""The command ``crosslab bench``: build and count every variant, print and write the report."""

from __future__ import annotations

import argparse
import json
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from itertools import product
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from crosslab.address import Address
from crosslab.assemble.pinned_archive import LLAMA_CPP
from crosslab.assemble.recipe import Recipe
from crosslab.assemble.recipe_options import OF_SESSIONS
from crosslab.assemble.runner import Runner, build_runner
from crosslab.bench.batches import batch_tables, measure_batches
from crosslab.bench.options import Bench, Variant, bench_of, parser
from crosslab.bench.peers import check_peer, peer_rows
from crosslab.bench.predict_table import boards_of, count_small, predictions
from crosslab.bench.products import check_openblas, product_rows
from crosslab.bench.remote import cells_of, check_remote, label
from crosslab.bench.rows import PHASES, Row, measured_row, write_rows
from crosslab.bench.subject import Subject
from crosslab.bench.table import show
from crosslab.compile.driver import CompiledModel
from crosslab.errors import LabError
from crosslab.peers import openblas
from crosslab.remote import Cell, compute, scheduler_of, serve_worker
from crosslab.run.counter import count_guest
from crosslab.run.counter_plugin import build_counter
from crosslab.run.emulator import DAY, GuestMachine
from crosslab.run.measurement import Measurement, phases_of
from groundwork.command_line import Parser
from groundwork.files import atomic_write_json

COLUMNS = (
    TextColumn("{task.description}"),
    BarColumn(),
    MofNCompleteColumn(),
    TimeElapsedColumn(),
)

_progress = Console(stderr=True, highlight=False)
_results = Console(highlight=False)


@dataclass(frozen=True)
class Run:
    """Inputs of a run of the emulator.

    Attributes:
        variant: variant of the bench.
        recipe: inputs of the runner's build.
        runner: the built runner.
        params: folder of the parameters.
        prompt: number of tokens of the prompt.
    """

    variant: Variant
    recipe: Recipe
    runner: Runner
    params: Path
    prompt: int

    @property
    def vlen(self) -> int:
        """Bits in a vector register."""
        return self.recipe.vlens[0]

    @property
    def what(self) -> str:
        """Name of the run for progress messages."""
        return f"{self.recipe.quantization}, VLEN {self.vlen}, prompt of {self.prompt}"


def main(argv: Sequence[str]) -> int:
    """Measure every variant, print the tables, and write the JSON report.

    Raises:
        UserError: an option is wrong, or a tree or a tool is missing.
        LabError: a step fails.
    """
    options = parser()
    args, bench, scheduler = options.read(argv, partial(_checked, options))
    build_counter(args.cache)
    if scheduler and args.worker:
        serve_worker(scheduler, label(__name__, args), args, _say)
        return 0
    subject = Subject(bench)
    bench.context(subject.longest)
    if args.predict:
        boards = boards_of(bench)
        counted = count_small(bench, measure_all)
        for part in predictions(bench, boards, counted):
            _results.print(part)
        rows = [row for small in counted.values() for row in small]
    else:
        rows = _computed(scheduler, args, bench) if scheduler else list(measure_all(subject))
        show(rows, _results, bench.core)
    if bench.together > 1:
        batches = list(measure_batches(subject, _progress.print))
        for table in batch_tables(batches, bench.core):
            _results.print(table)
        report = bench.report.with_suffix(".together.json")
        atomic_write_json(report, [asdict(batch) for batch in batches])
    write_rows(rows, bench.report)
    _progress.print("[bold]report[/]", bench.report, soft_wrap=True)
    return 0


def _checked(
    options: Parser, args: argparse.Namespace
) -> tuple[argparse.Namespace, Bench, Address | None]:
    """Return the options, their bench, and the address of the scheduler; None: no scheduler."""
    scheduler = scheduler_of(args, _say)
    if args.worker:
        own = {*OF_SESSIONS, "variant", "worker", "worker_port", "force"}
        options.refuse_unused(args, own, "--worker: the client's options count")
    elif scheduler:
        check_remote(args)
    bench = bench_of(args)
    if bench.peer:
        (check_openblas if bench.peer == openblas.NAME else check_peer)(bench)
    if args.predict:
        boards_of(bench)
    return args, bench, scheduler


def _computed(scheduler: Address, args: argparse.Namespace, bench: Bench) -> list[Row]:
    """Compute the rows of :func:`measure_all` on a scheduler's workers."""
    cells, rows = cells_of(__name__, args, bench), dict[Cell, list[Row]]()
    with Progress(*COLUMNS, console=_progress, transient=True) as progress:
        task = progress.add_task("counting", total=len(cells))
        for cell, measured in compute(scheduler, cells, _say):
            rows[cell] = measured
            progress.console.print(f"counted: {cell.name}", markup=False, soft_wrap=True)
            progress.advance(task)
    return [row for cell in cells for row in rows[cell]]


def compute_cell(args: argparse.Namespace) -> list[Row]:
    """Return the rows of a quantization, VLEN and prompt; runs on a worker.

    Raises:
        LabError: a step fails; a UserError keeps its exit code.
    """
    return list(measure_all(Subject(bench_of(args))))


def _say(text: str) -> None:
    _progress.print(text, markup=False, soft_wrap=True)


def measure_all(subject: Subject) -> Iterator[Row]:
    """Build and count all; yield rows by quantization, VLEN, prompt and phase, peers last."""
    bench = subject.bench
    for quantization in bench.quantizations:
        variants = bench.variants_of(quantization)
        for absent in (v for v in bench.variants if v not in variants):
            _progress.print(f"left out: {absent.name} cannot compile {quantization}")
        peers = list(_peers(subject, quantization))
        for vlen in bench.recipe.vlens:
            built = [(v, *_built(subject, v, quantization, vlen)) for v in variants]
            runs = [Run(*build, prompt) for prompt in bench.prompts for build in built]
            measured = [row for rows in _in_parallel(subject, runs) for row in rows]
            measured += [row for row in peers if row.vlen == vlen]
            for prompt, phase in product(bench.prompts, PHASES):
                yield from (r for r in measured if (r.prompt, r.phase) == (prompt, phase))


def _peers(subject: Subject, quantization: str) -> Iterator[Row]:
    peer = subject.bench.peer
    if peer:
        minutes = ", about ten minutes the first time" if peer == LLAMA_CPP else ""
        _progress.print(f"building: {peer}{minutes}")
    if peer == openblas.NAME:
        yield from product_rows(subject, _progress.print)
    elif peer:
        with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
            yield from peer_rows(subject, quantization, pool, _progress.print)


def _in_parallel(subject: Subject, runs: Sequence[Run]) -> list[list[Row]]:
    """Measure runs in parallel on this machine's processors; return each run's rows, in order."""
    at_once = max(1, (os.cpu_count() or 1) // subject.bench.threads)
    with (
        Progress(*COLUMNS, console=_progress, transient=True) as progress,
        ThreadPoolExecutor(at_once) as pool,
    ):
        task = progress.add_task("counting", total=len(runs))

        def measure(run: Run) -> list[Row]:
            rows = list(_measure(subject, run))
            progress.console.print(f"counted: {run.variant.name}, {run.what}")
            progress.advance(task)
            return rows

        futures = [pool.submit(measure, run) for run in runs]
        try:
            return [future.result() for future in futures]
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


def _built(
    subject: Subject, variant: Variant, quantization: str, vlen: int
) -> tuple[Recipe, Runner, Path]:
    """Build a variant; return recipe, runner and folder of the parameters."""
    _progress.print(f"building: {variant.name}, {quantization}, VLEN {vlen}")
    recipe = subject.recipe(variant, quantization, vlen)
    runner = build_runner(recipe, subject.bench.cache)
    if variant.kernels:
        _say_tensorized(runner.library)
    return recipe, runner, subject.params(recipe)


def _say_tensorized(library: CompiledModel) -> None:
    called = sum(1 for entry in library.tensorized if entry["symbol"])
    _progress.print(f"  {called} of {len(library.tensorized)} blocks call kernels")
    declined = Counter(e["reason"] for e in library.tensorized if not e["symbol"])
    for reason, count in declined.items():
        _progress.print(f"  {count} do not: {reason}", markup=False, soft_wrap=True)


def _measure(subject: Subject, run: Run) -> Iterator[Row]:
    bench, quantization = subject.bench, run.recipe.quantization
    calls, measured = _count(subject, run)
    common = {
        "activations": run.recipe.mode.activations,
        "kv_cache": run.recipe.mode.kv_cache,
        "variant": run.variant.name,
        "quantization": quantization,
        "vlen": run.vlen,
        "zvfh": run.recipe.zvfh,
        "prompt": run.prompt,
        "path": bench.path_of(quantization),
    }
    phases = zip(PHASES, phases_of(len(measured.regions), calls), strict=True)
    for phase, regions in phases:
        assert regions is not None  # the options ask for 3 tokens or more
        tokens = bench.decode if phase == "decode" else run.prompt
        fields = {**common, "phase": phase, "tokens": tokens}
        yield measured_row(fields, bench, measured, regions, run.runner.program)


def _count(subject: Subject, run: Run) -> tuple[int, Measurement]:
    """Run the built runner under the counter; return the number of prefill calls and the counts."""
    bench = subject.bench
    tokens = ",".join(map(str, subject.prompt(run.prompt)))
    # The guest runs in the parameters' folder, so that the stack does not depend on path lengths.
    arguments = ["--params", ".", "--tokens", tokens, "--roi", "both", "--json"]
    arguments += ["--max-new", str(bench.decode), "--roi-depth", str(bench.depth)]
    machine = GuestMachine(run.vlen, bench.threads, timeout=DAY, zvfh=run.recipe.zvfh)
    program = run.runner.program
    answer, measured = count_guest(
        program, arguments, machine, bench.cache, cwd=run.params, caches=bench.cache_option
    )
    try:
        return len(json.loads(answer)["prefill_seconds"]), measured
    except (ValueError, KeyError) as error:
        raise LabError(f"the runner's answer cannot be read: {answer[:200]!r}") from error
