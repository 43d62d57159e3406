# SPDX-License-Identifier: Apache-2.0
"""Predictions of whole loops: the counted instructions by hand, and errors as they are printed."""

from __future__ import annotations

import statistics
from pathlib import Path

import pytest
from support.shared_builds import CACHE, PROJECT, cross

from crosslab.cores.check import (
    errors_of,
    main,
    markdown_of,
    predict,
    read_loops,
    summary_of,
    write_table,
)
from crosslab.cores.core import core_option
from crosslab.errors import UserError


@pytest.mark.usefixtures("counting_emulator")
def test_a_loop_costs_what_its_instructions_cost() -> None:
    cross()
    loops = [loop for loop in read_loops(PROJECT / "cores") if loop.core == "spacemit-x60"]
    (loop,) = (loop for loop in loops if loop.loop == "count_m8")
    core = core_option(loop.core)
    (one,) = predict(core, [loop], CACHE)
    cycles = core.cycles
    rounds = -(-loop.elements // 256)
    vector = sum(cycles[name]["e8m8"] for name in ("vle8.v", "vmsgt.vx", "vcpop.m"))
    assert one.cycles.vec_serial == round(rounds * vector)
    # Three additions and vsetvli, branch; before and behind: two constants, a move, calls.
    assert one.cycles.serial - one.cycles.vec_serial == pytest.approx(rounds * 3.5, abs=12)
    assert -0.2 < one.error(one.cycles.serial) < 0.1
    assert summary_of([one]).startswith("error, pipeline: ")


def test_docs_are_not_written_with_the_table_of_one_core(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("<!-- core-check: begin -->\n<!-- core-check: end -->\n")
    before = page.read_bytes()
    with pytest.raises(UserError, match="all cores") as refused:
        main(["--core", "spacemit-x60", "--docs", str(page)])
    assert refused.value.remedy == "leave out --core"
    assert page.read_bytes() == before


def test_a_published_loop_without_a_rate_is_refused(tmp_path: Path) -> None:
    text = "core,loop,published,elements,rate\nspacemit-x60,count_m8,count,100,0\n"
    (tmp_path / "published_loops.csv").write_text(text)
    with pytest.raises(UserError, match=r"line 2: 100 elements, 0\.0 a cycle"):
        read_loops(tmp_path)


# Most errors, in the median and of one loop: of the first 16 loops, then of all.
FIRST = 16
MOST = {
    "spacemit-a100": ((0.08, 0.35), (0.08, 0.55)),
    "spacemit-x100": ((0.10, 0.55), (0.065, 0.55)),
    "spacemit-x60": ((0.06, 0.15), (0.075, 0.25)),
}


@pytest.mark.usefixtures("counting_emulator")
def test_the_pipeline_is_near_the_cycles_that_were_measured() -> None:
    cross()
    loops = read_loops(PROJECT / "cores")
    every = []
    for name, bars in MOST.items():
        chosen = [loop for loop in loops if loop.core == name]
        predictions = predict(core_option(name), chosen, CACHE)
        every += predictions
        errors = errors_of(predictions, "pipeline")
        assert len(errors) == len(chosen) == 40
        for (median, most), count in zip(bars, (FIRST, 40), strict=True):
            assert statistics.median(errors[:count]) <= median
            assert max(errors[:count]) <= most
    # docs/cycles.md has this table: uv run crosslab core-check --docs docs/cycles.md
    page = (PROJECT / "docs" / "cycles.md").read_text(encoding="utf-8")
    assert f"\n{markdown_of(list(MOST), every)}\n" in page


@pytest.mark.usefixtures("counting_emulator")
def test_a_core_without_a_pipeline_has_the_sums_only() -> None:
    cross()
    core = core_option("xuantie-c920")
    loops = [loop for loop in read_loops(PROJECT / "cores") if loop.core == core.key]
    predictions = predict(core, loops, CACHE)
    assert errors_of(predictions, "pipeline") == []
    assert max(errors_of(predictions, "serial")) < 0.35
    assert summary_of(predictions).startswith("error, serial: ")


def test_a_page_without_marks_is_refused_and_left_alone(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("text\n", encoding="utf-8")
    with pytest.raises(UserError, match="core-check: begin"):
        write_table(page, "| table |")
    assert page.read_text(encoding="utf-8") == "text\n"


def test_every_published_loop_is_one_of_ours() -> None:
    sources = PROJECT / "packages/crosslab/src/crosslab/native" / "core_check" / "main.c"
    text = sources.read_text(encoding="utf-8")
    loops = read_loops(PROJECT / "cores")
    assert {loop.core for loop in loops} == {*MOST, "xuantie-c920"}
    assert all(f"X({loop.loop})" in text for loop in loops)
    for name in ("memcpy", "utf8 count", "byteswap32", "mandelbrot", "poly1305"):
        assert len({loop.core for loop in loops if loop.published.startswith(name)}) >= 2


def test_a_file_of_another_form_is_refused(tmp_path: Path) -> None:
    (tmp_path / "published_loops.csv").write_text("a,b\n1,2\n", encoding="utf-8")
    with pytest.raises(UserError, match="published_loops"):
        read_loops(tmp_path)
