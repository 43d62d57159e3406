# SPDX-License-Identifier: Apache-2.0
"""The command ``crosslab bench``: build every variant, count, print and write the report."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict

from rich.console import Console

from crosslab.bench.build import Built, Subject, build_variant
from crosslab.bench.options import Variant, parse_bench
from crosslab.bench.peers import peers_of
from crosslab.bench.rows import PHASES, Function, Row, top_functions, write_rows
from crosslab.bench.table import show
from crosslab.compile.driver import CompiledModel
from crosslab.counter import Counts, Measurement, count_guest
from crosslab.emulator import GuestMachine
from crosslab.errors import LabError
from crosslab.toolchain import require_qemu

_progress = Console(stderr=True, highlight=False)
_results = Console(highlight=False)


def main(argv: Sequence[str]) -> int:
    """Measure every variant, print the tables, write the JSON.

    Raises:
        UserError: an option, a tree or a tool is not right.
        LabError: a step fails.
    """
    bench = parse_bench(argv)
    require_qemu()
    subject = Subject(bench)
    bench.check_context(subject.config)
    rows = list(measure_all(subject))
    show(rows, _results)
    write_rows(rows, bench.report)
    _progress.print(f"[bold]report[/] {bench.report}", soft_wrap=True)
    return 0


def measure_all(subject: Subject) -> Iterator[Row]:
    """Rows of every case: quantization by VLEN by prompt, in each all variants by phase."""
    bench = subject.bench
    for quantization in bench.quantizations:
        variants = bench.variants_of(quantization)
        for absent in (v for v in bench.variants if v not in variants):
            _progress.print(f"{absent.name}: no such step on the path through MLC-LLM")
        for vlen in bench.vlens:
            built = [(v, _built(subject, v, quantization, vlen)) for v in variants]
            for prompt in bench.prompts:
                measured = [
                    row
                    for variant, one in built
                    for row in _measure(subject, variant, one, quantization, vlen, prompt)
                ]
                yield from _with_peers(measured)


def _with_peers(measured: Sequence[Row]) -> Iterator[Row]:
    for phase in PHASES:
        rows = [row for row in measured if row.phase == phase]
        yield from rows
        yield from peers_of(rows[0])


def _built(subject: Subject, variant: Variant, quantization: str, vlen: int) -> Built:
    _progress.print(f"building: {variant.name}, {quantization}, VLEN {vlen}")
    built = build_variant(subject, variant, quantization, vlen)
    if variant.kernels:
        _say_tensorized(built.library)
    return built


def _say_tensorized(library: CompiledModel) -> None:
    called = sum(1 for entry in library.tensorized if entry["symbol"])
    _progress.print(f"  {called} of {len(library.tensorized)} blocks call kernels")
    declined = Counter(e["reason"] for e in library.tensorized if not e["symbol"])
    for reason, count in declined.items():
        _progress.print(f"  {count} do not: {reason}", markup=False, soft_wrap=True)


def _measure(
    subject: Subject, variant: Variant, built: Built, quantization: str, vlen: int, prompt: int
) -> Iterator[Row]:
    """Both phases of one prompt."""
    bench = subject.bench
    what = f"{variant.name}, {quantization}, VLEN {vlen}, prompt of {prompt}"
    # One run serves both phases, but functions are counted over all the calls of a run.
    runs = PHASES if bench.profile else ("both",)
    for run in runs:
        _progress.print(f"counting: {what}" + (f", {run}" if bench.profile else ""))
        with _progress.status(f"emulating {what}"):
            calls, measured = _count(subject, built, vlen, prompt, run)
        for phase in PHASES if run == "both" else (run,):
            counted = counts_of(measured.regions, 0 if run == "decode" else calls, phase)
            yield Row(
                model=bench.model,
                variant=variant.name,
                phase=phase,
                tokens=prompt if phase == "prefill" else bench.decode,
                quantization=quantization,
                vlen=vlen,
                threads=bench.threads,
                **{k: v for k, v in asdict(counted).items() if k != "unknown_lmul"},
                prompt=prompt,
                path=bench.path_of(quantization),
                functions=_functions(measured, phase) if bench.profile else (),
            )


def _functions(measured: Measurement, phase: str) -> tuple[Function, ...]:
    return top_functions(measured, len(measured.regions) if phase == "decode" else 1)


def _count(
    subject: Subject, built: Built, vlen: int, prompt: int, run: str
) -> tuple[int, Measurement]:
    """Number of prefill calls, and what the counter saw."""
    bench = subject.bench
    tokens = ",".join(str((7 * i + 3) % subject.config.vocab) for i in range(prompt))
    # The guest runs in the parameters' folder, so that no path's length is in its stack.
    arguments = ["--params", ".", "--tokens", tokens, "--roi", run, "--json"]
    arguments += ["--max-new", "1" if run == "prefill" else str(bench.decode)]
    machine = GuestMachine(vlen=vlen, threads=bench.threads)
    result, measured = count_guest(
        built.runner, arguments, machine, bench.cache, cwd=built.params, functions=bench.profile
    )
    try:
        return len(json.loads(result.stdout)["prefill_seconds"]), measured
    except (ValueError, KeyError) as error:
        raise LabError(f"the runner's answer cannot be read: {result.stdout[:200]!r}") from error


def counts_of(regions: Sequence[Counts], prefills: int, phase: str) -> Counts:
    """Sum up the calls of a phase.

    Args:
        regions: counts of each call: first the prefill's, then the decode steps.
        prefills: how many of them are the prefill's.
        phase: "prefill" adds them up; "decode" is the mean of the steps after the first, which
            also grows the allocator's pools.
    """
    if phase == "prefill":
        return sum(regions[:prefills], Counts())
    steps = regions[prefills + 1 :]
    total = asdict(sum(steps, Counts()))
    return Counts(**{name: round(value / len(steps)) for name, value in total.items()})
