# SPDX-License-Identifier: Apache-2.0
"""JSON files of other programs: a model's, which hold one object each, and the trees' report."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from crosslab.errors import UserError

T = TypeVar("T")
PUBLISHED = "give the file that was published with the model"


def read_json_table(path: Path, *, optional: bool = False) -> dict[str, Any]:
    """The object that a JSON file holds.

    Args:
        path: the file.
        optional: it need not be there; it is then empty.

    Raises:
        UserError: it cannot be read, or holds something else.
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
        report: its file.
        told: what the report has to tell, for the message.
        read: takes one table an upstream.

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
