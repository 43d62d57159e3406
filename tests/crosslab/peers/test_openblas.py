# SPDX-License-Identifier: Apache-2.0
"""OpenBLAS as a peer: its products under the counter, and the sum that represents a model."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from support.bench_options import parse_bench
from support.shared_builds import CACHE, PROJECT

from crosslab.assemble.pinned_archive import read_archive
from crosslab.bench.products import Products, check_openblas, product_rows
from crosslab.bench.rows import write_rows
from crosslab.bench.subject import Subject
from crosslab.errors import LabError, UserError
from crosslab.models.config import LlamaConfig
from crosslab.peers.openblas import NAME, ORDERS, build_openblas, run_openblas

CONFIG = LlamaConfig(
    hidden=32, intermediate=48, heads=4, kv_heads=2, head_dim=8, layers=3, vocab=99
)
OPTIONS = ["--project", str(PROJECT), "--tvm-tree", "T", "--variant", "ours=T,kernels"]


@pytest.fixture(scope="module")
def program(counting_emulator: None) -> Path:
    try:
        return build_openblas(read_archive(PROJECT, NAME), CACHE)
    except (LabError, UserError) as error:
        pytest.skip(f"OpenBLAS is not to be had here: {error}")


def subject(*options: str) -> Subject:
    return Subject(replace(parse_bench([*OPTIONS, "--peer", NAME, *options]), cache=CACHE))


def test_a_phase_has_each_layers_products_and_lm_heads_once() -> None:
    products = Products(CONFIG, 5)
    layer = [(64, 32), (32, 32), (96, 32), (32, 48)]
    assert products.sizes == [*((m, *p) for m in (5, 1) for p in layer), (1, 99, 32)]
    assert products.regions("prefill").regions == (0, 1, 2, 3) * 3 + (8,)
    assert products.regions("decode").regions == (4, 5, 6, 7) * 3 + (8,)


@pytest.mark.parametrize(
    ("vlen", "kernels"), [(128, "riscv64_zvl128b"), (256, "riscv64_zvl256b"), (1024, "zvl256b")]
)
def test_products_are_right_with_the_kernels_of_the_cpu(
    program: Path, vlen: int, kernels: str
) -> None:
    sizes = [(7, 40, 24), (1, 33, 17), (16, 64, 64)]
    for order in ORDERS:
        chosen, measured = run_openblas(program, order, sizes, vlen=vlen, cache=CACHE)
        assert kernels in chosen
        macs = [m * n * k for m, n, k in sizes]
        # Vectors do the work: far fewer instructions than multiply-adds.
        assert all(r.vector > 0 for r in measured.regions)
        assert measured.regions[2].insns < macs[2] / 2
        assert measured.threads == 1


def test_rows_have_ours_beside_the_better_order(program: Path, tmp_path: Path) -> None:
    asked = subject("--core", "spacemit-x60", "--prefill", "8")
    said: list[str] = []
    rows = list(product_rows(asked, said.append))
    named = [(row.variant, row.phase, row.tokens, row.layers) for row in rows]
    assert named == [
        ("ours", "prefill", 8, "products"),
        ("ours", "decode", 1, "products"),
        ("OpenBLAS", "prefill", 8, "products"),
        ("OpenBLAS", "decode", 1, "products"),
    ]
    macs = asked.config.layers * sum(n * k for n, k in asked.config.linear_layers)
    head = asked.config.vocab * asked.config.hidden
    for row in rows:
        # On an X60 eight multiply-adds of float32 take a cycle.
        assert row.cycles_serial and row.cycles_serial > (macs * row.tokens + head) / 8
    assert "riscv64_zvl256b, weights" in rows[2].source
    assert said == ["counted: products alone, VLEN 256, prompt of 8"]
    write_rows(rows, tmp_path / "rows.json")
    report = json.loads((tmp_path / "rows.json").read_text(encoding="utf-8"))
    named = [(row["model"], row["variant"]) for row in report[1:3]]
    assert named == [("S", "ours"), ("S", "OpenBLAS")]


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (["--threads", "2"], "one thread"),
        (["--core", "spacemit-x60", "--caches"], "without caches"),
    ],
)
def test_what_openblas_cannot_stand_beside_is_refused(options: list[str], why: str) -> None:
    with pytest.raises(UserError, match=f"--peer openblas with {options[-2]}|{why}"):
        check_openblas(subject(*options).bench)
