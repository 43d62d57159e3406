# SPDX-License-Identifier: Apache-2.0
"""``python -m costmodel``."""

import sys

from costmodel.cli import main

sys.exit(main())
