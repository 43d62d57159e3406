# SPDX-License-Identifier: Apache-2.0
"""The table of weight formats agrees with what multiplies, unpacks and bounds them."""

import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from crosslab.assemble.kernels import linear_routines
from crosslab.bench import peers
from crosslab.bench.instruction_lower_bound import linear
from crosslab.errors import UserError
from crosslab.models.formats import (
    DEFAULT_FORMAT,
    GGUF,
    OWN_FORMATS,
    WeightFormat,
    packings,
    weight_formats,
)
from crosslab.peers import gguf_export

PROJECT = Path(__file__).resolve().parents[3]
FORMATS = list(weight_formats().values())


@pytest.mark.parametrize("weights", FORMATS, ids=lambda f: f.name)
def test_every_format_has_kernels_and_a_bound_for_each(weights: WeightFormat) -> None:
    """That the kernels are there is seen in tests/kernels, where objects are built."""
    assert weights.packing == packings()[weights.kernels], "formats with the same kernels agree"
    symbols = {routine.symbol for routine in linear_routines()}
    assert {f"mlc_rvv_{kind}_{weights.kernels}" for kind in ("gemm", "gemv", "take")} <= symbols
    assert all(linear(f"{kind}_{weights.kernels}", 1, 64, 64, 256) > 0 for kind in ("gemm", "gemv"))


@pytest.mark.parametrize("weights", FORMATS, ids=lambda f: f.name)
def test_the_packing_agrees_with_the_name(weights: WeightFormat) -> None:
    if weights.name == GGUF:
        assert weights.packing is None
        return
    bits = int(weights.name[1])
    assert (weights.packing.bits if weights.packing else 0) == bits
    if weights.packing:
        assert weights.packing.group % weights.packing.per_word == 0
        assert weights.packing.zero_point == (1 << bits - 1) - 1


def test_the_default_needs_no_mlc_llm() -> None:
    assert DEFAULT_FORMAT in OWN_FORMATS
    assert weight_formats()[DEFAULT_FORMAT].reference


@pytest.mark.parametrize("weights", FORMATS, ids=lambda f: f.name)
def test_llama_cpp_is_given_models_in_the_formats_beside_ours(weights: WeightFormat) -> None:
    assert set(weights.llama_cpp) <= set(gguf_export.FORMATS)
    assert set(weights.llama_cpp) <= set(peers.ACTIVATIONS)


def test_a_format_that_llama_cpp_has_not_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    formats = weight_formats()
    alone = {**formats, "q4f32_1": replace(formats["q4f32_1"], llama_cpp=())}
    monkeypatch.setattr(peers, "weight_formats", lambda: alone)
    bench: Any = SimpleNamespace(threads=1, quantizations=("q0f32", "q4f32_1"), config=None)
    with pytest.raises(UserError, match="no format that compares with q4f32_1") as refused:
        peers.check_peer(bench)
    assert "q0f32" in refused.value.remedy
    bench.quantizations = ("q0f32", "q4f16_1")
    peers.check_peer(bench)


def test_the_page_lists_the_formats() -> None:
    page = (PROJECT / "docs/files.md").read_text(encoding="utf-8")
    section = page.partition("## Formats of weights")[2].partition("\n## ")[0]
    assert re.findall(r"^\| `(\w+)`", section, re.MULTILINE) == [f.name for f in FORMATS]


def test_tolerances_have_reasons() -> None:
    assert all(0 < f.tolerance < 0.1 and len(f.reason) > 20 for f in FORMATS)
