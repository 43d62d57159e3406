# SPDX-License-Identifier: Apache-2.0
"""``crosslab core-check``: compare predicted cycles of whole loops with cycles of real cores.

The loops are the project's own, with the instructions of the loops that rvv-bench-results published
(``cores/published_loops.csv``). Predictions are those of the bench: by the core's pipeline, and by
the two sums. The errors are printed; they do not change the exit code.
"""

from __future__ import annotations

import csv
import math
import statistics
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path

from rich.console import Console
from rich.table import Table

from crosslab.cached_build import CACHE_OPTION
from crosslab.cores.core import CORES, Core, core_option
from crosslab.cores.cycles import Cycles
from crosslab.cores.pipeline import all_cycles, pipeline_cycles
from crosslab.errors import UserError
from crosslab.host.objects import run_compiler
from crosslab.host.toolchain import find_cross
from crosslab.run.counter import count_guest
from crosslab.run.emulator import GuestMachine
from crosslab.run.measurement import Measurement
from groundwork.command_line import Parser, output_file
from groundwork.files import atomic_write

SOURCES = Path(__file__).parents[1] / "native" / "core_check"
PUBLISHED = "published_loops.csv"
# Changes of the fitted parameters from their values in a core's file.
STORE_STEPS, TO_SCALAR_STEPS = (-0.5, -0.25, 0, 0.25, 0.5), (-1, 0, 1)
MEASURES = ("pipeline", "serial", "vec-serial")


@dataclass(frozen=True)
class PublishedLoop:
    """A loop with published cycles of a core.

    Attributes:
        core: name of the core's file.
        loop: name of the project's loop with the same instructions.
        published: name in rvv-bench-results.
        elements: number of elements that the loop processed.
        rate: measured elements per cycle.
    """

    core: str
    loop: str
    published: str
    elements: int
    rate: float

    @property
    def cycles(self) -> float:
        """Measured cycles of the loop."""
        return self.elements / self.rate


@dataclass(frozen=True)
class Prediction:
    """A published loop, and its predicted cycles."""

    loop: PublishedLoop
    cycles: Cycles

    def figure(self, measure: str) -> int | None:
        """Return the predicted cycles by one of :data:`MEASURES`; None: unknown."""
        values = (self.cycles.pipeline, self.cycles.serial, self.cycles.vec_serial)
        return dict(zip(MEASURES, values, strict=True))[measure]

    def error(self, predicted: int) -> float:
        """Return the relative error of a prediction; positive if it is above the measurement."""
        return predicted / self.loop.cycles - 1


def read_loops(folder: Path) -> list[PublishedLoop]:
    """Read the published loops from ``<folder>/published_loops.csv``.

    Raises:
        UserError: the file is missing or malformed.
    """
    path = folder / PUBLISHED
    try:
        with path.open(encoding="utf-8", newline="") as file:
            _, *rows = csv.reader(file)
        loops = [
            PublishedLoop(c, ours, name, int(n), float(rate)) for c, ours, name, n, rate in rows
        ]
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: {error}") from error
    for number, loop in enumerate(loops, start=2):
        if loop.elements < 1 or not 0 < loop.rate < math.inf:
            raise UserError(
                f"{path}, line {number}: {loop.elements} elements, {loop.rate} a cycle",
                remedy="both are positive numbers",
            )
    return loops


def predict(core: Core, loops: Sequence[PublishedLoop], cache: Path) -> list[Prediction]:
    """Run loops of a core under the counter; return the predicted cycles of each loop.

    Raises:
        LabError: the loops do not compile or run.
    """
    measured = run_loops(core, loops, cache)
    return [
        Prediction(loop, all_cycles(core, measured, [index])) for index, loop in enumerate(loops)
    ]


def leave_one_out(core: Core, loops: Sequence[PublishedLoop], measured: Measurement) -> list[float]:
    """Return each loop's relative error, without sign, with parameters fitted to the other loops.

    The fit tries ``store`` and ``to_scalar`` near the core's own, for the least median error.

    Raises:
        UserError: the core has no pipeline.
    """
    pipeline = core.require_pipeline()
    errors = []
    for store, to_scalar in product(STORE_STEPS, TO_SCALAR_STEPS):
        near = replace(
            pipeline,
            store=max(0.0, pipeline.store + store),
            to_scalar=pipeline.to_scalar + to_scalar,
        )
        varied = replace(core, pipeline=near)
        cycles = [sum(pipeline_cycles(varied, measured, [i]).values()) for i in range(len(loops))]
        errors.append([abs(c / loop.cycles - 1) for c, loop in zip(cycles, loops, strict=True)])
    left_out = []
    for index in range(len(loops)):
        others = (statistics.median([*row[:index], *row[index + 1 :]]) for row in errors)
        left_out.append(min(zip(others, (row[index] for row in errors), strict=True))[1])
    return left_out


def run_loops(core: Core, loops: Sequence[PublishedLoop], cache: Path) -> Measurement:
    """Run loops of a core under the counter, with a region for each loop.

    Raises:
        LabError: the loops do not compile or run.
    """
    toolchain = find_cross()
    with tempfile.TemporaryDirectory(prefix="core-check-") as folder:
        program, loops_object = Path(folder) / "core_check", Path(folder) / "loops.o"
        plain = [flag for flag in toolchain.cc if not flag.startswith("-march")]
        vectors = "-march=rv64gcv"
        assemble = [*plain, vectors, "-c", str(SOURCES / "loops.S"), "-o", str(loops_object)]
        parts = [str(SOURCES / "main.c"), str(loops_object), "-o", str(program)]
        link = [*toolchain.cc, *toolchain.link, "-O1", "-static", *parts]
        for command in (assemble, link):
            run_compiler("compiling the loops", command, Path(folder))
        words = [word for loop in loops for word in (loop.loop, str(loop.elements))]
        return count_guest(program, words, GuestMachine(core.vlen), cache)[1]


def table_of(name: str, predictions: Sequence[Prediction]) -> Table:
    """Return the table of the predictions for a core."""
    table = Table(title=f"{name}: cycles of whole loops", box=None, padding=(0, 1, 0, 0))
    table.add_column("published loop", overflow="fold")
    measures = [word for name in MEASURES for word in (name, "error")]
    for heading in ("elements", "measured", *measures):
        table.add_column(heading, justify="right", no_wrap=True)
    for prediction in predictions:
        figures = [prediction.figure(name) for name in MEASURES]
        cells = (
            ("", "") if figure is None else (f"{figure:,}", f"{prediction.error(figure):+.0%}")
            for figure in figures
        )
        table.add_row(
            prediction.loop.published,
            str(prediction.loop.elements),
            f"{prediction.loop.cycles:,.0f}",
            *(cell for pair in cells for cell in pair),
        )
    return table


def summary_of(predictions: Sequence[Prediction]) -> str:
    """Return the median and largest error of each measure, as a line of text."""
    parts = []
    for name in MEASURES:
        if errors := errors_of(predictions, name):
            median, most = statistics.median(errors), max(errors)
            parts.append(f"{name}: {median:.0%} in the median, {most:.0%} at most")
    return "error, " + "; ".join(parts)


def errors_of(predictions: Sequence[Prediction], measure: str) -> list[float]:
    """Return the absolute relative errors by a measure, without unknown predictions."""
    figures = [(prediction, prediction.figure(measure)) for prediction in predictions]
    return [abs(prediction.error(figure)) for prediction, figure in figures if figure is not None]


def markdown_of(names: Sequence[str], predictions: Sequence[Prediction]) -> str:
    """Return the table of docs/cycles.md: a line per published loop, columns per core.

    Args:
        names: keys of the cores.
        predictions: predictions for all loops of these cores.
    """
    columns = [f" {name} measured | {' | '.join(MEASURES)} |" for name in names]
    lines = [f"| loop |{''.join(columns)}", "|---" * (1 + 4 * len(names)) + "|"]
    by_loop: dict[str, dict[str, Prediction]] = {}
    for prediction in predictions:
        by_loop.setdefault(prediction.loop.published, {})[prediction.loop.core] = prediction
    for published, by_core in by_loop.items():
        cells = (_cells(by_core.get(name)) for name in names)
        lines.append(f"| {published} |{''.join(cells)}")
    sizes = []
    for name in names:
        of_core = [prediction for prediction in predictions if prediction.loop.core == name]
        errors = [errors_of(of_core, measure) for measure in MEASURES]
        words = (f"{statistics.median(e):.0%} / {max(e):.0%} |" for e in errors)
        sizes.append(f" {len(of_core)} loops | {' '.join(words)}")
    return "\n".join([*lines, f"| error, median / most |{''.join(sizes)}"])


def _cells(prediction: Prediction | None) -> str:
    if prediction is None:
        return " |" * (1 + len(MEASURES))
    figures = (prediction.figure(name) for name in MEASURES)
    errors = ("" if figure is None else f"{prediction.error(figure):+.0%}" for figure in figures)
    return f" {prediction.loop.cycles:,.0f} | {' | '.join(errors)} |"


def around_table(page: Path, verb: str = "core-check") -> tuple[str, str]:
    """Return the texts of a page before and after a verb's table, with the marks of its ends.

    Raises:
        UserError: the page has no such marks.
        OSError: the page cannot be read.
    """
    begin_mark, end_mark = f"<!-- {verb}: begin -->", f"<!-- {verb}: end -->"
    before, mark, rest = page.read_text(encoding="utf-8").partition(f"{begin_mark}\n")
    _, end, after = rest.partition(end_mark)
    if not mark or not end:
        raise UserError(f"{page} has no lines {begin_mark} and {end_mark}", remedy="add them")
    return f"{before}{mark}", f"{end}{after}"


def write_table(page: Path, table: str, verb: str = "core-check") -> None:
    """Replace the table between a verb's marks in a page; errors as :func:`around_table`."""
    before, after = around_table(page, verb)
    atomic_write(page, f"{before}{table}\n{after}")


def main(argv: Sequence[str]) -> int:
    """Print the predicted and measured cycles for each core with published loops.

    Raises:
        UserError: a core of ``--core`` has no published loops, ``--docs`` is given with it, or a
            tool is missing.
        LabError: the loops do not compile or run.
    """
    options = Parser(
        prog="crosslab core-check",
        description="Compare predicted cycles of whole loops with cycles measured on real cores.",
    )
    options.add_argument(
        "--core", type=core_option, nargs="+", metavar="NAME", help="check only these cores (all)"
    )
    options.add_argument(
        "--docs",
        type=output_file,
        metavar="PAGE",
        help="also write the table of the cores with a pipeline to this page",
    )
    options.add_argument(
        "--leave-one-out",
        action="store_true",
        help="also choose the fitted parameters for each loop without it; minutes",
    )
    options.add_argument("--cache", **CACHE_OPTION)
    args = options.parse_args(argv)
    if args.docs and args.core:
        raise UserError("--docs writes the table of all cores", remedy="leave out --core")
    if args.docs:
        around_table(args.docs)  # before the long work
    loops = read_loops(CORES)
    console = Console(highlight=False)
    known = sorted({loop.core for loop in loops})
    results: list[Prediction] = []
    for core in args.core or map(core_option, known):
        chosen = [loop for loop in loops if loop.core == core.key]
        if not chosen:
            raise UserError(
                f"--core {core}: {CORES / PUBLISHED} has no loops of this core",
                remedy=f"it has loops of: {', '.join(known)}",
            )
        predictions = predict(core, chosen, args.cache)
        results += predictions
        console.print(table_of(core.name, predictions))
        console.print(summary_of(predictions))
        if args.leave_one_out and core.pipeline:
            left = leave_one_out(core, chosen, run_loops(core, chosen, args.cache))
            console.print(
                "pipeline, parameters fitted without the loop: "
                f"{statistics.median(left):.0%} in the median, {max(left):.0%} at most"
            )
    if args.docs:
        piped = [p for p in results if p.cycles.pipeline is not None]
        write_table(args.docs, markdown_of(list(dict.fromkeys(p.loop.core for p in piped)), piped))
    return 0
