# SPDX-License-Identifier: Apache-2.0
"""``bench --predict``: count small models, and print predictions for the boards of a core."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from rich.console import RenderableType
from rich.text import Text

from crosslab.bench.cycles_table import notes
from crosslab.bench.options import Bench
from crosslab.bench.plain_table import plain_table
from crosslab.bench.predict import (
    SMALL,
    Size,
    predict,
    predict_unit,
    programs_with_units,
    small,
    whole,
)
from crosslab.bench.rows import Row, cost_of, name_of
from crosslab.bench.subject import Subject
from crosslab.bench.table import peer_notes
from crosslab.boards.board import Board, read_boards
from crosslab.boards.matrices import Phase
from crosslab.errors import UserError
from crosslab.models.config import LlamaConfig
from crosslab.models.formats import GGUF

# A build with at most this ratio to the best build's cycles may be the best for a whole model.
NEAR = 1.02
NOTE = (
    "tokens a second, ± the model's median error for published rows of the board, each left out "
    "of the fit with its source (uv run crosslab board-check); without an error: no such rows. "
    "Threads share the work evenly. Counted with {sizes} layers and rows of lm_head, and scaled "
    "to {layers} and {vocab}; programs for a matrix unit by the model alone. {cycles}"
)
PIPELINE = "Cycles are those of the core's pipeline"
SUM = (
    "The core's file has no [pipeline]: cycles are the sum of all instructions' costs, as if none "
    "overlapped"
)
DROPPED = (
    "Builds that take over {over:.0%} more cycles than the best one in every phase of the first "
    "small model, and were not counted in the others: {builds}"
)
HEADINGS = ("board", "program", "threads", "prefill", "decode")


@dataclass(frozen=True)
class Costs:
    """Cycles per token of a whole model, for a program's prefill and decode."""

    prefill: float
    decode: float


def count_small(
    bench: Bench, measure: Callable[[Subject], Iterable[Row]]
) -> dict[Size, tuple[Row, ...]]:
    """Count the small models; return the rows of each, with separate rows for the peer's builds.

    The first model has all of the bench's builds of the peer. The others have only those that were
    nearly the best in a phase of the first.

    Args:
        bench: options of the whole model.
        measure: counts the rows of a model.
    """
    config = Subject(bench).config
    bench = replace(bench, each_build=True)
    counted: dict[Size, tuple[Row, ...]] = {}
    for size in SMALL:
        layers, vocab = size
        name = f"{bench.model}, {layers} layers, {vocab} rows of lm_head"
        rows = measure(Subject(replace(bench, config=small(config, size), asset="")))
        counted[size] = tuple(replace(row, model=name) for row in rows)
        if len(counted) == 1:
            bench = replace(bench, peer_builds=tuple(_near_best(counted[size])))
    return counted


def _near_best(rows: Sequence[Row]) -> dict[str, None]:
    """Return the peer's builds with at most NEAR times the best build's cycles in some phase."""
    best: dict[tuple[str, str], int] = {}
    for row in rows:
        key = (name_of(row), row.phase)
        best[key] = min(cost_of(row), best.get(key, cost_of(row)))
    near = (r for r in rows if r.build and cost_of(r) <= NEAR * best[name_of(r), r.phase])
    return dict.fromkeys(row.build for row in near)


def builds_in_the_first_alone(counted: Mapping[Size, Sequence[Row]]) -> list[str]:
    """Return the peer's builds that were counted only with the first small model."""
    first, second, _ = (dict.fromkeys(row.build for row in counted[size]) for size in SMALL)
    return [build for build in first if build not in second]


def whole_costs(counted: Mapping[Size, Sequence[Row]], config: LlamaConfig) -> Mapping[str, Costs]:
    """Return the cycles per token of a whole model by program, from the small models' rows.

    Each phase uses the peer's build with the least cycles.
    """
    by_build: dict[tuple[str, str, str], dict[Size, float]] = defaultdict(dict)
    for size, rows in counted.items():
        for row in rows:
            by_build[name_of(row), row.phase, row.build][size] = cost_of(row) / row.call
    scaled: dict[tuple[str, str], float] = {}
    for (name, phase, _), costs in by_build.items():
        if len(costs) == len(SMALL):
            cost = whole(costs, config)
            scaled[name, phase] = min(cost, scaled.get((name, phase), cost))
    decode = {name: cost for (name, phase), cost in scaled.items() if phase == "decode"}
    # A peer's prefill as shipped has a separate name, with "*", and no decode.
    return {
        name: Costs(cost, decode[name.rstrip("*")])
        for (name, phase), cost in scaled.items()
        if phase == "prefill"
    }


def boards_of(bench: Bench) -> tuple[Board, ...]:
    """Return the boards with the core of a bench.

    Raises:
        UserError: the bench has no core, no board has it, or other options exclude predictions.
    """
    boards = read_boards()
    known = ", ".join(dict.fromkeys(board.core for board in boards))
    if bench.core is None or not (matches := [b for b in boards if b.core == bench.core.key]):
        raise UserError("--predict needs the core of a board", remedy=f"give --core {known}")
    alone = bench.threads == bench.together == 1
    if bench.quantizations != (GGUF,) or len(bench.prompts) > 1 or not alone:
        raise UserError(
            "--predict takes weights in GGUF's blocks, one prompt, one thread and one sequence",
            remedy=f"give --quantization {GGUF} and one --prefill; no --threads, no --together",
        )
    return tuple(matches)


def predictions(
    bench: Bench, boards: Sequence[Board], counted: Mapping[Size, Sequence[Row]]
) -> Iterator[RenderableType]:
    """Yield the table of predicted speeds, then notes on the counts, the peers and the boards.

    Args:
        bench: options of the whole model.
        boards: boards with the bench's core.
        counted: rows of the small models.
    """
    config, (prompt,) = Subject(bench).config, bench.prompts
    costs = whole_costs(counted, config)
    after = f" after {bench.depth} tokens" if bench.depth else ""
    title = f"{bench.model}, {bench.gguf}, prompt of {prompt}{after}: predicted"
    table = plain_table(title, HEADINGS, left=HEADINGS)
    phases = (Phase(prompt, bench.depth), Phase(1, bench.depth + prompt))
    for board in boards:
        for program, cost in costs.items():
            for threads in sorted({1, 4, board.cpus}):
                speeds = (
                    predict(
                        board,
                        config,
                        bench.gguf,
                        phase,
                        cycles=cycles * phase.tokens,
                        threads=threads,
                        peer=program.startswith("llama.cpp"),
                        kv_cache=bench.recipe.mode.kv_cache,
                    )
                    for phase, cycles in zip(phases, (cost.prefill, cost.decode), strict=True)
                )
                table.add_row(board.key, program, str(threads), *map(str, speeds))
        for name in programs_with_units(board):
            speeds = (predict_unit(board, name, config, bench.gguf, phase) for phase in phases)
            cells = (str(board.layout.clusters[0].cpus), *map(str, speeds))
            table.add_row(board.key, f"llama.cpp, {name}, not counted", *cells)
    yield table
    sizes = ", ".join(f"{layers}/{rows}" for layers, rows in SMALL)
    cycles = PIPELINE if bench.core and bench.core.pipeline else SUM
    about = {"layers": config.layers, "vocab": config.vocab}
    yield Text(NOTE.format(sizes=sizes, cycles=cycles, **about))
    if dropped := builds_in_the_first_alone(counted):
        yield Text(DROPPED.format(over=NEAR - 1, builds="; ".join(dropped)))
    ordered = sorted(counted[SMALL[-1]], key=cost_of, reverse=True)
    best = {(name_of(row), row.phase): row for row in ordered}
    yield from map(Text, peer_notes(best.values()))
    yield from map(Text, notes([row for rows in counted.values() for row in rows]))
    for board in boards:
        yield Text(f"{board.key}: {board.name}. {board.source}")
