# SPDX-License-Identifier: Apache-2.0
"""Small mistakes that ``tests/mutants.py`` plants."""

from __future__ import annotations

from pathlib import Path

import mutants
import pytest

SOURCE = '''
LIMIT = 3

def head(items, count):
    """A sentence - of ä text."""
    note(items); rest = "ü", count + 1
    if len(items) <= count:
        store(f"{count + 2}", items, *rest)
    return min(items, count), "a" + str(count)
'''
STORE = 'store(f"{count + 2}", items, *rest)'
MISTAKES = {
    ("dropped call", "note(items)", "pass"),
    ("dropped call", STORE, "pass"),
    ("sign", "count + 1", "count - 1"),
    ("off by one", "1", "2"),
    ("bound", "len(items) <= count", "len(items) < count"),
    ("swapped argument", STORE, "store(items, f'{count + 2}', *rest)"),
}


@pytest.fixture
def found(tmp_path: Path) -> list[mutants.Mutant]:
    file = tmp_path / "source.py"
    file.write_text(SOURCE, encoding="utf-8")
    return list(mutants.mutants_of(file))


def test_a_mistake_changes_one_expression_of_a_body(found: list[mutants.Mutant]) -> None:
    assert {(one.kind, one.before, one.after) for one in found} == MISTAKES
    for one in found:
        assert one.source() == SOURCE.replace(one.before, one.after, 1)


def test_each_kind_is_drawn_in_turn_and_the_seed_decides(found: list[mutants.Mutant]) -> None:
    drawn = mutants.choose(found[:], seed=7, count=5)
    assert len({one.kind for one in drawn}) == 5
    assert drawn == mutants.choose(found[:], seed=7, count=5)
    assert set(mutants.choose(found[:], seed=7, count=99)) == set(found)
