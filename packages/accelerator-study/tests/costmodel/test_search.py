# SPDX-License-Identifier: Apache-2.0
"""The search: closed forms, bounds, pruning that loses nothing, fronts, and the command."""

from __future__ import annotations

import csv
import io
import json
import multiprocessing
import re
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from itertools import permutations, product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from costmodel.accelerator.dataflow import load_dataflow
from costmodel.accelerator.hardware import Hardware, load_hardware
from costmodel.accelerator.scheme import COMPARED, FLOAT16, SCHEMES, with_cache
from costmodel.accelerator.settings import LIBRARY
from costmodel.accelerator.technology import technology
from costmodel.accuracy.measure import known
from costmodel.cli import main, unmeasured_note
from costmodel.estimate.gemm import cost
from costmodel.estimate.pipeline import steps
from costmodel.estimate.product import Gemm, Role, effective_scheme
from costmodel.estimate.tiling import DIMENSIONS, BufferTile, Holding, fits, room
from costmodel.estimate.transfer import MovedBits
from costmodel.estimate.workload import bind_phase, read_workloads, weight_shapes
from costmodel.options import DEFAULT_PHASES
from costmodel.results.report import show_fronts, write_fronts
from costmodel.search import explore, levels, products
from costmodel.search.explore import arrays, designs, dominates, search
from costmodel.search.levels import solve, within
from costmodel.search.products import (
    NoRoomError,
    Problem,
    Solution,
    lower_bound,
    refined,
    search_together,
)
from costmodel.search.systolic import FLOWS, Systolic

DATA = Path(__file__).parent / "data"
EDGE = load_hardware("edge8x8")


def small(size: int, bandwidth: float) -> Hardware:
    """The edge array behind a small buffer and a slow bus."""
    buffer, dram = EDGE.levels
    levels = (replace(buffer, size=size), replace(dram, read=bandwidth, write=bandwidth))
    return replace(EDGE, levels=levels)


@settings(max_examples=15, deadline=None)
@given(
    st.sampled_from(FLOWS),
    st.integers(1, 40),
    st.integers(1, 40),
    st.integers(2, 40),
    st.sampled_from([(8, 8), (4, 16)]),
    st.booleans(),
)
def test_closed_forms_are_the_engines(
    flow: str, m: int, n: int, k: int, shape: tuple[int, int], whole: bool
) -> None:
    hardware = replace(EDGE, levels=(replace(EDGE.levels[0], size=None),), drains_whole=whole)
    hardware = replace(hardware, fabric=replace(EDGE.fabric, shape=shape))
    found = cost(Gemm("g", m, n, k), hardware, load_dataflow(flow))
    array = Systolic(flow, *shape, whole=whole)
    assert int(array.cycles(m, n, k)) == found.array
    activations, weights, visits = array.port(m, n, k, FLOAT16)
    assert visits * m * n == found.unique["C"]
    # A neighbour's element may serve the first step of a pass as well: rarely, and never more.
    counted = 16 * (found.unique["A"] + found.unique["B"])
    assert counted <= activations + weights <= 1.3 * counted


def walked_energy(problem: Problem, held: Holding, port: MovedBits, scaled: int, at: int) -> float:
    """Energy of one candidate, with the transfers of a walk over its steps."""
    (buffer, dram), gemm = problem.hardware.levels, problem.gemm
    listed = steps((gemm.m, gemm.n, gemm.k, True, True), held, problem.scheme, gemm.on_chip)
    moved = listed.moved() * gemm.batch
    inside = port.read[at] + moved.write, port.write[at] + moved.read
    return float(
        inside[0] * buffer.read_energy
        + inside[1] * buffer.write_energy
        + moved.read * dram.read_energy
        + moved.write * dram.write_energy
        + scaled * problem.rescale_energy
        + problem.fixed_energy()
    )


@st.composite
def small_problems(draw: st.DrawFn) -> Problem:
    """Products of a few tiles on small arrays, with and without room and double buffering."""
    extents = [draw(st.integers(1, 6)) for _ in range(3)]
    gemm = Gemm("g", *extents, batch=draw(st.integers(1, 2)))
    shape = draw(st.sampled_from([(4, 4), (4, 8), (8, 8), (16, 4)]))
    scheme = SCHEMES.get(draw(st.sampled_from(["int8-token", "int4-g32", "none"])), FLOAT16)
    size = draw(st.sampled_from([512, 1024, 4096, 1 << 14]))
    hardware = small(size, draw(st.sampled_from([4.0, 40.0, 300.0])))
    buffer, dram = hardware.levels
    buffer = replace(buffer, double_buffered=draw(st.booleans()))
    fabric = replace(EDGE.fabric, shape=shape)
    hardware = replace(hardware, fabric=fabric, levels=(buffer, dram))
    array = Systolic(draw(st.sampled_from(FLOWS)), *shape, whole=draw(st.booleans()))
    return Problem(gemm, scheme, hardware, array)


def every_mapping(problem: Problem) -> list[tuple[tuple[int, int, int], tuple[str, ...]]]:
    """Every tile that the estimator accepts, in each order."""
    gemm, buffer = problem.gemm, problem.hardware.levels[0]
    sides = (range(1, extent + 1) for extent in (gemm.m, gemm.n, gemm.k))
    tiles = [t for t in product(*sides) if fits(room(*t, problem.scheme, buffer), buffer)]
    return [(tile, order) for tile in tiles for order in permutations(DIMENSIONS)]


@settings(max_examples=20, deadline=None)
@given(small_problems())
def test_pruning_loses_nothing(problem: Problem) -> None:
    """Against the simulation of every tile that fits, in every order of the loops."""
    mappings = every_mapping(problem)
    if not mappings:
        with pytest.raises(NoRoomError):
            search_together((problem,))
        return
    best, frugal = search_together((problem,))
    m, n, k = (np.array(side) for side in zip(*(tile for tile, _ in mappings), strict=True))
    turned = np.array([[DIMENSIONS.index(d) for d in order] for _, order in mappings]).T
    assert best.cycles == pytest.approx(problem.simulate((m, n, k), turned).min())
    assert best.energy >= frugal.energy
    bounds, _, port, scaled = problem.bounds((m, n, k))
    for bound, order in zip(bounds, problem.orders(), strict=True):
        turned = np.repeat([[DIMENSIONS.index(d)] for d in order], len(m), axis=1)
        assert (bound <= problem.simulate((m, n, k), turned) + 1e-6).all()
    scaled = scaled + np.zeros(len(m))
    energies = [
        walked_energy(problem, Holding(BufferTile(*tile), order), port, scaled[at], at)
        for at, (tile, order) in enumerate(mappings[:60])
    ]
    assert frugal.energy <= min(energies) * (1 + 1e-9)
    quick, cheap, least = refined((problem,))
    assert quick.cycles == pytest.approx(best.cycles)
    assert cheap.energy == pytest.approx(frugal.energy)
    for bound in (least, *lower_bound((problem,))):
        assert bound.cycles <= best.cycles + 1e-6
        assert bound.energy <= frugal.energy * (1 + 1e-9)


@pytest.mark.parametrize(
    ("extents", "flow", "scheme", "shape", "size", "rate", "cycles", "excess"),
    [
        ((31, 47, 68), FLOWS[2], "float16", (4, 8), 1 << 16, 4.0, 27483, (0.02, 0.0)),
        ((64, 120, 72), FLOWS[0], "int8-token", (8, 8), 1 << 15, 64.0, 10820, (0.04, 0.005)),
    ],
)
def test_sizes_below_a_pass_are_found_and_the_result_is_near_its_bound(
    extents: tuple[int, int, int],
    flow: str,
    scheme: str,
    shape: tuple[int, int],
    size: int,
    rate: float,
    cycles: int,
    excess: tuple[float, float],
) -> None:
    """Products of more tiles than are all tried."""
    hardware = replace(small(size, rate), fabric=replace(EDGE.fabric, shape=shape))
    problem = Problem(Gemm("g", *extents), SCHEMES[scheme], hardware, Systolic(flow, *shape))
    best, frugal, least = refined((problem,))
    assert best.cycles <= cycles
    assert 0 <= best.cycles / least.cycles - 1 <= excess[0]
    assert -1e-9 <= frugal.energy / least.energy - 1 <= excess[1] + 1e-9


@pytest.mark.parametrize(
    ("scheme", "size", "most"), [("int8-token", 4096, 402), ("float16", 1024, 994)]
)
def test_small_buffers_are_searched_in_every_tile(scheme: str, size: int, most: int) -> None:
    """Sizes between numbers of tiles, and those smaller than a pass; as the engine counts them."""
    hardware = replace(small(size, 40.0), fabric=replace(EDGE.fabric, shape=(4, 8)))
    gemm, widths = Gemm("g", 12, 10, 18), SCHEMES.get(scheme, FLOAT16)
    problem = Problem(gemm, widths, hardware, Systolic(FLOWS[2], 4, 8))
    best, _ = search_together((problem,))
    flow = load_dataflow("input-stationary")
    assert cost(gemm, hardware, flow, widths, plan=best.holdings).latency <= most
    cost(gemm, hardware, flow, widths)  # the estimate finds room, too


@pytest.mark.parametrize("flow", FLOWS)
def test_most_candidates_are_left_out(flow: str) -> None:
    problem = Problem(Gemm("up", 64, 512, 576), FLOAT16, EDGE, Systolic(flow, 8, 8))
    search_together((problem,))
    simulated = np.isfinite(products._shared((problem.in_widest(),)).times)
    assert simulated.mean() < 1 / 4


@pytest.mark.parametrize("flow", FLOWS)
def test_what_is_found_is_what_the_engine_says(flow: str) -> None:
    scheme = SCHEMES["int4-g32"]
    products = [
        [Gemm("up", 48, 96, 128)],
        [
            Gemm("qk", 12, 100, 16, 3, False, Role.SCORES),
            Gemm("pv", 12, 16, 100, 3, False, Role.VALUES),
        ],
    ]
    lag = sum(level.latency - 1 for level in EDGE.levels)
    for gemms in products:
        hardware = small(1 << 16, 16.0)
        array = Systolic(flow, 8, 8)
        problems = tuple(Problem(g, effective_scheme(g, scheme), hardware, array) for g in gemms)
        for best in search_together(problems):
            exact, energy = 0, 0.0
            for number, gemm in enumerate(gemms):
                plan = best.holdings[0].turned(number == 0)
                found = cost(gemm, hardware, load_dataflow(flow), scheme, plan=(plan,))
                exact += found.latency - lag
                energy += sum(found.energy.values())
            assert exact == pytest.approx(best.cycles, rel=0.02)
            assert energy == pytest.approx(best.energy, rel=0.02)


@pytest.mark.parametrize("flow", FLOWS)
def test_tiles_of_an_l2_are_searched(flow: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Against the tiles of the L2 with whole sides or multiples of 8, and against the engine."""
    near = small(1 << 12, 16.0)
    buffer, dram = near.levels
    middle = replace(buffer, name="l2", size=1 << 14, read=64.0, write=64.0)
    hardware = replace(near, levels=(buffer, middle, dram))
    lag = sum(level.latency - 1 for level in hardware.levels)
    problem = Problem(Gemm("a", 12, 16, 20), FLOAT16, hardware, Systolic(flow, 8, 8))
    tried: list[Holding] = []

    def counted(problems: tuple[Problem, ...], held: Holding) -> Iterator[Solution]:
        tried.append(held)
        return within(problems, held)

    monkeypatch.setattr(levels, "within", counted)
    best, frugal = solve((problem,))
    outer = replace(problem, hardware=replace(hardware, levels=(middle, dram)))
    tiles, extents = list(zip(*outer.tiles().tiles, strict=True)), problem.gemm.extents
    coarse = [
        found.cycles
        for order in outer.orders()
        for sides in tiles
        if not any(s % 8 and s != whole for s, whole in zip(sides, extents, strict=True))
        for found in within((problem,), Holding(BufferTile(*map(int, sides)), order))
    ]
    # Of the sizes that are tried; the others are a few percent better on a product as small.
    assert best.cycles <= 1.05 * min(coarse)
    assert len(tried) < len(tiles) * len(outer.orders()) / 2
    assert frugal.energy <= best.energy
    found = cost(problem.gemm, hardware, load_dataflow(flow), plan=best.holdings)
    assert found.latency - lag == pytest.approx(best.cycles, rel=0.02)


def test_of_equally_fast_designs_the_one_with_the_least_product_is_shown() -> None:
    """Whatever the order of the rows."""

    def row(kib: int, energy: float, size: float) -> dict[str, Any]:
        mapping = {"buffer_bytes": kib << 10, "split": None, "products": {}}
        names = {"phase": "prefill:8", "scheme": "float16", "dataflow": "mine", "array": [4, 4]}
        figures = {"latency_ms": 2.0, "energy_mj": energy, "area_mm2": size, "perplexity": None}
        return {**names, **figures, "excess": None, "mapping": mapping}

    rows = [row(512, 5.0, 1.0), row(1024, 4.0, 3.0)]
    for each in (rows, rows[::-1]):
        console = Console(file=io.StringIO(), width=200)
        show_fronts(console, each)
        (line,) = re.findall(r"│ latency +│.*", console.file.getvalue())
        assert " 512 " in line


def test_designs_that_a_bound_excludes_are_on_no_front(monkeypatch: pytest.MonkeyPatch) -> None:
    """Against a search of all designs."""
    report = read_workloads(DATA / "smollm2.work.json")
    phases = [bind_phase(report, "decode", 64, {})]
    schemes = [SCHEMES["int8-token"], FLOAT16]
    measured = {"int8-token": 79.4}
    solved: list[int] = []

    class Here:
        """A pool of this process alone."""

        def starmap(self, call: Any, arguments: list[Any], **_: int) -> list[Any]:
            return [call(*each) for each in arguments]

    def counted(problems: tuple[Problem, ...]) -> tuple[Solution, Solution]:
        solved.append(len(problems))
        return solve(problems)

    monkeypatch.setattr(explore, "_workers", lambda: nullcontext(Here()))
    monkeypatch.setattr(explore, "solve", counted)
    found = search(phases, EDGE, schemes, 16, measured)
    few = len(solved)
    monkeypatch.setattr(explore, "lower_bound", lambda _: (Solution((), 0.0, 0.0),))
    assert search(phases, EDGE, schemes, 16, measured) == found
    assert few < 0.9 * (len(solved) - few)


def test_a_buffer_that_holds_no_tile_is_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = (LIBRARY / "hardware" / "edge8x8.toml").read_text()
    tiny = tmp_path / "tiny.toml"
    tiny.write_text(text.replace("128 KiB", "8 B"))
    arguments = ["--model", str(DATA / "smollm2.work.json"), "--scheme", "int4-g64", "--search"]
    arguments += ["--phase", "decode:8", "--hardware", str(tiny), "--pes", "16"]
    assert main(arguments) == 2
    assert "larger first level" in capsys.readouterr().err


def test_designs_keep_to_the_number_of_pes() -> None:
    for design in designs(EDGE, 64):
        rows, columns = design.array
        assert rows * columns <= 64
        hardware = design.hardware(EDGE)
        assert hardware.levels[0].size == 8 * design.buffer
        assert hardware.levels[0].read_energy == pytest.approx(
            technology().memories["sram-45nm"].energy_of(design.buffer)
        )


@pytest.mark.parametrize("pes", [1024, 100, 97, 16])
def test_arrays_of_fewer_pes_are_among_those_of_more(pes: int) -> None:
    """Halving the number gives no array that was not looked at; most of the PEs are used."""
    found = arrays(pes)
    assert len(set(found)) == len(found)
    assert set(arrays(pes // 2)) < set(found)
    assert max(rows * columns for rows, columns in found) > 0.95 * pes
    assert all(rows * columns <= pes and min(rows, columns) >= 4 for rows, columns in found)
    assert set(found) == {(columns, rows) for rows, columns in found}


def test_arrays_of_a_power_of_two_are_all_shapes_and_sizes() -> None:
    sides = [1 << n for n in range(2, 9)]
    wanted = {(r, c) for r in sides for c in sides if r * c <= 1024 and max(r, c) <= 16 * min(r, c)}
    assert set(arrays(1024)) == wanted
    assert {(8, 12), (10, 10), (4, 25), (16, 6), (8, 6), (5, 5), (4, 6)} <= set(arrays(100))


def test_the_command_searches_and_takes_its_mappings_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, again, table = (tmp_path / n for n in ("out.json", "again.json", "fronts.csv"))
    base = ["--model", str(DATA / "smollm2.work.json"), "--hardware", "edge8x8"]
    base += ["--scheme", "int4-g64", "--phase", "decode:64"]
    assert main([*base, "--search", "--pes", "16", "--json", str(out), "--csv", str(table)]) == 0
    told = capsys.readouterr().out
    assert "latency x energy" not in told
    assert (
        "not among the best, as their perplexity is above 84.73 or not measured: int4-g64" in told
    )
    assert main([*base, "--mapping", str(out), "--max-perplexity", "3"]) == 0
    assert "latency x energy" in capsys.readouterr().out
    fronts = json.loads(out.read_text())["fronts"]
    keys = ("phase", "scheme", "dataflow", "array", "latency_ms", "energy_mj", "area_mm2")
    assert all(set(row) == {*keys, "perplexity", "excess", "mapping"} for row in fronts)
    assert not any(dominates(a, b) for a in fronts for b in fronts if a["scheme"] == b["scheme"])
    rows = list(csv.DictReader(table.open()))
    for written, row in zip(rows, fronts, strict=True):
        assert [written["dataflow"], float(written["latency_ms"]), written["array"]] == [
            *(row["dataflow"], row["latency_ms"]),
            "x".join(map(str, row["array"])),
        ]
        assert float(written["energy_mj_excess"]) == row["excess"]["energy_mj"]
        assert written["mapping"].count(": tile ") == len(row["mapping"]["products"])
    assert main([*base, "--mapping", str(out), "--json", str(again), "--quiet"]) == 0
    assert json.loads(again.read_text())["fronts"] == fronts
    capsys.readouterr()
    assert main([*base, "--mapping", str(out), "--chain"]) == 2
    assert (
        "is the result of a search with none of --causal, --page, --chain"
        in capsys.readouterr().err
    )
    for execution, message in (
        ({"causal": 64, "chain": True}, "is the result of a search with --causal 64 --chain\n"),
        (5, "not the JSON file of a search"),
    ):
        again.write_text(json.dumps({"fronts": fronts, "execution": execution}))
        assert main([*base, "--mapping", str(again)]) == 2
        assert message in capsys.readouterr().err


def test_workers_live_whatever_the_start_method(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python 3.14 starts processes by "forkserver", so that a worker is not our child."""
    context = multiprocessing.get_context("forkserver")
    monkeypatch.setattr(multiprocessing, "Pool", context.Pool)
    with explore._workers() as pool:
        assert pool.apply_async(abs, (-3,)).get(timeout=60) == 3


def test_a_search_without_energies_has_rows(tmp_path: Path) -> None:
    text = (
        (LIBRARY / "hardware" / "edge8x8.toml").read_text().replace('"0.01 pJ/bit"', '"0 pJ/bit"')
    )
    text = re.sub('memory = ".*"', 'energy = "0 pJ/bit"', text)
    free, out = (tmp_path / name for name in ("free.toml", "out.json"))
    free.write_text(text.replace("[[level]]", 'mac = { 16 = "0 pJ" }\n\n[[level]]', 1))
    command = [*SMOLLM2, "--hardware", str(free), "--scheme", "float16", "--phase", "decode:16"]
    command += ["--search", "--pes", "16", "--json", str(out), "--quiet"]
    assert main(command) == 0
    fronts = json.loads(out.read_text())["fronts"]
    assert {(row["energy_mj"], row["excess"]["energy_mj"]) for row in fronts} == {(0.0, 0.0)}


def test_schemes_without_a_measured_accuracy_are_named_with_the_command(
    searched: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out.json"
    base = [*SMOLLM2, "--hardware", "edge8x8", "--phase", "decode:64", "--search", "--pes", "16"]
    base += ["--scheme", "int8-token", "float32", "--json", str(out)]
    assert main([*base, "--cache", "16", "4"]) == 0
    found = json.loads(out.read_text())
    assert found["unmeasured"] == ["float32-kv4"]
    nowhere = {row["scheme"] for row in found["fronts"] if row["perplexity"] is None}
    assert nowhere == {"float32-kv4"}
    command = "--accuracy MODEL.gguf --scheme float32-kv4 --json FILE"
    assert command in capsys.readouterr().out
    assert searched["unmeasured"] == []


def test_a_scheme_of_a_file_is_measured_by_its_file() -> None:
    note = unmeasured_note(["mine", "mine-kv4", "float32-kv4"])
    assert note.endswith("--accuracy MODEL.gguf --scheme SCHEME.toml float32-kv4 --json FILE")
    assert unmeasured_note([]) == ""


def test_a_table_of_designs_has_buffers_of_any_size_and_their_split(
    searched: dict[str, Any], tmp_path: Path
) -> None:
    rows = []
    for split, size in ((None, 640), ([2, 4, 2], 2048), ([1, 6, 1], 1 << 30)):
        row = json.loads(json.dumps(searched["fronts"][0]))
        row["mapping"] |= {"split": split, "buffer_bytes": size}
        rows.append({**row, "excess": None})
    write_fronts(tmp_path / "fronts.csv", rows)
    written = list(csv.DictReader((tmp_path / "fronts.csv").open()))
    sizes = ["0.625", "2, split 2:4:2", "1048576, split 1:6:1"]
    assert [(row["buffer_kib"], row["latency_ms_excess"]) for row in written] == [
        (size, "") for size in sizes
    ]


SMOLLM2 = ["--model", str(DATA / "smollm2.work.json")]
SEARCHED = ["--hardware", "edge8x8", "--scheme", "int8-token", "--phase", "decode:64"]


@pytest.fixture(scope="module")
def searched(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The file of a small search for SmolLM2, made from a work file of another name."""
    folder = tmp_path_factory.mktemp("search")
    work = folder / "renamed.work.json"
    work.write_bytes((DATA / "smollm2.work.json").read_bytes())
    out = folder / "fronts.json"
    command = ["--model", str(work), *SEARCHED, "--search", "--pes", "16", "--json", str(out)]
    assert main([*command, "--quiet"]) == 0
    found: dict[str, Any] = json.loads(out.read_text())
    return found


def test_a_model_is_known_by_its_weights(searched: dict[str, Any]) -> None:
    """Under another name the accuracy is the same; a model of other weights has none."""
    assert {row["perplexity"] for row in searched["fronts"]} == {79.421}
    names = ("smollm2", "gpt2-q4f32_1")
    ours, other = (weight_shapes(read_workloads(DATA / f"{n}.work.json")) for n in names)
    assert known(ours)["int8-token"] == 79.421
    assert known(other) == {}


@pytest.mark.parametrize("named", [False, True])
def test_mappings_of_another_model_are_refused(
    searched: dict[str, Any], named: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """By the weights in the file; one without them by the model's name."""
    path, work = tmp_path / "fronts.json", tmp_path / "smollm2.work.json"
    found = {**searched, "model": "smollm2"}
    if named:
        del found["weights"]
        work = tmp_path / "gpt2.work.json"
    path.write_text(json.dumps(found))
    work.write_bytes((DATA / "gpt2-q4f32_1.work.json").read_bytes())
    bind = ["--bind", "vocab_size=50257"]
    assert main(["--model", str(work), *SEARCHED[:2], *bind, "--mapping", str(path)]) == 2
    assert "is for 'smollm2'" in capsys.readouterr().err


def test_a_phase_that_no_row_of_a_mapping_has_is_refused(
    searched: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """When it is typed; the phases of the default are those that a row may have."""
    path = tmp_path / "fronts.json"
    path.write_text(json.dumps({**searched, "fronts": searched["fronts"][:1]}))
    command = [*SMOLLM2, *SEARCHED[:2], "--mapping", str(path), "--quiet", "--phase"]
    assert main([*command, "decode:64"]) == 0
    assert main([*command, "prefill:8,decode:64"]) == 2
    assert "no row is of --phase prefill:8" in capsys.readouterr().err


@pytest.mark.parametrize("scheme", COMPARED)
def test_every_scheme_of_a_search_has_its_perplexity(scheme: str) -> None:
    """Of SmolLM2, with each width of the cache that --cache has: eight bits cost little."""
    measured = known(weight_shapes(read_workloads(DATA / "smollm2.work.json")))
    names = [with_cache(SCHEMES[scheme], bits).name for bits in (16, 8, 4)]
    whole, half, quarter = (measured[name] for name in names)
    assert half == pytest.approx(whole, rel=0.1)
    assert 1.2 * whole < quarter < 1.5 * whole


def test_the_page_has_the_measured_accuracies() -> None:
    page_ = (DATA.parents[2] / "docs" / "cost" / "README.md").read_text(encoding="utf-8")
    measured = json.loads((LIBRARY / "accuracy" / "smollm2.json").read_text(encoding="utf-8"))
    for row in measured["rows"]:
        line = f"| {row['scheme']} | {row['perplexity']:.1f} | {100 * row['agreement']:.1f} % |"
        assert line in page_


LARGE = 1_000_000_000
PLACES: dict[str, tuple[str, ...]] = {
    "tile": ("mapping", "products", "lm_head 1x1x49152x576"),
    "order": ("mapping", "products", "lm_head 1x1x49152x576"),
    "lm_head 1x1x49152x576": ("mapping", "products"),
    "buffer_bytes": ("mapping",),
    "split": ("mapping",),
    "products": ("mapping",),
}


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("tile", [0, -3, LARGE], "not M,N,K from 1,1,1 to 1,49152,576"),
        ("tile", ["x", 3, 5], "not M,N,K from 1,1,1"),
        ("tile", [1, 49152, 576], "level buffer has"),
        ("tile", [True, 3, 5], "not M,N,K from 1,1,1"),
        ("order", ["m", "m", "q"], "not an order of m, n and k"),
        ("order", [["m"], "n", "k"], "not an order of m, n and k"),
        ("array", [LARGE, LARGE], "not two sides from 1 on of at most 1048576 PEs"),
        ("array", [32], "array is [32], not two sides"),
        ("array", None, "array is None, not two sides"),
        ("buffer_bytes", 0, "buffer_bytes is 0"),
        ("buffer_bytes", "many", "buffer_bytes is 'many'"),
        ("split", [4, 4], "not the eighths of A, B and C"),
        ("split", [8, 8, 8], "not the eighths of A, B and C"),
        ("products", {}, "maps no product 'qkv_proj 1x1x960x576'"),
        ("lm_head 1x1x49152x576", [], "a tile for each memory"),
        ("lm_head 1x1x49152x576", [5], "tile of"),
        ("mapping", 5, "not a row of a search"),
        ("dataflow", "diagonal", "not one of output-stationary"),
        ("dataflow", ["diagonal"], "not one of output-stationary"),
        ("scheme", 8, "scheme is 8, not a name"),
        ("scheme", "int9", "int9"),
        ("phase", ["decode"], "is of phase ['decode']"),
    ],
)
def test_a_damaged_mapping_is_reported(
    searched: dict[str, Any],
    field: str,
    value: Any,
    message: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    found = json.loads(json.dumps({**searched, "fronts": searched["fronts"][:1]}))
    row = found["fronts"][0]
    for key in PLACES.get(field, ()):
        row = row[key]
    if isinstance(row, list):
        row = row[0]
    assert field in row
    row[field] = value
    path, out = tmp_path / "fronts.json", tmp_path / "out.json"
    path.write_text(json.dumps(found))
    base = ["--model", str(DATA / "smollm2.work.json"), *SEARCHED[:2], *SEARCHED[4:]]
    assert main([*base, "--mapping", str(path), "--json", str(out), "--quiet"]) == 2
    assert message in capsys.readouterr().err
    assert not out.exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--gemm", "8,8,8", "--phase", "prefill:3"], "--phase does nothing with --gemm"),
        (["--gemm", "8,8,8", "--bind", "a=3"], "--bind does nothing with --gemm"),
        (["--tenet", "x", "--hardware", "edge8x8"], "--hardware does nothing with --tenet"),
        (["--model", "x", "--batch", "3"], "--batch does nothing with --model"),
        (["--model", "x", "--max-perplexity", "2"], "--max-perplexity does nothing with --model"),
        ([*SMOLLM2, "--search", "--max-perplexity", "nan"], "--max-perplexity nan: must be"),
        (["--model", "x", "--search", "--tile", "8,8,8"], "--tile does nothing with --search"),
        (["--model", "x", "--pes", "64"], "--pes does nothing with --model"),
        (["--trace", "x", "--phase", "prefill:3"], "--phase does nothing with --trace"),
        (["--gemm", "8,8,8", "--phase", DEFAULT_PHASES], "--phase does nothing with --gemm"),
        (["--gemm", "8,8,8", "--arrays", "1"], "--arrays does nothing with --gemm"),
        (["--model", "x", "--batch", "1"], "--batch does nothing with --model"),
        (
            ["--model", "x", "--search", "--dataflow", "output-stationary"],
            "--dataflow does nothing with --search",
        ),
        ([*SMOLLM2, "--mapping", "x", "--cache", "16"], "--cache does nothing with --mapping"),
        ([*SMOLLM2, "--search", "--hardware", "systolic8x8"], "systolic8x8: a search needs"),
        ([*SMOLLM2, "--split", "tensor"], "--split tensor does nothing with one array"),
        ([*SMOLLM2, "--bind", "foo=3"], "--bind foo does nothing"),
        ([*SMOLLM2, "--causal", "64", "--phase", "decode:64"], "--causal 64 does nothing with"),
        (["--gemm", "8,8,8", "--factor", "Q=4"], "--factor Q does nothing"),
        ([*SMOLLM2, "--chain"], "--chain does nothing with --hardware systolic8x8"),
        (["--gemm", "8,8,8", "--compare", "--quiet"], "--compare does nothing with --quiet"),
        (["--gemm", "8,8,8", "--tile", "8,8,8"], "--tile does nothing with --hardware systolic8x8"),
    ],
)
def test_options_that_would_be_ignored_are_refused(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    assert message in capsys.readouterr().err


def test_energy_of_a_memory_follows_the_table() -> None:
    sram = technology().memories["sram-45nm"]
    assert [sram.energy_of(b) * 64 for b in (8192, 32768, 1 << 20)] == pytest.approx([10, 20, 100])
    assert sram.energy_of(8192) < sram.energy_of(16384) < sram.energy_of(32768)
    assert load_hardware("systolic128x128").levels[-1].read_energy == pytest.approx(3.92)
