# SPDX-License-Identifier: Apache-2.0
"""A Llama in W8A8 whose products a device computes; numpy computes the rest in floats.

Weights have a scale for each output channel, activations have a scale for each token; both are
symmetric. The device returns exact sums, and numpy multiplies them by the scales in float. The
device may also compute attention's products, see :func:`attend`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from accelerator.device import Device
from accelerator.errors import AcceleratorError
from accelerator.extension.lowering import lower_extension
from accelerator.extension.unit import MatrixUnit
from accelerator.layer import Convolution, Int8, Int32, LinearLayer
from accelerator.lowering import lower
from accelerator.mapping import best
from accelerator.program import Program
from accelerator.study import execute
from crosslab.models.config import read_family
from crosslab.models.llama_params import FileWeights
from crosslab.models.reference import ReferenceLlama
from crosslab.models.sources.gguf_import import import_gguf
from crosslab.models.sources.model_folder import CONFIG_FILE
from crosslab.models.weights_file import F32
from crosslab.tokenizer.chat_tokenizer import ChatTokenizer

EMBEDDING = "model.embed_tokens.weight"
MOST = 127
Rounded = Callable[[F32, str], tuple[Int8, F32]]
"""Rounds a matrix to int8 values and a scale for each row; the text names the other operand."""
# About the float32 rounding error by which two orders of a sum differ.
DISTURBANCE = 1e-6


def check_finite(name: str, *arrays: Any) -> None:
    """Refuse numbers that int8 lacks.

    Raises:
        AcceleratorError: an array has NaN or infinity.
    """
    if not all(np.isfinite(each).all() for each in arrays):
        raise AcceleratorError(f"{name}: NaN and infinity have no value in int8")


def quantise(matrix: F32, name: str = "a product") -> tuple[Int8, F32]:
    """Round each row of a matrix to int8; return the values and each row's scale.

    Raises:
        AcceleratorError: the matrix, an operand of ``name``, has NaN or infinity.
    """
    check_finite(name, matrix)
    scale = np.maximum(np.abs(matrix).max(axis=1), np.float32(1e-30)) / np.float32(MOST)
    values = np.clip(np.rint(matrix / scale[:, None]), -MOST, MOST).astype(np.int8)
    return values, scale.astype(np.float32)


def attend(
    query: F32,
    key: F32,
    value: F32,
    visible: npt.NDArray[np.bool_],
    sums: Callable[[Int8, Int8], Int32],
    rounded: Rounded | None = None,
) -> tuple[F32, F32]:
    """Compute attention of queries that share a head of keys and values, with int8 products.

    Each token's keys have a scale, and so do its values: a new token never changes the rounding of
    cached tokens. The scale of a token's values varies along the sum over tokens, so it cannot be
    applied after the integer product: it is multiplied into the probabilities, which are then
    rounded with a scale for each query. The softmax between the products is in float64, so that
    its rounding to float32 seldom depends on the order of its sums.

    Args:
        query: rows x width.
        key: tokens x width.
        value: tokens x width.
        visible: rows x tokens, true where a query sees a token; each query sees a token.
        sums: computes the integer product of values and the transpose of weights.
        rounded: replaces :func:`quantise`; called for keys, values, queries and probabilities, in
            this order.

    Returns:
        the output, rows x width, and for each row the logarithm of the sum of its scores'
        exponentials, which merges the attention of parts of a text.
    """
    rounded = rounded or quantise
    keys, key_scales = rounded(key, "queries")
    values, value_scales = rounded(value, "probabilities")
    queries, query_scales = rounded(query, "keys")
    scores = sums(queries, keys) * query_scales.astype(np.float64)[:, None] * key_scales
    scores *= np.float32(query.shape[1] ** -0.5)
    probabilities = np.where(visible, scores, -np.inf)
    largest = probabilities.max(axis=1, keepdims=True)
    probabilities = np.exp(probabilities - largest)
    total = probabilities.sum(axis=1, keepdims=True)
    probabilities = probabilities / total * value_scales
    weights, weight_scales = rounded(probabilities.astype(np.float32), "values")
    mixed = sums(weights, np.ascontiguousarray(values.T))
    out = np.asarray(mixed * weight_scales.astype(np.float64)[:, None], dtype=np.float32)
    return out, np.asarray(largest + np.log(total), dtype=np.float32)[:, 0]


@lru_cache(maxsize=64)
def lowered(layer: LinearLayer | Convolution, device: Device) -> Program:
    """Return the program of a layer with the best mapping."""
    return lower(layer, best(layer, device).mapping, device)


@dataclass(frozen=True)
class IntegerProduct:
    """A function that computes products in W8A8 on a device or in numpy.

    Attributes:
        device: multiplies on its functional simulator; None: numpy multiplies.
        weights: cache of int8 weights and their scales, by name.
        rounded: rounds activations in place of :func:`quantise`.
        proved: check each stream, and compare its result with numpy.
    """

    device: Device | MatrixUnit | None = None
    weights: dict[str, tuple[Int8, F32]] = field(default_factory=dict)
    rounded: Rounded = quantise
    proved: bool = False

    def __call__(self, values: F32, name: str, tensors: Mapping[str, F32]) -> F32:
        """Return values times the named weights, both rounded to int8: tokens x outputs."""
        if name not in self.weights:
            self.weights[name] = quantise(tensors[name], name)
        weights, channels = self.weights[name]
        near, tokens = self.rounded(values, name)
        sums = self.sums(near, weights)
        return np.asarray(sums * tokens[:, None] * channels, dtype=np.float32)

    def sums(self, values: Int8, weights: Int8) -> Int32:
        """Return the exact product of values [rows, inputs] by weights [outputs, inputs]."""
        layer = LinearLayer("a product", len(values), *weights.shape)
        if self.device is None:
            return layer.reference(values, weights)
        if isinstance(self.device, MatrixUnit):
            return execute(lower_extension(layer, self.device), (values, weights), self.proved)[0]
        return execute(lowered(layer, self.device), (values, weights), self.proved)[0]


def integer_model(
    model: ReferenceLlama, integer: IntegerProduct, attention: bool
) -> ReferenceLlama:
    """Return a model whose products, with attention's if ``attention``, are in W8A8."""
    attending = partial(attend, sums=integer.sums) if attention else None
    return replace(model, product=integer, attend=attending)


@dataclass(frozen=True)
class NextToken:
    """The next token of a text by three models, and the differences of their logits.

    Attributes:
        token: likeliest by the device; numpy, plain: by numpy in W8A8, and in float32.
        equal: the device's logits of the whole text are numpy's in W8A8, bit for bit.
        error: largest difference to a logit in float32, relative to the largest float32 logit.
        linear: this error with attention's products in float32, by numpy.
    """

    token: int
    numpy: int
    plain: int
    equal: bool
    error: float
    linear: float


def answer(
    model: ReferenceLlama,
    device: Device | MatrixUnit,
    prompt: Sequence[int],
    most: int,
    stop: Sequence[int],
    attention: bool = True,
) -> Iterator[NextToken]:
    """Yield up to ``most`` likeliest next tokens of a prompt.

    A token in ``stop`` is the last. The device computes attention's products if ``attention`` is
    true; else they are in float32.
    """
    weights: dict[str, tuple[Int8, F32]] = {}
    both = (IntegerProduct(device, weights), IntegerProduct(None, weights))
    models = (
        *(integer_model(model, integer, attention) for integer in both),
        replace(model),
        *([integer_model(model, both[1], False)] if attention else []),
    )
    read = list(prompt)
    for _ in range(most):
        on_unit, integer, plain, *others = (m.read_all(read) for m in models)
        largest = np.abs(plain[-1]).max()
        error, *without = (
            float(np.abs(m[-1] - plain[-1]).max() / largest) for m in (on_unit, *others)
        )
        token, same, other = (int(logits[-1].argmax()) for logits in (on_unit, integer, plain))
        equal = bool(np.array_equal(on_unit, integer))
        yield NextToken(token, same, other, equal, error, *(without or [error]))
        read = [token]
        if token in stop:
            return


def sensitivity(
    model: ReferenceLlama, text: Sequence[int], disturbance: float, attention: bool = True
) -> float:
    """Return the relative change of a logit in W8A8 after a small error in the embeddings.

    Two hosts whose float sums differ by such an error differ in their logits by at least this.

    Args:
        model: in float32; numpy computes its products in W8A8.
        text: token ids.
        disturbance: largest relative error of an embedding, drawn at random.
        attention: attention's products are in W8A8, too.

    Returns:
        the largest difference of a logit of the last token, relative to the largest logit.
    """
    embedding = model.params[EMBEDDING]
    errors = np.random.default_rng(0).uniform(-disturbance, disturbance, embedding.shape)
    disturbed = {**model.params, EMBEDDING: (embedding * (1 + errors)).astype(np.float32)}
    # Both models share int8 weights, also of an output head that is tied to the embedding.
    integer = IntegerProduct()
    first, second = (
        integer_model(llama, integer, attention).read(text)
        for llama in (model, replace(model, params=disturbed))
    )
    return float(np.abs(second - first).max() / np.abs(first).max())


def load(path: Path, cache: Path) -> tuple[ReferenceLlama, ChatTokenizer]:
    """Return the model of a GGUF file in float32, and its tokenizer with the chat template.

    Raises:
        UserError: the file is not GGUF, or its model or tokenizer is not supported.
        AcceleratorError: the model has experts.
    """
    folder = import_gguf(path, cache)
    config = read_family(folder / CONFIG_FILE)
    if config.experts:
        raise AcceleratorError(f"{path}: a mixture of experts, which a device does not compute")
    return ReferenceLlama(config, dict(FileWeights(folder, config))), ChatTokenizer.load(folder)
