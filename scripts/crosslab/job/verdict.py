# SPDX-License-Identifier: Apache-2.0
"""The reference's answer to a job's question, and how an answer compares with it.

Rounding to int8 makes a deep model chaotic: if two hosts add up float32 in different orders, some
activations round to other whole numbers, and the answers differ by as much as rounding itself
changes them. So the reference of a device uses the run's own roundings, and checks each against its
values. Only float32 differences remain, so the bound is tight: the values do not explain the
roundings of a wrong scale, row or layer. The report also compares the answer with a reference that
rounds by itself, and says how much that one's logits move when float32's last bits are disturbed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from crosslab.build.offload import Offload
from crosslab.build.runner import layout_of
from crosslab.compile.driver import DEFAULT_CHUNK
from crosslab.errors import LabError
from crosslab.job.job_options import Job
from crosslab.models.compare import Comparison, compare
from crosslab.models.config import FAMILIES, FamilyConfig, read_family, read_table
from crosslab.models.formats import GGUF
from crosslab.models.gguf_params import rows_and_blocks
from crosslab.models.llama_params import FileWeights, param_widths
from crosslab.models.params import ReadParams
from crosslab.models.reference import Answer, ReferenceLlama, answer, rounding_error
from crosslab.models.sources.model_folder import CONFIG_FILE
from crosslab.models.weights_file import F32

_progress = Console(stderr=True, highlight=False)


@dataclass(frozen=True)
class Alone:
    """Comparison of an answer with a reference that rounds by itself.

    Attributes:
        tokens: the reference's.
        logit_error: largest difference of a logit, over the steps that read the same tokens.
        moved: by how much the reference's own logits move when its products' values are disturbed.
        float32: largest difference of the answer's logits to those without any rounding.
        taken: values that the other reference took as the run rounded them.
        other: of these, those that it rounds to another whole number.
        farthest: from the middle between two, of these, in steps.
    """

    tokens: tuple[int, ...]
    logit_error: float
    moved: float
    float32: float
    taken: int
    other: int
    farthest: float

    @property
    def table(self) -> dict[str, Any]:
        """The result as plain data."""
        return {**asdict(self), "tokens": list(self.tokens)}


@dataclass(frozen=True)
class AnswerVerdict:
    """Comparison of an answer with the reference's.

    Attributes:
        reference: the reference's answer; on a device, with the run's roundings.
        comparison: with that.
        alone: on a device, with the reference that rounds by itself.
    """

    reference: Answer
    comparison: Comparison
    alone: Alone | None = None

    @property
    def right(self) -> bool:
        """True if the answer equals the reference's."""
        return self.comparison.right


@dataclass(frozen=True)
class Asked:
    """A model with a reference, and the reference's own answer.

    Attributes:
        config: the model's sizes.
        values: its parameters in float32.
        prompt: token ids.
        answer: the reference's.
        rounding: largest difference that int8 activations or an int8 cache (on a device int8
            weights, too) make to a logit of that, as a part of its largest; None where nothing is
            rounded.
        moved: see :class:`Alone`; None without a device.
        stored: largest difference from the logits of the file's own weights in float32, as a part
            of the largest: what the format and other rounding cost; None for other layouts.
    """

    config: FamilyConfig
    values: Mapping[str, F32]
    prompt: Sequence[int]
    answer: Answer
    rounding: float | None = None
    moved: float | None = None
    stored: float | None = None


def ask_reference(
    job: Job, model: Path, params: Path, prompt: Sequence[int], stop: Sequence[int]
) -> Asked | None:
    """Let the reference answer; return None for a model without a reference (--unchecked)."""
    if job.unchecked and read_table(model / CONFIG_FILE).get("model_type", "llama") not in FAMILIES:
        _progress.print("[yellow]not checked:[/] no reference computes this model")
        return None
    config = read_family(model / CONFIG_FILE)
    layout = layout_of(job.recipe.of(model))
    packing = job.recipe.weights.packing
    values = ReadParams(params, param_widths(config), packing, layout=layout)
    device = job.offload.arithmetic(None) if job.offload else None
    said = answer(
        config,
        values,
        prompt,
        max_new=job.max_new,
        stop=stop,
        int8=job.int8,
        int8_cache=job.int8_cache,
        chunk=job.recipe.prefill_chunk,
        blocks=rows_and_blocks(layout),
        product=device.product if device else None,
        attend=device.attend if device else None,
    )
    rounded = job.int8 or job.int8_cache or device is not None
    change = rounding_error(config, values, prompt, said) if rounded else None
    moved = sensitivity(config, values, prompt, job.offload) if job.offload else None
    of_file = FileWeights(model, config)
    # MLC-LLM fuses some families' biases under other names.
    alike = set(of_file) == set(values)
    apart = rounding_error(config, of_file, prompt, said) if alike else None
    return Asked(config, values, prompt, said, change, moved, apart)


def sensitivity(
    config: FamilyConfig, values: Mapping[str, F32], prompt: Sequence[int], device: Offload
) -> float:
    """Largest move of a logit after a prompt, as a part of the largest, by a small disturbance."""
    # Both take the same int8 weights.
    arithmetic = device.arithmetic(None)
    random = np.random.default_rng(0)

    def disturbed(x: F32, name: str, params: Mapping[str, F32]) -> F32:
        errors = random.uniform(-device.disturbance, device.disturbance, x.shape)
        return arithmetic.product((x * (1 + errors)).astype(np.float32), name, params)

    first, second = (
        ReferenceLlama(config, values, product=product, attend=arithmetic.attend).read(prompt)
        for product in (arithmetic.product, disturbed)
    )
    return float(np.abs(second - first).max() / np.abs(first).max())


def judge(
    job: Job,
    tokens: Sequence[int],
    logits: F32,
    record: bytes | None,
    asked: Asked | None,
    chunk: int = DEFAULT_CHUNK,
) -> AnswerVerdict | None:
    """Compare an answer with the reference's; None for a model without a reference.

    Args:
        job: with its bounds.
        tokens: that were generated.
        logits: [len(tokens), vocab] float32.
        record: what a run with a device rounded.
        asked: the model, and the reference's answer.
        chunk: most tokens of the prompt that the run read at once.

    Raises:
        LabError: there is no reference, and the answer's logits are not numbers; or a run with a
            device wrote no record.
        AcceleratorError: the values do not explain a rounding of the run.
    """
    if asked is None:
        if not np.isfinite(logits).all():
            raise LabError("the logits of the model are not finite numbers")
        return None
    if job.offload is None or asked.moved is None:
        # In blocks and in the cache, an element that is rounded the other way moves all later ones.
        chaotic = job.recipe.quantization == GGUF or job.int8_cache
        rounding = asked.rounding if chaotic else None
        found = compare(tokens, logits, asked.answer, job.tolerance, rounding or 0.0)
        return AnswerVerdict(asked.answer, found)
    if record is None:
        raise LabError(f"{job.offload.name}: the run wrote no record of what it rounded")
    by_itself = compare(tokens, logits, asked.answer, job.tolerance)
    device = job.offload.arithmetic(record)
    model = ReferenceLlama(asked.config, asked.values, product=device.product, attend=device.attend)
    prompt = [
        model.read(asked.prompt[at : at + chunk]) for at in range(0, len(asked.prompt), chunk)
    ]
    rows = [prompt[-1], *(model.read([token]) for token in tokens[:-1])]
    roundings = device.roundings
    if roundings is None:
        raise LabError(f"{job.offload.name}: the roundings of the run were not used")
    roundings.end()
    said = Answer(tuple(int(row.argmax()) for row in rows), np.stack(rows))
    plain = rounding_error(asked.config, asked.values, asked.prompt, Answer(tuple(tokens), logits))
    alone = Alone(
        asked.answer.tokens,
        by_itself.logit_error,
        asked.moved,
        plain,
        roundings.taken,
        roundings.other,
        roundings.farthest,
    )
    return AnswerVerdict(said, compare(tokens, logits, said, job.tolerance), alone)
