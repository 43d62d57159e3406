# SPDX-License-Identifier: Apache-2.0
"""``crosslab lookup``: the time that prompt lookup saves on a board, for answers of a real model.

A model writes answers in the reference. The calls of the runner's engine follow from the tokens,
as in ``runner/engine/prompt_lookup.cc``; the model of the board predicts the time of each call.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from rich.console import Console
from rich.progress import track
from rich.table import Table

from crosslab.boards.board import Board, read_boards
from crosslab.boards.matrices import Phase, formats, matrices, seconds
from crosslab.boards.predictions import PROGRAM
from crosslab.cached_build import CACHE_OPTION
from crosslab.cores.check import around_table, write_table
from crosslab.errors import UserError
from crosslab.models.config import LlamaConfig
from crosslab.models.reference import answer
from crosslab.models.shapes import shapes
from crosslab.peers.perplexity import StoredModel, gguf_file
from groundwork.command_line import Parser, choice, output_file

NAME = "lookup"
PROMPTS = Path(__file__).with_name("lookup_prompts.toml")
HEADINGS = ("answer", "tokens", "calls", "guesses", "right", "without", "with", "gain")
# Options that decide the table.
TABLE = ("writer", "prompt", "answer", "board", "model", "format")
# The constants of runner/engine/prompt_lookup.cc.
MATCHES = (3, 2)
MOST_GUESSED = 15
FADE = 0.9
MOST_LOST = 1.5
REST = 96
Seconds = Callable[[int, int], float]
"""Seconds of a call, by the number of its tokens and the number of tokens before them."""

_progress = Console(stderr=True)


@dataclass(frozen=True)
class Call:
    """A call of the model while an answer is written.

    Attributes:
        guessed: guessed tokens that the call verifies; 0: a decode call.
        right: guesses that are the answer's tokens.
        seconds: time of the call.
    """

    guessed: int
    right: int
    seconds: float


def guess_next(text: Sequence[int], most: int) -> Sequence[int]:
    """Return the tokens after the latest earlier copy of the last three tokens, else of two.

    They are at most ``most``, and none without a copy.
    """
    for length in MATCHES:
        last = tuple(text[-length:])
        for at in range(len(text) - length - 1, -1, -1):
            if tuple(text[at : at + length]) == last:
                return text[at + length : at + length + max(0, most)]
    return ()


def calls(
    prompt: Sequence[int], reply: Sequence[int], most: int, cost: Seconds, *, always: bool = False
) -> Iterator[Call]:
    """Yield the engine's calls for an answer, after the prompt's call has given its first token.

    Args:
        prompt: tokens of the prompt.
        reply: tokens of the answer.
        most: limit of the answer's tokens.
        cost: predicted time of a call.
        always: guess even while guessing loses time.
    """
    text, length, saved, rest, decode = [*prompt, *reply[:1]], 2, 0.0, 0, 0.0
    end = len(prompt) + most
    while len(text) < len(prompt) + len(reply):
        tries = always or (decode > 0 and rest == 0)
        if not tries:
            rest = max(0, rest - 1)
        guesses = guess_next(text, min(length, end - len(text))) if tries else ()
        wanted = reply[len(text) - len(prompt) :]
        right = 0
        while right < min(len(guesses), len(wanted) - 1) and guesses[right] == wanted[right]:
            right += 1
        taken = cost(len(guesses) + 1, len(text) - 1)
        yield Call(len(guesses), right, taken)
        text += wanted[: right + 1]
        if not guesses:
            decode = taken
            continue
        length = min(2 * length, MOST_GUESSED) if right == len(guesses) else max(1, right)
        if always:
            continue
        saved = FADE * saved + right + 1 - taken / decode
        if saved <= -MOST_LOST:
            saved, rest = 0.0, REST


def cost_on(board: Board, config: LlamaConfig, format_: str, threads: int) -> Seconds:
    """Return a function for the seconds of calls that compute logits of each of their tokens.

    Raises:
        UserError: raised by the function: no counts of the format's products on the board's core.
    """
    layers, head = matrices(config, format_)
    # A prompt computes lm_head for its last token alone.
    weights = ((*layers, head), replace(head, rows=0))

    def cost(tokens: int, before: int) -> float:
        return seconds(board, PROGRAM, config, weights, Phase(tokens, before), threads)

    return cost


def _row(
    name: str, prompt: Sequence[int], reply: Sequence[int], most: int, cost: Seconds
) -> list[str]:
    made = list(calls(prompt, reply, most, cost))
    plain = sum(cost(1, len(prompt) + n) for n in range(len(reply) - 1))
    guessed, right = sum(c.guessed for c in made), sum(c.right for c in made)
    tokens, taken = len(reply) - 1, sum(c.seconds for c in made)
    share = f"{right / guessed:.0%}" if guessed else ""
    # The prompt's call gives the first token; an answer of one token has no further calls.
    speeds = ["", "", ""]
    if made:
        speeds = [f"{tokens / plain:.3g}", f"{tokens / taken:.3g}", f"{plain / taken:.2f}"]
    return [name, str(len(reply)), str(len(made)), str(guessed), share, *speeds]


def _parser() -> Parser:
    parser = Parser(
        prog=f"crosslab {NAME}",
        description="Let a model write answers, and predict the tokens a second of a larger model "
        "on a board that writes the same answers, without prompt lookup and with it.",
    )
    add = parser.add_argument
    boards, models = [board.key for board in read_boards()], list(shapes())
    add("writer", nargs="?", default="smollm2-135m", help="GGUF file or pinned model that answers")
    add("--prompt", type=Path, nargs="+", metavar="FILE", help="a prompt each (built in)")
    add("--answer", type=int, default=160, help="tokens of an answer, at most (160)")
    add("--board", type=lambda t: choice(t, boards, "a known board"), default="k1", help="(k1)")
    add(
        "--model",
        type=lambda text: choice(text, models, "a known model"),
        default="qwen3-0.6b",
        help="sizes of the model on the board (qwen3-0.6b)",
    )
    add("--format", choices=formats(), default="Q4_0", help="format of its file (Q4_0)")
    add("--docs", type=output_file, metavar="PAGE", help="also write the table to a page")
    add("--cache", **CACHE_OPTION)
    return parser


def _prompts(files: Sequence[Path] | None) -> dict[str, str]:
    if not files:
        return dict(tomllib.loads(PROMPTS.read_text(encoding="utf-8")))
    try:
        return {str(file): file.read_text(encoding="utf-8") for file in files}
    except (OSError, ValueError) as error:
        raise UserError(f"cannot read a prompt: {error}", remedy="give files of UTF-8") from error


def main(argv: Sequence[str]) -> int:
    """Print calls and predicted tokens a second for each prompt.

    Raises:
        UserError: an option, the model or a prompt cannot be used.
    """
    parser = _parser()
    args = parser.parse_args(argv)
    others = [name for name in TABLE if getattr(args, name) != parser.get_default(name)]
    if args.docs and others:
        names = ", ".join("MODEL" if name == "writer" else f"--{name}" for name in others)
        raise UserError("--docs writes the table of the defaults", remedy=f"leave out {names}")
    if args.docs:
        around_table(args.docs, NAME)  # before the long work
    if args.answer < 2:
        raise UserError(f"--answer {args.answer}", remedy="give 2 tokens or more")
    prompts = _prompts(args.prompt)
    board = next(board for board in read_boards() if board.key == args.board)
    cost = cost_on(board, shapes()[args.model], args.format, board.cpus)
    model = StoredModel.of_file(gguf_file(args.writer, args.cache), args.cache)
    params, stop = dict(model.params), model.tokenizer.stop_ids
    rows = []
    for name, text in track(prompts.items(), "answers", console=_progress, transient=True):
        prompt = model.tokenizer.chat_ids(text.strip())
        reply = answer(model.config, params, prompt, max_new=args.answer, stop=stop).tokens
        rows.append(_row(name, prompt, reply, args.answer, cost))
    table = Table(*HEADINGS, box=None, padding=(0, 1, 0, 0))
    for row in rows:
        table.add_row(*row)
    Console(highlight=False).print(table)
    if args.docs:
        lines = [" | ".join(row) for row in (HEADINGS, ["---"] * len(HEADINGS), *rows)]
        write_table(args.docs, "\n".join(f"| {line} |" for line in lines), NAME)
    return 0
