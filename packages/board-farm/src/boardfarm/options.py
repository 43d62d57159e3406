# SPDX-License-Identifier: Apache-2.0
"""Options that all verbs of ``crosslab farm`` share; a session passes them to every verb."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any

from crosslab.build.recipe_options import recipe_options


def trees(*more: str, **changes: Mapping[str, Any]) -> argparse.ArgumentParser:
    """Make a parent parser with the options about trees and folders.

    Args:
        more: further options of :func:`recipe_options`.
        changes: of fields of any of them.
    """
    hidden = {"help": argparse.SUPPRESS}
    own: dict[str, Mapping[str, Any]] = {"tvm_tree": {"required": False}, "release": hidden}
    return recipe_options(
        *("project", "tvm-tree", "mlc-tree", "release", "applied", "cache", *more),
        **{**own, "applied": hidden, **changes},
    )
