# SPDX-License-Identifier: Apache-2.0
"""The refusal of a target or a tool that the user named."""

from __future__ import annotations


class CrossTargetError(ValueError):
    """The error for a target that is not supported; the message lists supported targets."""
