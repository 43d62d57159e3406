# SPDX-License-Identifier: Apache-2.0
"""``python -m costmodel``."""

import importlib
import os
import sys

from common.errors import INTERRUPTED, CommandError, exit_code_of

# Ctrl-C while modules are loaded ends it as later.
code = exit_code_of(lambda: int(importlib.import_module("costmodel.cli").main()), CommandError)
if code == INTERRUPTED:
    # The interpreter's own end would wait for the workers of a search; they end with this process.
    os._exit(code)
sys.exit(code)
