# SPDX-License-Identifier: Apache-2.0
"""The way from tokens' states to the vector of a text, from a sentence-transformers folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from crosslab.errors import UserError
from crosslab.json_table import read_json_table
from crosslab.models.encoder import POOLINGS

MODULES_FILE = "modules.json"


def pooling_of(folder: Path) -> dict[str, Any]:
    """Return the fields ``pooling`` and ``normalize`` of a model's config.

    A folder without ``modules.json`` gives the mean of the states, scaled to length 1.

    Raises:
        UserError: a file is missing or malformed, or a step is not supported.
    """
    path = folder / MODULES_FILE
    if not path.is_file():
        return {"pooling": "mean", "normalize": True}
    try:
        steps = [(str(m["type"]).rpartition(".")[2], str(m["path"])) for m in _list(path)]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise UserError(f"{path} is not a list of modules: {error!r}") from error
    kinds = [kind for kind, _ in steps]
    if kinds[:2] != ["Transformer", "Pooling"] or kinds[2:] not in ([], ["Normalize"]):
        raise UserError(
            f"{path}: the steps {', '.join(kinds)} are not supported",
            remedy="give a model with Transformer, Pooling and perhaps Normalize",
        )
    return {"pooling": _mode(folder, steps[1][1]), "normalize": len(kinds) == 3}


def _list(path: Path) -> list[Any]:
    steps = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(steps, list):
        raise TypeError(steps)
    return steps


def _mode(folder: Path, part: str) -> str:
    """Return the pooling of a folder's part such as ``1_Pooling``."""
    if Path(part).name != part:
        raise UserError(f"{folder / MODULES_FILE} names the folder {part!r} outside the model")
    path = folder / part / "config.json"
    table = read_json_table(path)
    prefix, suffix = "pooling_mode_", "_token"
    set_modes = [n.removeprefix(prefix) for n, on in table.items() if n.startswith(prefix) and on]
    plain = [mode.removesuffix("s").removesuffix(suffix) for mode in set_modes]
    modes = [str(table["pooling_mode"])] if "pooling_mode" in table else plain
    if len(modes) != 1 or modes[0] not in POOLINGS:
        raise UserError(
            f"{path}: the pooling {', '.join(modes)} is not supported",
            remedy=f"give a model with one of: {', '.join(POOLINGS)}",
        )
    return modes[0]
