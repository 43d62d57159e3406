# SPDX-License-Identifier: Apache-2.0
"""The judge of answers: right runs are right whatever ties decide, and faults are found.

A run is the reference with other last bits of float32, which records its roundings as a board's
program does, and with faults put into its weights or its cache.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from support.judged import JudgedJob
from support.rounding_records import CALL, rows_entry, tokens_entry

from crosslab.errors import LabError
from crosslab.job.verdict import AnswerVerdict, Asked, judge
from crosslab.models.config import LlamaConfig
from crosslab.models.llama_params import random_weights
from crosslab.models.reference import ReferenceLlama, RoundingBlocks
from crosslab.models.roundings import Int8, Roundings
from crosslab.models.weights_file import F32

CONFIG = LlamaConfig(
    hidden=64, intermediate=96, heads=4, kv_heads=2, head_dim=16, layers=4, vocab=60, tied=False
)
PROMPT, NEW, CHUNK = [5, 17, 3, 8, 41, 50, 2, 9, 33, 7, 12], 5, 4
TOLERANCE = 1e-4
FLOAT32, HALF = 2e-5, 2.0**-11
LAYER = "model.layers.2"
# Two runs of rows of one layer, in blocks of 32 and of 16 inputs; all other layers have 32.
BLOCKS: RoundingBlocks = {
    **{name: ((len(value), 32),) for name, value in random_weights(CONFIG, 3) if value.ndim == 2},
    f"{LAYER}.self_attn.qkv_proj.weight": ((64, 32), (64, 16)),
}


@cache
def weights() -> dict[str, F32]:
    return dict(random_weights(CONFIG, 3))


@dataclass
class Recorder(Roundings):
    """Rounds what has other last bits than the reference's, and records it."""

    noise: float
    record: bytearray = field(default_factory=bytearray)
    random: np.random.Generator = field(default_factory=lambda: np.random.default_rng(7))
    cache: list[tuple[F32, F32]] = field(default_factory=list)
    stale: bool = False

    def __post_init__(self) -> None:
        super().__init__()

    def begin(self) -> None:
        self.record += CALL if self.record else b""

    def _other_bits(self, x: F32) -> F32:
        return (x * (1 + self.random.uniform(-self.noise, self.noise, x.shape))).astype(np.float32)

    def matrix(self, x: F32, block: int, name: str) -> tuple[Int8, F32]:
        values, scales = super().matrix(self._other_bits(x), block, name)
        self.record += rows_entry(values, scales, block=block)
        return values, scales

    def cached(self, keys: F32, values: F32, layer: int, first: int) -> tuple[F32, F32]:
        kept = super().cached(self._other_bits(keys), self._other_bits(values), layer, first)
        self.cache.append(kept)
        if len(self.cache) == CONFIG.layers:
            layers = [np.stack(part) for part in zip(*self.cache, strict=True)]
            self.record += tokens_entry(*layers)
            self.cache = []
        # What the record has is what the device wrote; a stale page is what it reads.
        return (np.roll(kept[0], 1, axis=0), kept[1]) if self.stale and layer == 1 else kept


@dataclass(frozen=True)
class Mode:
    """How a run rounds, and its noise."""

    int8: bool = True
    blocks: RoundingBlocks = field(default_factory=dict)
    int8_cache: bool = False
    noise: float = FLOAT32

    @property
    def job(self) -> Any:
        halves = self.noise == HALF
        return JudgedJob(None, NEW, CHUNK, TOLERANCE, self.int8, self.int8_cache, halves=halves)


MODES = {
    "int8": Mode(),
    "blocks": Mode(blocks=BLOCKS),
    "cache": Mode(int8=False, int8_cache=True),
    "both": Mode(blocks=BLOCKS, int8_cache=True),
    "halves": Mode(noise=HALF),
}


def judged(mode: Mode, values: dict[str, F32], *, stale: bool = False) -> AnswerVerdict:
    """The verdict on a run with these weights."""
    rounding = Recorder(mode.noise, stale=stale)
    model = ReferenceLlama(
        CONFIG,
        values,
        int8=mode.int8,
        blocks=mode.blocks,
        int8_cache=mode.int8_cache,
        rounding=rounding,
    )
    rows = [model.read(PROMPT[at : at + CHUNK]) for at in range(0, len(PROMPT), CHUNK)][-1:]
    while len(rows) < NEW:
        rows.append(model.read([int(rows[-1].argmax())]))
    tokens = [int(row.argmax()) for row in rows]
    asked = Asked(CONFIG, weights(), PROMPT, blocks=mode.blocks, text=PROMPT)
    found = judge(mode.job, tokens, np.stack(rows), bytes(rounding.record) + CALL, asked)
    assert found is not None
    return found


@pytest.mark.parametrize("mode", MODES.values(), ids=MODES)
def test_a_right_run_is_right(mode: Mode) -> None:
    found = judged(mode, weights())
    assert found.right, found
    assert found.taken is not None
    assert found.cost is not None
    # It did not round as the reference does, and is far from a model that does not round.
    assert 0 < found.taken.other < found.taken.count * (0.1 if mode.noise == HALF else 0.01)
    assert found.cost.logit_error > 10 * TOLERANCE
    assert found.cost.perplexity is not None
    assert found.cost.perplexity[0] != found.cost.perplexity[1]


def _scaled(w: F32) -> F32:
    return w * np.float32(1.01)


def _swapped(w: F32) -> F32:
    return w[[1, 0, *range(2, len(w))]]


def _moved(w: F32) -> F32:
    return w + np.abs(w).mean() * np.float32(0.1)


FAULTS: list[tuple[str, Callable[[F32], F32]]] = [
    ("self_attn.qkv_proj", _scaled),
    ("self_attn.o_proj", _scaled),
    ("mlp.down_proj", _scaled),
    ("post_attention_layernorm", _scaled),
    ("mlp.gate_up_proj", _swapped),
    ("mlp.down_proj", _moved),
]


@pytest.mark.parametrize(("name", "change"), FAULTS)
@pytest.mark.parametrize("mode", MODES.values(), ids=MODES)
def test_no_rounding_hides_a_fault(mode: Mode, name: str, change: Callable[[F32], F32]) -> None:
    param = f"{LAYER}.{name}.weight"
    found = judged(mode, {**weights(), param: change(weights()[param])})
    assert not found.right


@pytest.mark.parametrize("change", [_scaled, _swapped])
@pytest.mark.parametrize("mode", MODES.values(), ids=MODES)
def test_a_fault_of_the_head_is_seen_by_its_logits(
    mode: Mode, change: Callable[[F32], F32]
) -> None:
    found = judged(mode, {**weights(), "lm_head.weight": change(weights()["lm_head.weight"])})
    assert not found.fault
    assert not found.right


class Halves(ReferenceLlama):
    """A model that stores what its layers compute in float16."""

    def _norm(self, x: F32, name: str) -> F32:
        return _stored(super()._norm(_stored(x), name))

    def _product(self, x: F32, name: str, rounded: Any = None) -> F32:
        product = super()._product(x, name, rounded)
        return product if name.startswith("lm_head") else _stored(product)

    def _mixed(self, *parts: Any) -> F32:
        return _stored(super()._mixed(*parts))

    def _rotate(self, x: F32, positions: Any) -> F32:
        return _stored(super()._rotate(x, positions))


def _stored(x: F32) -> F32:
    return x.astype(np.float16).astype(np.float32)


def judged_halves(config: LlamaConfig, values: dict[str, F32], asked: Asked) -> AnswerVerdict:
    """The verdict on a run in halves with these weights."""
    run = Halves(config, values)
    rows = [run.read(PROMPT)]
    while len(rows) < NEW:
        rows.append(run.read([int(rows[-1].argmax())]))
    job: Any = JudgedJob(None, NEW, 64, 1e-2, rounds=False, halves=True)
    found = judge(job, [int(row.argmax()) for row in rows], np.stack(rows), None, asked)
    assert found is not None
    return found


@pytest.mark.parametrize("seed", range(8))
def test_halves_are_right_and_their_faults_are_found(seed: int) -> None:
    config = replace(CONFIG, layers=2)
    right = dict(random_weights(config, seed))
    asked = Asked(config, right, PROMPT)
    assert judged_halves(config, right, asked).right
    for name, change in FAULTS:
        param = f"model.layers.1.{name}.weight"
        assert not judged_halves(config, {**right, param: change(right[param])}, asked).right, name
    other = replace(config, rope_theta=config.rope_theta * 50)
    assert not judged_halves(other, right, asked).right


def test_a_stale_page_is_seen() -> None:
    assert not judged(MODES["both"], weights(), stale=True).right


@pytest.mark.parametrize(
    ("tokens", "stop", "message"),
    [
        ([7, 9], [9], ""),
        ([7, 8, 6, 5, 4], [9], ""),
        ([7, 8], [9], "ends after 2 of 5 tokens"),
        ([7, 9, 8], [9], "goes on after token 9"),
    ],
)
def test_an_answer_ends_where_it_should(tokens: list[int], stop: list[int], message: str) -> None:
    model = ReferenceLlama(CONFIG, weights())
    rows = model.read_all([*PROMPT, *tokens[:-1]])[len(PROMPT) - 1 :]
    job: Any = JudgedJob(None, NEW, 64, TOLERANCE, rounds=False)
    found = judge(job, tokens, rows, None, Asked(CONFIG, weights(), PROMPT, stop))
    assert found is not None
    assert message in found.fault
    assert bool(found.fault) == bool(message)


def test_a_run_that_rounds_has_a_record() -> None:
    rows = np.zeros((1, CONFIG.vocab), np.float32)
    with pytest.raises(LabError, match="wrote no record"):
        judge(MODES["int8"].job, [0], rows, None, Asked(CONFIG, weights(), PROMPT))


def test_without_a_reference_logits_are_numbers() -> None:
    rows = np.zeros((1, CONFIG.vocab), np.float32)
    assert judge(MODES["int8"].job, [0], rows, None, None) is None
    with pytest.raises(LabError, match="not finite"):
        judge(MODES["int8"].job, [0], rows * np.float32(np.nan), None, None)
