# SPDX-License-Identifier: Apache-2.0
"""The arithmetic of predictions for boards."""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import replace

import pytest
from rich.console import Console
from support import shared_builds
from support.bench_options import parse_bench

from crosslab.bench.predict import (
    SMALL,
    Speed,
    bytes_of_weights,
    counted_weights,
    predict,
    predict_unit,
    programs_with_units,
    small,
    whole,
)
from crosslab.bench.predict_table import (
    boards_of,
    builds_in_the_first_alone,
    count_small,
    predictions,
    whole_costs,
)
from crosslab.bench.rows import Row
from crosslab.bench.subject import Subject
from crosslab.boards.board import Board, Cluster, Layout, Memory
from crosslab.boards.matrices import Phase
from crosslab.errors import UserError
from crosslab.models.config import LlamaConfig

CONFIG = LlamaConfig(
    hidden=256, intermediate=512, heads=4, kv_heads=2, head_dim=64, layers=16, vocab=9000
)
BOARD = Board(
    key="b",
    name="B",
    layout=Layout("spacemit-x60", 64, (Cluster(4, 32768, 524288),)),
    clock=1e9,
    memory=Memory(latency=0.0, queue=64e-9, page=0.0, l2=0.0),
    barrier=0.0,
    source="",
)
OPTIONS = ["--project", str(shared_builds.PROJECT), "--tvm-tree", "T", "--variant", "o=T,kernels"]
BLOCKS = ["--quantization", "gguf", "--activations", "int8"]


def test_costs_in_a_straight_line_are_scaled_exactly() -> None:
    def cost(config: LlamaConfig) -> float:
        return 7 + 11 * config.layers + 0.5 * config.vocab

    assert whole({size: cost(small(CONFIG, size)) for size in SMALL}, CONFIG) == cost(CONFIG)


def test_bytes_of_the_weights_are_those_of_the_counted_file() -> None:
    layer = 256 * 256 * 2 + 2 * 128 * 256 + 3 * 512 * 256
    weights = 16 * layer + 9000 * 256
    assert bytes_of_weights(counted_weights(CONFIG, "Q8_0")) == weights * 34 / 32
    # The counted file has lm_head in Q4_0, too; llama-quantize without --pure writes Q6_K.
    assert bytes_of_weights(counted_weights(CONFIG, "Q4_0")) == weights * 18 / 32
    # Half of the layers have values and down projections in 6.5625 bits, lm_head too.
    better = 8 * (128 * 256 + 512 * 256) + 9000 * 256
    mixed = (weights - better) * 4.5 / 8 + better * 6.5625 / 8
    assert bytes_of_weights(counted_weights(CONFIG, "Q4_K_M")) == mixed
    # The counted file pads the feed-forward width to whole blocks.
    narrow = replace(CONFIG, intermediate=500)
    assert counted_weights(narrow, "Q4_K_M") == counted_weights(CONFIG, "Q4_K_M")


@pytest.mark.parametrize("threads", [1, 4, 8])
def test_a_token_takes_the_longer_of_computing_and_waiting(threads: int) -> None:
    cache = 2 * 16 * 128 * 101 * 4
    read = bytes_of_weights(counted_weights(CONFIG, "Q8_0")) + cache
    phase = Phase(1, 100)
    # The memory serves 1 GB/s, whatever the number of threads; four cores compute.
    for cycles, seconds in ((0.0, read / 1e9), (8e9, 8 / min(threads, 4))):
        speed = predict(BOARD, CONFIG, "Q8_0", phase, cycles=cycles, threads=threads, peer=False)
        assert speed.tokens_per_second == pytest.approx(1 / seconds)
        # Nobody published a speed of this board.
        assert speed.error is None


@pytest.mark.parametrize("format_", ["Q4_0", "Q8_0", "Q4_K_M"])
def test_ours_and_the_peer_read_the_same_weights_and_a_cache_of_their_own(format_: str) -> None:
    def lines(before: int, *, peer: bool, kv_cache: str = "float32") -> float:
        speed = predict(
            BOARD,
            CONFIG,
            format_,
            Phase(1, before),
            cycles=0.0,
            threads=1,
            peer=peer,
            kv_cache=kv_cache,
        )
        return 1 / speed.tokens_per_second / 64e-9

    # A vector, a scale of lm_head or a table beside the weights is not counted.
    assert lines(0, peer=True) == pytest.approx(lines(0, peer=False), rel=1e-2)
    numbers = 2 * 16 * 128 * 10000 / 64
    for peer, kv_cache, item in (
        (False, "float32", 4),
        (False, "int8", 68 / 64),
        (True, "float32", 2),
    ):
        first, second = (lines(before, peer=peer, kv_cache=kv_cache) for before in (0, 10000))
        assert second - first == pytest.approx(numbers * item)


def test_a_peer_reads_the_weights_of_a_prompt_again() -> None:
    phase, slow = Phase(64), replace(BOARD, memory=Memory(1e-6, 0.0, 0.0, 0.0))
    # Each thread's share of a matrix is larger than its caches.
    wide = replace(CONFIG, hidden=1024, intermediate=4096)
    ours, peer = (
        predict(slow, wide, "Q4_0", phase, cycles=0.0, threads=4, peer=peer)
        for peer in (False, True)
    )
    assert peer.tokens_per_second < ours.tokens_per_second


def test_a_board_with_a_matrix_unit_has_programs_for_it() -> None:
    assert programs_with_units(BOARD) == ()
    board = replace(BOARD, units=(("ime1", 0.1),))
    assert programs_with_units(board) == ("ime1", "ime1-huge-pages")
    token, prompt = (predict_unit(board, "ime1", CONFIG, "Q4_0", Phase(n)) for n in (1, 64))
    assert 0 < token.tokens_per_second < prompt.tokens_per_second


def test_a_speed_is_one_number_and_its_error() -> None:
    assert str(Speed(36.12, 0.1)) == "36.1 ± 3.6"
    assert str(Speed(36.12, None)) == "36.1"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ([], "needs the core of a board"),
        (["--core", "sifive-x280", "--vlen", "512"], "needs the core of a board"),
        (["--core", "spacemit-x60"], "weights in GGUF's blocks"),
        (["--core", "spacemit-x60", *BLOCKS, "--threads", "2"], "one thread"),
        (["--core", "spacemit-x60", *BLOCKS, "--prefill", "8", "16"], "one prompt"),
        (["--core", "spacemit-x60", *BLOCKS, "--decode", "6", "--together", "4"], "one sequence"),
    ],
)
def test_a_prediction_without_its_options_is_refused(options: list[str], said: str) -> None:
    with pytest.raises(UserError, match=said):
        boards_of(parse_bench([*OPTIONS, *options]))


def test_a_shape_is_a_model_by_name() -> None:
    config = parse_bench([*OPTIONS, "--model", "qwen3-0.6b"]).config
    assert config is not None
    assert (config.layers, config.vocab) == (28, 151936)


ROW = Row(
    model="llama-3.2-1b",
    variant="llama.cpp Q4_0",
    phase="prefill",
    tokens=128,
    quantization="gguf",
    vlen=128,
    threads=1,
    insns=1,
    vector=0,
    vsetvl=0,
    vmem=0,
    lmul_weighted=0,
    prompt=128,
    path=None,
    layers="all",
)


def test_each_phase_takes_the_build_that_is_best_in_a_whole_model() -> None:
    asked: list[tuple[str, ...]] = []
    # Cycles of a prompt's token: fixed, and of a layer. The first is best in a small model alone.
    builds = {"gcc": (0, 101), "clang": (6, 99), "slow": (0, 200)}

    def measure(subject: Subject) -> Iterator[Row]:
        asked.append(subject.bench.peer_builds)
        yield replace(ROW, variant="ours", layers="", cycles_serial=1)
        yield replace(ROW, variant="ours", layers="", phase="decode", cycles_serial=1)
        for build in subject.bench.peer_builds or builds:
            fixed, layer = builds[build]
            cost = ROW.tokens * (fixed + layer * subject.config.layers)
            yield replace(ROW, build=build, cycles_serial=cost)
            yield replace(ROW, build=build, phase="decode", cycles_serial=cost)

    bench = replace(parse_bench([*OPTIONS, *BLOCKS, "--core", "spacemit-x60"]), config=CONFIG)
    counted = count_small(bench, measure)
    costs = whole_costs(counted, CONFIG)
    assert builds_in_the_first_alone(counted) == ["slow"]
    assert asked == [(), ("gcc", "clang"), ("gcc", "clang")]
    assert costs[ROW.variant].prefill == 6 + 99 * CONFIG.layers


@pytest.mark.parametrize(
    ("core", "said"),
    [("xuantie-c920", "no [pipeline]: cycles are the sum"), ("spacemit-x60", "core's pipeline")],
)
def test_a_table_says_what_its_cycles_are(core: str, said: str) -> None:
    def measure(subject: Subject) -> Iterator[Row]:
        # A second of a core for each layer of the prompt; a tenth for a token's.
        cost = round(2.6e9 * subject.config.layers)
        yield replace(ROW, cycles_serial=cost)
        yield replace(ROW, phase="decode", cycles_serial=cost // 10)

    options = [*OPTIONS, *BLOCKS, "--gguf", "Q4_0", "--core", core, "--model", "llama-3.2-1b"]
    bench = parse_bench(options)
    counted = count_small(bench, measure)
    slow = replace(ROW, build="slow", cycles_serial=1 << 40)
    counted[2, 2048] = (*counted[2, 2048], slow, replace(slow, phase="decode"))
    assert counted[2, 2048][0].model == "llama-3.2-1b, 2 layers, 2048 rows of lm_head"
    printed = io.StringIO()
    console = Console(width=200, file=printed)
    for part in predictions(bench, boards_of(bench), counted):
        console.print(part)
    text = printed.getvalue()
    assert said in " ".join(text.split())
    assert "assumed, not measured" in text
    assert "not counted in the others: slow" in " ".join(text.split())
    if core == "xuantie-c920":
        # 128 tokens take 16 s of one core, and 2.63 times as long by the fit to the board's rows.
        rows = [one.split() for one in text.splitlines() if one.startswith("sg2044 llama.cpp Q4_0")]
        ((prefill, _, error),) = (row[4:7] for row in rows if row[3] == "64")
        assert float(prefill) == pytest.approx(128 / 16 * 64 / 2.63, rel=0.02)
        assert 0 < float(error) < float(prefill)
