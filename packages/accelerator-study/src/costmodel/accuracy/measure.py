# SPDX-License-Identifier: Apache-2.0
"""Perplexity and greedy agreement of schemes, and the file with their measurements.

``python -m costmodel --accuracy MODEL.gguf --scheme NAME --json FILE`` measures, and adds to the
FILE of an earlier measurement. ``library/accuracy`` has the text and the measurement of SmolLM2,
which the rows of a search show.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from costmodel.accelerator.scheme import FLOAT32, Scheme
from costmodel.accelerator.settings import LIBRARY
from costmodel.errors import CostError, read_json

if TYPE_CHECKING:  # only a measurement needs the packages of llama
    from costmodel.accuracy.llama import FloatLlama

FOLDER = LIBRARY / "accuracy"
TEXT = FOLDER / "text.txt"
NARROWEST = 2  # bits of a symmetric integer: a sign and a magnitude
WINDOW = 512  # tokens of one sequence


def load(model: Path) -> FloatLlama:
    """Read the model of a GGUF file.

    Raises:
        CostError: the model cannot be read or cuts text into other words, or the package gguf or
            tokenizers is missing.
    """
    try:
        from costmodel.accuracy import llama  # noqa: PLC0415
    except ImportError as error:
        problem = f"reading a model needs gguf and tokenizers: {error}"
        raise CostError(problem, remedy="pip install gguf tokenizers") from error
    plain = llama.load(model)
    if plain.words != llama.WORDS:
        raise CostError(
            f"{model}: its text is cut into words by {plain.words!r}, which is not computed",
            remedy=f"give a model of {llama.WORDS!r}, as SmolLM2",
        )
    return plain


def measured(plain: FloatLlama, schemes: Sequence[Scheme]) -> Iterator[dict[str, Any]]:
    """Measure schemes one after the other, beginning with ``float32``, the unrounded weights.

    Yields:
        ``{"scheme", "perplexity", "agreement"}``: perplexity of the next token over the text, and
        the share of positions at which the likeliest token is that of the unrounded weights.

    Raises:
        CostError: a scheme has zero points, scales of other than 16 bits, or a width of 1 bit.
    """
    for scheme in schemes:
        _refuse_unmeasurable(scheme)
    ids = np.array(plain.tokenizer.encode(TEXT.read_text(encoding="utf-8")).ids)
    windows = [ids[s : s + WINDOW] for s in range(0, len(ids), WINDOW)]
    reference: list[Any] = []
    for scheme in dict.fromkeys((FLOAT32, *schemes)):
        quantized = plain.quantized(scheme)
        loss, tokens, same = 0.0, 0, 0
        for number, window in enumerate(windows):
            logits = quantized.logits(window, scheme)
            best = logits.argmax(axis=1)
            if scheme is FLOAT32:
                reference.append(best)
            same += int((best == reference[number]).sum())
            top = logits.max(axis=1)
            total = np.log(np.exp(logits - top[:, None]).sum(axis=1)) + top
            loss += float((total[:-1] - logits[np.arange(len(window) - 1), window[1:]]).sum())
            tokens += len(window) - 1
        yield {
            "scheme": scheme.name,
            "perplexity": round(float(np.exp(loss / tokens)), 3),
            "agreement": round(same / len(ids), 4),
        }


def _refuse_unmeasurable(scheme: Scheme) -> None:
    """Raise CostError for a scheme whose roundings :mod:`costmodel.accuracy.rounding` lacks."""
    if scheme.zero_point or scheme.scale != FLOAT32.scale:
        raise CostError(
            f"{scheme.name}: its scales have {scheme.scale} bits and its zero points "
            f"{scheme.zero_point}: only symmetric schemes with scales of {FLOAT32.scale} bits are "
            "measured",
            remedy=f'set scale = "{FLOAT32.scale} bit" and zero_point = "0 bit"',
        )
    for operand in ("activation", "weight", "cache"):
        if getattr(scheme, operand) < NARROWEST:
            raise CostError(
                f"{scheme.name}: {operand} of 1 bit: a symmetric integer needs {NARROWEST} bits",
                remedy=f'set {operand} = "{NARROWEST} bit" or more',
            )


def record(model: Path, plain: FloatLlama) -> dict[str, Any]:
    """Return a measurement without rows as plain data, with the digests of model and text.

    :func:`known` finds the measurement of a work file by the shapes in ``weights``, which
    :func:`costmodel.estimate.workload.weight_shapes` computes.
    """
    return {
        "schema": 1,
        "model": {
            "file": model.name,
            "sha256": hashlib.sha256(model.read_bytes()).hexdigest(),
            "weights": _weight_shapes(plain),
        },
        "text_sha256": hashlib.sha256(TEXT.read_bytes()).hexdigest(),
        "rows": [],
    }


def earlier(path: Path, made: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the rows of an earlier measurement in a file; [] if the file does not exist.

    Args:
        path: the file.
        made: the :func:`record` of the current measurement.

    Raises:
        CostError: the file is not a measurement of the same model and text.
    """
    if not path.exists():
        return []
    remedy = "give --json another name, or delete the file"
    content = read_json(path, remedy)
    try:
        rows = {str(row["scheme"]): dict(row) for row in content["rows"]}
        same = {**content, "rows": []} == made
    except (ValueError, KeyError, TypeError) as error:
        raise CostError(f"{path}: not a measurement: {error!r}", remedy=remedy) from error
    if not same:
        raise CostError(f"{path}: measured on another model or another text", remedy=remedy)
    return list(rows.values())


def merged(
    rows: Sequence[dict[str, Any]], further: Sequence[dict[str, Any]]
) -> list[dict[str, Any]]:
    """Return ``rows`` with ``further`` rows, which replace rows of the same scheme."""
    return list({row["scheme"]: row for row in (*rows, *further)}.values())


def _weight_shapes(plain: FloatLlama) -> dict[str, int]:
    shapes: dict[str, int] = {}
    for rows, length in (value.shape for value in plain.matrices.values()):
        shapes[str(length)] = shapes.get(str(length), 0) + rows
    return dict(sorted(shapes.items()))


@cache
def _shipped() -> tuple[tuple[dict[str, int], dict[str, float]], ...]:
    """Return weight shapes and perplexity by scheme of each shipped measurement."""
    records = [json.loads(p.read_text(encoding="utf-8")) for p in sorted(FOLDER.glob("*.json"))]
    return tuple(
        (f["model"]["weights"], {row["scheme"]: row["perplexity"] for row in f["rows"]})
        for f in records
    )


def known(weights: Mapping[str, int]) -> dict[str, float]:
    """Return a model's perplexity by scheme from its ``weight_shapes``; {} if not measured."""
    return next((rows for shapes, rows in _shipped() if shapes == weights), {})
