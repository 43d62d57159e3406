# SPDX-License-Identifier: Apache-2.0
"""The exception of this package."""

from __future__ import annotations

from common.errors import USER_MISTAKE, CommandError


class CostError(CommandError):
    """Input that the cost model refuses, or a file that it cannot write."""

    exit_code = USER_MISTAKE
