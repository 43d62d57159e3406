# SPDX-License-Identifier: Apache-2.0
"""The command ``costmodel``: the cost of a GEMM, a model or a recorded run on an accelerator."""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

from rich.console import Console

from costmodel.accelerator import inputs
from costmodel.accelerator.dataflow import Dataflow
from costmodel.accelerator.hardware import Hardware
from costmodel.accelerator.scheme import (
    AS_COMPILED,
    FLOAT32,
    Scheme,
    scheme_named,
    schemes,
    with_caches,
)
from costmodel.accelerator.tenet import TenetResult, read_experiment, run_experiment
from costmodel.accuracy import measure
from costmodel.counting.relations import is_number
from costmodel.errors import CostError, read_json
from costmodel.estimate.execution import Execution
from costmodel.estimate.model import PhaseCost, phase_cost
from costmodel.estimate.tiling import BufferTile
from costmodel.estimate.trace import trace_phases
from costmodel.estimate.workload import (
    DEFAULT_PHASES,
    Phase,
    model_name,
    only_gemm,
    open_sizes,
    parse_extents,
    parse_phases,
    read_workloads,
    weight_shapes,
)
from costmodel.options import (
    DEFAULT_HARDWARE,
    SEARCHED_HARDWARE,
    parsed,
    refuse_ignored,
)
from costmodel.results import report
from costmodel.search import explore
from costmodel.search.mapping import ANEW, again
from groundwork.errors import exit_code_of
from groundwork.files import atomic_write_json


def main(
    argv: Sequence[str] | None = None, read: Callable[[Path], dict[str, Any]] = read_workloads
) -> int:
    """Run the command ``costmodel`` and return its exit code.

    Args:
        argv: options; by default this process's arguments.
        read: returns the workloads of a model for a value of ``--model``.
    """
    args, typed = parsed(argv)

    def run() -> None:
        refuse_ignored(args, typed)
        _run(args, report.console(), read)

    return exit_code_of(run, CostError)


def _run(
    args: argparse.Namespace, console: Console, read: Callable[[Path], dict[str, Any]]
) -> None:
    if args.tenet is not None:
        _tenet(args, console)
        return
    if args.accuracy is not None:
        _accuracy(args, console)
        return
    if args.model is not None:
        work = read(args.model)
        phases = _model_phases(args, work)
        if args.search or args.mapping is not None:
            _search(args, console, phases, weight_shapes(work))
            return
    else:
        phases = _phases(args)
    hardware, dataflows = _accelerators(args)
    tile = _tile(args.tile, phases if args.gemm is not None else [])
    every = product(phases, hardware, dataflows, _schemes(args))
    results = [phase_cost(*each, tile) for each in every]
    _write(args, results)
    if not args.quiet:
        _show(console, results, single=args.gemm is not None, compare=args.compare)


def _search(
    args: argparse.Namespace, console: Console, phases: list[Phase], weights: dict[str, int]
) -> None:
    """Search for accelerators, or estimate the rows of an earlier search again."""
    names = args.hardware or [SEARCHED_HARDWARE]
    if len(names) != 1:
        problem = "a search takes one --hardware, and keeps its memories and clock"
        raise CostError(problem, remedy=f"--hardware {names[0]}; search once for each")
    (base,) = inputs.hardware_by_names(names, args.macs_per_pe)
    model = model_name(args.model)
    accuracy = measure.known(weights)
    run = vars(_execution(args))
    pes, lanes = args.pes or base.fabric.pes, base.fabric.lanes
    if args.mapping is not None:
        old = _read_search(args.mapping)
        pes = old.get("pes")
        if old.get("macs_per_pe", 1) != lanes:
            raise CostError(
                f"{args.mapping} was searched with {old.get('macs_per_pe', 1)} "
                f"multiply-accumulates a PE, {base.name} has {lanes}",
                remedy=f"--macs-per-pe {old.get('macs_per_pe', 1)}",
            )
        run = {**vars(Execution()), **old["execution"]} if "execution" in old else run
        if run != vars(_execution(args)):
            raise CostError(
                f"{args.mapping} is the result of a search with {_words(run)}",
                remedy="give the same options",
            )
        shapes = old.get("weights")
        if weights != shapes if shapes is not None else model != old.get("model", model):
            raise CostError(
                f"{args.mapping} is for {old.get('model')!r}, and {args.model} is another model",
                remedy="give the --model of the search",
            )
        typed = [p.name for p in phases] if args.phase else []
        fronts = again(old, phases, base, schemes(args.scheme or []), accuracy, typed)
        names = [row["scheme"] for row in fronts]
    else:
        chosen = with_caches(schemes(args.scheme or ["all"]), args.cache)
        fronts = explore.search(phases, base, chosen, args.pes, accuracy)
        names = [scheme.name for scheme in chosen]
    unmeasured = [name for name in dict.fromkeys(names) if name not in accuracy]
    if args.json:
        record = {"schema": 1, "model": model, "weights": weights, "execution": run}
        record |= {"pes": pes, "macs_per_pe": lanes}
        atomic_write_json(args.json, {**record, "unmeasured": unmeasured, "fronts": fronts})
    if args.csv:
        report.write_fronts(args.csv, fronts)
    if not args.quiet:
        exact = accuracy.get(FLOAT32.name)
        report.show_fronts(console, fronts, exact and exact * args.max_perplexity)
        if note := unmeasured_note(unmeasured):
            console.print(f"  {note}", soft_wrap=True)


def unmeasured_note(names: Sequence[str]) -> str:
    """Return a note on schemes without a measured accuracy; "" for no schemes."""
    if not names:
        return ""
    typed = dict.fromkeys(name if scheme_named(name) else "SCHEME.toml" for name in names)
    return (
        f"The accuracy of {', '.join(names)} is not measured, so their rows are compared only with "
        "rows of the same scheme. To measure it: nox -s cost -- --accuracy MODEL.gguf --scheme "
        f"{' '.join(typed)} --json FILE"
    )


def _read_search(path: Path) -> dict[str, Any]:
    search = read_json(path, ANEW)
    if (
        not isinstance(search, dict)
        or search.get("schema", 1) != 1
        or not isinstance(search.get("fronts"), list)
        or not isinstance(search.get("execution", {}), dict)
    ):
        raise CostError(f"{path}: not the JSON file of a search (schema 1)", remedy=ANEW)
    if not search["fronts"]:
        raise CostError(f"{path}: contains no rows: 'fronts' is empty", remedy=ANEW)
    return search


def _accuracy(args: argparse.Namespace, console: Console) -> None:
    plain = measure.load(args.accuracy)
    record = measure.record(args.accuracy, plain)
    before = measure.earlier(args.json, record) if args.json else []
    rows = []
    for measured in measure.measured(plain, schemes(args.scheme or ["all"])):
        rows.append(measured)
        if not args.quiet:
            console.print(
                f"{measured['scheme']:20} perplexity {measured['perplexity']:10.3f}  "
                f"greedy agreement {measured['agreement']:.1%}"
            )
    if args.json:
        atomic_write_json(args.json, {**record, "rows": measure.merged(before, rows)})


def _tenet(args: argparse.Namespace, console: Console) -> None:
    experiment = read_experiment(args.tenet)
    if args.macs_per_pe is not None:
        fabric = replace(experiment.hardware.fabric, lanes=args.macs_per_pe)
        experiment = replace(experiment, hardware=replace(experiment.hardware, fabric=fabric))
    result: TenetResult = run_experiment(experiment)
    if args.json:
        atomic_write_json(args.json, report.tenet_record(result))
    if not args.quiet:
        report.show_tenet(console, result)


def _phases(args: argparse.Namespace) -> list[Phase]:
    if args.gemm is not None:
        return [only_gemm(parse_extents(args.gemm, "--gemm"), args.batch)]
    return trace_phases(args.trace)


def _model_phases(args: argparse.Namespace, work: Mapping[str, Any]) -> list[Phase]:
    sizes = _bindings(args.bind, "--bind")
    run = _execution(args)
    asked = parse_phases(DEFAULT_PHASES if args.phase is None else args.phase)
    phases = [run.bind(work, name, size, sizes) for name, size in asked]
    _refuse_unbound(sizes, open_sizes(work, [phase.entry for phase in phases]))
    if args.causal and not any(phase.prompt for phase in phases):
        raise CostError(
            f"--causal {args.causal} does nothing with --phase {args.phase or DEFAULT_PHASES}",
            remedy="it works on the queries of a prompt: --phase prefill:512",
        )
    if args.page and all(phase.prompt for phase in phases):
        raise CostError(
            f"--page {args.page} does nothing with --phase {args.phase}: a prompt has an empty "
            "cache",
            remedy="use a phase that reads the cache: --phase decode:1024",
        )
    return phases


def _refuse_unbound(bound: Mapping[str, int], names: Collection[str]) -> None:
    """Refuse a --bind of a size that is not open in the work.

    Raises:
        CostError: a name in ``bound`` is not in ``names``, the open sizes.
    """
    for name in bound:
        if name not in names:
            raise CostError(
                f"--bind {name} does nothing: the model has no open size of that name",
                remedy=f"open sizes: {', '.join(sorted(names)) or '(none)'}",
            )


def _execution(args: argparse.Namespace) -> Execution:
    return Execution(args.causal, args.page, args.chain, args.arrays, args.split)


def _words(run: Mapping[str, Any]) -> str:
    """Return the options of an execution as a user types them, without default values."""
    usual = vars(Execution())
    given = {name: value for name, value in run.items() if value != usual.get(name)}
    words = [f"--{name}" if value is True else f"--{name} {value}" for name, value in given.items()]
    return " ".join(words) or f"none of {', '.join(f'--{name}' for name in usual)}"


def _accelerators(args: argparse.Namespace) -> tuple[Sequence[Hardware], Sequence[Dataflow]]:
    hardware = inputs.hardware_by_names(args.hardware or [DEFAULT_HARDWARE], args.macs_per_pe)
    factors = _bindings(args.factor, "--factor")
    dataflows = inputs.dataflows_by_names(args.dataflow, factors)
    for name in factors:
        if not any(flow.uses(name) for flow in dataflows):
            raise CostError(
                f"--factor {name} does nothing: no map of {', '.join(args.dataflow)} uses {name}",
                remedy="leave it out, or give the --dataflow that uses it",
            )
    unbounded = [h.name for h in hardware if h.levels[0].size is None]
    for name in ("tile", "chain"):
        if getattr(args, name) and unbounded:
            raise CostError(
                f"--{name} does nothing with --hardware {', '.join(unbounded)}: its first "
                "memory is unbounded",
                remedy="--hardware edge8x8, systolic32x32 or a file with the size of a level",
            )
    divided = [h.name for h in hardware if h.levels[0].split is not None]
    if args.chain and divided:
        raise CostError(
            f"--chain does nothing with --hardware {', '.join(divided)}: its buffer is split",
            remedy="leave it out, or give a buffer that A, B and C share",
        )
    return hardware, dataflows


def _schemes(args: argparse.Namespace) -> list[Scheme | str]:
    names = args.scheme or [AS_COMPILED if args.trace else "float16"]
    chosen: list[Scheme | str] = []
    for name in names:
        chosen.extend([AS_COMPILED] if name == AS_COMPILED else schemes([name]))
    return list(dict.fromkeys(chosen))


def _tile(text: str | None, alone: Sequence[Phase]) -> BufferTile | None:
    """Return the tile of --tile, if any; it may not exceed a product of the phases in ``alone``."""
    if text is None:
        return None
    tile = parse_extents(text, "--tile")
    for gemm in (item.gemm for phase in alone for item in phase.items):
        most = tuple(map(min, tile, gemm.extents))
        if most != tile:
            raise CostError(
                f"--tile {text} is larger than the product, {gemm.m},{gemm.n},{gemm.k}",
                remedy=f"--tile {','.join(map(str, most))}",
            )
    return BufferTile(*tile)


def _bindings(texts: Sequence[str], option: str) -> dict[str, int]:
    numbers = {}
    for text in texts:
        name, _, value = text.partition("=")
        if not name or not is_number(value) or int(value) < 1:
            raise CostError(f"{option} {text!r}: must have the form NAME=NUMBER, NUMBER at least 1")
        numbers[name] = int(value)
    return numbers


def _write(args: argparse.Namespace, results: Sequence[PhaseCost]) -> None:
    if args.json:
        records: Any = [report.phase_record(r) for r in results]
        if args.gemm is not None:
            records = [g for r in records for g in r["gemms"]]
        atomic_write_json(args.json, records)
    if args.csv:
        report.write_csv(args.csv, results)
    if args.plots:
        # matplotlib takes a second to read: import it only for figures.
        importlib.import_module("costmodel.results.plots").draw_all(args.plots, results)


def _show(console: Console, results: Sequence[PhaseCost], single: bool, compare: bool) -> None:
    for result in [] if compare else results:
        if single:
            for item in result.items:
                report.show_gemm(console, item.cost)
        else:
            report.show_phase(console, result)
    if len(results) > 1 or compare:
        report.show_comparison(console, results)
