# SPDX-License-Identifier: Apache-2.0
"""A reference that takes a run's roundings: right runs are right, and no fault hides in rounding.

The run is numpy with other last bits of float32, and faults put in, as a device would have them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any

import numpy as np
import pytest
from support.judged import judged_job
from support.rounding_records import CALL, rows_entry

from accelerator.device import load_device
from accelerator.host.offload import TOLERANCE, offload
from accelerator.host.params import scaled, smoothing
from accelerator.layer import Int8
from accelerator.model import IntegerProduct, attend, quantise
from crosslab.job.verdict import AnswerVerdict, Asked, judge
from crosslab.models.config import LlamaConfig
from crosslab.models.reference import ReferenceLlama, answer
from crosslab.models.weights_file import F32

CONFIG = LlamaConfig(
    hidden=48, intermediate=96, heads=4, kv_heads=2, head_dim=12, layers=6, vocab=60
)
PROMPT, NEW = (5, 17, 3, 8, 41, 50, 2, 9, 33, 7, 12), 4
LAST_BITS = 1e-5
OUTLIER, FACTOR = 7, 40
Params = Mapping[str, F32]


@cache
def weights() -> dict[str, F32]:
    random = np.random.default_rng(4)
    hidden, inner, width = CONFIG.hidden, CONFIG.intermediate, CONFIG.head_dim
    rows = (CONFIG.heads + 2 * CONFIG.kv_heads) * width
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (CONFIG.vocab, hidden),
        "lm_head.weight": (CONFIG.vocab, hidden),
    }
    for layer in range(CONFIG.layers):
        at = f"model.layers.{layer}"
        shapes[f"{at}.self_attn.qkv_proj.weight"] = (rows, hidden)
        shapes[f"{at}.self_attn.o_proj.weight"] = (hidden, CONFIG.heads * width)
        shapes[f"{at}.mlp.gate_up_proj.weight"] = (2 * inner, hidden)
        shapes[f"{at}.mlp.down_proj.weight"] = (hidden, inner)
    found = {name: random.normal(0, 0.2, size).astype(np.float32) for name, size in shapes.items()}
    # A channel that makes the scale of all others coarse, and little weights that read it.
    for name, weight in found.items():
        if "qkv" in name or "gate_up" in name:
            weight[:, OUTLIER] /= FACTOR
    norms = [f"model.layers.{n}.{k}_layernorm" for n in range(CONFIG.layers) for k in KINDS]
    for name in (*norms, "model.norm"):
        norm = random.uniform(0.5, 1.5, hidden)
        norm[OUTLIER] *= FACTOR
        found[f"{name}.weight"] = norm.astype(np.float32)
    return found


KINDS = ("input", "post_attention")


@dataclass
class Run:
    """A run that rounds by itself and writes it down."""

    record: bytearray = field(default_factory=bytearray)

    def rounded(self, matrix: F32, _name: str = "") -> tuple[Int8, F32]:
        values, scales = quantise(matrix)
        self.record += rows_entry(values, scales[:, None])
        return values, scales


def run(
    attention: bool, fault: Callable[[dict[str, F32]], Any], stale: bool = False
) -> tuple[list[int], F32, bytes]:
    """Tokens, logits and record of a run whose weights have a fault, or its cache an old token."""
    params, random, device = dict(weights()), np.random.default_rng(1), Run()
    fault(params)
    product = IntegerProduct(rounded=device.rounded)

    def other_bits(x: F32, name: str, params: Params) -> F32:
        bits = 1 + random.uniform(-LAST_BITS, LAST_BITS, x.shape)
        out = product((x * bits).astype(np.float32), name, params)
        device.record += CALL if name == "lm_head.weight" else b""
        return out

    def attending(query: F32, key: F32, value: F32, visible: Any) -> F32:
        def sums(values: Int8, weights: Int8) -> Any:
            old = weights.copy()
            if stale and len(key) > len(PROMPT) and len(weights) == len(key):
                old[1] = old[0]
            return product.sums(values, old)

        return attend(query, key, value, visible, sums, device.rounded)

    said = answer(
        CONFIG,
        params,
        PROMPT,
        max_new=NEW,
        product=other_bits,
        attend=attending if attention else None,
    )
    return list(said.tokens), said.logits, bytes(device.record)


def judged(
    attention: bool, fault: Callable[[dict[str, F32]], Any], stale: bool = False
) -> AnswerVerdict:
    job: Any = judged_job(offload(load_device("vta-1x16x16"), attention), NEW, len(PROMPT))
    found = judge(job, *run(attention, fault, stale), Asked(CONFIG, weights(), PROMPT))
    assert found is not None
    return found


@pytest.mark.parametrize("attention", [True, False], ids=["attention", "linear"])
def test_a_run_with_other_last_bits_is_right(attention: bool) -> None:
    found = judged(attention, lambda _: None)
    assert found.right
    assert found.comparison.logit_error < TOLERANCE
    assert found.taken is not None
    # It did not round as the reference does.
    assert 0 < found.taken.other < found.taken.count / 100
    assert found.taken.farthest < 1e-2


def _scale(name: str) -> Callable[[dict[str, F32]], Any]:
    return lambda params: params.update({name: params[name] * np.float32(1.01)})


def _swap(name: str) -> Callable[[dict[str, F32]], Any]:
    return lambda params: params.update({name: params[name][[1, 0, *range(2, len(params[name]))]]})


def _missing(name: str) -> Callable[[dict[str, F32]], Any]:
    return lambda params: params.update({name: np.zeros_like(params[name])})


@pytest.mark.parametrize(
    "name",
    [
        "model.layers.0.self_attn.qkv_proj.weight",
        "model.layers.3.self_attn.o_proj.weight",
        "model.layers.5.mlp.gate_up_proj.weight",
        "model.layers.5.mlp.down_proj.weight",
        "lm_head.weight",
    ],
)
@pytest.mark.parametrize("fault", [_scale, _swap, _missing])
def test_a_fault_in_any_layer_is_seen(name: str, fault: Any) -> None:
    found = judged(True, fault(name))
    assert not found.right
    # Where no later rounding shows it, logits do.
    assert "rounding" in found.fault or not found.comparison.within


def test_an_old_token_in_the_cache_is_seen() -> None:
    assert "the input of values" in judged(True, lambda _: None, stale=True).fault


def test_smoothing_changes_no_bit_in_float32_and_makes_rounding_finer() -> None:
    factors = smoothing(CONFIG, weights(), [4, 9, 30, 21, 55, 6])
    smooth = {name: scaled(value, *factors[name]) for name, value in weights().items()}
    assert any(not np.array_equal(smooth[name], value) for name, value in weights().items())
    for of_name in factors.values():
        assert all((np.frexp(part)[0] == 0.5).all() for part in of_name)
    plain = ReferenceLlama(CONFIG, weights()).read_all(PROMPT)
    assert np.array_equal(ReferenceLlama(CONFIG, smooth).read_all(PROMPT), plain)

    def error(params: Params) -> float:
        product = IntegerProduct()
        attending = partial(attend, sums=product.sums)
        model = ReferenceLlama(CONFIG, params, product=product, attend=attending)
        return float(np.sqrt(np.mean((model.read_all(PROMPT) - plain) ** 2)))

    assert error(smooth) < 0.7 * error(weights())
