# SPDX-License-Identifier: Apache-2.0
"""``python -m accelerator``."""

import sys

from accelerator.cli import main

sys.exit(main())
