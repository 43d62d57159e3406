# SPDX-License-Identifier: Apache-2.0
"""Ctrl-C in programs that a shell starts in the background."""

from __future__ import annotations

import signal
import threading


def heed_interrupts() -> None:
    """Undo an ignored SIGINT, which a shell gives to what it starts in the background.

    Processes that this one starts, and interrupts, would inherit it.
    """
    ignored = signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    if ignored and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, signal.default_int_handler)
