# SPDX-License-Identifier: Apache-2.0
"""The installed command ``costmodel``."""

import importlib
import os
import sys

from groundwork.errors import INTERRUPTED, CommandError, exit_code_of


def main() -> int:
    """Run with this process's arguments; Ctrl-C works while modules are loaded, too."""
    code = exit_code_of(lambda: int(importlib.import_module("costmodel.cli").main()), CommandError)
    if code == INTERRUPTED:
        # The interpreter's own end would wait for the workers of a search, which end with this
        # process.
        os._exit(code)
    return code


if __name__ == "__main__":
    sys.exit(main())
