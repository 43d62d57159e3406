# SPDX-License-Identifier: Apache-2.0
"""Prediction of a whole model's tokens per second on a board, from models with fewer layers.

Cycles are linear in the number of layers and of rows of lm_head, so three small models determine
the cycles of a whole model. The model of the board adds the waits for memory, and of threads for
each other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from gguf.constants import GGML_QUANT_SIZES

from crosslab.boards.board import Board, Work
from crosslab.boards.fit import error_of
from crosslab.boards.matrices import Phase, matrices, phase_work, programs, seconds, waits
from crosslab.boards.published import DECODE, PROMPT
from crosslab.cores.core import core_option
from crosslab.models.config import LlamaConfig
from crosslab.peers.gguf_export import FORMATS, padded

# Orders in which llama.cpp's RVV builds walk weights: the first one whose VLEN is the core's.
PEERS = ("rvv-repack", "rvv-dot")
# (layers, rows of lm_head) of the small models. As in whole models, the mixed formats give half of
# 2 or 4 layers the better format.
SMALL = ((2, 2048), (4, 2048), (2, 4096))
Size = tuple[int, int]
CACHE_ITEM = 2  # bytes of a number in the cache of keys and values: halves


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
) -> Speed:
    """Predict the speed of a phase whose cycles threads share evenly.

    Args:
        board: the board.
        config: the model's sizes.
        format_: format of the weights.
        phase: tokens of the phase, and before it.
        cycles: cycles of one core for all tokens of the phase.
        threads: number of threads; more threads than cores are no faster.
        peer: llama.cpp, which reads the weights of a prompt several times; ours reads them once,
            in huge pages.
    """
    threads = min(threads, board.cpus)
    seen = round(phase.before) + phase.tokens
    read = bytes_of_token(config, format_, seen, CACHE_ITEM)
    memory, l2 = read / threads / board.layout.line, 0.0
    huge_pages = bytes_of_token(config, format_, 0, CACHE_ITEM) / read
    if peer:
        vlen = core_option(board.core).vlen
        program = next(programs()[name] for name in PEERS if programs()[name].vlen in (0, vlen))
        weights = matrices(config, format_)
        works = [*phase_work(board.layout, program, config, weights, phase, threads)]
        memory = sum(work.memory_lines for work in works)
        l2 = sum(work.l2_lines for work in works)
        huge_pages = 0.0
    work = Work(products=cycles / threads, memory_lines=memory, l2_lines=l2, barriers=waits(config))
    speed = phase.tokens / board.seconds(work, threads, huge_pages=huge_pages)
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
    weights = matrices(config, format_)
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


def bytes_of_token(config: LlamaConfig, format_: str, context: int, item: int) -> float:
    """Return the bytes read for a decoded token: each weight once, with lm_head, and the cache.

    Args:
        config: the model's sizes.
        format_: format of the weights.
        context: tokens in the cache.
        item: bytes of a number in the cache.
    """
    wide = padded(config.intermediate, FORMATS[format_].block)
    qkv, out, gate_up, down = replace(config, intermediate=wide).linear_layers
    value_rows = config.kv_heads * config.head_dim
    read = 0.0
    for layer in range(config.layers):
        matrices: Sequence[tuple[str, int, int]] = (
            ("attn_q", qkv[0] - value_rows, qkv[1]),
            ("attn_v", value_rows, qkv[1]),
            ("attn_output", *out),
            ("ffn_gate", *gate_up),
            ("ffn_down", *down),
        )
        for name, rows, columns in matrices:
            read += _size(f"blk.{layer}.{name}.weight", rows, columns, config.layers, format_)
    read += _size("output.weight", config.vocab, config.hidden, config.layers, format_)
    return read + 2 * config.layers * value_rows * context * item


def _size(name: str, rows: int, columns: int, layers: int, format_: str) -> float:
    block, size = GGML_QUANT_SIZES[FORMATS[format_].kind_of(name, columns, layers, tied=False)]
    return float(rows * columns / block * size)
