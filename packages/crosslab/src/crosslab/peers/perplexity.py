# SPDX-License-Identifier: Apache-2.0
"""``crosslab perplexity``: size, bits per weight and perplexity of a GGUF file, beside llama.cpp.

The numpy reference computes our perplexity from the stored parameters, which are the bytes that a
board reads. It rounds activations as the int8 kernels do. llama.cpp reads the same tokens in the
same windows, in a build for this machine, with its defaults.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from crosslab.assemble.pinned_archive import read_archive
from crosslab.cached_build import CACHE_OPTION
from crosslab.errors import LabError, UserError
from crosslab.models.config import LlamaConfig, read_family
from crosslab.models.gguf_params import rows_and_blocks
from crosslab.models.int8_error import DEFAULT_TEXT, F64, log_probabilities, read_text
from crosslab.models.llama_params import convert_gguf, gguf_layout, param_shapes
from crosslab.models.params import ReadParams, read_index
from crosslab.models.reference import ReferenceLlama, RoundingBlocks
from crosslab.models.sources.asset import fetch_asset
from crosslab.models.sources.gguf_import import import_gguf
from crosslab.models.sources.gguf_parts import part_files
from crosslab.models.sources.pins import read_pins
from crosslab.peers.gguf_export import FORMATS
from crosslab.peers.gguf_rewrite import rewrite_gguf
from crosslab.peers.llama_cpp_build import NAME
from crosslab.peers.llama_cpp_programs import READER, build_native
from crosslab.peers.llama_cpp_text import PeerReading, run_reader
from crosslab.project import PROJECT
from crosslab.tokenizer.chat_tokenizer import ChatTokenizer
from groundwork.command_line import Parser

FLOAT32, INT8 = "ours, float32 activations", "ours, int8 activations"
_progress = Console(stderr=True, highlight=False)


@dataclass(frozen=True)
class Reading:
    """Result of a program that read the text; a row of the table.

    Attributes:
        name: name of the row.
        size: bytes of the weights.
        log_probabilities: see :func:`read_windows`.
    """

    name: str
    size: int
    log_probabilities: F64

    @property
    def perplexity(self) -> float:
        """Perplexity of the read tokens."""
        return math.exp(-float(self.log_probabilities.mean()))

    def differences(self, other: Reading) -> tuple[float, float]:
        """Return the mean and largest absolute difference of a token's log-probability."""
        differences = np.abs(self.log_probabilities - other.log_probabilities)
        return float(differences.mean()), float(differences.max())


@dataclass(frozen=True)
class StoredModel:
    """A GGUF file's model in the form that a board stores.

    Attributes:
        config: sizes of the model.
        params: stored parameters.
        blocks: rounding blocks of the parameters that stay in the file's blocks.
        size: bytes of the parameters.
        weights: number of weights.
        first: tokens before every text.
        tokenizer: tokenizer of the model.
    """

    config: LlamaConfig
    params: ReadParams
    blocks: RoundingBlocks
    size: int
    weights: int
    first: tuple[int, ...]
    tokenizer: ChatTokenizer

    @classmethod
    def of_file(cls, file: Path, cache: Path) -> StoredModel:
        """Import a GGUF file and store its parameters, as the main job does."""
        folder = import_gguf(file, cache, blocks=True)
        config, layout = read_family(folder / "config.json"), gguf_layout(folder)
        stored, tokenizer = convert_gguf(folder, cache), ChatTokenizer.load(folder)
        sizes = [math.prod(a.shape) * a.dtype.itemsize for a in read_index(stored).values()]
        return cls(
            config=config,
            params=ReadParams(stored, layout=layout),
            blocks=rows_and_blocks(layout),
            size=sum(sizes),
            weights=sum(math.prod(shape) for shape in param_shapes(config).values()),
            first=tuple(tokenizer.first_ids()),
            tokenizer=tokenizer,
        )

    def tokens_of(self, text: str) -> tuple[int, ...]:
        """Return the tokens of a text, without the model's first tokens."""
        return tuple(self.tokenizer.tokenizer.encode(text, add_special_tokens=False).ids)


def read_windows(
    model: StoredModel, tokens: Sequence[int], window: int, *, int8: bool = False
) -> F64:
    """Return the log-probability of each token of a text, read in separate windows.

    Each window begins with the model's first tokens. If the model has none, the first token of a
    window has no log-probability. With ``int8``, activations are rounded as int8 kernels do.
    """
    windows = []
    for start in range(0, len(tokens), window):
        part = [*model.first, *tokens[start : start + window]]
        reader = ReferenceLlama(
            model.config, model.params, int8=int8, blocks=model.blocks if int8 else {}
        )
        windows.append(log_probabilities(reader.read_all(part), part))
    return np.concatenate(windows)


def check_peer_tokens(model: StoredModel, tokens: Sequence[int], peer: PeerReading) -> None:
    """Check that llama.cpp read the same tokens.

    Raises:
        LabError: llama.cpp begins a text with other tokens, or splits it into other tokens.
    """
    for what, ours, peers in (
        ("begins every text", model.first, peer.first),
        ("splits the text", tuple(tokens), peer.tokens),
    ):
        if ours == peers:
            continue
        pairs = enumerate(zip(ours, peers, strict=False))
        at = next((i for i, (a, b) in pairs if a != b), min(len(ours), len(peers)))
        raise LabError(
            f"{NAME} {what} with other tokens: at {at} {list(peers[at : at + 5])}, ours "
            f"{list(ours[at : at + 5])}",
            remedy="leave out --peer to measure ours alone, or give another text: --text FILE",
        )


def table_of(readings: Sequence[Reading], weights: int) -> Table:
    """Return the table of the readings, with differences from the first reading."""
    table = Table("", "MB", "bits a weight", "perplexity", "log p, mean diff.", "largest")
    for reading in readings:
        mean, largest = reading.differences(readings[0])
        cells = ("", "") if reading is readings[0] else (f"{mean:.4f}", f"{largest:.3f}")
        bits = f"{reading.size * 8 / weights:.3f}"
        table.add_row(
            reading.name, f"{reading.size / 1e6:.2f}", bits, f"{reading.perplexity:.3f}", *cells
        )
    return table


def gguf_file(name: str, cache: Path) -> Path:
    """Return the path of a GGUF file from the user's MODEL.

    Raises:
        UserError: MODEL is neither a GGUF file nor a pinned model.
    """
    path = Path(name)
    if path.is_file():
        return path
    if path.exists() or path.suffix == ".gguf" or "/" in name:
        raise UserError(
            f"{name} {'is not a GGUF file' if path.exists() else 'is not there'}",
            remedy="give a .gguf file, or the name of a pinned model: smollm2-135m",
        )
    return fetch_asset(read_pins(PROJECT).asset(name), cache)


def _parser() -> Parser:
    parser = Parser(
        prog="crosslab perplexity",
        description="Print bytes, bits a weight and perplexity of a GGUF file, ours beside "
        "llama.cpp's.",
    )
    add = parser.add_argument
    add("model", metavar="MODEL", help="a .gguf file, or the name of a pinned model")
    add("--format", choices=FORMATS, help="rewrite the matrices in this format (as the file has)")
    add("--peer", choices=[NAME], help="program to compare with (none)")
    add("--text", type=Path, default=DEFAULT_TEXT, help="text to read (the project's LICENSE)")
    add("--window", type=int, default=256, help="tokens that are read at a time (256)")
    add("--windows", type=int, help="read the first windows of the text only (all)")
    add("--cache", **CACHE_OPTION)
    return parser


def main(argv: Sequence[str]) -> int:
    """Print the table of bytes, bits per weight and perplexity.

    Raises:
        UserError: the model or the text cannot be read, or an option does not fit them.
        LabError: llama.cpp fails, or reads other tokens.
    """
    args = _parser().parse_args(argv)
    text = read_text(args.text)
    file = gguf_file(args.model, args.cache)
    if args.format:
        file = rewrite_gguf(file, args.format, args.cache)
    model = StoredModel.of_file(file, args.cache)
    tokens = model.tokens_of(text)
    _check(args, model, tokens)
    windows = args.windows or math.ceil(len(tokens) / args.window)
    read = tokens[: windows * args.window]
    readings = []
    if args.peer:
        program = build_native(read_archive(PROJECT), READER, args.cache)
        peer = run_reader(program, file, args.text, args.window, windows)
        check_peer_tokens(model, tokens, peer)
        readings.append(Reading(NAME, peer.size, peer.log_probabilities))
    for name, int8 in ((FLOAT32, False), (INT8, True)):
        # No kernel rounds activations for weights outside of blocks.
        if model.blocks or not int8:
            _progress.print(f"{name}: reading {len(read)} tokens")
            logs = read_windows(model, read, args.window, int8=int8)
            readings.append(Reading(name, model.size, logs))
    readings.sort(key=lambda reading: reading.name == NAME)
    Console(width=100, highlight=False).print(table_of(readings, model.weights))
    print(_about(file, model, read, args))
    return 0


def _about(file: Path, model: StoredModel, tokens: Sequence[int], args: argparse.Namespace) -> str:
    """Return a text with the conditions of the table."""
    first = f"behind the tokens {list(model.first)}" if model.first else "without a first token"
    size = sum(part.stat().st_size for part in part_files(file))
    text = (
        f"{file.name}: {size / 1e6:.2f} MB, {model.weights / 1e6:.1f} M weights.\n"
        f"{args.text.name}: {len(tokens)} tokens in windows of {args.window}, each {first}."
    )
    if not args.peer:
        return text
    return (
        f"{text}\n{NAME} splits the text into the same tokens. It runs with its defaults on this "
        "machine: int8\nactivations for quantized weights, flash attention, a float16 KV cache."
    )


def _check(args: argparse.Namespace, model: StoredModel, tokens: Sequence[int]) -> None:
    window, windows = args.window, args.windows
    most = model.config.context - len(model.first)
    if not 2 <= window <= most:
        raise UserError(
            f"--window {window}: the model reads windows of 2 to {most} tokens",
            remedy=f"give --window {min(most, 256)}",
        )
    if windows is not None and windows < 1:
        raise UserError(
            f"--windows {windows} is not a number of windows", remedy="give --windows 1"
        )
    if len(tokens) < 2:
        raise UserError(
            f"{args.text} has {len(tokens)} tokens; a perplexity needs two",
            remedy="give a longer text: --text FILE",
        )
