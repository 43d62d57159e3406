# SPDX-License-Identifier: Apache-2.0
"""The answer of the main job in a few lines, made from its report alone.

``crosslab picture`` draws it as an SVG of a terminal, for a page that has none.
"""

from __future__ import annotations

import argparse
import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from crosslab.errors import UserError

WIDTH = 84


def summary(report: Mapping[str, Any]) -> Table:
    """The run, its correctness and its cost as a table."""
    done = [entry for entry in report["tensorized"] if entry.get("symbol")]
    tokens, error = "not checked", "not checked"
    if report["checked"]:
        same = report["tokens"] == report["reference_tokens"]
        tokens = "equal" if same else "NOT the reference's"
        bound = report["logit_error_bound"]
        error = f"{report['max_logit_error']:.1e} of the largest (bound {bound:.0e})"
    if (rounding := report["int8_rounding_error"]) is not None:
        error += f"; int8 activations change {rounding:.1e}"
    prefill, decode = report["prefill_seconds"], report["decode_seconds"]
    counters = report["counters"]
    about = ("model", "quantization", "path", "target")
    int8 = ["int8 activations"] if report["activations"] == "int8" else []
    rows = {
        "model": ", ".join([*(str(report[name]) for name in about), *int8]),
        "tokens": f"{len(report['tokens'])}, {tokens}",
        "logit error": error,
        "tensorized": f"{len(done)} blocks, {len({e['symbol'] for e in done})} kernels",
        "prefill": f"{len(report['prompt_tokens'])} tokens, {sum(prefill):.1f} s"
        + _millions(counters["prefill"]),
        "decode": f"{len(decode)} tokens, {sum(decode):.1f} s"
        + _millions(counters["decode_per_token"], " a token"),
        "steps": ", ".join(f"{name} {s:.0f} s" for name, s in report["seconds"].items()),
    }
    table = Table(show_header=False, box=None, pad_edge=False)
    for name, value in rows.items():
        table.add_row(f"[bold]{name}[/]", value)
    return table


def _millions(counts: Mapping[str, int] | None, each: str = "") -> str:
    return f", {counts['insns'] / 1e6:.1f} M instructions{each}" if counts else ""


def main(argv: Sequence[str]) -> int:
    """Draw the report of a finished main job.

    Raises:
        UserError: there is no such report, or another version wrote it.
    """
    parser = argparse.ArgumentParser(prog="crosslab picture", description=main.__doc__)
    parser.add_argument("--report", type=Path, default=Path("out/build_and_test.json"))
    parser.add_argument("--output", type=Path, required=True, metavar="FILE.svg")
    args = parser.parse_args(argv)
    console = Console(record=True, file=io.StringIO(), width=WIDTH, highlight=False)
    try:
        report = json.loads(args.report.read_text(encoding="utf-8"))
        console.print("[green]$[/] nox -s build_and_test")
        console.print(f"[dim]  the question:[/] {report['prompt']}")
        console.print(f"[bold]{report['text']}[/]\n")
        console.print(summary(report))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(
            f"no report of this version in {args.report}: {error!r}",
            remedy="make it with: nox -s build_and_test",
        ) from error
    console.save_svg(str(args.output), title="SmolLM2-135M on an emulated RVV CPU")
    return 0
