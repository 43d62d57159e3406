# SPDX-License-Identifier: Apache-2.0
"""Quantization schemes: the width of each operand, and the scales of operands."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path
from typing import Any

from costmodel.accelerator.settings import TomlTable, read_toml
from costmodel.errors import CostError

_CACHE = re.compile(r"-kv(8|4)$")
AS_COMPILED = "as-compiled"  # each product in the widths that the module has
WIDEST = 64  # bits of an operand or a scale


class Grain(Enum):
    """The granularity of scales: the elements that share a scale."""

    NONE = "none"
    TENSOR = "tensor"
    CHANNEL = "channel"
    TOKEN = "token"
    EMBEDDING = "embedding"
    ROW = "row"
    GROUP = "group"


@dataclass(frozen=True)
class Scheme:
    """The widths of operands in bits, and the scales of activations (A) and weights (B).

    Attributes:
        activation, weight: width of A and of B between memories.
        accumulator: width of partial sums; output: width of a finished element of C.
        activation_grain: TENSOR, TOKEN (a scale for each row of A) or EMBEDDING (for each column,
            an activation channel).
        weight_grain: TENSOR, CHANNEL (a scale for each column), ROW or GROUP.
        cache: width of the keys and values of attention; below 16 bits each entry of a head has
            a scale.
        group: weights along K that share a scale.
        scale, zero_point: widths; a zero point of 0 bits is symmetric quantization.

    Grouped weights are scaled when they enter the array, and so are activations with a scale for
    each channel (:attr:`compute` is the width of the PEs). All other scales apply to finished sums
    that leave the array. Sums are 32 bits wide for all widths of operands.
    """

    name: str
    activation: int = 16
    weight: int = 16
    accumulator: int = 32
    output: int = 16
    activation_grain: Grain = Grain.NONE
    weight_grain: Grain = Grain.NONE
    group: int = 0
    scale: int = 16
    zero_point: int = 0
    cache: int = 16

    @property
    def compute(self) -> int:
        """The width in bits at which the PEs multiply: the wider of A and B.

        Grouped weights, and activations with a scale for each column, are scaled before: then it
        is the wider of A and the output.
        """
        if self.weight_grain is Grain.GROUP or self.activation_grain is Grain.EMBEDDING:
            return max(self.activation, self.output)
        return max(self.activation, self.weight)

    @property
    def scales_of_sums(self) -> int:
        """The number of scales by which a finished sum is multiplied: 0, 1 or 2."""
        if self.weight_grain in (Grain.GROUP, Grain.ROW):
            return 0
        if self.activation_grain is Grain.EMBEDDING:
            return 1
        if self.weight_grain is Grain.NONE:
            return 0
        return 2 if self.activation_grain is Grain.TOKEN else 1

    def for_cache(self, values: bool) -> Scheme:
        """Return the scheme of attention's product by cached keys, or if ``values``, by values."""
        wide = max(self.output, 16)
        width = max(self.cache, wide) if self.cache >= 16 else self.cache
        scaled = Grain.ROW if values else Grain.CHANNEL
        grain = Grain.NONE if self.cache >= 16 else scaled
        return Scheme(self.name, wide, width, self.accumulator, self.output, weight_grain=grain)

    def activation_bits(self, m: Any, k: Any, down: Any = 1, deep: Any = 1) -> Any:
        """Return the bits of ``m x k`` activations with their scales; arrays broadcast.

        ``down x deep`` tiles, along M and K, each have their own scales.
        """
        values = m * k * self.activation
        match self.activation_grain:
            case Grain.TENSOR:
                return values + down * deep * self.scale
            case Grain.TOKEN:
                return values + m * deep * self.scale
            case Grain.EMBEDDING:
                return values + k * down * self.scale
        return values

    def weight_bits(
        self, k: Any, n: Any, deep: Any = 1, across: Any = 1, groups: Any = None
    ) -> Any:
        """Return the bits of ``k x n`` weights with their scales and zero points.

        ``deep x across`` tiles, along K and N, each have their own scales. ``groups`` is the number
        of groups along K in all tiles; None: that of a single tile.
        """
        values = k * n * self.weight
        beside = self.scale + self.zero_point
        match self.weight_grain:
            case Grain.TENSOR:
                return values + deep * across * beside
            case Grain.CHANNEL:
                return values + n * deep * beside
            case Grain.ROW:
                return values + k * across * beside
            case Grain.GROUP:
                return values + (-(-k // self.group) if groups is None else groups) * n * beside
        return values


FLOAT16 = Scheme("float16")
FLOAT32 = Scheme("float32", 32, 32, 32, 32, cache=32)


def _int8(name: str, activation: Grain, weight: Grain) -> Scheme:
    return Scheme(name, 8, 8, 32, 16, activation, weight)


def int4(group: int, activation: int = 16) -> Scheme:
    """Return a scheme of 4-bit weights in groups along K; narrow activations have token scales."""
    suffix = f"-a{activation}" if activation < 16 else ""
    return Scheme(
        f"int4-g{group}{suffix}",
        activation=activation,
        weight=4,
        activation_grain=Grain.TOKEN if activation < 16 else Grain.NONE,
        weight_grain=Grain.GROUP,
        group=group,
    )


def with_cache(scheme: Scheme, bits: int) -> Scheme:
    """Return the scheme with keys and values of ``bits``; its name gets ``-kvBITS``, unless 16."""
    if bits == scheme.cache:
        return scheme
    name = _CACHE.sub("", scheme.name) + ("" if bits == FLOAT16.cache else f"-kv{bits}")
    return replace(scheme, name=name, cache=bits)


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
        # TENET's table has sums as wide as the operands.
        Scheme("float16-sum16", accumulator=16),
        _int8("int8-embedding", Grain.EMBEDDING, Grain.CHANNEL),
        int4(64, activation=8),
        int4(64, activation=4),
    )
}
COMPARED = (
    *("float16", "int8-tensor", "int8-channel", "int8-token"),
    *("int4-g32", "int4-g64", "int4-g128"),
)


def scheme_named(name: str, known: Mapping[str, Scheme] = SCHEMES) -> Scheme | None:
    """Return the scheme of a name, which may end with the width of the cache, or None."""
    width, plain = _CACHE.search(name), known.get(_CACHE.sub("", name))
    if name in known or plain is None or width is None:
        return known.get(name)
    return with_cache(plain, int(width.group(1)))


def schemes(names: Sequence[str]) -> tuple[Scheme, ...]:
    """Return schemes by name or TOML file, each once.

    A name may end with the width of the cache: ``-kv8`` or ``-kv4``. ``all`` names the seven
    schemes of a comparison.

    Raises:
        CostError: a name is unknown, or a file is wrong; the message names the file's line.
    """
    chosen: list[Scheme] = []
    for name in names:
        if name == "all":
            chosen.extend(SCHEMES[n] for n in COMPARED)
        elif name.endswith(".toml"):
            example = "docs/cost/README.md has an example of a scheme's file"
            chosen.append(_from_file(read_toml(Path(name), f"{example}; shipped: {_SHIPPED}")))
        elif shipped := scheme_named(name):
            chosen.append(shipped)
        elif name == AS_COMPILED:
            raise CostError(
                f"--scheme {AS_COMPILED} works only for an estimate of --model, --gemm or --trace: "
                "each tensor keeps its own width",
                remedy=f"schemes: {_SHIPPED}",
            )
        else:
            raise CostError(
                f"no scheme {name!r}", remedy=f"schemes: {_SHIPPED}; of an estimate: {AS_COMPILED}"
            )
    return tuple(dict.fromkeys(chosen))


def with_caches(found: Sequence[Scheme], widths: Sequence[int]) -> tuple[Scheme, ...]:
    """Return schemes with caches of each width in ``widths``; without widths, unchanged.

    A scheme whose name or file sets a cache below 16 bits keeps it.

    Raises:
        CostError: a scheme's cache below 16 bits is not in ``widths``.
    """
    for scheme in found:
        if widths and scheme.cache < FLOAT16.cache and scheme.cache not in widths:
            asked = " ".join(map(str, widths))
            raise CostError(
                f"--scheme {scheme.name} has a cache of {scheme.cache} bits, --cache {asked} not",
                remedy=f"leave --cache out, or type: --cache {asked} {scheme.cache}",
            )
    default = FLOAT16.cache
    chosen = [s if s.cache < default else with_cache(s, b) for b in widths for s in found]
    return tuple(dict.fromkeys(chosen or found))


_SHIPPED = f"all, {', '.join(SCHEMES)}, and with -kv8 or -kv4 behind it a cache of so many bits"
_WIDTHS = ("activation", "weight", "accumulator", "output", "scale", "zero_point", "cache")
_GRAINS = {
    "activation_grain": ("none", "tensor", "token", "embedding"),
    "weight_grain": ("none", "tensor", "channel", "group"),
}


def _from_file(table: TomlTable) -> Scheme:
    """Return the scheme of a TOML table, whose widths are quantities in bits."""
    table.only(["schema", "name", "group", *_WIDTHS, *_GRAINS])
    plain = Scheme("")
    widths = {
        key: table.bits(key, getattr(plain, key), int(key != "zero_point"), WIDEST)
        for key in _WIDTHS
    }
    grains = {key: Grain(table.choice(key, known, "none")) for key, known in _GRAINS.items()}
    group = table.get("group", int, 0) if "group" in table.values else 0
    if (grains["weight_grain"] is Grain.GROUP) != (group > 0):
        key = "group" if "group" in table.values else "weight_grain"
        problem = "weight_grain = \"group\" and a positive 'group' go together"
        raise table.error(key, problem, "group = 64 is the weights along K that share a scale")
    values: dict[str, Any] = {**widths, **grains}
    made = Scheme(name=table.get("name", str), group=group, **values)
    # Measurements of accuracy are found by the scheme's name.
    if scheme_named(made.name) not in (None, made):
        raise table.error(
            "name",
            f"{made.name!r} is the name of a shipped scheme with other values",
            "give the scheme another name",
        )
    return made
