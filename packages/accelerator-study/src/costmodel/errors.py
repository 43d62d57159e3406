# SPDX-License-Identifier: Apache-2.0
"""The error class of this package, and readers of files that a user names."""

from __future__ import annotations

import errno
import json
from pathlib import Path
from typing import Any, Self

from groundwork.errors import USER_MISTAKE, CommandError

WORK_ANEW = "write the file again: accelerator workload MODEL --output FILE.work.json"
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.ENOMEM)


class CostError(CommandError):
    """The error for input that the cost model refuses, or for a file that it cannot write."""

    exit_code = USER_MISTAKE

    @classmethod
    def from_os_error(cls, error: OSError) -> Self:
        """Return the error for a file that cannot be written."""
        if error.errno in _FULL:
            return super().from_os_error(error)
        path = Path(error.filename or "")
        # The name of a scratch file is useless to a user; the folder refuses the write.
        where = path.parent if path.name.startswith(".") else path
        remedy = "give the option a path in a folder that can be written, such as --json out/F.json"
        return cls(f"{where}: cannot be written: {error.strerror or error}", remedy=remedy)


def read_text(path: Path, remedy: str) -> str:
    """Return the text of a file that the user named.

    Raises:
        CostError: the file cannot be read; the message ends with ``remedy``.
    """
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        problem = error.strerror or str(error)
    except UnicodeDecodeError as error:
        problem = f"not text: {error}"
    raise CostError(f"{path}: cannot be read: {problem}", remedy=remedy)


def read_json(path: Path, remedy: str) -> Any:
    """Return the content of a JSON file that the user named.

    Raises:
        CostError: the file cannot be read or is not JSON; the message ends with ``remedy``.
    """
    try:
        return json.loads(read_text(path, remedy))
    except (ValueError, RecursionError) as error:
        raise CostError(f"{path}: cannot be read: not JSON: {error}", remedy=remedy) from error
