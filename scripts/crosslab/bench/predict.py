# SPDX-License-Identifier: Apache-2.0
"""Tokens a second of a whole model on a board, from counts of models with fewer layers.

Cycles grow with the layers and with the rows of lm_head in a straight line, so that three small
models give those of a whole one. Its time on a board lies between the longer of computing and
reading weights, and their sum.
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
# Layers and rows of lm_head. With 2 and 4 layers, half of them have the mixes' better format, as in
# whole models.
SMALL = ((2, 2048), (4, 2048), (2, 4096))
Size = tuple[int, int]


@dataclass(frozen=True)
class Published:
    """Tokens a second that a source states for a board.

    Attributes:
        program: and its build.
        model: by its usual name.
        format: of the weights.
        threads: at work.
        decode: tokens a second generated.
        prefill: tokens a second of a prompt; None: not stated.
        source: where.
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
    """A board.

    Attributes:
        key: name of its file.
        name: for people.
        core: key of its core's file.
        clock: Hz.
        cores: that are alike.
        one_core: bytes a second that one core reads from memory.
        all_cores: the same for all cores together.
        source: of these.
        published: speeds of programs on it.
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
        """Bytes a second that some threads read together."""
        return min(threads * self.one_core, self.all_cores)

    def speed(self, cycles: float, read: float, threads: int) -> tuple[float, float]:
        """Tokens a second, from nothing overlaps to all does.

        Args:
            cycles: of one core for a token, which the threads share evenly.
            read: bytes from memory for a token.
            threads: at work.
        """
        computing = cycles / min(threads, self.cores) / self.clock
        reading = read / self.bandwidth(threads)
        return 1 / (computing + reading), 1 / max(computing, reading)


def read_boards(folder: Path = BOARDS) -> tuple[Board, ...]:
    """The boards, by name of their files.

    Raises:
        UserError: a file is malformed.
    """
    return tuple(map(_read, sorted(folder.glob("*.toml"))))


def _read(file: Path) -> Board:
    try:
        table: dict[str, Any] = tomllib.loads(file.read_text(encoding="utf-8"))
        published = tuple(Published(**one) for one in table.pop("published", ()))
        return Board(**table, key=file.stem, published=published)
    except (TypeError, ValueError) as error:
        raise UserError(
            f"{file} is malformed: {error}", remedy="cores/README.md describes a board's file"
        ) from error


def small(config: LlamaConfig, size: Size) -> LlamaConfig:
    """A model with fewer layers and rows of lm_head."""
    layers, vocab = size
    return replace(config, layers=layers, vocab=vocab)


def whole(costs: Mapping[Size, float], config: LlamaConfig) -> float:
    """Cost of a whole model, from those of :data:`SMALL`."""
    first, more_layers, more_rows = (costs[size] for size in SMALL)
    (layers, rows), (layers_2, _), (_, rows_2) = SMALL
    a_layer = (more_layers - first) / (layers_2 - layers)
    a_row = (more_rows - first) / (rows_2 - rows)
    return first + (config.layers - layers) * a_layer + (config.vocab - rows) * a_row


def bytes_of_token(config: LlamaConfig, format_: str, context: int, item: int) -> float:
    """Bytes that a decoded token reads: each weight once, lm_head too, and the cache.

    Args:
        config: the model's sizes.
        format_: of the weights.
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
