# SPDX-License-Identifier: Apache-2.0
"""Generated cases of placement: none may end in silence with a wrong tree."""

from __future__ import annotations

from collections import Counter

import pytest
from placement_cases import Outcome, cases, judged, main


@pytest.mark.parametrize("seed", range(5))
def test_no_generated_patch_is_misplaced_in_silence(seed: int) -> None:
    rows = list(judged(list(cases(80, seed))))
    assert [case.name for case, outcome in rows if outcome is Outcome.WRONG] == []
    counts = Counter(outcome for _, outcome in rows)
    assert counts[Outcome.RIGHT] >= 12 and counts[Outcome.STOPPED] >= 6
    assert counts[Outcome.FALSE_STOP] <= 6  # of 80 that were written to look alike


@pytest.mark.parametrize(
    ("kind", "numbers"),
    [
        ("names_exchanged", (194, 404, 502, 588)),
        ("renamed_and_moved", (148, 220, 378, 429, 470, 475)),
    ],
)
def test_block_that_takes_the_name_of_another_one_stops(
    kind: str, numbers: tuple[int, ...]
) -> None:
    drawn = [*cases(max(numbers) + 1, 5, kind)]
    rows = judged([drawn[number - 1] for number in numbers])
    assert [case.name for case, outcome in rows if outcome is Outcome.WRONG] == []


@pytest.mark.parametrize(
    "kind",
    [
        *("renamed_beside_a_namesake", "renamed_beside_a_late_namesake", "names_exchanged"),
        *("rewritten_after_a_twin", "both_remove_one_of_two_fields"),
    ],
)
def test_first_line_of_a_list_item_is_like_its_other_lines(kind: str) -> None:
    rows = judged([*cases(40, 11, f"YAML items: {kind}")])
    assert {outcome for _, outcome in rows} == {Outcome.STOPPED}


def test_lines_around_an_edit_give_no_place_to_lines_that_moved_on() -> None:
    drawn = [*cases(450, 12, "YAML items: legacy_twin")]
    rows = judged([drawn[number] for number in (390, 428, 444)])
    assert {outcome for _, outcome in rows} == {Outcome.STOPPED}


def test_table_counts_each_case_once(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--count", "4", "--seed", "1", "--list"]) == 0
    (total,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("| all |")]
    assert sum(map(int, total.split("|")[2:-1])) == 4
