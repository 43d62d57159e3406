# SPDX-License-Identifier: Apache-2.0
"""The installed command ``costmodel``."""

import importlib
import sys

from groundwork.errors import CommandError, exit_code_of


def main() -> int:
    """Run the command with this process's arguments and return its exit code."""
    return exit_code_of(lambda: int(importlib.import_module("costmodel.cli").main()), CommandError)


if __name__ == "__main__":
    sys.exit(main())
