# SPDX-License-Identifier: Apache-2.0
"""Processes with a limit of time: at the limit, all that they started ends, too."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from typing import Any


def run_session(
    command: Sequence[str], *, timeout: float, **settings: Any
) -> subprocess.CompletedProcess[bytes]:
    """Run a command without input, in a session of its own; return its output.

    ``settings`` are those of ``subprocess.Popen``; standard error is separate unless they say so.

    Raises:
        subprocess.TimeoutExpired: the command did not end within ``timeout`` seconds.
        OSError: the command cannot be run.
    """
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        start_new_session=True,
        **{"stderr": subprocess.PIPE, **settings},
    )
    out, err = outputs(process, timeout=timeout, session=True)
    return subprocess.CompletedProcess(command, process.returncode, out, err)


def outputs(
    process: subprocess.Popen[bytes],
    stdin: bytes | None = None,
    *,
    timeout: float | None = None,
    session: bool,
) -> tuple[bytes, bytes]:
    """Wait for a process, and return its outputs; kill it if the wait fails.

    If it leads a ``session``, the processes that it started are killed, too: they might hold its
    outputs open.

    Raises:
        subprocess.TimeoutExpired: it did not end within ``timeout`` seconds.
    """
    try:
        return process.communicate(stdin, timeout=timeout)
    except BaseException:
        if session:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        else:
            process.kill()
        process.wait()
        raise
