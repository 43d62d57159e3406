# SPDX-License-Identifier: Apache-2.0
"""Commands of forkpatch as the user types them."""

from __future__ import annotations

import os
import sys
from pathlib import Path

#: Environment variable with the command that the users of a calling program type.
VARIABLE = "FORKPATCH_COMMAND"


def typed(words: str) -> str:
    """Return the command that runs a verb, for messages.

    Returns:
        FORKPATCH_COMMAND if set (``nox -s patches --``), else ``uv run forkpatch`` or
        ``python -m forkpatch`` if typed so, else ``forkpatch``; followed by ``words``.
    """
    program = os.environ.get(VARIABLE, "")
    if not program and "UV_RUN_RECURSION_DEPTH" in os.environ:  # uv run sets it
        program = "uv run forkpatch"
    if not program and Path(sys.argv[0]).name == "__main__.py":
        program = "python -m forkpatch"
    return f"{program or 'forkpatch'} {words}"
