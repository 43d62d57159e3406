# SPDX-License-Identifier: Apache-2.0
"""Signals: Ctrl-C in programs that a shell starts in the background, and the death of a parent."""

from __future__ import annotations

import ctypes
import os
import signal
import threading

_PR_SET_PDEATHSIG = 1  # of linux/prctl.h


def heed_interrupts() -> None:
    """Restore the default handler of SIGINT if a shell started this process with SIGINT ignored.

    Shells ignore SIGINT in background processes; child processes would inherit that.
    """
    ignored = signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    if ignored and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, signal.default_int_handler)


def end_with_parent(parent: int) -> None:
    """Make the kernel kill this process when its parent ends for any reason.

    Args:
        parent: number of the parent process. If it has ended already, this process ends here.

    Raises:
        OSError: the kernel refuses the call.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)
