# SPDX-License-Identifier: Apache-2.0
"""A trial: sends a library to a board, compares its outputs, and reads its cost."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from tvm import rpc
from tvm.runtime import tensor

from crosslab.address import Address
from crosslab.models.compare import relative_error

FUNCTION = "main"
# Relative to the largest output: sums in another order differ by less, wrong sums by more.
TOLERANCE = 1e-4
NO_BOARD = "no board answered"
# Words of packed weights: every bit matters. Indices are signed; uint16 has bits of halves, and
# some halves are not numbers.
PACKED = ("uint8", "uint32")
# The board has ended a failed session that took this share of its time limit.
HUNG = 0.9

Arrays = tuple[np.ndarray[Any, Any], ...]


class WrongOutputError(Exception):
    """The error for a candidate whose outputs differ from the untuned function's."""


class SessionLostError(Exception):
    """The error for a session that ended before its answer, by the board or the candidate."""


class SessionHungError(Exception):
    """The error for a candidate that did not end within its time limit."""


@dataclass(frozen=True)
class TrialQuestion:
    """The arguments of a library's function, and the farm that measures it.

    Attributes:
        tracker: of the farm.
        key: of the farm's boards.
        shapes: of the arguments, outputs last.
        dtypes: of the arguments.
        seconds: time limit of a session.
    """

    tracker: Address
    key: str
    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[str, ...]
    seconds: float = 60.0

    def inputs(self, seed: int) -> Arrays:
        """Return random arguments, outputs included, to reveal elements that are never written."""
        random = np.random.default_rng(seed)
        pairs = zip(self.shapes, self.dtypes, strict=True)
        return tuple(_draw(random, shape, dtype) for shape, dtype in pairs)


@dataclass(frozen=True)
class TrialAnswer:
    """The outputs and cost of a library.

    Attributes:
        arrays: every argument after the call, by seed.
        cost: largest cost of a call, in the board's unit.
    """

    arrays: dict[int, Arrays]
    cost: int


def _draw(random: np.random.Generator, shape: Sequence[int], dtype: str) -> np.ndarray[Any, Any]:
    if dtype.startswith(("float", "bfloat")):
        return random.uniform(-1, 1, shape).astype(dtype)
    if dtype in PACKED:
        return random.integers(0, np.iinfo(dtype).max, shape, dtype, endpoint=True)
    # Small indices, valid for the axes of the function's arguments.
    return random.integers(0, 2, shape).astype(dtype)


def answer_of(question: TrialQuestion, library: Path, seeds: Sequence[int]) -> TrialAnswer:
    """Run a library on a board on the inputs of each seed, and return outputs and cost.

    Raises:
        SessionLostError: the tracker or a board did not answer, the session broke, or the library
            cannot be loaded or called.
        SessionHungError: the session exceeded its time limit.
    """
    try:
        remote = rpc.connect_tracker(*question.tracker.pair)
        session = remote.request(question.key, session_timeout=question.seconds)
    except Exception as error:
        raise SessionLostError(f"{NO_BOARD}: {_last_line(error)}") from error
    start = time.monotonic()
    try:
        session.upload(str(library))
        device, module = session.cpu(), session.load_module(library.name)
        function = module[FUNCTION]
        timed = module.time_evaluator(FUNCTION, device, number=1, repeat=1)
        arrays, cost = {}, 0
        for seed in seeds:
            arguments = [tensor(array, device) for array in question.inputs(seed)]
            function(*arguments)
            arrays[seed] = tuple(argument.numpy() for argument in arguments)
            cost = max(cost, round(timed(*arguments).mean * 1e9))
        return TrialAnswer(arrays, cost)
    except Exception as error:
        if time.monotonic() - start > HUNG * question.seconds:
            raise SessionHungError(f"did not end within {question.seconds:g} s") from error
        raise SessionLostError(_last_line(error)) from error


def _last_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[-1]


def compare(own: Arrays, untuned: Arrays) -> None:
    """Compare a candidate's arguments after a call with the untuned function's.

    Raises:
        WrongOutputError: the arguments differ by more than rounding errors.
    """
    for number, (left, right) in enumerate(zip(own, untuned, strict=True)):
        error = relative_error(left, right)
        if error > TOLERANCE:
            raise WrongOutputError(f"argument {number} is off by {error:.3g} of its largest value")


def trial(question: TrialQuestion, library: str, untuned: Mapping[int, Arrays]) -> tuple[int, str]:
    """Measure a candidate; runs in a separate process.

    Args:
        question: the candidate's arguments, and the farm.
        library: file of the candidate.
        untuned: the right outputs, by seed.

    Returns:
        the cost and ""; or 0 and the reason of the rejection; or 0, and "lost: " and a reason, if
        another board must measure the candidate.
    """
    try:
        answer = answer_of(question, Path(library), tuple(untuned))
        for seed, right in untuned.items():
            compare(answer.arrays[seed], right)
    except WrongOutputError as error:
        return 0, f"wrong: {error}"
    except SessionHungError as error:
        return 0, f"hung: {error}"
    except (SessionLostError, OSError, RuntimeError) as error:
        return 0, f"lost: {error}"
    return answer.cost, ""
