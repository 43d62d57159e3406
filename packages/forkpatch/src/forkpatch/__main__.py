# SPDX-License-Identifier: Apache-2.0
"""``python -m forkpatch VERB``, and the installed command."""

from __future__ import annotations

import importlib
import os
from typing import NoReturn

from forkpatch.errors import UserError
from groundwork.errors import exit_code_of


def main() -> NoReturn:
    """Run a verb; exit with its exit code, also after Ctrl-C during the import of modules.

    The memory is left to the system: to free a large series' lines takes a tenth of a rebase.
    """
    code = exit_code_of(
        lambda: int(importlib.import_module("forkpatch.cli.main").main()), UserError, "forkpatch"
    )
    os._exit(code)  # all output is flushed


if __name__ == "__main__":
    main()
