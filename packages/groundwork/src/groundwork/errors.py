# SPDX-License-Identifier: Apache-2.0
"""The base class of the packages' exceptions, their exit codes, and the end of a command."""

from __future__ import annotations

import errno
import os
import re
import shutil
import sys
from collections.abc import Callable
from typing import Self

FAILURE = 1
USER_MISTAKE = 2
INTERRUPTED = 130
GO_ON = "interrupted: run it again to go on"

FREE_SPACE = "free some space there, then type the same command again"
_MOVE_CACHE = "the cache can be elsewhere: XDG_CACHE_HOME=DIR"
_REMEDIES = {
    errno.ENOSPC: FREE_SPACE,
    errno.EDQUOT: FREE_SPACE,
    errno.EFBIG: "raise the limit on file sizes (ulimit -f), then type the same command again",
    errno.EROFS: _MOVE_CACHE,
    errno.EACCES: f"make it writable; {_MOVE_CACHE}",
    errno.EPERM: f"make it writable; {_MOVE_CACHE}",
    errno.ENOENT: "name an existing place; if something removed it while this ran, type the same "
    "command again",
    errno.ENOMEM: "close other programs, then type the same command again",
}


# Control characters but tab and newline, those that turn the direction of text, and bytes that are
# no text. A terminal would execute them, or show another text than the one that is there.
_UNSAFE = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def printable(text: str) -> str:
    """Return text safe on a terminal: control characters but tab and newline become escapes."""
    return _UNSAFE.sub(lambda found: ascii(found[0])[1:-1], text)


class CommandError(Exception):
    """A failure that ends a command with a message and an exit code.

    Attributes:
        what: a sentence on the failure and its place.
        remedy: the next command to type, or the change to make; may be empty.
        exit_code: 2 for a mistake of the user, 1 for every other failure.
    """

    exit_code = FAILURE

    def __init__(self, what: str, *, remedy: str = "", exit_code: int | None = None) -> None:
        super().__init__(what)
        self.what = what
        self.remedy = remedy
        if exit_code is not None:
            self.exit_code = exit_code

    def __str__(self) -> str:
        return f"{self.what}\n  {self.remedy}" if self.remedy else self.what

    @classmethod
    def from_os_error(cls, error: OSError) -> Self:
        """Return this class's error for an operation that the operating system refused."""
        if isinstance(error, shutil.Error):  # from copying a tree: lists (source, target, text)
            _, target, text = error.args[0][0]
            codes = (code for code in _REMEDIES if os.strerror(code) in text)
            return cls(f"{target}: {text}", remedy=remedy_for(next(codes, None)))
        # Of a copy's source and target, the target is on the full or read-only disk.
        full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS)
        path = (full and error.filename2) or error.filename
        where = f"{path}: " if path else ""
        return cls(f"{where}{error.strerror or error}", remedy=remedy_for(error.errno))


def remedy_for(code: int | None) -> str:
    """Return advice for an error number of the operating system; "" for other numbers."""
    return _REMEDIES.get(code or 0, "")


def exit_code_of(
    run: Callable[[], int | None], refused: type[CommandError], command: str = ""
) -> int:
    """Run a command, return its exit code, 130 for Ctrl-C; print a failure to standard error.

    Args:
        run: the command; a result of None is exit code 0.
        refused: the error class for operations that the operating system refuses.
        command: name of the command, with which messages begin.
    """
    try:
        code = run() or 0
        sys.stdout.flush()
        return code
    except CommandError as error:
        failed = error
    except KeyboardInterrupt:
        print(f"{command}: {GO_ON}" if command else GO_ON, file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        _flushed()
        return FAILURE
    except OSError as error:
        if not _flushed() and error.filename is None:
            error.filename = "standard output"
        failed = refused.from_os_error(error)
    _flushed()  # else earlier output would follow the message
    print(f"{command or 'error'}: {printable(str(failed))}", file=sys.stderr)
    return failed.exit_code


def _flushed() -> bool:
    """Flush standard output; if that fails, send the rest to /dev/null and return False."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return False
    return True
