# SPDX-License-Identifier: Apache-2.0
"""``crosslab int8-error``: compare int8 activations, and an int8 KV cache, with float32.

The models are compared on a text and on an answer. The numpy reference computes all of them, with
the kernels' rounding and the stored weights. The text is read in separate windows; perplexity
covers every token except the first of a window. For the answer, the float32 model continues after a
window, and the other models predict the next token at each of its tokens. Each token reads the keys
and values of all earlier tokens, and its own, from the cache.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from crosslab.errors import UserError
from crosslab.models.config import LlamaConfig, read_config
from crosslab.models.formats import DEFAULT_FORMAT, REFERENCE_FORMATS, weight_formats
from crosslab.models.llama_params import param_widths
from crosslab.models.params import read_params
from crosslab.models.reference import ReferenceLlama, answer
from crosslab.models.weights_file import F32
from crosslab.project import PROJECT
from crosslab.tokenizer.chat_tokenizer import ChatTokenizer
from groundwork.command_line import Parser

F64 = NDArray[np.float64]
# The references that round, by the rounded data.
ROUNDED = {
    "int8 activations": partial(ReferenceLlama, int8=True),
    "int8 KV cache": partial(ReferenceLlama, int8_cache=True, one_by_one=True),
}
DEFAULT_TEXT = PROJECT / "LICENSE"


@dataclass
class Compared:
    """Running comparison of two models at the same positions.

    Attributes:
        positions: number of compared positions.
        logit_error: largest difference of a logit, divided by the largest logit at that position.
        equal: number of positions where both models have the same likeliest token.
        surprise: sum of -log(probability of the next token), for each model.
        scored: number of tokens in these sums.
    """

    positions: int = 0
    logit_error: float = 0.0
    equal: int = 0
    surprise: tuple[float, float] = (0.0, 0.0)
    scored: int = 0

    def add(self, plain: F32, rounded: F32, tokens: Sequence[int]) -> None:
        """Add logits [positions, vocab] of both models, computed at `tokens`."""
        largest = np.abs(plain).max(axis=1)
        error = (np.abs(rounded - plain).max(axis=1) / largest).max()
        self.logit_error = max(self.logit_error, float(error))
        self.equal += int((plain.argmax(axis=1) == rounded.argmax(axis=1)).sum())
        self.positions += len(plain)
        before, after = self.surprise, (_surprise(plain, tokens), _surprise(rounded, tokens))
        self.surprise = before[0] + after[0], before[1] + after[1]
        self.scored += len(tokens) - 1

    @property
    def perplexity(self) -> tuple[float, float]:
        """Perplexity of the plain and of the rounded model."""
        first, second = (float(np.exp(s / self.scored)) for s in self.surprise)
        return first, second


def log_probabilities(logits: F32, tokens: Sequence[int]) -> F64:
    """Return the log-probability of each token but the first; row n predicts token n + 1."""
    logs = np.empty(len(tokens) - 1, np.float64)
    # Row by row, because float64 logits of a large vocabulary take much memory.
    for i, token in enumerate(tokens[1:]):
        row = logits[i].astype(np.float64)
        row -= row.max()
        logs[i] = row[token] - np.log(np.exp(row).sum())
    return logs


def _surprise(logits: F32, tokens: Sequence[int]) -> float:
    """Return the sum of -log p of each token given all earlier tokens."""
    return -float(log_probabilities(logits, tokens).sum())


def read_text(path: Path) -> str:
    """Read a text file.

    Raises:
        UserError: the file cannot be read, or is not UTF-8.
    """
    try:
        # Keep line ends: llama.cpp does not convert them.
        return path.read_bytes().decode("utf-8")
    except (OSError, ValueError) as error:
        raise UserError(
            f"cannot read the text {path}: {error}", remedy="give a file of UTF-8: --text FILE"
        ) from error


def compare_text(
    config: LlamaConfig, params: dict[str, F32], tokens: Sequence[int], window: int
) -> dict[str, Compared]:
    """Read windows of a text with all models; return the comparison of each in :data:`ROUNDED`.

    Raises:
        UserError: the text has fewer than two tokens.
    """
    if len(tokens) < 2:
        raise UserError("the text has fewer than two tokens")
    compared = {name: Compared() for name in ROUNDED}
    for start in range(0, len(tokens) - 1, window):
        part = tokens[start : start + window]
        plain = ReferenceLlama(config, params).read_all(part)
        for name, reference in ROUNDED.items():
            rows = reference(config, params).read_all(part)
            compared[name].add(plain, rows, part)
    return compared


def compare_answer(
    config: LlamaConfig, params: dict[str, F32], prompt: Sequence[int], count: int
) -> dict[str, Compared]:
    """Generate up to ``count`` tokens in float32; let each :data:`ROUNDED` model predict them."""
    reply = answer(config, params, prompt, max_new=count)
    compared = {name: Compared() for name in ROUNDED}
    for name, reference in ROUNDED.items():
        model = reference(config, params)
        rows = model.read_all([*prompt, *reply.tokens[:-1]])[len(prompt) - 1 :]
        # Each row predicts the next token; the first row follows the prompt's last token.
        compared[name].add(reply.logits, rows, [prompt[-1], *reply.tokens])
    return compared


def main(argv: Sequence[str]) -> int:
    """Print the table of comparisons.

    Raises:
        UserError: a folder or the text cannot be read.
    """
    parser = Parser(
        prog="crosslab int8-error",
        description="Compare int8 activations, and a KV cache in int8, with float32 in the "
        "reference: logits, likeliest tokens and perplexity, on a text and on an answer.",
    )
    add = parser.add_argument
    add("--model", type=Path, required=True, help="folder with config.json and a tokenizer")
    add("--params", type=Path, required=True, help="folder of the stored parameters")
    add(
        "--quantization",
        choices=REFERENCE_FORMATS,
        default=DEFAULT_FORMAT,
        help="format of the stored parameters",
    )
    add("--text", type=Path, default=DEFAULT_TEXT, help="text to read (the project's LICENSE)")
    add("--window", type=int, default=256, help="tokens read at a time (256)")
    add("--answer", type=int, default=200, help="tokens of the answer (200)")
    args = parser.parse_args(argv)
    if args.window < 2 or args.answer < 2:
        raise UserError("--window and --answer must be at least 2")
    config = read_config(args.model / "config.json")
    packing = weight_formats()[args.quantization].packing
    params = read_params(args.params, param_widths(config), packing)
    tokens = ChatTokenizer.load(args.model).tokenizer.encode(read_text(args.text)).ids
    read = compare_text(config, params, tokens, args.window)
    replied = compare_answer(config, params, tokens[: args.window], args.answer)
    table = _table(read, replied)
    Console(width=100, highlight=False).print(table)
    return 0


def _table(read: dict[str, Compared], spoken: dict[str, Compared]) -> Table:
    pairs = {name: (read[name], spoken[name]) for name in ROUNDED}
    first = next(iter(pairs.values()))
    positions = [comparison.positions for comparison in first]
    table = Table("", f"text, {positions[0]} tokens", f"answer, {positions[1]} tokens")
    for name, both in pairs.items():
        largest = f"{name}: largest logit error, of the largest logit"
        table.add_row(largest, *(f"{c.logit_error:.4f}" for c in both))
        same = (f"{c.equal} ({c.equal / c.positions:.1%})" for c in both)
        table.add_row(f"{name}: same likeliest token", *same)
    table.add_row("perplexity, float32", *(f"{c.perplexity[0]:.4f}" for c in first))
    for name, both in pairs.items():
        table.add_row(f"perplexity, {name}", *(f"{c.perplexity[1]:.4f}" for c in both))
    return table
