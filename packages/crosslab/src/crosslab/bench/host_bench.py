# SPDX-License-Identifier: Apache-2.0
"""``crosslab host-bench``: measure the time of upstream's code and ours on this machine.

Both variants run alternately in one process, compiled for this machine; the best repeat counts.
Unlike instruction counts, the times vary with the machine and its load: use an idle machine.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from crosslab.assemble.kernels import KernelTarget, cached_kernels
from crosslab.assemble.recipe_options import recipe_options
from crosslab.bench.options import MODEL_S
from crosslab.bench.plain_table import plain_table
from crosslab.compile.driver import DEFAULT_CHUNK, CompileRequest, compile_llama, tree_environment
from crosslab.compile.targets import LabTarget
from crosslab.errors import LabError, UserError
from crosslab.models.config import LlamaConfig, read_config
from crosslab.models.formats import DEFAULT_FORMAT, weight_formats
from crosslab.models.llama_params import random_params
from groundwork.command_line import Parser, output_file
from groundwork.files import atomic_write_json

SEED = 0
UPSTREAM, OURS = "upstream", "ours"
LAST_LINES = 15

_progress = Console(stderr=True, highlight=False)
_results = Console(highlight=False)


@dataclass(frozen=True)
class TimingRow:
    """A measured time of a variant.

    Attributes:
        model: "S", or the name of the model's file.
        variant: "upstream" or "ours".
        phase: "prefill", or "decode": the median step of a run.
        tokens: tokens of the prompt, also for decode steps, which follow the prompt.
        threads: number of threads.
        seconds: shortest time of the repeats.
        ratio: upstream's seconds divided by this row's, with the same number of threads.
        speedup: seconds with the fewest threads divided by this row's, of the same variant.
    """

    model: str
    variant: str
    phase: str
    tokens: int
    threads: int
    seconds: float
    ratio: float
    speedup: float


def parser() -> Parser:
    """Return the parser of the command's options."""
    options = Parser(
        prog="crosslab host-bench",
        description="Time upstream and ours on this machine. Both take turns in one process; the "
        "best of the repeats counts. Use a machine without other load.",
        parents=[recipe_options("project", "tvm-tree", "cache")],
    )
    add = options.add_argument
    add("--upstream-tree", type=Path, required=True, help="TVM tree without patches")
    add("--model", default="S", help="S, or a config.json; the weights are random (S)")
    add("--prefill", type=int, action="append", help="tokens of a prompt; repeatable (128, 512)")
    add("--decode", type=int, default=16, help="tokens to generate after each prompt (16)")
    add("--threads", type=int, action="append", help="threads of the model; repeatable (1, 2)")
    add("--repeats", type=int, default=7, help="repeats of each measurement (7)")
    add("--json", type=output_file, dest="report", help="report (PROJECT/out/host.json)")
    return options


def main(argv: Sequence[str]) -> int:
    """Measure both variants, print the table, and write the JSON report.

    Raises:
        UserError: an option or a tree is wrong.
        LabError: a step fails, or the two variants disagree.
    """
    args = parser().read(argv, _checked)
    prompts, threads = args.prefill, args.threads
    libraries = build(args, args.config)
    params = random_params(args.config, SEED, args.cache)
    rows: list[TimingRow] = []
    for tokens in prompts:
        _progress.print(f"timing a prompt of {tokens}: {args.repeats} turns each")
        prompt = [(7 * i + 3) % args.config.vocab for i in range(tokens)]
        spec = {
            "libraries": {name: str(path) for name, path in libraries.items()},
            "params": str(params),
            "prompt": prompt,
            "decode": args.decode,
            "threads": threads,
            "repeats": args.repeats,
        }
        rows += rows_of(args.model, tokens, time_turns(args.tvm_tree, spec))
    show(rows)
    report = args.report or args.project / "out" / "host.json"
    atomic_write_json(report, [asdict(row) for row in rows])
    return 0


def _checked(args: argparse.Namespace) -> argparse.Namespace:
    """Return the options with the model's ``config``, and each prompt and number of threads once.

    Raises:
        UserError: a value is out of range, or the model cannot be read.
    """
    args.prefill = list(dict.fromkeys(args.prefill or [128, 512]))
    args.threads = list(dict.fromkeys(args.threads or [1, 2]))
    prompts, threads = args.prefill, args.threads
    if min(prompts) < 2 or min(threads) < 1 or min(args.repeats, args.decode) < 1:
        raise UserError(
            f"prompts of {prompts}, {args.decode} steps, {threads} threads, {args.repeats} repeats",
            remedy="give prompts of 2 tokens or more, and 1 or more of the others",
        )
    cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if max(threads) > cpus:
        raise UserError(
            f"--threads {max(threads)}: this machine has {cpus} processors",
            remedy=f"give --threads {cpus}, or less",
        )
    if args.model != "S" and not Path(args.model).is_file():
        raise UserError(
            f"--model {args.model} is not a file", remedy="give S, or the path of a config.json"
        )
    args.config = MODEL_S if args.model == "S" else read_config(Path(args.model))
    if max(prompts) + args.decode > args.config.context:
        raise UserError(
            f"a prompt of {max(prompts)} tokens and {args.decode} generated ones do not fit a "
            f"context of {args.config.context}",
            remedy="give less to --prefill or --decode",
        )
    return args


def build(args: argparse.Namespace, config: LlamaConfig) -> dict[str, Path]:
    """Compile both variants for this machine; return the shared libraries by variant."""
    # A prompt is timed as one call.
    chunk = max(DEFAULT_CHUNK, *args.prefill)
    upstream = CompileRequest(
        tvm_tree=args.upstream_tree,
        config=config,
        target=LabTarget("host"),
        form="shared",
        steps=(),
        prefill_chunk=chunk,
    )
    ours = CompileRequest(
        tvm_tree=args.tvm_tree,
        config=config,
        target=LabTarget("host"),
        form="shared",
        kernels=cached_kernels(KernelTarget.HOST, args.cache),
        require_tensorize=True,
        prefill_chunk=chunk,
    )
    libraries = {}
    for name, request in ((UPSTREAM, upstream), (OURS, ours)):
        _progress.print(f"building: {name}")
        libraries[name] = compile_llama(request, args.cache).library
    return libraries


def time_turns(tree: Path, spec: dict[str, Any]) -> dict[str, object]:
    """Run :mod:`crosslab.compile.stopwatch` as a process, on a spec; return its JSON result.

    Raises:
        LabError: the process fails, or the variants' logits differ by more than rounding explains.
    """
    with tempfile.TemporaryDirectory() as folder:
        output, path = Path(folder) / "times.json", Path(folder) / "spec.json"
        path.write_text(json.dumps({**spec, "output": str(output)}), encoding="utf-8")
        done = subprocess.run(
            [sys.executable, "-m", "crosslab.compile.stopwatch", str(path)],
            # By default TVM uses half of an x86's processors, since a core has two threads.
            env={**tree_environment(tree), "TVM_NUM_THREADS": str(max(spec["threads"]))},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            check=False,
        )
        if done.returncode != 0:
            last = "\n  ".join(done.stdout.strip().splitlines()[-LAST_LINES:])
            raise LabError(f"timing on this machine failed:\n  {last}")
        result: dict[str, object] = json.loads(output.read_text(encoding="utf-8"))
    errors = result["deviation"]
    if (
        not isinstance(errors, dict)
        or not max(errors.values()) < weight_formats()[DEFAULT_FORMAT].tolerance
    ):
        raise LabError(f"the logits of the variants differ, as parts of the largest by: {errors}")
    return result


def rows_of(model: str, tokens: int, result: dict[str, object]) -> list[TimingRow]:
    """Convert the stopwatch's result to rows with ratios."""
    timings = result["rows"]
    assert isinstance(timings, list)
    seconds = {(t["variant"], t["phase"], t["threads"]): float(t["seconds"]) for t in timings}
    fewest = min(threads for _, _, threads in seconds)
    return [
        TimingRow(
            model=model,
            variant=variant,
            phase=phase,
            tokens=tokens,
            threads=threads,
            seconds=value,
            ratio=seconds[UPSTREAM, phase, threads] / value,
            speedup=seconds[variant, phase, fewest] / value,
        )
        for (variant, phase, threads), value in sorted(seconds.items(), key=_place)
    ]


def _place(item: tuple[tuple[str, str, int], float]) -> tuple[bool, int, bool]:
    variant, phase, threads = item[0]
    return phase == "decode", threads, variant == OURS


def show(rows: Sequence[TimingRow]) -> None:
    """Print the table of the rows."""
    title = "on this machine, milliseconds (best of the repeats)"
    headings = ("phase", "prompt", "threads", "variant", "ms", "upstream / it", "1 thread / it")
    table = plain_table(title, headings)
    for row in rows:
        numbers = f"{row.seconds * 1e3:.2f}", f"{row.ratio:.2f}", f"{row.speedup:.2f}"
        table.add_row(row.phase, str(row.tokens), str(row.threads), row.variant, *numbers)
    _results.print(table)
