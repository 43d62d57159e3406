# SPDX-License-Identifier: Apache-2.0
"""The installed command ``costmodel``."""

import importlib
import os
import sys

from groundwork.errors import INTERRUPTED, CommandError, exit_code_of


def main() -> int:
    """Run the command with this process's arguments and return its exit code."""
    code = exit_code_of(lambda: int(importlib.import_module("costmodel.cli").main()), CommandError)
    if code == INTERRUPTED:
        # A normal exit would wait for the workers of a search; os._exit ends them, too.
        os._exit(code)
    return code


if __name__ == "__main__":
    sys.exit(main())
