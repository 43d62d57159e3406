# SPDX-License-Identifier: Apache-2.0
"""The exception of this package, and the reading of files that a user names."""

from __future__ import annotations

import errno
import json
from pathlib import Path
from typing import Any, Self

from groundwork.errors import USER_MISTAKE, CommandError

WORK_ANEW = "write the file again: accelerator workload MODEL --output FILE.work.json"
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.ENOMEM)


class CostError(CommandError):
    """Input that the cost model refuses, or a file that it cannot write."""

    exit_code = USER_MISTAKE

    @classmethod
    def from_os_error(cls, error: OSError) -> Self:
        """The error of a file that cannot be written; those to be read have errors of their own."""
        if error.errno in _FULL:
            return super().from_os_error(error)
        path = Path(error.filename or "")
        # The name of a scratch file says nothing; its folder is what refuses it.
        where = path.parent if path.name.startswith(".") else path
        remedy = "give the option a path in a folder that can be written, such as --json out/F.json"
        return cls(f"{where}: cannot be written: {error.strerror or error}", remedy=remedy)


def read_text(path: Path, remedy: str) -> str:
    """The text of a file that the user named.

    Raises:
        CostError: it cannot be read, with ``remedy``.
    """
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        problem = error.strerror or str(error)
    except UnicodeDecodeError as error:
        problem = f"not text: {error}"
    raise CostError(f"{path}: cannot be read: {problem}", remedy=remedy)


def read_json(path: Path, remedy: str) -> Any:
    """The JSON of a file that the user named.

    Raises:
        CostError: it cannot be read or is damaged, with ``remedy``.
    """
    try:
        return json.loads(read_text(path, remedy))
    except (ValueError, RecursionError) as error:
        raise CostError(f"{path}: cannot be read: not JSON: {error}", remedy=remedy) from error
