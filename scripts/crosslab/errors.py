# SPDX-License-Identifier: Apache-2.0
"""The one exception type of this wing."""

from __future__ import annotations


class LabError(Exception):
    """Something the lab cannot go on with.

    Attributes:
        what: one sentence: what failed, and where.
        remedy: the next command to type, or what to change; may be empty.
        exit_code: 2 when the user can put it right, 1 when it is a failure of ours.
    """

    def __init__(self, what: str, *, remedy: str = "", exit_code: int = 1) -> None:
        super().__init__(what)
        self.what = what
        self.remedy = remedy
        self.exit_code = exit_code

    def __str__(self) -> str:
        return f"{self.what}\n  {self.remedy}" if self.remedy else self.what


class UserError(LabError):
    """A mistake of the user's: bad input, a missing option or tool (exit code 2)."""

    def __init__(self, what: str, *, remedy: str = "") -> None:
        super().__init__(what, remedy=remedy, exit_code=2)
