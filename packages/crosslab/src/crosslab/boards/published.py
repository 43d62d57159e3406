# SPDX-License-Identifier: Apache-2.0
"""Speeds that others measured on boards, from ``cores/boards/published.csv``."""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from crosslab.boards.board import BOARDS, Board, read_boards
from crosslab.boards.matrices import Phase, formats, matrices, programs, seconds
from crosslab.errors import UserError
from crosslab.models.shapes import shapes

FILE = BOARDS / "published.csv"
PROMPT, DECODE = "prompt", "decode"


@dataclass(frozen=True)
class Row:
    """A measured speed.

    Attributes:
        board: key of the board's file.
        program: build of llama.cpp, as in ``llama_cpp.toml``.
        model: name in ``models/shapes.toml``.
        format: format of the file.
        threads: number of threads.
        phase: "prompt" or "decode".
        tokens: length of the prompt, or number of generated tokens.
        speed: measured tokens a second.
        assumed: what the source does not state, and the assumption; empty: the source states all.
        source: place of the publication.
    """

    board: str
    program: str
    model: str
    format: str
    threads: int
    phase: str
    tokens: int
    speed: float
    assumed: str
    source: str

    @property
    def wrong(self) -> str:
        """The first value out of range, with its range; empty: there is none."""
        for name, allowed in (("phase", (PROMPT, DECODE)), ("format", formats())):
            if (value := getattr(self, name)) not in allowed:
                return f"the {name} {value!r} is not one of {', '.join(allowed)}"
        for name in ("threads", "tokens", "speed"):
            if not 0 < (value := getattr(self, name)) < math.inf:
                return f"{name} is {value}, not a positive number"
        return ""

    def predicted(self, board: Board) -> float:
        """Return the tokens a second that the model predicts on the board."""
        phase = Phase(self.tokens) if self.phase == PROMPT else Phase(1, self.tokens / 2)
        config = shapes()[self.model]
        weights = matrices(config, self.format)
        taken = seconds(board, self.program, config, weights, phase, self.threads)
        return phase.tokens / taken

    def error(self, board: Board) -> float:
        """Return the relative error of the prediction; positive: predicted too fast."""
        return self.predicted(board) / self.speed - 1


@cache
def read_rows(file: Path = FILE) -> tuple[Row, ...]:
    """Read the published rows, in the order of the file.

    Raises:
        UserError: the file is missing or malformed.
    """
    try:
        with file.open(encoding="utf-8", newline="") as text:
            rows = tuple(map(_row, csv.DictReader(text)))
    except (OSError, KeyError, TypeError, ValueError) as error:
        raise UserError(f"{file}: {error!r}") from error
    known = {board.key for board in read_boards()}
    for number, row in enumerate(rows, start=2):
        if wrong := row.wrong:
            raise UserError(
                f"{file}, line {number}: {wrong}", remedy="cores/README.md describes the file"
            )
        if row.board not in known or row.program not in programs() or row.model not in shapes():
            raise UserError(
                f"{file}, line {number}: {row.board}, {row.program} or {row.model} is unknown",
                remedy="cores/README.md describes the file",
            )
    return rows


def _row(fields: Mapping[str, str]) -> Row:
    values: dict[str, Any] = dict(fields)
    values |= {name: int(values[name]) for name in ("threads", "tokens")}
    return Row(**values | {"speed": float(values["speed"])})
