# SPDX-License-Identifier: Apache-2.0
"""Readers of other programs' JSON files: a model's files, and the report of the patched trees."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from crosslab.errors import UserError

T = TypeVar("T")
PUBLISHED = "give the file that was published with the model"


def read_json_table(path: Path, *, optional: bool = False) -> dict[str, Any]:
    """Read a JSON file with an object.

    Args:
        path: the file.
        optional: return an empty object if the file is missing.

    Raises:
        UserError: the file cannot be read, or has no object.
    """
    try:
        table = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        if optional and isinstance(error, FileNotFoundError):
            return {}
        raise UserError(f"cannot read {path}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} is not JSON: {error}", remedy=PUBLISHED) from error
    if not isinstance(table, dict):
        raise UserError(f"{path}: a table of fields was expected", remedy=PUBLISHED)
    return table


def read_applied(report: Path, told: str, read: Callable[[list[Any]], T]) -> T:
    """Read the upstreams in a report of ``forkpatch apply --json`` with ``read``.

    Args:
        report: path of the report.
        told: facts that the report must have, for the message.
        read: converts the list of upstreams' tables.

    Raises:
        UserError: the file is missing, or lacks these facts.
    """
    try:
        return read(json.loads(report.read_text(encoding="utf-8"))["upstreams"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(
            f"{report} does not say {told}: {error!r}",
            remedy="write it with: uv run forkpatch apply --json FILE",
        ) from error
