# SPDX-License-Identifier: Apache-2.0
"""Prediction of a whole model's tokens per second on a board, from models with fewer layers.

Cycles are linear in the number of layers and of rows of lm_head, so three small models determine
the cycles of a whole model. Its time on a board lies between the longer of computing and reading
weights, and their sum.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from gguf.constants import GGML_QUANT_SIZES

from crosslab.cores.core import CORES
from crosslab.errors import UserError
from crosslab.models.config import LlamaConfig
from crosslab.peers.gguf_export import FORMATS, padded

BOARDS = CORES / "boards"
# (layers, rows of lm_head) of the small models. As in whole models, the mixed formats give half of
# 2 or 4 layers the better format.
SMALL = ((2, 2048), (4, 2048), (2, 4096))
Size = tuple[int, int]


@dataclass(frozen=True)
class Published:
    """Published tokens per second on a board.

    Attributes:
        program: program and its build.
        model: common name of the model.
        format: format of the weights.
        threads: number of threads.
        decode: generated tokens per second.
        prefill: prompt tokens per second; None: not published.
        source: place of the publication.
    """

    program: str
    model: str
    format: str
    threads: int
    decode: float
    source: str
    prefill: float | None = None


@dataclass(frozen=True)
class Board:
    """A board with identical cores, and its memory bandwidth.

    Attributes:
        key: name of its file.
        name: full name.
        core: key of its core's file.
        clock: clock in Hz.
        cores: number of identical cores.
        one_core: bytes per second that one core reads from memory.
        all_cores: bytes per second that all cores together read from memory.
        source: source of these figures.
        published: published speeds of programs on the board.
    """

    key: str
    name: str
    core: str
    clock: float
    cores: int
    one_core: float
    all_cores: float
    source: str
    published: tuple[Published, ...] = ()

    def bandwidth(self, threads: int) -> float:
        """Return the bytes per second that a number of threads read together."""
        return min(threads * self.one_core, self.all_cores)

    def speed(self, cycles: float, read: float, threads: int) -> tuple[float, float]:
        """Return tokens per second without overlap and with full overlap.

        Args:
            cycles: cycles of one core per token, which the threads share evenly.
            read: bytes read from memory per token.
            threads: number of threads.
        """
        computing = cycles / min(threads, self.cores) / self.clock
        reading = read / self.bandwidth(threads)
        return 1 / (computing + reading), 1 / max(computing, reading)


def read_boards(folder: Path = BOARDS) -> tuple[Board, ...]:
    """Read all boards, sorted by file name.

    Raises:
        UserError: a file is malformed.
    """
    return tuple(map(_read, sorted(folder.glob("*.toml"))))


def _read(file: Path) -> Board:
    try:
        table: dict[str, Any] = tomllib.loads(file.read_text(encoding="utf-8"))
        published = tuple(Published(**entry) for entry in table.pop("published", ()))
        return Board(**table, key=file.stem, published=published)
    except (TypeError, ValueError) as error:
        raise UserError(
            f"{file} is malformed: {error}", remedy="cores/README.md describes a board's file"
        ) from error


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
