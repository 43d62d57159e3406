# SPDX-License-Identifier: Apache-2.0
"""Quantization schemes: how wide each operand is, and which scales come with it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from crosslab.errors import UserError


class Grain(Enum):
    """How many elements share a scale."""

    NONE = "none"
    TENSOR = "tensor"
    CHANNEL = "channel"
    TOKEN = "token"
    GROUP = "group"


@dataclass(frozen=True)
class Scheme:
    """Widths in bits, and the scales of activations (A) and weights (B).

    Attributes:
        activation, weight: width of A and of B as they travel.
        accumulator: width of partial sums; output: width of a finished element of C.
        activation_grain: TENSOR or TOKEN (a scale for each row of A).
        weight_grain: TENSOR, CHANNEL (a scale for each column) or GROUP.
        group: weights along K that share a scale.
        scale, zero_point: widths; a zero point of 0 bits is symmetric quantization.

    Grouped weights are scaled where they enter the array (the product is done at the
    activation's width). All other scales are applied to finished sums as they leave it.
    """

    name: str
    activation: int = 16
    weight: int = 16
    accumulator: int = 16
    output: int = 16
    activation_grain: Grain = Grain.NONE
    weight_grain: Grain = Grain.NONE
    group: int = 0
    scale: int = 16
    zero_point: int = 0

    @property
    def compute(self) -> int:
        """Width at which the PEs multiply."""
        if self.weight_grain is Grain.GROUP:
            return self.activation
        return max(self.activation, self.weight)

    def weight_bits(self, k: int, n: int) -> int:
        """Bits of a ``k x n`` piece of weights with its scales and zero points."""
        own = k * n * self.weight
        beside = self.scale + self.zero_point
        match self.weight_grain:
            case Grain.TENSOR:
                return own + beside
            case Grain.CHANNEL:
                return own + n * beside
            case Grain.GROUP:
                return own + -(-k // self.group) * n * beside
        return own


FLOAT16 = Scheme("float16")
FLOAT32 = Scheme("float32", 32, 32, 32, 32)


def _int8(name: str, activation: Grain, weight: Grain) -> Scheme:
    return Scheme(name, 8, 8, 32, 16, activation, weight)


def int4(group: int, zero_point: int = 0) -> Scheme:
    """Four-bit weights in groups along K, 16-bit activations."""
    return Scheme(
        f"int4-g{group}",
        weight=4,
        weight_grain=Grain.GROUP,
        group=group,
        zero_point=zero_point,
    )


SCHEMES: dict[str, Scheme] = {
    s.name: s
    for s in (
        FLOAT16,
        FLOAT32,
        _int8("int8-tensor", Grain.TENSOR, Grain.TENSOR),
        _int8("int8-channel", Grain.TENSOR, Grain.CHANNEL),
        _int8("int8-token", Grain.TOKEN, Grain.CHANNEL),
        int4(32),
        int4(64),
        int4(128),
    )
}
COMPARED = tuple(name for name in SCHEMES if name != "float32")


def schemes(names: Sequence[str]) -> tuple[Scheme, ...]:
    """Schemes by name; ``all`` is the seven that are compared.

    Raises:
        UserError: an unknown name.
    """
    found: list[Scheme] = []
    for name in names:
        if name == "all":
            found.extend(SCHEMES[n] for n in COMPARED)
        elif name in SCHEMES:
            found.append(SCHEMES[name])
        else:
            raise UserError(
                f"no scheme {name!r}", remedy=f"schemes: all, as-compiled, {', '.join(SCHEMES)}"
            )
    return tuple(dict.fromkeys(found))
