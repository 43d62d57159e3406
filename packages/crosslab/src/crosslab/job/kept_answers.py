# SPDX-License-Identifier: Apache-2.0
"""Right answers of earlier runs: emulator and reference run once for the same inputs."""

from __future__ import annotations

import json
import platform
import sys
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from crosslab.cached_build import cached_build
from crosslab.host.toolchain import require_qemu
from crosslab.job.job_options import Job
from groundwork.files import atomic_write_json
from groundwork.hashing import digest

CROSSLAB = Path(__file__).parents[1]
FILE = "answers.json"
Table = dict[str, Any]


@dataclass(frozen=True)
class KeptAnswers:
    """The cached answers of a job's emulated CPUs, with verdicts.

    Attributes:
        answers: a table for each CPU.
        made: date and time (UTC) of the run that made them.
        kept: True if an earlier run made them.
    """

    answers: list[Table]
    made: str
    kept: bool


class _WrongAnswerError(Exception):
    """The error that keeps a wrong answer out of the cache."""


def answers_key(job: Job, program: Path, folders: tuple[Path, ...], prompt: tuple[int, ...]) -> str:
    """Return a hash of all inputs of an answer and its verdict.

    Args:
        job: the options.
        program: the runner.
        folders: of the model and of its parameters, in the cache: their names have hashes of their
            inputs.
        prompt: token ids.
    """
    recipe = job.recipe
    options = (job.prompt, prompt, job.max_new, job.threads, job.unchecked, job.tolerance)
    of_recipe = (recipe.quantization, recipe.mode, recipe.vlens, recipe.zvfh, recipe.prefill_chunk)
    return digest(
        program,
        *(folder.name for folder in folders),
        repr((options, of_recipe, require_qemu())),
        # The reference, the judge, the instruction counter, and what makes the tokenizer's file.
        CROSSLAB,
        *(_sources_of(job.offload) if job.offload else ()),
        np.__version__,
        platform.python_version(),
        platform.machine(),
    )


def _sources_of(offload: object) -> tuple[str | Path, ...]:
    """Return an offload's representation and its package's folder, as inputs of a hash."""
    package = sys.modules[type(offload).__module__.partition(".")[0]]
    return repr(offload), Path(str(package.__file__)).parent


def keep_answers(
    key: str, cache: Path, check: Callable[[], list[Table]], *, again: bool
) -> KeptAnswers:
    """Return the cached answers for a key; compute and store them if missing or with ``again``.

    Args:
        key: from :func:`answers_key`.
        cache: folder of finished builds.
        check: runs the model, and compares its answers; wrong ones are not kept.
        again: check even if there are answers of an earlier run.
    """
    made = f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC"
    new: list[Table] = []

    def make(out: Path) -> None:
        new.extend(check())
        if not all(answer["right"] for answer in new):
            raise _WrongAnswerError
        atomic_write_json(out / FILE, {"made": made, "answers": new})

    try:
        found = cached_build(cache, "verdict", key, make, again=again)
    except _WrongAnswerError:
        return KeptAnswers(new, made, kept=False)
    table = json.loads((found / FILE).read_text(encoding="utf-8"))
    return KeptAnswers(table["answers"], table["made"], kept=not new)
