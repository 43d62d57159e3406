# SPDX-License-Identifier: Apache-2.0
"""The table of weight formats: ``formats.toml``, which explains its fields."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

TABLE = Path(__file__).with_name("formats.toml")
WORD_BITS = 32


@dataclass(frozen=True)
class Packing:
    """Layout of quantized weights in 32-bit words, lowest bits first.

    Attributes:
        bits: width of a stored value.
        group: neighbouring inputs that share a scale.
        zero_point: stored value of the weight 0.
    """

    bits: int
    group: int
    zero_point: int

    @property
    def per_word(self) -> int:
        """Number of values in a word."""
        return WORD_BITS // self.bits


@dataclass(frozen=True)
class WeightFormat:
    """A format of weights.

    Attributes:
        name: MLC-LLM's name of the quantization.
        own_model: the project's own model definition can be compiled in this format.
        reference: the float32 reference of the main job and of the bench reads this format.
        kernels: last part of the names of the kernels that multiply with these weights.
        tolerance: largest allowed difference of a logit, divided by the reference's largest logit.
        reason: reason of the tolerance.
        packing: layout of quantized weights; None for weights stored as single numbers.
        llama_cpp: formats of llama.cpp that the bench can compare with it.
        int8: kernels can also multiply with int8 activations.
    """

    name: str
    own_model: bool
    reference: bool
    kernels: str
    tolerance: float
    reason: str
    packing: Packing | None = None
    llama_cpp: tuple[str, ...] = ()
    int8: bool = False

    @property
    def halves(self) -> bool:
        """True if models in this format store activations in float16, by the format's name."""
        return "f16" in self.name


@cache
def weight_formats(table: Path = TABLE) -> dict[str, WeightFormat]:
    """Return every weight format by name, in the order of formats.toml."""
    return {entry.name: entry for entry in _read(table)}


def packings(table: Path = TABLE) -> dict[str, Packing | None]:
    """Return the packing of linear-layer kernels, by the last part of the kernels' names."""
    return {entry.kernels: entry.packing for entry in weight_formats(table).values()}


def int8_kernels(table: Path = TABLE) -> frozenset[str]:
    """Return the last parts of the names of kernels that can multiply with int8 activations."""
    formats = weight_formats(table).values()
    # GGUF has no packing: its blocks have other kernels, and its other weights are float32.
    return frozenset(f.kernels for f in formats if f.int8 and f.packing)


def _read(path: Path) -> Iterator[WeightFormat]:
    for name, table in tomllib.loads(path.read_text(encoding="utf-8")).items():
        packing, peers = table.pop("packing", None), tuple(table.pop("llama_cpp", ()))
        packed = Packing(**packing) if packing else None
        yield WeightFormat(name, **table, packing=packed, llama_cpp=peers)


FORMATS = tuple(weight_formats())
REFERENCE_FORMATS = tuple(name for name, f in weight_formats().items() if f.reference)
DEFAULT_FORMAT = FORMATS[0]
GGUF = "gguf"
"""Weights as a GGUF file stores them; see gguf_formats.toml."""
MLC_FORMATS = tuple(name for name in FORMATS if name != GGUF)
"""Quantizations of MLC-LLM."""
OWN_FORMATS = tuple(name for name in MLC_FORMATS if weight_formats()[name].own_model)
"""Quantizations of MLC-LLM that the project's own model definition can be compiled in."""
