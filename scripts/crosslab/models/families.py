# SPDX-License-Identifier: Apache-2.0
"""The families: small models in the shape of real ones, from families.toml."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from crosslab.errors import UserError
from crosslab.models.config import LENGTHS
from groundwork.command_line import meant

TABLE = Path(__file__).with_name("families.toml")
NORM = (0.5, 1.5)


@dataclass(frozen=True)
class Family:
    """One architecture.

    Attributes:
        name: how the lab calls it.
        like: a published model of the family.
        reference: its class in transformers.
        config: its ``config.json``, sizes reduced.
        norm: low and high of the norms' random weights.
        rename: (pattern, replacement) from transformers' names of the weights to the files'.
        copies: (name, published name it is a copy of) of weights that files hold twice.
        settings: settings of the reference that the config says under other names.
        sizes: settings of the compile beside those of the config.
        known: what is known of the cause when it is not right; no part of what is made.
    """

    name: str
    like: str
    reference: str
    config: Mapping[str, Any]
    norm: tuple[float, float] = NORM
    rename: tuple[tuple[str, str], ...] = ()
    copies: tuple[tuple[str, str], ...] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)
    sizes: Mapping[str, int] = field(default_factory=dict)
    known: str = field(default="", repr=False)

    @property
    def context(self) -> int:
        """Longest sequence, in tokens."""
        return int(next(self.config[name] for name in LENGTHS if name in self.config))

    @property
    def vocab(self) -> int:
        """Number of token ids."""
        return int(self.config["vocab_size"])

    def write_config(self, folder: Path) -> None:
        """Write its ``config.json`` into a folder."""
        text = json.dumps(dict(self.config), indent=2) + "\n"
        (folder / "config.json").write_text(text, encoding="utf-8")

    def published(self, name: str) -> str:
        """The name that published files have for one of transformers' weights."""
        for pattern, replacement in self.rename:
            name = re.sub(pattern, replacement, name)
        return name


def families(path: Path = TABLE) -> dict[str, Family]:
    """All families by name, in the table's order.

    Raises:
        KeyError: a table lacks what every family has.
    """
    tables = tomllib.loads(path.read_text(encoding="utf-8"))
    return {name: _family(name, table) for name, table in tables.items()}


def _family(name: str, table: Mapping[str, Any]) -> Family:
    low, high = table.get("norm", NORM)
    pairs = tuple((str(pattern), str(to)) for pattern, to in table.get("rename", ()))
    return Family(
        name,
        table["like"],
        table["reference"],
        # TOML has no null.
        {**table["config"], **dict.fromkeys(table.get("null", ()))},
        (float(low), float(high)),
        pairs,
        tuple(sorted(table.get("copies", {}).items())),
        table.get("as", {}),
        table.get("sizes", {}),
        table.get("known", ""),
    )


def chosen(names: Sequence[str]) -> list[Family]:
    """The families of these names; all, when there are no names.

    Raises:
        UserError: a name is not that of a family.
    """
    known = families()
    if unknown := [name for name in names if name not in known]:
        remedy = meant(unknown[0], known, "families", "--family ")
        raise UserError(f"no family {', '.join(unknown)}", remedy=remedy)
    return [known[name] for name in dict.fromkeys(names)] if names else list(known.values())
