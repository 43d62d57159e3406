# SPDX-License-Identifier: Apache-2.0
"""JSON files of a model, each of which holds one object."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from crosslab.errors import UserError

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
