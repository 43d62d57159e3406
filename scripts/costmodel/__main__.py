# SPDX-License-Identifier: Apache-2.0
"""``python -m costmodel``."""

import os
import sys

from common.errors import INTERRUPTED
from costmodel.cli import main

code = main()
if code == INTERRUPTED:
    # The interpreter's own end would wait for the workers of a search; they end with this process.
    os._exit(code)
sys.exit(code)
