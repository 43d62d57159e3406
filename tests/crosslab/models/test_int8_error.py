# SPDX-License-Identifier: Apache-2.0
"""Activations, and keys and values, rounded to int8 in the reference, and what that changes."""

from __future__ import annotations

import numpy as np
import pytest

from crosslab.errors import UserError
from crosslab.models.config import LlamaConfig
from crosslab.models.int8_error import Compared, compare_answer, compare_text
from crosslab.models.llama_params import random_weights
from crosslab.models.reference import ReferenceLlama, answer
from crosslab.models.roundings import round_to_int8

CONFIG = LlamaConfig(
    hidden=64, intermediate=96, heads=2, kv_heads=1, head_dim=32, layers=2, vocab=50, context=128
)
PARAMS = dict(random_weights(CONFIG, 1))


def test_a_group_is_rounded_by_its_own_largest() -> None:
    x = np.zeros((1, 70), np.float32)
    x[0, 0], x[0, 1], x[0, 40], x[0, 69] = 127, 1.4, -0.5, 3
    got = round_to_int8(x)
    assert got[0, [0, 1]].tolist() == [127, 1]
    assert got[0, [40, 69]] == pytest.approx([-0.5, 3], rel=1e-6)
    assert np.count_nonzero(got) == 4
    assert not round_to_int8(np.full((1, 32), 1e-33, np.float32)).any()


def test_reading_all_is_reading_one_by_one() -> None:
    tokens = [3, 7, 1, 49]
    rows = ReferenceLlama(CONFIG, PARAMS).read_all(tokens)
    one_by_one = ReferenceLlama(CONFIG, PARAMS)
    for token, row in zip(tokens, rows, strict=True):
        assert one_by_one.read([token]) == pytest.approx(row, abs=1e-4)


def test_a_cache_in_int8_rounds_what_was_read_before() -> None:
    """Single tokens see rounded keys, their own too; tokens read together their own as they are."""
    tokens, plain = [3, 7, 1, 49], ReferenceLlama(CONFIG, PARAMS)
    singles, together, at_once = (
        ReferenceLlama(CONFIG, PARAMS, int8_cache=True, one_by_one=one)
        for one in (False, False, True)
    )
    rows = np.stack([singles.read([token]) for token in tokens])
    np.testing.assert_allclose(at_once.read_all(tokens), rows, atol=1e-4)
    exact = plain.read_all(tokens)
    np.testing.assert_array_equal(together.read_all(tokens), exact)
    assert 1e-4 < np.abs(rows - exact).max() < 0.1 * np.abs(exact).max()
    # A row is kept with a factor of its own: the largest element is exact, the others are near.
    kept, own = together.keys[1], plain.keys[1]
    largest = np.abs(own).max(axis=-1, keepdims=True)
    assert np.abs(kept - own).max() > 0
    assert (np.abs(kept - own) <= largest / 253).all()
    two_chunks = answer(CONFIG, PARAMS, tokens, max_new=1, int8_cache=True, chunk=3)
    assert np.abs(two_chunks.logits - exact[-1]).max() > 0


def test_a_text_is_compared_in_windows() -> None:
    tokens = [(7 * i + 3) % 50 for i in range(40)]
    found = compare_text(CONFIG, PARAMS, tokens, 16)
    assert list(found) == ["int8 activations", "int8 KV cache"]
    for compared in found.values():
        assert (compared.positions, compared.scored) == (40, 40 - 3)
        assert 1e-4 < compared.logit_error < 0.1
        assert compared.perplexity[0] != compared.perplexity[1]
        assert compared.perplexity[0] == pytest.approx(compared.perplexity[1], rel=0.05)
    with pytest.raises(UserError, match="fewer than two tokens"):
        compare_text(CONFIG, PARAMS, [1], 16)


def test_an_answer_is_compared_token_by_token() -> None:
    for compared in compare_answer(CONFIG, PARAMS, [3, 7, 1], 20).values():
        assert compared.positions == 20
        assert 15 <= compared.equal <= 20
        assert compared.scored == 20
        # Likelier than chance: it is the likeliest.
        assert compared.perplexity[0] < CONFIG.vocab


def test_perplexity_is_that_of_the_tokens_that_came() -> None:
    """Even odds over 50 tokens; and certainty of the right one."""
    tokens = [1, 2, 3]
    even, sure = np.zeros((3, 50), np.float32), np.zeros((3, 50), np.float32)
    sure[[0, 1], [2, 3]] = 100
    even[:, 0] = 1e-6
    compared = Compared()
    compared.add(even, sure, tokens)
    assert compared.perplexity == pytest.approx((50, 1))
    assert compared.equal == 1
