# SPDX-License-Identifier: Apache-2.0
"""Test models of each architecture: published models with reduced sizes, from families.toml."""

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
    """A test model of an architecture, such as Llama or Gemma.

    Attributes:
        name: name in the project.
        like: a published model of the family.
        reference: class of the architecture in transformers.
        config: content of ``config.json``, with reduced sizes.
        norm: lowest and highest random weight of the norms.
        rename: (pattern, replacement) pairs that convert transformers' weight names to published
            ones.
        copies: (name, published name of the original) of weights that files hold twice.
        settings: settings of transformers' class that the config has under other names.
        sizes: settings of the compiler that the config does not have.
        known: known cause of a wrong result; not part of the build's key.
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
        """Write the family's ``config.json`` into a folder."""
        text = json.dumps(dict(self.config), indent=2) + "\n"
        (folder / "config.json").write_text(text, encoding="utf-8")

    def published(self, name: str) -> str:
        """Convert transformers' name of a weight to the name in published files."""
        for pattern, replacement in self.rename:
            name = re.sub(pattern, replacement, name)
        return name


def families(path: Path = TABLE) -> dict[str, Family]:
    """Read all families by name, in the table's order.

    Raises:
        KeyError: a table lacks a required field.
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
    """Return the families with the given names; all families without names.

    Raises:
        UserError: a family of a given name does not exist.
    """
    known = families()
    if unknown := [name for name in names if name not in known]:
        remedy = meant(unknown[0], known, "families", "--family ")
        raise UserError(f"no family {', '.join(unknown)}", remedy=remedy)
    return [known[name] for name in dict.fromkeys(names)] if names else list(known.values())
