# SPDX-License-Identifier: Apache-2.0
"""Readers of files that others wrote: the corpus and seeded changes of it, a bounded number.

``nox -s fuzz`` searches longer.
"""

from __future__ import annotations

import random
import resource
import struct
from pathlib import Path

import mutate
import pytest
import targets
from run import CORPUS, seeds_of

from crosslab.errors import LabError, UserError
from crosslab.models.gguf_header import check_gguf

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


GGUF = (CORPUS / "gguf" / "tiny.gguf").read_bytes()


@pytest.mark.parametrize(
    ("at", "form", "value", "message"),
    [
        (4, "I", 9, "version 9"),
        (8, "Q", 1 << 60, "tensors and"),
        (16, "Q", 1 << 60, "fields"),
        (24, "Q", 1 << 60, "are said to follow"),
    ],
)
def test_huge_counts_of_gguf_are_refused_before_memory_is_taken(
    tmp_path: Path, at: int, form: str, value: int, message: str
) -> None:
    path = tmp_path / "x.gguf"
    path.write_bytes(
        GGUF[:at] + struct.pack(f"<{form}", value) + GGUF[at + struct.calcsize(form) :]
    )
    with pytest.raises(UserError, match=message):
        check_gguf(path)


def test_a_huge_array_of_gguf_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.gguf"
    name = b"tokenizer.ggml.token_type"
    at = GGUF.index(name) + len(name) + 8
    path.write_bytes(GGUF[:at] + struct.pack("<Q", 1 << 60) + GGUF[at + 8 :])
    with pytest.raises(UserError, match="the file ends before"):
        check_gguf(path)
    path.write_bytes(GGUF)
    check_gguf(path)


@pytest.mark.parametrize("size", [0, 3, 4, 23, 100, len(GGUF) - 1])
def test_a_short_gguf_is_refused(tmp_path: Path, size: int) -> None:
    path = tmp_path / "x.gguf"
    path.write_bytes(GGUF[:size])
    with pytest.raises(LabError):
        check_gguf(path)
