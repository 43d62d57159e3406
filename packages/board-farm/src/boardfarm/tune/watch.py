# SPDX-License-Identifier: Apache-2.0
"""A watch over the boards of a search: it reports when none is left, and when one is back."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

SECONDS = 5.0
# A restarted tracker has no boards until they join again.
PATIENCE = 2


@dataclass
class BoardWatch:
    """The number of boards during a search.

    Attributes:
        count: returns the number of boards that have joined.
        say: prints a line for the user.
        first: boards at the begin; now: at the last look.
        missing: looks without a board, one after the other.
    """

    count: Callable[[], int]
    say: Callable[[str], None]
    first: int = field(init=False)
    now: int = field(init=False)
    missing: int = 0

    def __post_init__(self) -> None:
        self.first = self.now = self.count()

    def look(self) -> None:
        """Count the boards; report that all have ended, or that there are boards again."""
        self.now = self.count()
        if self.now and self.missing >= PATIENCE:
            self.say(f"boards: {self.now} joined again; the search continues")
        self.missing = 0 if self.now else self.missing + 1
        if self.missing == PATIENCE:
            self.say(
                "boards: none is left, and the search waits for one; start boards with the same "
                "nox -s farm -- up, or end the search with Ctrl-C"
            )

    def __str__(self) -> str:
        """The boards that are left, and how many there were if some ended or joined."""
        before = "" if self.now == self.first else f" ({self.first} at the start)"
        return f"{self.now} board{'s' * (self.now != 1)}{before}"


@contextmanager
def watched(count: Callable[[], int], say: Callable[[str], None]) -> Iterator[BoardWatch]:
    """Yield a watch that looks every few seconds until the block ends, and once at its end."""
    watch, ended = BoardWatch(count, say), threading.Event()

    def keep() -> None:
        while not ended.wait(SECONDS):
            watch.look()

    thread = threading.Thread(target=keep, daemon=True)
    thread.start()
    try:
        yield watch
    finally:
        ended.set()
        thread.join()
        watch.look()
