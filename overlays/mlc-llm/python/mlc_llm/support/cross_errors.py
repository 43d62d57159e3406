# SPDX-License-Identifier: Apache-2.0
"""The refusal of a target or a tool that the user named."""

from __future__ import annotations


class CrossTargetError(ValueError):
    """A target cannot be compiled for; the message names those that can."""
