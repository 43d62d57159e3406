# SPDX-License-Identifier: Apache-2.0
"""The C++ parts of a runner, compiled by a process of its own beside the steps before them.

These steps keep one core busy, and need nothing of C++: model, parameters and model library before
the runner, the emulator before the server. What is not finished when they end is waited for; what
fails is made again by the step that needs it, which reports the error.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from crosslab.assemble.link import LinkRequest, compile_parts
from crosslab.assemble.runtime import RUNTIME, build_runtime
from crosslab.host.toolchain import Machine, find_cross
from groundwork.interrupts import end_with_parent

_console = Console(stderr=True, highlight=False)


@contextmanager
def compiled_ahead(tvm_tree: Path, cache: Path) -> Iterator[None]:
    """Compile the runtime and the objects of runner and server, beside the ``with`` block.

    Do nothing if the cache has a runtime, or this machine has only one CPU.

    Args:
        tvm_tree: the tree of the runtime's sources.
        cache: folder of finished builds.
    """
    if any(cache.glob(f"{RUNTIME.name}-{Machine.RISCV64}-*")) or (os.cpu_count() or 1) < 2:
        yield
        return
    words = [sys.executable, "-m", __name__, str(tvm_tree), str(cache), str(os.getpid())]
    # A group of its own, so that the compilers end with the process.
    with subprocess.Popen(
        words,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        process_group=0,  # of this session, within which the kernel heeds its priority
    ) as process:
        _console.print(f"runner and server: compiled beside other steps (process {process.pid})")
        try:
            yield
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)


def main(tvm_tree: str, cache: str, parent: str) -> None:
    """Compile the parts, for the parent process."""
    end_with_parent(int(parent))
    folder, toolchain = Path(cache), find_cross()
    runtime = build_runtime(Path(tvm_tree), toolchain, folder)
    request = LinkRequest(runtime=runtime, toolchain=toolchain, server=False)
    compile_parts(request, folder)
    os.nice(10)  # the emulator comes first
    compile_parts(replace(request, server=True), folder)


if __name__ == "__main__":
    main(*sys.argv[1:])
