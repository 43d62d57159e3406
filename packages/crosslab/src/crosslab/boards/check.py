# SPDX-License-Identifier: Apache-2.0
"""``crosslab board-check``: compare predicted speeds of boards with published ones."""

from __future__ import annotations

import argparse
import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from rich.console import Console
from rich.table import Table

from crosslab.boards.board import Board, read_boards
from crosslab.boards.fit import fit, left_out
from crosslab.boards.kernels import MEASURES
from crosslab.boards.matrices import Phase, formats, matrices, programs, seconds
from crosslab.boards.published import Row, read_rows
from crosslab.cores.check import around_table, write_table
from crosslab.cores.core import core_option
from crosslab.errors import UserError
from crosslab.models.shapes import shapes
from groundwork.command_line import Parser, choice, output_file

NAME = "board-check"
HEADINGS = ("board", "program", "model, format", "threads", "phase", "measured")
FIGURES = ("predicted", "error", "without its source")
SPEEDS = ("board", "program", "threads ", "prompt", "decode")
FORMAT, TOKENS = "Q4_0", 128  # of a predicted model
WIDE = 160  # characters of a line in a file
MARK = "*"  # of rows with an assumption


@dataclass(frozen=True)
class Judged:
    """A published row and the model's errors.

    Attributes:
        row: the row.
        predicted: predicted tokens a second.
        error: relative error; positive if it is predicted too fast.
        left_out: relative error with parameters fitted without the rows of the same source; NaN: no
            other rows.
    """

    row: Row
    predicted: float
    error: float
    left_out: float

    def cells(self) -> tuple[str, ...]:
        """Return the texts of a table's row, for HEADINGS and FIGURES."""
        row = self.row
        left = "" if math.isnan(self.left_out) else f"{self.left_out:+.0%}"
        return (
            row.board + MARK * bool(row.assumed),
            row.program,
            f"{row.model}, {row.format}",
            str(row.threads),
            f"{row.phase} {row.tokens}",
            f"{row.speed:.2f}",
            f"{self.predicted:.2f}",
            f"{self.error:+.0%}",
            left,
        )


def judge(board: Board, rows: Sequence[Row]) -> Iterator[Judged]:
    """Yield the board's rows with their errors.

    Args:
        board: a board.
        rows: all published rows of the board.
    """
    without: Mapping[Row, float] = left_out(board, tuple(rows))
    for row in rows:
        yield Judged(row, row.predicted(board), row.error(board), without[row])


def summary_of(judged: Sequence[Judged]) -> Iterator[str]:
    """Yield lines with the median and largest error, without sign, of groups of rows.

    The groups are: rows whose source states all, rows with an assumption, and all rows. A row whose
    ``left_out`` is NaN counts only in the error with all rows fitted.
    """
    for what, chosen in (
        ("rows whose source states all", [one for one in judged if not one.row.assumed]),
        (f"rows with an assumption ({MARK})", [one for one in judged if one.row.assumed]),
        ("all rows", list(judged)),
    ):
        if chosen:
            fitted = _size([one.error for one in chosen])
            left = _size([one.left_out for one in chosen if not math.isnan(one.left_out)])
            yield f"{len(chosen)} {what}: error {fitted}; without its source {left}"


def _size(errors: Sequence[float]) -> str:
    sizes = [abs(error) for error in errors]
    if not sizes:
        return "unknown"
    return f"{statistics.median(sizes):.0%} in the median, {max(sizes):.0%} at most"


def fitted_of(board: Board, rows: Sequence[Row]) -> str:
    """Return a line with the board's fitted parameters and the number of its rows."""
    values = ", ".join(f"{name} {board.parameter(name):.4g}" for name in board.fitted) or "nothing"
    return f"{board.key}: fitted to {len(rows)} rows: {values}"


def markdown_of(boards: Sequence[Board], judged: Sequence[Judged]) -> str:
    """Return the table of docs/boards.md, and the lines below it."""
    headings = (*HEADINGS, *FIGURES)
    lines = [f"| {' | '.join(headings)} |", "|---" * len(headings) + "|"]
    lines += [f"| {' | '.join(one.cells())} |" for one in judged]
    lines += ["", *(f"- {line}" for line in summary_of(judged))]
    for board in boards:
        rows = [one.row for one in judged if one.row.board == board.key]
        lines += [f"- {fitted_of(board, rows)}"]
    sources = dict.fromkeys((one.row.source, one.row.assumed) for one in judged)
    lines += ["", "Sources of the rows, and what they do not state:", ""]
    lines += [f"- {source}{f': {assumed}' * bool(assumed)}" for source, assumed in sources]
    return "\n".join(lines)


def _measured(board: Board, measure: str) -> Board:
    """Return the board with another measure of the kernels' cycles, and parameters that fit it."""
    if measure == board.layout.measure:
        return board
    rows = [row for row in read_rows() if row.board == board.key]
    other = replace(board, layout=replace(board.layout, measure=measure))
    return fit(other, rows) if rows else other


def _table(headings: Sequence[str]) -> Table:
    table = Table(box=None, padding=(0, 1, 0, 0))
    for heading in headings:
        table.add_column(heading, justify="right" if heading in (*FIGURES, *SPEEDS[2:]) else "left")
    return table


def predictions_of(
    boards: Sequence[Board], model: str, format_: str, prompt: int
) -> Iterator[tuple[str, ...]]:
    """Yield board, program, threads, and tokens a second of prompt and generation, as texts.

    Programs that a board cannot run are left out.

    Args:
        boards: the boards.
        model: name in ``models/shapes.toml``.
        format_: format of the file.
        prompt: tokens of the prompt, and in the cache before the generated token.
    """
    config, phases = shapes()[model], (Phase(prompt), Phase(1, prompt))
    weights = matrices(config, format_)
    kinds = {matrix.kind for matrix in weights[0]}
    for board in boards:
        first = board.layout.clusters[0].cpus
        for name, program in programs().items():
            units = {route.unit for route in program.routes.values()} - {""}
            routed = not program.routes or kinds & set(program.routes)
            fits = program.vlen in (0, core_option(board.core).vlen)
            if not routed or not fits or not units <= set(dict(board.units)):
                continue
            for threads in (first,) if units else sorted({first, board.cpus}):
                try:
                    speeds = [
                        phase.tokens / seconds(board, name, config, weights, phase, threads)
                        for phase in phases
                    ]
                except UserError:
                    continue  # the program lacks the format, or a kernel was not counted
                yield board.key, name, str(threads), *(f"{speed:.3g}" for speed in speeds)


def _check_model(args: argparse.Namespace) -> None:
    """Check that the options belong to ``--model``, or to the published rows without it.

    Raises:
        UserError: an option does not, or is out of range.
    """
    of_model = [("--format", args.format), ("--prompt", args.prompt)]
    of_rows = [("--fit", args.fit or None), ("--docs", args.docs)]
    for name, value in of_rows if args.model else of_model:
        if value is not None:
            raise UserError(
                f"{name} is an option of the {'published rows' if args.model else 'model'}",
                remedy=f"leave out {name}, or --model" if args.model else "add --model NAME",
            )
    if args.prompt is not None and args.prompt < 1:
        raise UserError(f"--prompt {args.prompt}", remedy="give 1 token or more")


def main(argv: Sequence[str]) -> int:
    """Print the published rows with predictions and errors; with ``--model``, predictions of it.

    Raises:
        UserError: an option is out of range, or excludes another one.
    """
    boards = read_boards()
    options = Parser(
        prog=f"crosslab {NAME}",
        description="Predict the published speeds of boards, and print the errors of the model.",
    )
    known = [board.key for board in boards]
    options.add_argument(
        "--board",
        type=lambda text: choice(text, known, "a known board"),
        help="check only this board (all)",
    )
    options.add_argument(
        "--fit", action="store_true", help="also print the parameters that fit best"
    )
    options.add_argument(
        "--measure",
        choices=MEASURES,
        default=MEASURES[0],
        help="measure of the kernels' cycles; parameters are then fitted for it (pipeline)",
    )
    options.add_argument(
        "--model",
        type=lambda text: choice(text, list(shapes()), "a known model"),
        help="predict this model on the boards, in place of the published rows",
    )
    options.add_argument("--format", choices=formats(), help=f"its format ({FORMAT})")
    options.add_argument("--prompt", type=int, metavar="N", help=f"tokens of its prompt ({TOKENS})")
    options.add_argument(
        "--docs", type=output_file, metavar="PAGE", help="also write the table to a page"
    )
    args = options.parse_args(argv)
    _check_model(args)
    if args.docs and (args.board or args.measure != MEASURES[0]):
        raise UserError(
            "--docs writes the rows of all boards", remedy="leave out --board and --measure"
        )
    if args.docs:
        around_table(args.docs, NAME)  # before the long work
    chosen = [_measured(board, args.measure) for board in boards if args.board in (None, board.key)]
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = WIDE
    if args.model:
        table = _table(SPEEDS)
        format_, prompt = args.format or FORMAT, args.prompt or TOKENS
        for cells in predictions_of(chosen, args.model, format_, prompt):
            table.add_row(*cells)
        console.print(table)
        return 0
    table = _table((*HEADINGS, *FIGURES))
    results: list[Judged] = []
    for board in chosen:
        results += judge(board, [row for row in read_rows() if row.board == board.key])
    for one in results:
        table.add_row(*one.cells())
    console.print(table)
    for board in chosen:
        rows = [one.row for one in results if one.row.board == board.key]
        console.print(fitted_of(board, rows), soft_wrap=True)
        if args.fit and rows:
            console.print("best: " + fitted_of(fit(board, rows), rows), soft_wrap=True)
    for line in summary_of(results):
        console.print(line, soft_wrap=True)
    if args.docs:
        write_table(args.docs, markdown_of(chosen, results), NAME)
    return 0
