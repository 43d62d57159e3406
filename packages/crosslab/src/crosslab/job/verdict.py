# SPDX-License-Identifier: Apache-2.0
"""Comparison of a run's answer with the reference's.

The reference reads the prompt and the run's own tokens, in the run's calls, and its logits have to
agree with the run's. Where the run rounds to int8 (activations, cache, a device's operands), the
reference takes the run's roundings, each checked by its own values
(:mod:`crosslab.models.roundings`). Only float32 differences remain, so the bound is tight: a right
build is never called wrong by a rounding near the middle, and no roundings explain a wrong scale,
row or layer. The verdict also reports how far rounding moves the model from float32.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from crosslab.assemble.runner import layout_of
from crosslab.errors import LabError
from crosslab.job.job_options import Job
from crosslab.models.compare import Comparison, compare_rows
from crosslab.models.config import FAMILIES, LlamaConfig, kind_of, read_family
from crosslab.models.encoder import (
    ENCODERS,
    EncoderConfig,
    EncoderWeights,
    read_encoder,
    vector_of,
)
from crosslab.models.gguf_params import rows_and_blocks
from crosslab.models.hybrid import HYBRID, HybridConfig, HybridWeights, ReferenceHybrid, read_hybrid
from crosslab.models.int8_error import log_probabilities
from crosslab.models.llama_params import FileWeights, param_widths
from crosslab.models.llava import (
    LLAVA,
    LanguageParams,
    LlavaConfig,
    LlavaWeights,
    ReferenceLlava,
    read_llava,
    states_of_picture,
)
from crosslab.models.params import ReadParams
from crosslab.models.pictures import prepare, sample_picture
from crosslab.models.reference import ReferenceLlama, RoundingBlocks
from crosslab.models.roundings import (
    FLOAT32_SLACK,
    HALVES_SLACK,
    INT16_SLACK,
    RoundingError,
    Roundings,
    RunRoundings,
    halves_error,
)
from crosslab.models.sources.model_folder import CONFIG_FILE
from crosslab.models.weights_file import F32

# Largest logit error of a model in any format if the input of its last product is recorded.
HEAD_TOLERANCE = 1e-3

_progress = Console(stderr=True, highlight=False)


@dataclass(frozen=True)
class Taken:
    """Roundings of a run that the reference reproduced.

    Attributes:
        count: number of values.
        other: of these, those that the reference rounds to another whole number.
        farthest: from the middle between two, of these, in steps.
    """

    count: int
    other: int
    farthest: float


@dataclass(frozen=True)
class RoundingCost:
    """The effect of rounding to int8 on a model's logits and tokens.

    Attributes:
        logit_error: largest difference of the answer's logits to float32's, as a part of the
            largest.
        steps: steps of the answer at which float32 finds another token likeliest.
        first: the first of these steps, and float32's token; None without such a step.
        perplexity: of a text, with rounding and in float32; None without a text.
    """

    logit_error: float
    steps: int
    first: tuple[int, int] | None
    perplexity: tuple[float, float] | None = None


@dataclass(frozen=True)
class AnswerVerdict:
    """Comparison of an answer with the reference's.

    Attributes:
        reference: the tokens that the reference finds likeliest after the same text.
        comparison: of tokens and logits.
        fault: the reason if the answer is wrong whatever its logits are, else empty.
        taken: roundings of the run; None where nothing is rounded.
        cost: of rounding; None where nothing is rounded.
        stored: largest difference of the answer's logits from those of the file's own weights in
            float32, as a part of the largest: the cost of the format and of other rounding; None
            for other layouts.
    """

    reference: tuple[int, ...]
    comparison: Comparison
    fault: str = ""
    taken: Taken | None = None
    cost: RoundingCost | None = None
    stored: float | None = None

    @property
    def right(self) -> bool:
        """Return True if there is no fault, and the tokens and logits fit the reference's."""
        return not self.fault and self.comparison.right

    @property
    def table(self) -> dict[str, Any]:
        """Return the entries of the report."""
        return {
            "reference_tokens": list(self.reference),
            "logit_error_bound": self.comparison.tolerance,
            "fault": self.fault,
            "roundings": asdict(self.taken) if self.taken else None,
            "int8_cost": asdict(self.cost) if self.cost else None,
            "stored_weights_error": self.stored,
        }


#: The same entries for a model without a reference.
UNCHECKED: Mapping[str, None] = dict.fromkeys(
    (
        *("reference_tokens", "logit_error_bound", "fault", "roundings", "int8_cost"),
        "stored_weights_error",
    )
)


@dataclass(frozen=True)
class Asked:
    """A model with a reference, and the question that a run answers.

    Attributes:
        config: the model's sizes.
        values: its parameters in float32.
        prompt: token ids.
        stop: tokens that end an answer.
        blocks: of parameters in the blocks of a GGUF file.
        of_file: weights of the model's file in float32, if they have the same layout.
        text: token ids of a text to measure perplexity with; may be empty.
    """

    config: LlamaConfig
    values: Mapping[str, F32]
    prompt: Sequence[int]
    stop: Sequence[int] = ()
    blocks: RoundingBlocks | None = None
    of_file: Mapping[str, F32] | None = None
    text: Sequence[int] = ()


@dataclass(frozen=True)
class AskedVector:
    """An encoder, and the text of which a run gives the vector.

    Attributes:
        config: the model's sizes.
        values: its parameters in float32.
        of_file: weights of the model's file in float32.
        prompt: token ids.
    """

    config: EncoderConfig
    values: Mapping[str, F32]
    of_file: Mapping[str, F32]
    prompt: Sequence[int]


def prepare_reference(
    job: Job,
    model: Path,
    params: Path,
    prompt: Sequence[int],
    stop: Sequence[int],
    text: Sequence[int] = (),
) -> Asked | AskedVector | None:
    """Return the reference for a question; None for a model without reference (--unchecked)."""
    kind, packing = kind_of(model), job.recipe.weights.packing
    if kind == HYBRID and not job.rounds:
        hybrid = read_hybrid(model / CONFIG_FILE)
        values, own = ReadParams(params, packing=packing), HybridWeights(model, hybrid)
        return Asked(config=hybrid, values=values, prompt=prompt, stop=stop, of_file=own)
    if kind == LLAVA:
        seeing = read_llava(model / CONFIG_FILE)
        both = ReadParams(params, packing=packing), LlavaWeights(model, seeing)
        read, of_weights = map(LanguageParams, both)
        return Asked(config=seeing, values=read, prompt=prompt, stop=stop, of_file=of_weights)
    if kind in ENCODERS:
        encoder = read_encoder(model / CONFIG_FILE)
        values, of_model = ReadParams(params, packing=packing), EncoderWeights(model)
        return AskedVector(encoder, values, of_model, prompt)
    if job.unchecked and kind not in FAMILIES:
        _progress.print("[yellow]not checked:[/] no reference computes this model")
        return None
    config = read_family(model / CONFIG_FILE)
    layout = layout_of(job.recipe.of(model))
    values = ReadParams(params, param_widths(config), packing, layout=layout)
    of_file = FileWeights(model, config)
    # MLC-LLM fuses some families' biases under other names.
    alike = set(of_file) == set(values)
    return Asked(
        config=config,
        values=values,
        prompt=prompt,
        stop=stop,
        blocks=rows_and_blocks(layout),
        of_file=of_file if alike else None,
        text=text,
    )


def judge(
    job: Job,
    tokens: Sequence[int],
    logits: F32,
    record: bytes | None,
    asked: Asked | AskedVector | None,
) -> AnswerVerdict | None:
    """Compare an answer with the reference's; None for a model without a reference.

    Args:
        job: with its bounds.
        tokens: that were generated.
        logits: [len(tokens), vocab] float32; of an encoder the vector [1, hidden].
        record: what the run rounded; None if it recorded nothing.
        asked: the model and its question; None: without a reference.

    Raises:
        LabError: there is no reference, and the answer's logits are not numbers; or a run that
            rounds has no record.
    """
    if asked is None:
        if not np.isfinite(logits).all():
            raise LabError("the logits of the model are not finite numbers")
        return None
    if isinstance(asked, AskedVector):
        return _judge_vector(logits, asked, job.tolerance)
    if job.rounds and record is None:
        raise LabError("the run wrote no record of what it rounded")
    slack = HALVES_SLACK if job.halves else INT16_SLACK if job.int8_cache else FLOAT32_SLACK
    taking = None
    if job.rounds and record is not None:
        taking = RunRoundings(record, slack, _depth(asked.config))
    fault, tolerance = _end_fault(tokens, asked.stop, job.max_new), job.tolerance
    if taking:
        try:
            rows = np.stack(list(_steps(_model(job, asked, taking), tokens, asked, job.chunk)))
            taking.end()
            if job.int8 and taking.rounds_head:
                tolerance = min(tolerance, HEAD_TOLERANCE)
        except RoundingError as error:
            fault, rows = error.what, np.full_like(logits, np.nan)
    else:
        rows = _rows_of(_exact(asked.config, asked.values), tokens, asked)
        if job.halves and not fault:
            fault = _halves_fault(logits, rows, _depth(asked.config))
    stored = None
    if asked.of_file is not None:
        stored = _apart(logits, _rows_of(_exact(asked.config, asked.of_file), tokens, asked))
    return AnswerVerdict(
        reference=tuple(rows.argmax(axis=1).tolist()),
        comparison=compare_rows(tokens, logits, rows, tolerance),
        fault=fault,
        taken=Taken(taking.taken, taking.other, taking.farthest) if taking else None,
        cost=rounding_cost(job, tokens, logits, asked, taking) if taking else None,
        stored=stored,
    )


def _judge_vector(vector: F32, asked: AskedVector, tolerance: float) -> AnswerVerdict:
    """Compare the vector of a text with the reference's; errors are parts of its largest number."""
    of_values, of_file = (
        vector_of(asked.config, values, asked.prompt).astype(np.float32)[None]
        for values in (asked.values, asked.of_file)
    )
    # The largest number stands where an answer has its likeliest token.
    comparison = compare_rows([int(vector.argmax())], vector, of_values, tolerance)
    return AnswerVerdict(reference=(), comparison=comparison, stored=_apart(vector, of_file))


def _halves_fault(logits: F32, wanted: F32, layers: int) -> str:
    """Return the reason if rounding to halves does not explain the logits' errors; else ""."""
    bound = halves_error(layers)
    error = float(np.sqrt(np.square(logits - wanted).mean() / np.square(wanted).mean()))
    if error < bound:
        return ""
    return (
        f"the logits differ from the reference's by {error:.1e} in the root mean square, and "
        f"halves in {layers} layers explain {bound:.1e}"
    )


def rounding_cost(
    job: Job,
    tokens: Sequence[int],
    logits: F32,
    asked: Asked,
    taking: RunRoundings,
) -> RoundingCost:
    """Measure the effect of rounding on an answer, and on a text.

    Args:
        job: how the model rounds.
        tokens: of the answer.
        logits: [len(tokens), vocab], of the run.
        asked: the model and the text.
        taking: roundings of the run.
    """
    plain = _rows_of(ReferenceLlama(asked.config, asked.values), tokens, asked)
    likeliest = plain.argmax(axis=1).tolist()
    other = [i for i, token in enumerate(tokens) if token != likeliest[i]]
    perplexity = None
    if len(asked.text) > 1:
        own = Roundings()
        own.rounds_head = taking.rounds_head
        rounding = replace(_model(job, asked, own), one_by_one=True)
        models = rounding, ReferenceLlama(asked.config, asked.values)
        found = [log_probabilities(model.read_all(asked.text), asked.text) for model in models]
        first, second = (float(np.exp(-each.mean())) for each in found)
        perplexity = first, second
    first_other = (other[0], likeliest[other[0]]) if other else None
    return RoundingCost(_apart(logits, plain), len(other), first_other, perplexity)


def _model(job: Job, asked: Asked, rounding: Roundings) -> ReferenceLlama:
    """Return the reference that rounds as the job's model."""
    device = job.offload.arithmetic(rounding) if job.offload else None
    return ReferenceLlama(
        asked.config,
        asked.values,
        int8=job.int8,
        blocks=asked.blocks or {},
        int8_cache=job.int8_cache,
        rounding=rounding,
        product=device.product if device else None,
        attend=device.attend if device else None,
    )


def _exact(config: LlamaConfig, values: Mapping[str, F32]) -> ReferenceLlama:
    """Return the reference without rounding; a LLaVA's has the sample picture."""
    if isinstance(config, LlavaConfig):
        numbers = prepare(sample_picture(), config.picture, config.side)
        return ReferenceLlava(config, values, picture=states_of_picture(config, values, numbers))
    kind = ReferenceHybrid if isinstance(config, HybridConfig) else ReferenceLlama
    return kind(config, values)


def _steps(model: ReferenceLlama, tokens: Sequence[int], asked: Asked, chunk: int) -> Iterator[F32]:
    """Yield the logits at each token of a run, computed in the same calls as the run's."""
    prompt = [
        model.read(asked.prompt[at : at + chunk]) for at in range(0, len(asked.prompt), chunk)
    ]
    yield prompt[-1]
    for token in tokens[:-1]:
        yield model.read([token])


def _rows_of(model: ReferenceLlama, tokens: Sequence[int], asked: Asked) -> F32:
    """Compute the logits [len(tokens), vocab] that choose each generated token.

    One call reads the prompt of ``asked`` and the tokens: the model must not depend on chunks.
    """
    return model.read_all([*asked.prompt, *tokens[:-1]])[len(asked.prompt) - 1 :]


def _depth(config: LlamaConfig) -> int:
    """Return the number of layers that a value passes at most: the decoder's, and a tower's."""
    return config.layers + (config.tower_layers if isinstance(config, LlavaConfig) else 0)


def _apart(logits: F32, wanted: F32) -> float:
    return float(np.abs(logits - wanted).max() / np.abs(wanted).max())


def _end_fault(tokens: Sequence[int], stop: Sequence[int], most: int) -> str:
    """Return the reason why an answer ends wrongly; "" if its end is right."""
    early = next((i for i, token in enumerate(tokens[:-1]) if token in stop), None)
    if early is not None:
        return f"the answer goes on after token {tokens[early]}, which ends it"
    if not tokens or (len(tokens) < most and tokens[-1] not in stop):
        return f"the answer ends after {len(tokens)} of {most} tokens, without a token that ends it"
    return ""
