# SPDX-License-Identifier: Apache-2.0
"""Options of all verbs of ``crosslab farm``; a session passes them to every verb."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any

from crosslab.assemble.recipe_options import recipe_options
from groundwork.command_line import output_folder

#: Fields of ``add_argument`` for ``--database`` of the verbs that tune.
DATABASE: Mapping[str, Any] = {
    "type": output_folder,
    "help": "folder of databases, one for each core (PROJECT/out/tuned)",
}


def trees(*more: str, **changes: Mapping[str, Any]) -> argparse.ArgumentParser:
    """Return a parent parser with the options on trees and folders.

    Args:
        more: further options of :func:`recipe_options`.
        changes: by option, the fields of ``add_argument`` that change.
    """
    hidden = {"help": argparse.SUPPRESS}
    defaults: dict[str, Mapping[str, Any]] = {"tvm_tree": {"required": False}, "release": hidden}
    return recipe_options(
        *("project", "tvm-tree", "mlc-tree", "release", "applied", "cache", *more),
        **{**defaults, "applied": hidden, **changes},
    )
