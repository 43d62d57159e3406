# SPDX-License-Identifier: Apache-2.0
"""llama.cpp reads a text on this machine: its tokens, and the log-probability of each."""

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
    """llama.cpp's reading of a text.

    Attributes:
        size: bytes of the model's tensors, without copies that llama.cpp repacks.
        first: tokens before each window.
        tokens: of the text.
        log_probabilities: see :func:`crosslab.peers.perplexity.read_windows`.
    """

    size: int
    first: tuple[int, ...]
    tokens: tuple[int, ...]
    log_probabilities: F64


def run_reader(program: Path, model: Path, text: Path, window: int, count: int) -> PeerReading:
    """Let llama.cpp read a text.

    Args:
        program: of :func:`crosslab.peers.llama_cpp_programs.build_native`.
        model: GGUF file.
        text: UTF-8.
        window: tokens that are read at a time.
        count: windows.

    Raises:
        LabError: it fails.
    """
    command = [str(program), str(model), str(text), str(window), str(count)]
    done = subprocess.run(command, capture_output=True, check=False)
    if done.returncode != 0:
        lines = done.stderr.decode("utf-8", errors="replace").splitlines()[-LAST_LINES:]
        said = "; it says:\n  " + "\n  ".join(lines) if lines else ", and says nothing"
        raise LabError(
            f"{NAME} cannot read {text.name} with {model} (exit code {done.returncode}){said}",
            remedy="leave out --peer to measure ours alone",
        )
    found = _parse(done.stdout)
    read = min(len(found.tokens), window * count)
    # The first token that a window feeds has no log-probability.
    expected = read + math.ceil(read / window) * (len(found.first) - 1)
    if len(found.log_probabilities) != expected:
        raise LabError(
            f"the answer of {NAME} has {len(found.log_probabilities)} log-probabilities for "
            f"{read} tokens, not {expected}"
        )
    return found


def _parse(output: bytes) -> PeerReading:
    try:
        table = json.loads(output)
        first, tokens = (_ids(table[name]) for name in ("first", "tokens"))
        found = [float(value) for value in table["log_probabilities"]]
        if not all(math.isfinite(value) for value in found):
            raise ValueError("a log-probability is not finite")
        return PeerReading(int(table["bytes"]), first, tokens, np.array(found, np.float64))
    except (ValueError, KeyError, TypeError) as error:
        raise LabError(
            f"the answer of {NAME} cannot be read ({error}): {output[:200]!r}"
        ) from error


def _ids(values: Sequence[int]) -> tuple[int, ...]:
    return tuple(int(value) for value in values)
