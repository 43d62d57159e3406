# SPDX-License-Identifier: Apache-2.0
"""``python -m forkpatch VERB``, and the installed command."""

from __future__ import annotations

import importlib
import sys

from forkpatch.errors import UserError
from groundwork.errors import exit_code_of


def main() -> int:
    """Run the verb of the command line; return its exit code, 130 after Ctrl-C, also in imports."""
    return exit_code_of(
        lambda: int(importlib.import_module("forkpatch.cli.main").main()), UserError, "forkpatch"
    )


if __name__ == "__main__":
    sys.exit(main())
