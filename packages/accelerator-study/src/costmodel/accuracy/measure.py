# SPDX-License-Identifier: Apache-2.0
"""Perplexity and greedy agreement of schemes, and the file that keeps them.

``python -m costmodel --accuracy MODEL.gguf --scheme NAME --json FILE`` measures, and adds to the
FILE of an earlier measurement; what it gave for SmolLM2 lies in ``library/accuracy`` with the text,
and stands in the rows of a search.
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

if TYPE_CHECKING:  # its packages are needed by a measurement alone
    from costmodel.accuracy.llama import FloatLlama

FOLDER = LIBRARY / "accuracy"
TEXT = FOLDER / "text.txt"
WINDOW = 512  # tokens of one sequence
MATRIX = 2  # axes of the weights of a product


def load(model: Path) -> FloatLlama:
    """Read a model.

    Raises:
        CostError: the model cannot be read.
    """
    try:
        from costmodel.accuracy import llama  # noqa: PLC0415
    except ImportError as error:
        problem = f"reading a model needs gguf and tokenizers: {error}"
        raise CostError(problem, remedy="pip install gguf tokenizers") from error
    return llama.load(model)


def measured(plain: FloatLlama, schemes: Sequence[Scheme]) -> Iterator[dict[str, Any]]:
    """Measure schemes one by one, ``float32`` first: the weights as they are in the file.

    Yields:
        ``{"scheme", "perplexity", "agreement"}``: of the next token over the text, and the share of
        positions at which the likeliest token is that of the weights as they are.
    """
    ids = np.array(plain.tokenizer.encode(TEXT.read_text(encoding="utf-8")).ids)
    windows = [ids[s : s + WINDOW] for s in range(0, len(ids), WINDOW)]
    reference: list[Any] = []
    for scheme in dict.fromkeys((FLOAT32, *schemes)):
        own = plain.quantized(scheme)
        loss, tokens, same = 0.0, 0, 0
        for number, window in enumerate(windows):
            logits = own.logits(window, scheme)
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


def record(model: Path, plain: FloatLlama) -> dict[str, Any]:
    """A measurement without rows as plain data, with the digests of what it is made from.

    ``weights`` has the shapes by which :func:`known` finds the measurement of a work file, as
    :func:`costmodel.estimate.workload.weight_shapes` gives them.
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
    """Rows of an earlier measurement in a file; empty if the file does not exist.

    Args:
        path: the file.
        made: the :func:`record` of what is measured now.

    Raises:
        CostError: the file holds something else, which would be lost.
    """
    if not path.exists():
        return []
    remedy = "give --json another name, or delete the file"
    found = read_json(path, remedy)
    try:
        rows = {str(row["scheme"]): dict(row) for row in found["rows"]}
        same = {**found, "rows": []} == made
    except (ValueError, KeyError, TypeError) as error:
        raise CostError(f"{path}: not a measurement: {error!r}", remedy=remedy) from error
    if not same:
        raise CostError(f"{path}: measured on another model or another text", remedy=remedy)
    return list(rows.values())


def merged(
    rows: Sequence[dict[str, Any]], further: Sequence[dict[str, Any]]
) -> list[dict[str, Any]]:
    """Rows with further ones, which take the place of those of the same scheme."""
    return list({row["scheme"]: row for row in (*rows, *further)}.values())


def _weight_shapes(plain: FloatLlama) -> dict[str, int]:
    tensors = plain.tensors
    found: dict[str, int] = {}
    for name, value in tensors.items():
        looked_up = name == "token_embd.weight" and "output.weight" in tensors
        if value.ndim == MATRIX and not looked_up:
            rows, length = value.shape
            found[str(length)] = found.get(str(length), 0) + rows
    return dict(sorted(found.items()))


@cache
def _shipped() -> tuple[tuple[dict[str, int], dict[str, float]], ...]:
    """Weights of the models whose measurement is shipped, and perplexity by scheme."""
    found = [json.loads(p.read_text(encoding="utf-8")) for p in sorted(FOLDER.glob("*.json"))]
    return tuple(
        (f["model"]["weights"], {row["scheme"]: row["perplexity"] for row in f["rows"]})
        for f in found
    )


def known(weights: Mapping[str, int]) -> dict[str, float]:
    """Perplexity by scheme of the model with these weights; empty where it was not measured.

    Args:
        weights: :func:`costmodel.estimate.workload.weight_shapes` of its work file.
    """
    return next((rows for shapes, rows in _shipped() if shapes == weights), {})
