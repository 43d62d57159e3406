# SPDX-License-Identifier: Apache-2.0
"""The exceptions of this package."""

from __future__ import annotations

from groundwork.errors import USER_MISTAKE, CommandError


class AcceleratorError(CommandError):
    """The error for a refused device, layer or instruction stream."""

    exit_code = USER_MISTAKE


class StreamError(AcceleratorError):
    """The error for a wrong instruction in a stream.

    Attributes:
        index: position of the instruction in the stream, from 0.
    """

    def __init__(self, index: int, what: str) -> None:
        super().__init__(f"instruction {index}: {what}")
        self.index = index
