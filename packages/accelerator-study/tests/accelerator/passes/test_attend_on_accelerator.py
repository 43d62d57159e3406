# SPDX-License-Identifier: Apache-2.0
"""AttendOnAccelerator: which functions of a KV cache call the device, and what is refused."""

from __future__ import annotations

import importlib
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from support.passes.functions import calls_of_packed, host, module_of, outcomes, settings

KEPT, HEADS, WIDTH = 2, 6, 16
RAGGED, PAGED = (f"mlc_rvv.accelerator.attend_{name}" for name in ("ragged", "paged"))


def decode(dtype: str = "float32", window: bool = False) -> Any:
    """The function that a paged cache calls for a token of each text."""
    from tvm.relax.frontend.nn.llm import kv_cache  # noqa: PLC0415 - the patched tree

    return kv_cache._attention_decode_cpu(KEPT, HEADS, WIDTH, dtype, window, {})


@cache
def attention() -> Any:
    """A module of the functions that a paged cache calls, by their symbols."""
    from tvm.relax.frontend.nn.llm import kv_cache  # noqa: PLC0415 - the patched tree

    sizes, tile = (KEPT, HEADS, WIDTH), kv_cache.prefill_tile(host(), WIDTH)
    ragged = kv_cache._attention_prefill_ragged_cpu(*sizes, WIDTH, "float32", {}, tile=tile)
    paged = kv_cache._attention_prefill_cpu(*sizes, "float32", False, {}, tile=tile)
    return module_of(
        batch_prefill_ragged_kv=ragged,
        batch_prefill_paged_kv_cpu=paged,
        batch_decode_paged_kv_cpu=decode(),
        batch_decode_paged_kv_cpu_sliding_window=decode(window=True),
    )


@pytest.fixture
def transform(tvm: ModuleType, tmp_path: Path) -> Any:
    def run(module: Any) -> Any:
        configuration = settings(reports=tmp_path)
        # It imports the patched tree, which is on sys.path only in a test.
        found = importlib.import_module("accelerator.passes.attend_on_accelerator")
        return found.AttendOnAccelerator(host(), configuration)(module)

    return run


def test_prefill_and_decode_call_the_device_and_windows_stay(
    transform: Any, tmp_path: Path
) -> None:
    before = attention()
    after = transform(before)
    names = [g.name_hint for g in after.get_global_vars() if g.name_hint.startswith("batch_")]
    calls = {name: calls_of_packed(after[name]) for name in names}
    assert calls == {
        "batch_prefill_ragged_kv": [RAGGED],
        "batch_prefill_paged_kv_cpu": [PAGED],
        "batch_decode_paged_kv_cpu": [PAGED],
        "batch_decode_paged_kv_cpu_sliding_window": [],
    }
    window = "batch_decode_paged_kv_cpu_sliding_window"
    assert after[window].same_as(before[window])
    called = {name for name, names in calls.items() if names}
    assert set(outcomes(tmp_path)) == {(name, "attention") for name in called}


def test_the_call_hands_over_what_the_function_was_given(transform: Any) -> None:
    text = transform(attention())["batch_prefill_paged_kv_cpu"].script()
    (call,) = [line for line in text.splitlines() if "attend_paged" in line]
    places = [call.index(f"{name}.data") for name in ("q", "q_indptr", "pages", "page_indptr")]
    places += [call.index(f"{name}.data") for name in ("page_values", "length_info", "output")]
    places += [call.index("causal"), call.index("rotary_mode"), call.index("sm_scale")]
    assert places == sorted(places)


def test_a_mistake_is_named(transform: Any) -> None:
    with pytest.raises(RuntimeError, match="the module has no function of attention for it"):
        transform(module_of(other=attention()["batch_decode_paged_kv_cpu_sliding_window"]))
    with pytest.raises(RuntimeError, match="the accelerator rounds float32, not float16"):
        transform(module_of(batch_decode_paged_kv_cpu=decode("float16")))
    swapped = module_of(batch_prefill_ragged_kv=attention()["batch_decode_paged_kv_cpu"])
    with pytest.raises(RuntimeError, match="has 13 parameters, 14 are known"):
        transform(swapped)
