# SPDX-License-Identifier: Apache-2.0
"""``python -m crosslab.cost``."""

import sys

from crosslab.cost.cli import main

sys.exit(main())
