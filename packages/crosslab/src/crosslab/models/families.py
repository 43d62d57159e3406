# SPDX-License-Identifier: Apache-2.0
"""Test models of each architecture: published models with reduced sizes, from families.toml."""

from __future__ import annotations

import json
import math
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crosslab.errors import UserError
from crosslab.models.config import LENGTHS
from groundwork.command_line import meant

TABLE = Path(__file__).with_name("families.toml")
REFUSALS = Path(__file__).with_name("refused.toml")
NORM = (0.5, 1.5)
# Fields that hold the number of layers.
LAYERS = ("num_hidden_layers", "n_layer", "num_layers")


@dataclass(frozen=True)
class Family:
    """A test model of an architecture, such as Llama or Gemma.

    Attributes:
        name: name in the project.
        like: a published model of the family.
        reference: class of the architecture in transformers.
        config: content of ``config.json``, with reduced sizes.
        norm: lowest and highest random weight of the norms.
        rename: (pattern, replacement) pairs that convert transformers' weight names to published
            ones.
        copies: published name of the original, by name, of weights that files hold twice.
        fuse: (name, parts...): weights that files hold as one, rows of the parts in this order.
        by_group: names of ``fuse`` whose rows are ordered by groups of query heads.
        absent: patterns of weights that are zero in the reference, and that files do not have.
        factors: (pattern, factor): weights of the reference that files hold times a power of two.
        settings: settings of transformers' class that the config has under other names.
        sizes: settings of the compiler that the config does not have.
        folder: the family's folder in MLC-LLM's ``model``.
        within: ``model_type`` of the config that holds the family's as ``text_config``, if any.
        known: known cause of a wrong result; not part of the build's key.
        real: ``layers``, ``config`` and ``as`` of the published model, where its sizes differ.
    """

    name: str
    like: str
    reference: str
    config: Mapping[str, Any]
    norm: Sequence[float] = NORM
    rename: Sequence[tuple[str, str]] = ()
    copies: Mapping[str, str] = field(default_factory=dict)
    fuse: Sequence[Sequence[str]] = ()
    by_group: Sequence[str] = ()
    absent: Sequence[str] = ()
    factors: Sequence[tuple[str, float]] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)
    sizes: Mapping[str, int] = field(default_factory=dict)
    within: str = ""
    folder: str = field(default="", repr=False)
    known: str = field(default="", repr=False)
    real: Mapping[str, Any] = field(default_factory=dict, repr=False)

    @property
    def kind(self) -> str:
        """``model_type`` of a published config."""
        return self.within or str(self.config["model_type"])

    @property
    def sees(self) -> bool:
        """True if the model reads pictures."""
        return "vision_config" in self.config

    @property
    def context(self) -> int:
        """Longest sequence, in tokens."""
        return int(next(self.config[name] for name in LENGTHS if name in self.config))

    @property
    def layers(self) -> int:
        """Number of layers."""
        text = self.config.get("text_config", self.config)
        return int(next(text[name] for name in LAYERS if name in text))

    @property
    def vocab(self) -> int:
        """Number of token ids."""
        return int(self.config["vocab_size"])

    def of_real_size(self, layers: int = 0) -> Family:
        """Return the family with the sizes of the published model, but few layers.

        Args:
            layers: number of layers; 0: as many as show each kind of layer.

        Raises:
            UserError: the table has no sizes of the published model.
        """
        if not self.real:
            raise UserError(
                f"the sizes of {self.like} are unknown",
                remedy=f"add `real` to [{self.name}] in {TABLE}, or name other families",
            )
        large = replace(self, config={**self.config, **self.real.get("config", {})})
        count = layers or large.layers

        def fitted(table: Mapping[str, Any]) -> dict[str, Any]:
            """Return settings with this number of layers, also in lists of the layers' kinds."""
            numbers = {name: count for name in LAYERS if name in table}
            lists = {k: v for k, v in table.items() if isinstance(v, list) and len(v) == own}
            result = {**table, **numbers, **{k: (v * count)[:count] for k, v in lists.items()}}
            if text := table.get("text_config"):
                result["text_config"] = fitted(text)
            return result

        own, settings = self.layers, {**self.settings, **self.real.get("as", {})}
        return replace(large, config=fitted(large.config), settings=fitted(settings))

    def write_config(self, folder: Path) -> None:
        """Write the family's ``config.json`` into a folder."""
        config = dict(self.config)
        if self.within:
            config = {"model_type": self.within, "text_config": config}
        text = json.dumps(config, indent=2) + "\n"
        (folder / "config.json").write_text(text, encoding="utf-8")

    def published(self, name: str) -> str:
        """Convert transformers' name of a weight to the name in published files."""
        for pattern, replacement in self.rename:
            name = re.sub(pattern, replacement, name)
        return name

    def is_absent(self, name: str) -> bool:
        """True if the weight of this name of transformers' is zero, and not in published files."""
        return any(re.search(pattern, name) for pattern in self.absent)

    def published_weights(self, stored: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        """Convert transformers' weights to those of published files.

        Raises:
            KeyError: a weight that is fused or copied is missing.
        """
        named = {}
        for name, tensor in stored.items():
            if not self.is_absent(name):
                scales = [f for pattern, f in self.factors if re.search(pattern, name)]
                # Of the tensor's type, as a scale is a Python number.
                named[self.published(name)] = tensor * math.prod(scales) if scales else tensor
        for whole, *parts in self.fuse:
            for first in [name for name in named if parts[0] in name]:
                pieces = [named.pop(first.replace(parts[0], part)) for part in parts]
                groups = int(self.config["num_key_value_heads"]) if whole in self.by_group else 1
                named[first.replace(parts[0], whole)] = fused(pieces, groups)
        return named | {copy: named[original] for copy, original in self.copies.items()}


def fused(pieces: Sequence[NDArray[Any]], groups: int) -> NDArray[Any]:
    """Join the rows of weights as one: for each group, its rows of the first, of the second, ...

    Raises:
        ValueError: the weights' shapes do not fit each other, or the groups.
    """
    split = [piece.reshape(groups, -1, *piece.shape[1:]) for piece in pieces]
    return np.concatenate(split, axis=1).reshape(-1, *pieces[0].shape[1:])


def families() -> dict[str, Family]:
    """Read all families by name, in the table's order."""
    tables = tomllib.loads(TABLE.read_text(encoding="utf-8"))
    usual = tables.pop("usual")
    return {name: _family(name, usual, table) for name, table in tables.items()}


@dataclass(frozen=True)
class Refusal:
    """A folder of MLC-LLM's models without a family here.

    Attributes:
        folder: name of the folder in MLC-LLM's ``model``.
        kinds: values of ``model_type`` that it serves.
        why: the reason, in one sentence without its full stop.
    """

    folder: str
    kinds: tuple[str, ...]
    why: str


def refusals() -> list[Refusal]:
    """Read the refused folders, in the table's order."""
    tables = tomllib.loads(REFUSALS.read_text(encoding="utf-8"))
    return [Refusal(name, tuple(table["kinds"]), table["why"]) for name, table in tables.items()]


def _family(name: str, usual: Mapping[str, Any], table: dict[str, Any]) -> Family:
    # TOML has no null.
    null, without = (dict.fromkeys(table.pop(key, ())) for key in ("null", "without"))
    whole = {"model_type": name, **usual, **table.pop("config"), **null}
    config = {key: value for key, value in whole.items() if key not in without}
    fields = {"folder": name, "settings": table.pop("as", {}), **table}
    return Family(name=name, config=config, **fields)


def chosen(names: Sequence[str]) -> list[Family]:
    """Return the families with the given names; all families without names.

    Raises:
        UserError: a family of a given name does not exist.
    """
    known = families()
    if unknown := [name for name in names if name not in known]:
        remedy = meant(unknown[0], known, "families", "--family ")
        raise UserError(f"no family {', '.join(unknown)}", remedy=remedy)
    return [known[name] for name in dict.fromkeys(names)] if names else list(known.values())
