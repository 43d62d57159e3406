# SPDX-License-Identifier: Apache-2.0
"""The model of boards: its arithmetic by hand, and its errors for published speeds."""

from __future__ import annotations

import math
import statistics
from dataclasses import replace
from pathlib import Path

import pytest
from support.shared_builds import PROJECT

from crosslab.boards.board import Board, Cluster, Layout, Memory, Work, read_boards
from crosslab.boards.check import Judged, judge, main, markdown_of
from crosslab.boards.fit import fit, loss
from crosslab.boards.kernels import cycles_of, kernel_cycles
from crosslab.boards.matrices import (
    Matrix,
    Phase,
    cache_lines,
    dot_products,
    matrices,
    miss_rate,
    phase_work,
    product,
    programs,
    seconds,
)
from crosslab.boards.predictions import predictions
from crosslab.boards.published import Row, read_rows
from crosslab.cores.core import CORES, core_option
from crosslab.errors import UserError
from crosslab.models.shapes import shapes

BOARDS = {board.key: board for board in read_boards()}
LAYOUT = Layout("spacemit-x60", 64, (Cluster(4, 32768, 524288), Cluster(4, 32768, 524288)))
BOARD = Board(
    key="b",
    name="B",
    layout=LAYOUT,
    clock=1e9,
    memory=Memory(latency=10e-9, queue=5e-9, page=20e-9, l2=2e-9),
    barrier=1e-7,
    source="",
    scale=2.0,
    units=(("u", 0.5),),
    fitted=("memory.page", "units.u", "scale"),
)
PAGE = PROJECT / "docs" / "boards.md"


def judged() -> list[Judged]:
    return [
        one
        for board in read_boards()
        for one in judge(board, [row for row in read_rows() if row.board == board.key])
    ]


def test_every_published_speed_is_predicted_within_the_bars() -> None:
    rows = judged()
    assert len(rows) == len(read_rows()) >= 70
    for bars, chosen in (
        ((0.055, 0.18), [one for one in rows if not one.row.assumed]),
        ((0.15, 0.3), [one for one in rows if one.row.assumed]),
    ):
        errors = [abs(one.error) for one in chosen]
        assert statistics.median(errors) <= bars[0]
        assert max(errors) <= bars[1]
    for bars, chosen in (
        ((0.1, 0.3), rows),
        ((0.08, 0.2), [one for one in rows if not one.row.assumed]),
    ):
        left = [abs(one.left_out) for one in chosen if not math.isnan(one.left_out)]
        assert statistics.median(left) <= bars[0]
        assert max(left) <= bars[1]
    # docs/boards.md has this table: uv run crosslab board-check --docs docs/boards.md
    assert f"\n{markdown_of(read_boards(), rows)}\n" in PAGE.read_text(encoding="utf-8")


@pytest.mark.parametrize("key", [key for key, board in BOARDS.items() if board.fitted])
def test_the_fitted_parameters_fit_best(key: str) -> None:
    board = BOARDS[key]
    rows = [row for row in read_rows() if row.board == key]
    # A parameter for each row would fit anything.
    assert 2 * len(board.fitted) <= len(rows)
    assert loss(board, rows) <= loss(fit(board, rows), rows) + 0.002


def test_work_takes_the_longer_of_computing_and_waiting() -> None:
    computing = Work(cycles=100, products=200, unit="u", unit_adds=400)
    assert BOARD.seconds(computing, 1) == pytest.approx((100 + 2 * 200 + 0.5 * 400) / 1e9)
    waiting = replace(computing, memory_lines=1000, l2_lines=500, barriers=3)
    lines = 1000 * (10 + 4 * 5 + 20)
    assert BOARD.seconds(waiting, 4) == pytest.approx(lines / 1e9 + 3 * 4e-7)
    huge = lines - 1000 * 20
    assert BOARD.seconds(waiting, 4, huge_pages=True) == pytest.approx(huge / 1e9 + 3 * 4e-7)
    # The KV cache has pages of 4 KiB, also where the weights lie in huge pages.
    cached = replace(waiting, memory_lines=0, cache_lines=1000)
    assert BOARD.seconds(cached, 4, huge_pages=True) == BOARD.seconds(waiting, 4)
    # A core does not compute while it waits for a line that misses L1, be it in L2 or not.
    missing = replace(computing, memory_lines=2, cache_lines=3, l2_lines=500)
    both = (100 + 2 * 200 + 0.5 * 400 + 505 * 2) / 1e9
    assert BOARD.seconds(missing, 1) == pytest.approx(both)


def test_a_cache_that_holds_a_block_misses_nothing() -> None:
    assert miss_rate(1000, 1000) == 0
    # A hit is a line that no miss since its last use replaced.
    missed = miss_rate(2000, 1000)
    assert missed == pytest.approx(1 - math.exp(-2 * missed))
    assert miss_rate(100_000, 1000) == pytest.approx(1)


def test_a_token_reads_each_weight_once_and_a_prompt_walks_as_its_program() -> None:
    matrix = Matrix(2048, 2048, "q4_0", 3)
    lines = 2048 * 2048 * 18 / 32 * 3 / 64
    kernels = kernel_cycles("spacemit-x60")
    adds = 2048 * 2048 * 3
    (token,) = product(LAYOUT, programs()["rvv-repack"], matrix, 1, threads=4)
    assert token == Work(products=adds / 4 * kernels["gemv q4_0"], memory_lines=lines / 4)
    first, rest = product(LAYOUT, programs()["rvv-repack"], matrix, 64, threads=4)
    # The first of 16 tiles of four tokens fetches the weights; memory waits for no other tile.
    assert first.products == pytest.approx(adds * 4 / 4 * kernels["gemm q4_0"])
    assert first.memory_lines == lines / 4
    assert first.products + rest.products == pytest.approx(adds * 64 / 4 * kernels["gemm q4_0"])
    # Four threads walk chunks of 128 rows, which are larger than L2 together, for each 4 tokens.
    chunk = 128 * 2048 * 18 / 32
    missed = miss_rate(chunk, 32768) * miss_rate(chunk, 524288 / 4)
    assert rest.memory_lines == pytest.approx(lines / 4 * 15 * missed)
    dots = product(LAYOUT, programs()["rvv-dot"], matrix, 64, threads=4)
    assert sum(work.memory_lines for work in dots) == pytest.approx(lines / 4 * 4)
    assert sum(work.products for work in dots) == adds * 64 / 4 * kernels["dot q4_0"]
    # A number of rows that is not a multiple of 16 is not repacked.
    odd = product(LAYOUT, programs()["rvv-repack"], Matrix(40, 256, "q4_0"), 4, threads=1)
    assert sum(work.products for work in odd) == 40 * 256 * 4 * kernels["dot q4_0"]
    assert dot_products().batch == 16
    (unit,) = product(LAYOUT, programs()["ime1"], matrix, 1, threads=4)
    assert (unit.unit, unit.unit_adds) == ("ime1", adds / 4 * 4)
    # A thread of the older build takes 128 tokens at a time, one of the newer build 16.
    for name, passes in (("ime1", 2), ("ime1-huge-pages", 16)):
        first, _ = product(LAYOUT, programs()[name], matrix, 256, threads=4)
        assert first.memory_lines == pytest.approx(lines / 4 * passes)


def test_two_rows_of_halves_meet_all_tokens_of_a_pass() -> None:
    # 64 tokens of 4 KiB are larger than L1, two rows are not: each two rows read the lines of all
    # tokens again, and no tile reads the weights again.
    matrix = Matrix(2048, 2048, "f16")
    first, rest = product(LAYOUT, programs()["rvv-sgemm"], matrix, 64, threads=1)
    assert first.memory_lines == matrix.size / 64
    read = 2048 / 2 * 64 * 2048 * 2 / 64
    assert rest.l2_lines == pytest.approx(read * miss_rate(64 * 4096, 32768))
    assert rest.memory_lines == 0


def test_attention_without_flash_takes_all_columns_of_the_cache() -> None:
    config, kernels = shapes()["qwen2.5-0.5b"], kernel_cycles("spacemit-x60")
    weights = matrices(config, "Q4_0")

    def attention(name: str, phase: Phase) -> Work:
        return [*phase_work(LAYOUT, programs()[name], config, weights, phase, 1)][-2]

    # The cache is padded: tokens of a shorter prompt are multiplied with as many columns.
    short, long = (attention("rvv-dot", Phase(n)).cycles / n for n in (64, 256))
    assert short == pytest.approx(long)
    scores = config.layers * config.heads * 256
    a_row = 64 * kernels["dot f16 64"] + kernels["softmax"]
    assert long > scores * (a_row + 64 * kernels["dot f16"])
    assert attention("rvv-sgemm", Phase(256)).cycles < long * 256
    assert attention("rvv-sgemm", Phase(1, 100)) == attention("rvv-dot", Phase(1, 100))
    # The second half of two batches sees the columns of both.
    both = attention("rvv-dot", Phase(1024)).cycles / 1024
    assert both > 1.4 * attention("rvv-dot", Phase(512)).cycles / 512
    # All scores of 512 tokens are larger than L2, those of one token are not.
    token = attention("rvv-dot", Phase(1, 511))
    read = cache_lines(LAYOUT, config, Phase(512), 2, 1)
    assert attention("rvv-dot", Phase(512)).cache_lines - read == pytest.approx(
        512 * token.l2_lines
    )


def test_flash_attention_takes_tiles_of_queries_and_keys() -> None:
    config, kernels = shapes()["tinyllama-1.1b"], kernel_cycles("spacemit-x60")
    weights = matrices(config, "Q4_0")

    def attention(name: str, phase: Phase, threads: int = 1) -> Work:
        return [*phase_work(LAYOUT, programs()[name], config, weights, phase, threads)][-2]

    heads, d = config.layers * config.heads, config.head_dim
    tile = 64 * 64 * 2 * d * kernels["attention_tile"]
    hidden = kernels["attention_tile hidden"]
    # 64 tokens are a tile of a head, which sees 64 keys of a cache that is padded to 256.
    one = attention("rvv-flash", Phase(64))
    assert one.cycles == pytest.approx(heads * (tile + 64 * 192 * hidden))
    # Of the two tiles of 128 tokens, the second one sees 128 keys; four threads cut no tile.
    two = attention("rvv-flash", Phase(128), 4)
    assert two.cycles == pytest.approx(heads * (3 * tile + 64 * (192 + 128) * hidden) / 4)
    # Fewer tokens take no tiles, and parts that are no whole tiles cost as much as whole ones.
    few = attention("rvv-flash", Phase(63))
    assert few.cycles == pytest.approx(heads * 63 * 2 * d * 32 * kernels["attention"])
    assert attention("rvv-flash", Phase(65)).cycles > 1.9 * one.cycles
    # Ours has 16 queries of all heads that share keys: two tokens of TinyLlama's eight.
    ours = attention("ours", Phase(16))
    step = 16 * 16 * (2 * d * kernels["ours attention 64"] + kernels["softmax"])
    assert ours.cycles == pytest.approx(config.layers * config.kv_heads * 8 * step)
    # Each tile reads the keys and values that it sees, from memory where a head's exceed L2.
    long = attention("rvv-flash", Phase(64, 16384))
    read = heads * (16384 + 64) * 2 * d * 2 / 64
    once = cache_lines(LAYOUT, config, Phase(64, 16384), 2, 1)
    missed = miss_rate((16384 + 64) * 2 * d * 2, 524288)
    assert missed > 0.9
    assert long.cache_lines == pytest.approx(once + (read - once) * missed)


def test_a_format_gives_each_matrix_the_type_of_its_file() -> None:
    tiny = shapes()["tinyllama-1.1b"]
    layers, head = matrices(tiny, "Q4_K_M")
    kinds = {kind: sum(m.count for m in layers if m.kind == kind) for kind in ("q4_K", "q6_K")}
    assert sum(kinds.values()) == 7 * 22
    assert kinds["q6_K"] == 20  # values and down projections of ten layers
    assert head == Matrix(32000, 2048, "q6_K")
    # Rows of 896 elements have no blocks of 256: llama-quantize writes blocks of 32.
    _, head = matrices(shapes()["qwen2.5-0.5b"], "Q4_0")
    assert head.kind == "q8_0"
    size = sum(m.size * m.count for m in (*layers, Matrix(32000, 2048, "q4_K")))
    assert size + matrices(tiny, "Q4_K_M")[1].size == pytest.approx(667e6, rel=0.01)


def test_more_threads_are_faster_and_longer_prompts_take_longer() -> None:
    config, k1 = shapes()["qwen3-0.6b"], BOARDS["k1"]
    weights = matrices(config, "Q4_0")
    taken = [seconds(k1, "rvv-repack", config, weights, Phase(64), t) for t in (1, 2, 4, 8)]
    assert taken == sorted(taken, reverse=True)
    longer = [seconds(k1, "rvv-repack", config, weights, Phase(n), 4) for n in (16, 64, 256)]
    assert longer == sorted(longer)


@pytest.mark.parametrize(
    ("name", "item"), [("ours", None), ("ours", 1 + 4 / 128), ("rvv-repack", None), ("ime1", None)]
)
def test_a_token_after_many_reads_the_whole_cache(name: str, item: float | None) -> None:
    config, k1 = shapes()["qwen3-0.6b"], BOARDS["k1"]
    weights, before = matrices(config, "Q4_0"), 16384
    bytes_of_number = item or programs()[name].cache
    read = 2 * config.layers * config.kv_heads * config.head_dim * before * bytes_of_number
    limit = k1.layout.line / k1.memory.queue  # bytes a second, of any number of threads
    for threads in (4, 8):
        taken = seconds(k1, name, config, weights, Phase(1, before), threads, item=item)
        assert taken > read / limit


def test_parameters_are_found_again() -> None:
    # The unit's token waits for lines, and the dot products' prompt computes.
    board = replace(BOARD, units=(("ime1", 0.001),), fitted=("memory.page", "scale"))
    rows = [
        Row("b", program, "tinyllama-1.1b", "Q4_0", threads, phase, 32, 1.0, "", "s")
        for threads in (1, 8)
        for program, phase in (("ime1", "decode"), ("rvv-dot", "prompt"))
    ]
    rows = [replace(row, speed=row.predicted(board)) for row in rows]
    found = fit(board.with_parameter("memory.page", 30e-9).with_parameter("scale", 1.0), rows)
    assert found.parameter("memory.page") == pytest.approx(20e-9, rel=0.02)
    assert found.parameter("scale") == pytest.approx(2.0, rel=0.02)


def test_each_board_has_a_core_and_each_row_a_source() -> None:
    for board in read_boards():
        assert core_option(board.core).key == board.core
        assert board.source
    assert all(row.source for row in read_rows())


K1_TEXT = (CORES / "boards" / "k1.toml").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    "text",
    [
        'name = "X"\nspeed = 1\n',
        K1_TEXT + "[x]\n",
        K1_TEXT.replace('["spacemit,k1"]', '"spacemit,k1"'),
        K1_TEXT.replace("clock = 1.6e9", "clock = 0"),
        K1_TEXT.replace("clock = 1.6e9", 'clock = "1.6e9"'),
        K1_TEXT.replace("l1 = 32768", "l1 = 0", 1),
        K1_TEXT.replace("queue = 8.9e-9", "queue = -1"),
        K1_TEXT.replace("queue = 8.9e-9", "queue = nan"),
    ],
)
def test_a_malformed_board_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "x.toml").write_text(text)
    with pytest.raises(UserError, match=r"x\.toml is malformed"):
        read_boards(tmp_path)


def test_a_row_of_an_unknown_program_is_refused(tmp_path: Path) -> None:
    header, first, *_ = (CORES / "boards" / "published.csv").read_text().splitlines()
    (tmp_path / "p.csv").write_text(f"{header}\n{first.replace('rvv-repack-flash', 'rvv-x')}\n")
    with pytest.raises(UserError, match=r"p\.csv, line 2: k1, rvv-x"):
        read_rows(tmp_path / "p.csv")
    for old, new, wrong in (
        ("prompt", "prefill", "the phase 'prefill' is not one of prompt, decode"),
        ("Q4_0", "Q9_0", "the format 'Q9_0'"),
        (",20.09,", ",0,", "speed is 0.0, not a positive number"),
        (",20.09,", ",nan,", "speed is nan"),
        (",8,20.09,", ",0,20.09,", "tokens is 0"),
        ("Q4_0,4,", "Q4_0,0,", "threads is 0"),
    ):
        assert old in first
        (tmp_path / "p.csv").write_text(f"{header}\n{first.replace(old, new)}\n")
        with pytest.raises(UserError, match=rf"p\.csv, line 2: {wrong}"):
            read_rows(tmp_path / "p.csv")
    (tmp_path / "p.csv").write_text(f"{header}\nk1,a\n")
    with pytest.raises(UserError, match=r"p\.csv"):
        read_rows(tmp_path / "p.csv")


def test_the_command_prints_the_rows_of_a_board(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--board", "sg2044", "--fit"]) == 0
    printed = capsys.readouterr().out
    assert printed.count("llama-3.2-1b, Q4_0") == 2
    assert "best: sg2044: fitted to 2 rows: scale" in printed
    assert "\n2 all rows: error " in printed
    assert "k3-a100" not in printed
    with pytest.raises(UserError, match="the rows of all boards"):
        main(["--board", "sg2044", "--docs", "x.md"])


def test_the_command_predicts_a_model_with_the_programs_of_a_board(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["--board", "k1", "--model", "qwen3-0.6b", "--format", "Q4_0"]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()[1:]]
    programs_shown = [line[1] for line in lines]
    # The K1 has the first matrix unit alone; llamafile's tiles are for halves.
    assert {"rvv-dot", "rvv-repack", "ime1", "ime1-huge-pages"} <= set(programs_shown)
    assert not {"ime2", "rvv-sgemm"} & set(programs_shown)
    speeds = {(line[1], line[2]): [*map(float, line[3:])] for line in lines}
    (row,) = (r for r in read_rows() if r.program == "ime1-huge-pages" and r.phase == "prompt")
    assert speeds["ime1-huge-pages", "4"][0] == pytest.approx(row.predicted(BOARDS["k1"]), rel=0.01)
    assert speeds["rvv-repack", "8"][0] > speeds["rvv-repack", "4"][0] > speeds["rvv-dot", "4"][0]
    # llama.cpp repacks at a VLEN of 256 alone.
    assert main(["--board", "sg2044", "--model", "qwen3-0.6b"]) == 0
    assert "rvv-repack" not in capsys.readouterr().out
    with pytest.raises(UserError, match="--prompt 0"):
        main(["--model", "qwen3-0.6b", "--prompt", "0"])


@pytest.mark.parametrize(
    ("options", "remedy"),
    [
        (["--model", "qwen3-0.6b", "--docs", "x.md"], "leave out --docs, or --model"),
        (["--model", "qwen3-0.6b", "--fit"], "leave out --fit, or --model"),
        (["--format", "Q4_0"], "add --model NAME"),
        (["--prompt", "128"], "add --model NAME"),
    ],
)
def test_an_option_without_effect_is_refused(options: list[str], remedy: str) -> None:
    with pytest.raises(UserError) as refused:
        main(options)
    assert refused.value.remedy == remedy


def test_a_kernel_that_nobody_counted_is_refused() -> None:
    with pytest.raises(UserError, match="no kernel 'gemm q9'"):
        cycles_of("spacemit-x60", "gemm q9")
    with pytest.raises(UserError, match="ours has no products with f16"):
        product(LAYOUT, programs()["ours"], Matrix(64, 256, "f16"), 4, threads=1)


@pytest.mark.parametrize("measure", ["serial", "vec-serial"])
def test_published_speeds_decide_for_the_pipeline(
    measure: str, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [row for row in read_rows() if row.board == "k1"]
    board = BOARDS["k1"]
    other = fit(replace(board, layout=replace(board.layout, measure=measure)), rows)
    assert loss(other, rows) > 1.2 * loss(board, rows)
    assert main(["--board", "sg2044", "--measure", measure]) == 0
    assert "sg2044: fitted to 2 rows" in capsys.readouterr().out
    with pytest.raises(UserError, match="leave out --board and --measure"):
        main(["--measure", measure, "--docs", "x.md"])


def test_predictions_of_a_model_are_those_of_the_published_rows_model() -> None:
    config = shapes()["qwen3-0.6b"]
    tables = {t["board"]: t for t in predictions(config, matrices(config, "Q4_0"), [256])}
    assert set(tables) == {"k1", "k3"}
    rows = {(row["threads"], row["test"]): row for row in tables["k1"]["rows"]}
    assert set(rows) == {(n, test) for n in (1, 2, 4, 8) for test in ("pp128", "pp512", "tg128")}
    taken = seconds(BOARDS["k1"], "ours", config, matrices(config, "Q4_0"), Phase(1, 64), 8)
    assert rows[8, "tg128"]["tokens_per_second"] == pytest.approx(1 / taken, rel=1e-3)
    assert 0 < rows[8, "tg128"]["error"] < 0.3
    rounded = {t["board"]: t for t in predictions(config, matrices(config, "Q4_0"), [256], "int8")}
    of_int8 = {(row["threads"], row["test"]): row for row in rounded["k1"]["rows"]}
    assert of_int8[8, "tg128"]["tokens_per_second"] > rows[8, "tg128"]["tokens_per_second"]
    # Products with this type are not counted: nothing is predicted.
    assert predictions(config, matrices(config, "Q2_K"), [256]) == []
    assert predictions(config, matrices(config, "Q4_0"), [512]) == []


def test_boards_are_known_by_their_device_trees() -> None:
    assert all(name.count(",") == 1 for board in BOARDS.values() for name in board.compatible)
    assert all(board.compatible for board in BOARDS.values())
