# SPDX-License-Identifier: Apache-2.0
"""Recordings as phases: context, repetition, calls that do not fit."""

from __future__ import annotations

from typing import Any

import pytest

from costmodel.errors import CostError
from costmodel.estimate.trace import ATTENTION, phases_of
from costmodel.estimate.workload import CONTEXT


def attention_record(*sections: tuple[str, int]) -> dict[str, Any]:
    operand = {"name": "x", "dtype": "float16", "bits": 16, "weight": False, "index": "[]"}
    operand["quantization"] = {"grain": "none", "group": 0, "scale_bits": 0, "zero_bits": 0}
    product = {
        "function": ATTENTION,
        "block": "QK",
        "kind": "attention",
        "batch": 4,
        "m": "tokens0",
        "n": "context",
        "k": 16,
        "a": operand,
        "b": operand,
        "c_dtype": "float16",
        "count": 1,
    }
    params = [None, None, None, ["tokens0", 8, 16], ["tokens0", 4, 16]]
    function = {"params": params, "products": [product], "others": []}
    return {
        "schema": 1,
        "entries": ["prefill"],
        "functions": {ATTENTION: function},
        "sections": [
            {
                "name": name,
                "calls": [
                    {
                        "callee": ATTENTION,
                        "shapes": [None, None, None, [rows, 8, 16], [rows, 4, 16]],
                        "count": 3,
                    }
                ],
            }
            for name, rows in sections
        ],
    }


def test_the_context_grows_with_the_tokens_of_attention() -> None:
    phases = phases_of(attention_record(("prefill", 5), ("decode", 1), ("decode", 1)))
    assert [(p.items[0].gemm.m, p.items[0].gemm.n) for p in phases] == [(5, 5), (1, 6), (1, 7)]
    assert all(p.items[0].count == 3 for p in phases)


def test_figures_by_token_are_of_the_tokens_that_a_call_adds() -> None:
    """A second prompt has the earlier tokens in its context; two sequences divide them."""
    record = attention_record(("prefill", 5), ("decode", 1), ("prefill", 3), ("batch_decode", 2))
    phases = phases_of(record)
    assert [p.tokens for p in phases] == [5, 1, 3, 2]
    assert [dict(p.sizes)[CONTEXT] for p in phases] == [5, 6, 9, 6]


def test_a_batch_of_decodes_has_a_token_and_a_cache_for_each_sequence() -> None:
    """Four heads of three sequences, of which one has six tokens and two have five, in the mean."""
    prefills = [("prefill", n) for n in (5, 4, 4)]
    *_, phase = phases_of(attention_record(*prefills, ("decode", 3)))
    (item,) = phase.items
    assert (item.gemm.batch, item.gemm.m, item.gemm.n) == (4 * 3, 1, 6)


def test_sequences_of_a_recorded_call_do_not_share_their_cache() -> None:
    record = attention_record(("decode", 1))
    function = record["functions"][ATTENTION]
    function["params"] = [None, None, None, *(["tokens0", "tokens1", h, 16] for h in (8, 4))]
    function["products"][0]["m"] = "tokens0*tokens1"
    call = record["sections"][0]["calls"][0]
    call["shapes"] = [None, None, None, [6, 2, 8, 16], [6, 2, 4, 16]]
    (item,) = phases_of(record)[0].items
    assert (item.gemm.batch, item.gemm.m, item.gemm.n) == (4 * 6, 2, 2)


def test_shapes_that_do_not_fit_are_refused() -> None:
    record = attention_record(("prefill", 5))
    record["sections"][0]["calls"][0]["shapes"][3] = [5, 9, 16]
    with pytest.raises(CostError, match="was called with"):
        phases_of(record)


def test_a_callee_without_description_is_listed() -> None:
    record = attention_record(("prefill", 5))
    record["sections"][0]["calls"].append({"callee": "my.kernel", "shapes": [], "count": 2})
    assert phases_of(record)[0].unclassified == ("my.kernel x2: not in the module's report",)
