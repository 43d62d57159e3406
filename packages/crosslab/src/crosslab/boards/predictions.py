# SPDX-License-Identifier: Apache-2.0
"""Predicted speeds of a finished model on boards, for ``runner bench`` to print beside its own."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

from crosslab.boards.board import Board, read_boards
from crosslab.boards.fit import error_of
from crosslab.boards.matrices import Matrices, Phase, cache_item, seconds
from crosslab.boards.published import DECODE, PROMPT
from crosslab.cores.core import core_option
from crosslab.errors import UserError
from crosslab.models.config import LlamaConfig

PROGRAM = "ours"
# Tokens of the tests of ``runner bench``, by its names: a prompt, and generated tokens.
TESTS = (("pp", 128), ("pp", 512), ("tg", 128))


def predictions(
    config: LlamaConfig, weights: Matrices, vlens: Collection[int], kv_cache: str = "float32"
) -> list[dict[str, Any]]:
    """Return a table for each board that runs the model, with a row for each thread count and test.

    Args:
        config: the model's sizes.
        weights: its matrices, in the types that the products read.
        vlens: bits in a vector register of the model's libraries.
        kv_cache: type of the numbers in the KV cache, "float32" or "int8".
    """
    boards = [board for board in read_boards() if core_option(board.core).vlen in vlens]
    item = cache_item(kv_cache, config.head_dim)
    tables = (_table(board, config, weights, item) for board in boards if board.compatible)
    return [table for table in tables if table["rows"]]


def _table(board: Board, config: LlamaConfig, weights: Matrices, item: float) -> dict[str, Any]:
    return {
        "board": board.key,
        "name": board.name,
        "compatible": list(board.compatible),
        "vlen": core_option(board.core).vlen,
        "rows": list(_rows(board, config, weights, item)),
    }


def _rows(
    board: Board, config: LlamaConfig, weights: Matrices, item: float
) -> Iterator[dict[str, Any]]:
    """Yield a row by threads and test; none if a type of weights was not counted on the core."""
    counts = {2**n for n in range(board.cpus.bit_length())} | {board.cpus}
    for threads in sorted(count for count in counts if count <= board.cpus):
        for test, tokens in TESTS:
            phase = Phase(tokens) if test == "pp" else Phase(1, tokens / 2)
            try:
                taken = seconds(board, PROGRAM, config, weights, phase, threads, item=item)
            except UserError:
                return
            error = error_of(board, PROMPT if test == "pp" else DECODE)
            yield {
                "threads": threads,
                "test": f"{test}{tokens}",
                "tokens_per_second": float(f"{phase.tokens / taken:.4g}"),
                "error": None if error is None else float(f"{error:.2g}"),
            }
