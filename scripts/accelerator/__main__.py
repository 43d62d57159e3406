# SPDX-License-Identifier: Apache-2.0
"""``python -m accelerator``."""

import importlib
import sys

from common.errors import CommandError, exit_code_of

# Ctrl-C while modules are loaded ends it as later.
sys.exit(exit_code_of(lambda: int(importlib.import_module("accelerator.cli").main()), CommandError))
