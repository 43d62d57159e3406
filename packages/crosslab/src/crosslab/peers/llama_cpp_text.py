# SPDX-License-Identifier: Apache-2.0
"""Log-probabilities of a text's tokens, computed by llama.cpp on this machine."""

from __future__ import annotations

import json
import math
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from crosslab.errors import LabError
from crosslab.models.int8_error import F64
from crosslab.peers.llama_cpp_build import NAME

LAST_LINES = 5


@dataclass(frozen=True)
class PeerReading:
    """Tokens and log-probabilities of a text, from llama.cpp.

    Attributes:
        size: bytes of the model's tensors, without copies that llama.cpp repacks.
        first: tokens before each window.
        tokens: tokens of the text.
        log_probabilities: see :func:`crosslab.peers.perplexity.read_windows`.
    """

    size: int
    first: tuple[int, ...]
    tokens: tuple[int, ...]
    log_probabilities: F64


def run_reader(program: Path, model: Path, text: Path, window: int, count: int) -> PeerReading:
    """Let llama.cpp read a text; return tokens and log-probabilities.

    Args:
        program: program of :func:`crosslab.peers.llama_cpp_programs.build_native`.
        model: the GGUF file.
        text: UTF-8 text file.
        window: tokens of a window.
        count: most windows to read.

    Raises:
        LabError: the program fails, or its answer is malformed.
    """
    command = [str(program), str(model), str(text), str(window), str(count)]
    done = subprocess.run(command, capture_output=True, check=False)
    if done.returncode != 0:
        lines = done.stderr.decode("utf-8", errors="replace").splitlines()[-LAST_LINES:]
        output = "; it says:\n  " + "\n  ".join(lines) if lines else ", and says nothing"
        raise LabError(
            f"{NAME} cannot read {text.name} with {model} (exit code {done.returncode}){output}",
            remedy="leave out --peer to measure ours alone",
        )
    reading = _parse(done.stdout)
    read = min(len(reading.tokens), window * count)
    # The first token of a window's input has no log-probability.
    expected = read + math.ceil(read / window) * (len(reading.first) - 1)
    if len(reading.log_probabilities) != expected:
        raise LabError(
            f"the answer of {NAME} has {len(reading.log_probabilities)} log-probabilities for "
            f"{read} tokens, not {expected}"
        )
    return reading


def _parse(output: bytes) -> PeerReading:
    try:
        table = json.loads(output)
        first, tokens = (_ids(table[name]) for name in ("first", "tokens"))
        values = [float(value) for value in table["log_probabilities"]]
        if not all(math.isfinite(value) for value in values):
            raise ValueError("a log-probability is not finite")
        return PeerReading(int(table["bytes"]), first, tokens, np.array(values, np.float64))
    except (ValueError, KeyError, TypeError) as error:
        raise LabError(
            f"the answer of {NAME} cannot be read ({error}): {output[:200]!r}"
        ) from error


def _ids(values: Sequence[int]) -> tuple[int, ...]:
    return tuple(int(value) for value in values)
