# SPDX-License-Identifier: Apache-2.0
"""The table of weight formats agrees with what multiplies, unpacks and bounds them."""

import pytest

from crosslab.bench.instruction_lower_bound import linear
from crosslab.build.kernels import linear_routines
from crosslab.models.formats import (
    DEFAULT_FORMAT,
    OWN_FORMATS,
    WeightFormat,
    packings,
    weight_formats,
)

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
    bits = int(weights.name[1])
    assert (weights.packing.bits if weights.packing else 0) == bits
    if weights.packing:
        assert weights.packing.group % weights.packing.per_word == 0
        assert weights.packing.zero_point == (1 << bits - 1) - 1


def test_the_default_needs_no_mlc_llm() -> None:
    assert DEFAULT_FORMAT in OWN_FORMATS
    assert weight_formats()[DEFAULT_FORMAT].reference


def test_tolerances_have_reasons() -> None:
    assert all(0 < f.tolerance < 0.1 and len(f.reason) > 20 for f in FORMATS)
