# SPDX-License-Identifier: Apache-2.0
"""The model families that can be read from GGUF files, from gguf_families.toml."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from gguf import MODEL_ARCH_NAMES, get_tensor_name_map
from numpy.typing import NDArray

from crosslab.errors import UserError
from crosslab.models.config import llama3_scaling
from crosslab.models.families import fused
from crosslab.models.reference import scaled_frequencies
from crosslab.models.sources.gguf_metadata import Metadata, used_in
from crosslab.models.weights_file import F32

TABLE = Path(__file__).with_name("gguf_families.toml")
REFUSED = Path(__file__).with_name("gguf_refused.toml")
ROPE_FACTORS = "rope_freqs.weight"
# Scaled rotary embeddings of the Llama 3 and 4 releases; a GGUF file has only the factors.
LLAMA3_ROPES = ((8.0, 1.0, 4.0, 8192), (32.0, 1.0, 4.0, 8192), (16.0, 1.0, 1.0, 8192))
FOLDER = "give the model's Hugging Face folder: config.json, *.safetensors, tokenizer.json"
_ALTERNATIVES = re.compile(r"\{([^{}]*,[^{}]*)\}")
_EXPERTS = ".experts."
_LAYER = re.compile(r"\.(\d+)\.")

Weight = tuple[str, NDArray[Any]]


@dataclass(frozen=True)
class GgufFamily:
    """A family of models in GGUF files; ``gguf_families.toml`` explains the fields."""

    architecture: str
    names: Mapping[str, str]
    when: str
    constants: Mapping[str, Any] = field(default_factory=dict)
    fields: Mapping[str, str] = field(default_factory=dict)
    refuse: Mapping[str, str] = field(default_factory=dict)
    ignore: Sequence[str] = ()
    biases: str = ""
    change: Sequence[Mapping[str, Any]] = ()
    fuse: Sequence[Sequence[str]] = ()
    groups: str = "1"
    published: Sequence[tuple[str, str]] = ()
    within: str = ""
    stacked: Mapping[str, str] = field(default_factory=dict)
    whole_experts: bool = False

    @property
    def kind(self) -> str:
        """``model_type`` of the published config."""
        return self.within or str(self.constants["model_type"])

    def config(self, file: Metadata) -> dict[str, Any]:
        """Return the fields of the published ``config.json``.

        Raises:
            UserError: the file lacks a field, or has one of a wrong value or without support.
        """
        self._check(file)
        core = families()["llama"].fields
        config = {
            name: file.positive(value) if name in core else file[value]
            for name, value in self.fields.items()
        }
        return {**config, **self.constants}

    def _check(self, file: Metadata) -> None:
        own = [*self.fields.values(), *self.refuse.values(), self.when, self.groups]
        for change in self.change:
            own += [*change.get("swap", ()), *change.get("shape", ()), change.get("times", "1")]
        known = {name for expression in own for name in used_in(expression)}
        known |= {*self.ignore, *self.refuse}
        for name, value in file.fields.items():
            if name not in known or (name in self.refuse and file[self.refuse[name]]):
                why = reasons()["field"].get(name, "it is not known what the field changes")
                raise UserError(
                    f"{file.file}: {file.architecture}.{name} = {str(value)[:60]} is not "
                    f"supported: {why}",
                    remedy=FOLDER,
                )

    def published_names(self, layers: int) -> dict[str, str]:
        """Return the published name of each tensor of the family, by its name in the file.

        Args:
            layers: number of layers.
        """
        architectures = {name: key for key, name in MODEL_ARCH_NAMES.items()}
        theirs = get_tensor_name_map(architectures[self.architecture], layers)
        named: dict[str, str] = {}
        for stem in self._stems(layers):
            if (name := theirs.get_name(stem)) is None:
                raise AssertionError(f"the package gguf has no name for {stem}")
            # One tensor has neither suffix (Qwen3.5's ssm_a).
            named |= {name: stem, f"{name}.weight": f"{stem}.weight"}
            if self.biases and re.search(self.biases, stem):
                named[f"{name}.bias"] = f"{stem}.bias"
        for name, stem in self.stacked.items():
            for number in map(str, range(layers)):
                named[name.replace("{bid}", number)] = stem.replace("{bid}", number)
        return named

    def _stems(self, layers: int) -> Iterator[str]:
        for pattern in filter(None, self.names.values()):
            for stem in _each(pattern):
                numbers = range(layers) if "{bid}" in stem else [0]
                yield from (stem.replace("{bid}", str(number)) for number in numbers)

    def names_of(self, name: str, count: int) -> list[str]:
        """Return the names of the weights in a tensor: one, or several of the same shape.

        Args:
            name: name of the table.
            count: length of the tensor's first axis.
        """
        if _EXPERTS in name and not self.whole_experts:
            return [name.replace(_EXPERTS, f"{_EXPERTS}{expert}.") for expert in range(count)]
        return _each(name)

    def published_weights(self, weights: Iterable[Weight], file: Metadata) -> Iterator[Weight]:
        """Undo the converter's changes; yield each weight of the published files.

        Args:
            weights: (published name, values) of the file's tensors.
            file: the file's metadata.

        Raises:
            UserError: a tensor does not have the shape that the file's fields say.
        """
        waiting: dict[str, NDArray[Any]] = {}
        for name, values in weights:
            try:
                changed = self._changed(name, values, file)
                names = self.names_of(name, len(changed))
                pieces = [changed] if names == [name] else changed
                for part, piece in zip(names, pieces, strict=True):
                    yield from self._joined(part, piece, waiting, file)
            except (ValueError, np.exceptions.AxisError) as error:
                raise UserError(
                    f"{file.file}: {name} has the shape {values.shape}, which does not fit the "
                    "file's fields",
                    remedy="download the file again, and compare its sha256 with its publisher's",
                ) from error

    def _joined(
        self, name: str, values: NDArray[Any], waiting: dict[str, NDArray[Any]], file: Metadata
    ) -> Iterator[Weight]:
        """Yield a weight; join parts of one when the last of them comes."""
        for whole, *parts in self.fuse:
            for part in (part for part in parts if part in name):
                waiting[name] = values
                names = [name.replace(part, other) for other in parts]
                if all(other in waiting for other in names):
                    joined = fused([waiting.pop(other) for other in names], file[self.groups])
                    name = name.replace(part, whole)
                    joined = self._changed(name, joined, file, joined=True)
                    yield self.published_name(name), joined
                return
        yield self.published_name(name), values

    def keeps_rows(self, name: str) -> bool:
        """Return True if a published weight has the rows of the file's tensor, in any order."""
        parts = [part for _, *parts in self.fuse for part in parts]
        changes = [change for change in self.change if re.search(change["of"], name)]
        rows_alone = [set(c) == {"of", "swap"} and c["swap"][0] == "0" for c in changes]
        return all(rows_alone) and not any(part in name for part in parts)

    def published_name(self, name: str) -> str:
        """Return the name in published files of a weight with a name of the table."""
        for pattern, replacement in self.published:
            name = re.sub(pattern, replacement, name)
        return name

    def _changed(
        self, name: str, values: NDArray[Any], file: Metadata, *, joined: bool = False
    ) -> NDArray[Any]:
        for change in self.change:
            if change.get("joined", False) != joined or not re.search(change["of"], name):
                continue
            if "swap" in change:
                axis, *numbers = (int(file[item]) for item in change["swap"])
                values = swapped(values, axis, *numbers)
            if "times" in change and (layer := _LAYER.search(name)):
                values = values * np.float32(file.of_layer(change["times"], int(layer[1])))
            if "add" in change:
                values = values + np.float32(change["add"])
            if "log_of_minus" in change:
                values = np.log(-values)
            if "shape" in change:
                values = values.reshape([int(file[item]) for item in change["shape"]])
            if "transpose" in change:
                values = np.ascontiguousarray(values.swapaxes(-1, -2))
        return values


def _each(pattern: str) -> list[str]:
    """Return the names of a pattern with alternatives: a{b,c} is ab and ac."""
    texts = _ALTERNATIVES.split(pattern)
    choices = [text.split(",") if i % 2 else [text] for i, text in enumerate(texts)]
    return list(map("".join, product(*choices)))


def swapped(
    values: NDArray[Any], axis: int, skip: int, blocks: int, a: int, b: int, piece: int
) -> NDArray[Any]:
    """Reorder an axis: blocks of ``a`` times ``b`` pieces become blocks of ``b`` times ``a``.

    Args:
        values: weights; for ``axis`` 0, also rows of blocks as bytes.
        axis: axis to reorder.
        skip: first entries of the axis, which stay.
        blocks: number of blocks.
        a: outer number of pieces in a block before; -1: as many as there are.
        b: inner number of pieces in a block before.
        piece: neighbouring entries that stay together; -1: as many as there are.

    Raises:
        ValueError: the axis has another length.
    """
    head, tail = np.split(values, [skip], axis)
    before, after = tail.shape[:axis], tail.shape[axis + 1 :]
    pieces = tail.reshape(*before, blocks, a, b, piece, *after)
    moved = pieces.swapaxes(axis + 1, axis + 2).reshape(tail.shape)
    return np.ascontiguousarray(np.concatenate([head, moved], axis))


@cache
def families() -> Mapping[str, GgufFamily]:
    """Read all families by name, in the table's order."""
    tables = tomllib.loads(TABLE.read_text(encoding="utf-8"))
    whole: dict[str, dict[str, Any]] = {}
    for name, table in tables.items():
        base = whole.get(table.pop("like", ""), {})
        own = {"architecture": name, "when": "true", "constants": {}, **table}
        own["constants"] = {"model_type": name, **own["constants"]}
        merged = {k: {**base[k], **v} for k, v in own.items() if isinstance(v, dict) and k in base}
        whole[name] = {**base, **own, **merged}
    return {name: GgufFamily(**table) for name, table in whole.items()}


def family_of(file: Metadata) -> GgufFamily:
    """Return the family of a file.

    Raises:
        UserError: the file is not a model, or there is no family of its architecture.
    """
    if (why := reasons()["type"].get(file.type)) is not None:
        raise UserError(
            f"{file.file}: general.type = {file.type!r} is not supported: {why}", remedy=FOLDER
        )
    for family in families().values():
        if family.architecture == file.architecture and file[family.when]:
            return family
    known = sorted({family.architecture for family in families().values()})
    unknown = "the project reads no GGUF files of this architecture"
    why = reasons()["architecture"].get(file.architecture, unknown)
    raise UserError(
        f"{file.file}: general.architecture = {file.architecture!r} is not supported: {why}",
        remedy=f"{FOLDER}; supported: {', '.join(known)}",
    )


@cache
def reasons() -> Mapping[str, Mapping[str, str]]:
    """Read the reasons of refusals, by the kind of the field and the field or its value."""
    return tomllib.loads(REFUSED.read_text(encoding="utf-8"))


def rope_scaling(config: Mapping[str, Any], factors: F32) -> dict[str, Any]:
    """Return Llama 3's ``rope_scaling`` that divides the rotary frequencies by given factors.

    Raises:
        UserError: the factors belong to no known release, or the model has no rotary positions.
    """
    if not (config.get("head_dim") and config.get("rope_theta")):
        raise UserError(
            f"{ROPE_FACTORS} does not belong to a {config['model_type']} model", remedy=FOLDER
        )
    half = config["head_dim"] // 2
    plain = config["rope_theta"] ** (-np.arange(half) / half)
    for rope in LLAMA3_ROPES:
        expected = plain / scaled_frequencies(plain, rope)
        if factors.shape == expected.shape and np.allclose(factors, expected, rtol=1e-5):
            return llama3_scaling(rope)
    raise UserError(f"{ROPE_FACTORS} has other factors than Llama 3's releases", remedy=FOLDER)
