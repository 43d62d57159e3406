# SPDX-License-Identifier: Apache-2.0
"""Commands of forkpatch as the user types them."""

from __future__ import annotations

import os
import sys
from pathlib import Path

#: Environment variable in which a program that runs forkpatch says how its users type it.
VARIABLE = "FORKPATCH_COMMAND"


def typed(words: str) -> str:
    """The command that runs a verb, for messages.

    Args:
        words: the verb and its options, as in ``export calc``.

    Returns:
        It begins with FORKPATCH_COMMAND if that is set (``nox -s patches --``), with
        ``uv run forkpatch`` or ``python -m forkpatch`` if it was typed so, else with ``forkpatch``.
    """
    program = os.environ.get(VARIABLE, "")
    if not program and "UV_RUN_RECURSION_DEPTH" in os.environ:  # uv run sets it
        program = "uv run forkpatch"
    if not program and Path(sys.argv[0]).name == "__main__.py":
        program = "python -m forkpatch"
    return f"{program or 'forkpatch'} {words}"
