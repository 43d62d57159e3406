# SPDX-License-Identifier: Apache-2.0
"""Memory and CPU time of the programs that a function starts, from Linux's /proc."""

from __future__ import annotations

import json
import os
import re
import resource
import threading
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, TypeVar

from groundwork.files import atomic_write_json

# Seconds between two looks at the memory.
INTERVAL = 0.05
_ANONYMOUS = re.compile(r"^RssAnon:\s+(\d+) kB", re.MULTILINE)
T = TypeVar("T")


class Cost(NamedTuple):
    """Cost of a step.

    Attributes:
        memory: largest memory of the programs together, bytes; without the pages of mapped files,
            which Linux can drop.
        cpu: CPU time, seconds.
    """

    memory: int
    cpu: float


def cost_of(call: Callable[[], T]) -> tuple[T, Cost]:
    """Run a function; return its result, and the cost of the programs that it starts."""
    largest, ended, earlier = 0, threading.Event(), set(_children(os.getpid()))

    def watch() -> None:
        nonlocal largest
        while not ended.wait(INTERVAL):
            started = set(_children(os.getpid())) - earlier
            largest = max(largest, sum(map(anonymous_bytes, started)))

    before, watcher = _cpu(), threading.Thread(target=watch)
    watcher.start()
    try:
        result = call()
    finally:
        ended.set()
        watcher.join()
    return result, Cost(largest, round(_cpu() - before, 1))


def kept_cost(build: Path, new: Cost) -> Cost:
    """Return the cost of a cached build when it was made; ``new`` if that is not known."""
    path = build.parent / "costs" / f"{build.name}.json"
    if not path.is_file():
        atomic_write_json(path, new)
    return Cost(*json.loads(path.read_text(encoding="utf-8")))


def anonymous_bytes(pid: int) -> int:
    """Return the memory of a process and of those below it, without that of mapped files."""
    try:
        status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    except OSError:
        return 0  # It has ended.
    own = _ANONYMOUS.search(status)
    return (int(own[1]) << 10 if own else 0) + sum(map(anonymous_bytes, _children(pid)))


def _children(pid: int) -> list[int]:
    try:
        threads = Path(f"/proc/{pid}/task").glob("*/children")
        return [int(child) for thread in threads for child in thread.read_text("utf-8").split()]
    except OSError:
        return []  # It has ended.


def _cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
