# SPDX-License-Identifier: Apache-2.0
"""A whole Llama in W8A8 with its linear layers on a device; the rest stays in numpy, in float32.

Weights have a scale for each output channel, activations one for each token, both symmetric; sums
leave the device as they are, and the scales are multiplied in float32.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from accelerator import functional
from accelerator.device import Device
from accelerator.extension import functional as extension
from accelerator.extension.lowering import lower_extension
from accelerator.extension.unit import MatrixUnit
from accelerator.layer import Int8, LinearLayer
from accelerator.lowering import Program, lower
from accelerator.mapping import best
from costmodel.accelerator.scheme import FLOAT32, Scheme
from costmodel.accuracy.llama import FloatLlama
from costmodel.accuracy.rounding import F32
from crosslab.models.sources.gguf_import import BoundedReader
from crosslab.tokenizer.chat_tokenizer import ChatTokenizer, build_tokenizer, save_tokenizer

MOST = 127
EMBEDDING = "token_embd.weight"


def quantise(matrix: F32) -> tuple[Int8, F32]:
    """Int8 values, and the scale of each row."""
    scale = np.maximum(np.abs(matrix).max(axis=1), np.float32(1e-30)) / np.float32(MOST)
    found = np.clip(np.rint(matrix / scale[:, None]), -MOST, MOST).astype(np.int8)
    return found, scale.astype(np.float32)


@lru_cache(maxsize=64)
def _lowered(layer: LinearLayer, device: Device) -> tuple[Program, bytes]:
    program = lower(layer, best(layer, device).mapping, device)
    return program, program.stream


@dataclass(frozen=True)
class IntegerProduct:
    """Linear layers in W8A8.

    Attributes:
        device: that multiplies, on its functional simulator; None: numpy does.
        weights: int8 weights and scales that were made so far, by name.
    """

    device: Device | MatrixUnit | None = None
    weights: dict[str, tuple[Int8, F32]] = field(default_factory=dict)

    def __call__(self, values: F32, name: str, tensors: Mapping[str, F32]) -> F32:
        """Values by the weights of a name, both rounded to int8: tokens x outputs."""
        if name not in self.weights:
            self.weights[name] = quantise(tensors[name])
        weights, channels = self.weights[name]
        rounded, tokens = quantise(values)
        count = len(rounded)
        if self.device is None:
            sums = LinearLayer("", count, *weights.shape).reference(rounded, weights)
        elif isinstance(self.device, MatrixUnit):
            code = lower_extension(LinearLayer("", count, *weights.shape), self.device)
            memory = code.image(rounded, weights)
            extension.run(self.device, code.stream, memory)
            sums = code.result(memory)
        else:
            # Whole blocks of rows: a text that grows by a token keeps its streams for a while.
            rows = -(-count // self.device.batch) * self.device.batch
            program, stream = _lowered(LinearLayer("", rows, *weights.shape), self.device)
            memory = program.image(rounded, weights)
            functional.run(self.device, stream, memory)
            sums = program.result(memory)[:count]
        return np.asarray(sums * tokens[:, None] * channels, dtype=np.float32)


@dataclass(frozen=True)
class IntegerLlama(FloatLlama):
    """A Llama in W8A8.

    Attributes:
        integer: its products.
    """

    integer: IntegerProduct = field(default_factory=IntegerProduct)

    @classmethod
    def of(cls, model: FloatLlama, integer: IntegerProduct) -> IntegerLlama:
        """The model with another way to multiply."""
        return cls(**vars(model), integer=integer)

    def product(self, values: F32, name: str, scheme: Scheme) -> F32:  # noqa: ARG002 - overrides
        """Values by the weights of a name, both rounded to int8: tokens x outputs."""
        return self.integer(values, name, self.tensors)


@dataclass(frozen=True)
class NextToken:
    """The next token after a text, by three models.

    Attributes:
        token: likeliest by the device; numpy, plain: by numpy in W8A8, and in float32.
        equal: the device's logits of the whole text are numpy's, bit for bit.
        error: largest difference to a logit in float32, as a part of the largest of these.
    """

    token: int
    numpy: int
    plain: int
    equal: bool
    error: float


def answer(
    model: FloatLlama,
    device: Device | MatrixUnit,
    prompt: Sequence[int],
    most: int,
    stop: Sequence[int],
) -> Iterator[NextToken]:
    """Speak on after a prompt, the likeliest token each time; the text is read anew for each."""
    text = list(prompt)
    weights: dict[str, tuple[Int8, F32]] = {}
    both = (IntegerProduct(device, weights), IntegerProduct(None, weights))
    models = (*(IntegerLlama.of(model, integer) for integer in both), model)
    for _ in range(most):
        ours, integer, plain = (m.logits(np.array(text), FLOAT32) for m in models)
        error = float(np.abs(ours[-1] - plain[-1]).max() / np.abs(plain[-1]).max())
        token, same, other = (int(logits[-1].argmax()) for logits in (ours, integer, plain))
        yield NextToken(token, same, other, bool(np.array_equal(ours, integer)), error)
        text.append(token)
        if token in stop:
            return


def sensitivity(model: FloatLlama, text: Sequence[int], disturbance: float) -> float:
    """Growth of a small error by rounding to int8: the least by which two hosts differ.

    Args:
        model: in float32; its products are done in W8A8 by numpy.
        text: tokens that are read.
        disturbance: largest relative error put on the embeddings, at random.

    Returns:
        the largest difference of a logit of the last token, as a part of the largest of these.
    """
    embedding = model.tensors[EMBEDDING]
    errors = np.random.default_rng(0).uniform(-disturbance, disturbance, embedding.shape)
    disturbed = {**model.tensors, EMBEDDING: (embedding * (1 + errors)).astype(np.float32)}
    # Both take the same int8 weights: those of a head that is the embedding, too.
    integer = IntegerProduct()
    models = (model, FloatLlama(**{**vars(model), "tensors": disturbed}))
    first, second = (
        IntegerLlama.of(one, integer).logits(np.array(text), FLOAT32)[-1] for one in models
    )
    return float(np.abs(second - first).max() / np.abs(first).max())


def chat_tokenizer(path: Path) -> ChatTokenizer:
    """Tokenizer and chat template of a GGUF file."""
    fields: dict[str, Any] = {n: f.contents() for n, f in BoundedReader(path).fields.items()}
    with TemporaryDirectory() as folder:
        save_tokenizer(build_tokenizer(fields), fields, Path(folder))
        return ChatTokenizer.load(Path(folder))
