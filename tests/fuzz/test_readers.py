# SPDX-License-Identifier: Apache-2.0
"""Readers of files that others wrote: the corpus and seeded changes of it, a bounded number.

``uv run --group fuzz tests/fuzz/run.py`` searches longer.
"""

from __future__ import annotations

import random
import resource
from pathlib import Path

import mutate
import pytest
import targets
from run import seeds_of

INPUTS = 150  # changed files for each target


@pytest.mark.parametrize("name", targets.TARGETS)
def test_the_corpus_is_read_or_refused(name: str) -> None:
    answers = [targets.call(name, data) for data in seeds_of(name)]
    assert True in answers


@pytest.mark.parametrize("name", targets.TARGETS)
def test_changed_files_are_read_or_refused(name: str) -> None:
    seeds, source = seeds_of(name), random.Random(name)
    answers = {targets.call(name, mutate.mutated(seeds, source)) for _ in range(INPUTS)}
    assert False in answers  # the changes do spoil files


def test_an_escape_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(data: bytes, folder: Path) -> None:
        raise KeyError("x")

    def strays(data: bytes, folder: Path) -> None:
        (folder.parent / "outside").write_bytes(data)

    for target, message in ((fails, "KeyError"), (strays, "outside of its folder")):
        monkeypatch.setitem(targets.TARGETS, "series", target)
        with pytest.raises(targets.EscapedError, match=message):
            targets.call("series", b"")


def test_the_bound_of_memory_ends_with_the_search() -> None:
    before = resource.getrlimit(resource.RLIMIT_AS)
    with targets.bounded_memory():
        assert resource.getrlimit(resource.RLIMIT_AS)[0] != before[0]
        with pytest.raises(MemoryError):
            bytearray(2 * targets.MEMORY)
    # The sanitizers, which come after, reserve far more.
    assert resource.getrlimit(resource.RLIMIT_AS) == before
