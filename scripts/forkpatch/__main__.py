# SPDX-License-Identifier: Apache-2.0
"""``python -m forkpatch VERB``."""

import sys

from forkpatch.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
