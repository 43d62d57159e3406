# SPDX-License-Identifier: Apache-2.0
"""Prediction of a whole model's tokens per second on a board, from models with fewer layers.

Cycles are linear in the number of layers and of rows of lm_head, so three small models determine
the cycles of a whole model. The model of the board adds the waits for memory, and of threads for
each other.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from crosslab.boards.board import Board, Work
from crosslab.boards.fit import error_of
from crosslab.boards.matrices import (
    Matrices,
    Phase,
    cache_item,
    cache_lines,
    kind_named,
    matrices,
    phase_work,
    programs,
    seconds,
    waits,
)
from crosslab.boards.predictions import PROGRAM
from crosslab.boards.published import DECODE, PROMPT
from crosslab.cores.core import core_option
from crosslab.models.config import LlamaConfig
from crosslab.peers.gguf_export import FORMATS, padded

# Orders in which llama.cpp's RVV builds walk weights: the first one whose VLEN is the core's.
PEERS = ("rvv-repack-flash", "rvv-flash")
# (layers, rows of lm_head) of the small models. As in whole models, the mixed formats give half of
# 2 or 4 layers the better format.
SMALL = ((2, 2048), (4, 2048), (2, 4096))
Size = tuple[int, int]


@dataclass(frozen=True)
class Speed:
    """A predicted speed.

    Attributes:
        tokens_per_second: the prediction.
        error: median error of the model for published rows of the same board and phase, with
            parameters fitted without the rows of the same source; None: no such rows.
    """

    tokens_per_second: float
    error: float | None

    def __str__(self) -> str:
        """The speed with its error, as in "36.1 ± 3.2"."""
        text = f"{self.tokens_per_second:.3g}"
        return text if self.error is None else f"{text} ± {self.error * self.tokens_per_second:.2g}"


def predict(
    board: Board,
    config: LlamaConfig,
    format_: str,
    phase: Phase,
    *,
    cycles: float,
    threads: int,
    peer: bool,
    kv_cache: str = "float32",
) -> Speed:
    """Predict the speed of a phase whose cycles threads share evenly.

    Args:
        board: the board.
        config: the model's sizes.
        format_: format of the weights.
        phase: tokens of the phase, and before it.
        cycles: cycles of one core for all tokens of the phase.
        threads: number of threads; more threads than cores are no faster.
        peer: llama.cpp, which reads the weights of a prompt several times, and has halves in its
            KV cache; ours reads the weights once, in huge pages.
        kv_cache: type of the numbers in our KV cache, "float32" or "int8".
    """
    threads = min(threads, board.cpus)
    weights = counted_weights(config, format_)
    if peer:
        vlen = core_option(board.core).vlen
        program = next(programs()[name] for name in PEERS if programs()[name].vlen in (0, vlen))
        works = [*phase_work(board.layout, program, config, weights, phase, threads)]
    else:
        item = cache_item(kv_cache, config.head_dim)
        read = Work(
            1.0,
            memory_lines=bytes_of_weights(weights) / threads / board.layout.line,
            cache_lines=cache_lines(board.layout, config, phase, item, threads),
            barriers=waits(config),
        )
        works = [read]
        if phase.tokens > 1:  # only the first tile of tokens waits for the weights
            first = min(1.0, programs()[PROGRAM].routes["q4_0"].tokens / phase.tokens)
            works = [replace(read, cycles=first, cache_lines=0.0, barriers=0.0)]
            works += [replace(read, cycles=1 - first, memory_lines=0.0)]
    # The counted cycles are shared out as the model's own.
    share = cycles / threads / sum(work.cycles + work.products for work in works)
    taken = 0.0
    for work in works:
        counted = replace(work, cycles=0.0, products=share * (work.cycles + work.products))
        taken += board.seconds(counted, threads, huge_pages=not peer)
    speed = phase.tokens / taken
    return Speed(speed, error_of(board, PROMPT if phase.tokens > 1 else DECODE))


def programs_with_units(board: Board) -> tuple[str, ...]:
    """Return the names of llama.cpp's builds for a matrix unit of the board."""
    units = dict(board.units)
    return tuple(
        name
        for name, program in programs().items()
        if any(route.unit in units for route in program.routes.values())
    )


def predict_unit(
    board: Board, program: str, config: LlamaConfig, format_: str, phase: Phase
) -> Speed:
    """Predict the speed of a build of llama.cpp for a matrix unit, on the first cluster.

    Args:
        board: the board.
        program: one of :func:`programs_with_units`.
        config: the model's sizes.
        format_: format of the file.
        phase: tokens of the phase, and before it.
    """
    threads = board.layout.clusters[0].cpus
    weights = counted_weights(config, format_)
    speed = phase.tokens / seconds(board, program, config, weights, phase, threads)
    return Speed(speed, error_of(board, PROMPT if phase.tokens > 1 else DECODE))


def small(config: LlamaConfig, size: Size) -> LlamaConfig:
    """Return the sizes of a model with fewer layers and rows of lm_head."""
    layers, vocab = size
    return replace(config, layers=layers, vocab=vocab)


def whole(costs: Mapping[Size, float], config: LlamaConfig) -> float:
    """Return the cost of a whole model, extrapolated from the costs of :data:`SMALL`."""
    first, more_layers, more_rows = (costs[size] for size in SMALL)
    (layers, rows), (layers_2, _), (_, rows_2) = SMALL
    a_layer = (more_layers - first) / (layers_2 - layers)
    a_row = (more_rows - first) / (rows_2 - rows)
    return first + (config.layers - layers) * a_layer + (config.vocab - rows) * a_row


def counted_weights(config: LlamaConfig, format_: str) -> Matrices:
    """Return the matrices of the counted files, both ours and the peer's.

    They have the types and padded widths of :mod:`crosslab.peers.gguf_export`: Q4_0 is also that of
    lm_head, as with ``--pure`` of llama-quantize.

    Args:
        config: the model's sizes.
        format_: format of the weights.
    """
    chosen = FORMATS[format_]
    wide = replace(config, intermediate=padded(config.intermediate, chosen.block))
    layers, head = matrices(wide, format_)
    kind = chosen.kind_of("output.weight", config.hidden, config.layers, tied=False).name
    return layers, replace(head, kind=kind_named(kind))


def bytes_of_weights(weights: Matrices) -> float:
    """Return the bytes of all matrices, each once, with lm_head."""
    layers, head = weights
    return sum(matrix.size * matrix.count for matrix in (*layers, head))
