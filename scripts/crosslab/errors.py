# SPDX-License-Identifier: Apache-2.0
"""The one exception type of this wing."""

from __future__ import annotations

import errno
import os
import shutil

_REMEDIES = {
    errno.ENOSPC: "free some space there, then type the same command again",
    errno.EDQUOT: "free some space there, then type the same command again",
    errno.EROFS: "the cache can be elsewhere: XDG_CACHE_HOME=DIR",
    errno.EACCES: "make it writable; the cache can be elsewhere: XDG_CACHE_HOME=DIR",
    errno.EPERM: "make it writable; the cache can be elsewhere: XDG_CACHE_HOME=DIR",
    errno.ENOENT: "if something removed it while this ran, type the same command again",
    errno.ENOMEM: "close other programs, then type the same command again",
}


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


def refused(error: OSError) -> UserError:
    """What the operating system refused, as something that its user can put right."""
    if isinstance(error, shutil.Error):  # of copying a tree: a list of what could not be copied
        _, target, reason = error.args[0][0]
        return UserError(f"{target}: {reason}", remedy=_remedy_of(reason))
    where = f"{error.filename}: " if error.filename else ""
    reason = error.strerror or str(error)
    return UserError(f"{where}{reason}", remedy=_REMEDIES.get(error.errno or 0, ""))


def _remedy_of(reason: str) -> str:
    """The remedy for what the system says in words: ``shutil`` keeps no number."""
    codes = (code for code in _REMEDIES if os.strerror(code) in reason)
    return next((_REMEDIES[code] for code in codes), "")
