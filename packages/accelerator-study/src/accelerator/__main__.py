# SPDX-License-Identifier: Apache-2.0
"""``python -m accelerator``, and the installed command."""

import importlib
import sys

from groundwork.errors import CommandError, exit_code_of


def main() -> int:
    """Run with this process's arguments; Ctrl-C while modules are loaded ends it as later."""
    return exit_code_of(
        lambda: int(importlib.import_module("accelerator.cli").main()), CommandError
    )


if __name__ == "__main__":
    sys.exit(main())
