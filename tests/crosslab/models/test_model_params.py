# SPDX-License-Identifier: Apache-2.0
"""MLC-LLM's parameter format, written and read, and the reference on small models."""

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from crosslab.errors import LabError, UserError
from crosslab.models.compare import compare, compare_rows
from crosslab.models.config import LlamaConfig
from crosslab.models.formats import weight_formats
from crosslab.models.llama_params import (
    FileWeights,
    convert_params,
    param_shapes,
    random_model,
    random_weights,
)
from crosslab.models.params import (
    ReadParams,
    from_bfloat16,
    read_params,
    read_stored,
    to_bfloat16,
    unpack,
    write_params,
)
from crosslab.models.reference import Answer, ReferenceLlama, answer

Q4 = weight_formats()["q4f32_1"].packing
TOLERANCE = weight_formats()["q0f32"].tolerance
SMALL = LlamaConfig(24, 40, 6, 2, 4, 2, 19, rope_theta=5e4)


@given(st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=1))
def test_bfloat16_is_the_nearest_of_its_neighbours(values: list[float]) -> None:
    exact = np.array(values, np.float32)
    rounded = to_bfloat16(exact)
    assert np.all(np.isfinite(from_bfloat16(rounded)))
    error = np.abs(from_bfloat16(rounded).astype(np.float64) - exact)
    for step in (-1, 1):
        neighbour = from_bfloat16((rounded.astype(np.int64) + step).astype(np.uint16))
        usable = np.isfinite(neighbour) & (np.signbit(neighbour) == np.signbit(exact))
        # Zero has no neighbour below it, and what would overflow is cut on purpose.
        usable &= (rounded & 0x7FFF) != 0
        usable &= (rounded & 0x7FFF) != 0x7F7F
        distance = np.abs(neighbour.astype(np.float64) - exact)
        assert np.all(error[usable] <= distance[usable])


def test_bfloat16_ties_go_to_even() -> None:
    bits = np.array([0x3F808000, 0x3F818000], np.uint32)
    assert to_bfloat16(bits.view(np.float32)).tolist() == [0x3F80, 0x3F82]


def test_parameters_survive_in_small_shards(tmp_path: Path) -> None:
    written = dict(random_weights(SMALL, 3))
    write_params(written.items(), tmp_path, shard_bytes=1000)
    assert len(list(tmp_path.glob("params_shard_*.bin"))) > 3
    read = read_params(tmp_path)
    assert list(read) == list(written) == list(param_shapes(SMALL))
    for name, values in written.items():
        np.testing.assert_array_equal(read[name], from_bfloat16(to_bfloat16(values)), name)


def test_random_weights_depend_on_the_seed_alone() -> None:
    one, same, other = (dict(random_weights(SMALL, seed)) for seed in (1, 1, 2))
    name = "model.layers.1.mlp.down_proj.weight"
    np.testing.assert_array_equal(one[name], same[name])
    assert not np.array_equal(one[name], other[name])


def pack_q4(values: np.ndarray) -> np.ndarray:
    """Pack integers 0 to 15 into words, the first in the lowest bits, one at a time."""
    words = np.zeros((values.shape[0], values.shape[1] // 8), np.uint32)
    for row in range(values.shape[0]):
        for column in range(values.shape[1]):
            words[row, column // 8] |= np.uint32(values[row, column] << (4 * (column % 8)))
    return words


def test_q4_is_unpacked_as_mlc_packs_it() -> None:
    draw = np.random.default_rng(5)
    values = draw.integers(0, 16, (3, 64))
    scale = draw.random((3, 2), dtype=np.float32)
    wanted = np.empty((3, 64), np.float32)
    for row in range(3):
        for column in range(64):
            wanted[row, column] = np.float32(values[row, column] - 7) * scale[row, column // 32]
    np.testing.assert_array_equal(unpack(pack_q4(values), scale, Q4), wanted)


def test_quantized_parameters_get_their_plain_names_and_widths(tmp_path: Path) -> None:
    draw = np.random.default_rng(6)
    values = draw.integers(0, 15, (5, 64))
    scale = from_bfloat16(to_bfloat16(draw.random((5, 2), dtype=np.float32)))
    norm = np.ones(40, np.float32)
    stored = [("lm_head.q_weight", pack_q4(values)), ("lm_head.q_scale", scale), ("n.weight", norm)]
    write_params(stored, tmp_path)
    read = read_params(tmp_path, {"lm_head.weight": 40}, Q4)
    assert set(read) == {"lm_head.weight", "n.weight"}
    whole = (values - 7).astype(np.float32) * np.repeat(scale, 32, axis=1)
    np.testing.assert_array_equal(read["lm_head.weight"], whole[:, :40])


def test_damaged_parameters_are_refused(tmp_path: Path) -> None:
    with pytest.raises(LabError, match="no parameters in"):
        read_stored(tmp_path)
    write_params(random_weights(SMALL, 1), tmp_path)
    shard = tmp_path / "params_shard_0.bin"
    shard.write_bytes(shard.read_bytes()[:-1])
    with pytest.raises(LabError, match="its size in the index"):
        read_stored(tmp_path)
    shard.unlink()
    with pytest.raises(LabError, match="cannot read"):
        read_stored(tmp_path)


def test_a_quantized_weight_without_scale_is_refused(tmp_path: Path) -> None:
    write_params([("a.q_weight", np.zeros((2, 4), np.uint32))], tmp_path)
    with pytest.raises(LabError, match=r"a\.q_weight has no scale"):
        read_params(tmp_path)


def test_index_says_what_the_runtime_reads(tmp_path: Path) -> None:
    write_params(random_weights(SMALL, 1), tmp_path)
    index = json.loads((tmp_path / "tensor-cache.json").read_text(encoding="utf-8"))
    (shard,) = index["records"]
    record = shard["records"][0]
    assert shard["format"] == "raw-shard"
    assert record == {
        "name": "model.embed_tokens.weight",
        "shape": [19, 24],
        "dtype": "float32",
        "format": "f32-to-bf16",
        "nbytes": 19 * 24 * 2,
        "byteOffset": 0,
    }


def slow_logits(
    config: LlamaConfig, params: dict[str, np.ndarray], tokens: list[int]
) -> np.ndarray:
    """The model once more, float64 and one position at a time, with loops for heads and keys."""
    p = {name: value.astype(np.float64) for name, value in params.items()}
    half = config.head_dim // 2

    def norm(x: np.ndarray, name: str) -> np.ndarray:
        return x / np.sqrt((x * x).mean() + config.eps) * p[f"{name}.weight"]

    def rotate(x: np.ndarray, position: int) -> np.ndarray:
        turned = x.copy()
        for i in range(half):
            angle = position * config.rope_theta ** (-2 * i / config.head_dim)
            a, b = x[i], x[i + half]
            turned[i] = a * np.cos(angle) - b * np.sin(angle)
            turned[i + half] = a * np.sin(angle) + b * np.cos(angle)
        return turned

    seen: list[list[list[tuple[np.ndarray, np.ndarray]]]] = [[] for _ in range(config.layers)]
    logits = np.empty(config.vocab)
    for position, token in enumerate(tokens):
        x = p["model.embed_tokens.weight"][token]
        for layer in range(config.layers):
            at = f"model.layers.{layer}"
            qkv = p[f"{at}.self_attn.qkv_proj.weight"] @ norm(x, f"{at}.input_layernorm")
            parts = qkv.reshape(-1, config.head_dim)
            keys = parts[config.heads : config.heads + config.kv_heads]
            values = parts[config.heads + config.kv_heads :]
            pairs = [(rotate(k, position), v) for k, v in zip(keys, values, strict=True)]
            seen[layer].append(pairs)
            mixed = []
            for head in range(config.heads):
                query = rotate(parts[head], position)
                shared = head * config.kv_heads // config.heads
                scores = [query @ row[shared][0] / config.head_dim**0.5 for row in seen[layer]]
                weights = np.exp(np.array(scores) - max(scores))
                weights /= weights.sum()
                rows = [row[shared][1] for row in seen[layer]]
                mixed.append(sum(w * v for w, v in zip(weights, rows, strict=True)))
            x = x + p[f"{at}.self_attn.o_proj.weight"] @ np.concatenate(mixed)
            wide = p[f"{at}.mlp.gate_up_proj.weight"] @ norm(x, f"{at}.post_attention_layernorm")
            gate, up = wide[: config.intermediate], wide[config.intermediate :]
            x = x + p[f"{at}.mlp.down_proj.weight"] @ (gate / (1 + np.exp(-gate)) * up)
        head_name = "model.embed_tokens" if config.tied else "lm_head"
        logits = p[f"{head_name}.weight"] @ norm(x, "model.norm")
    return logits


@pytest.mark.parametrize("tied", [True, False])
def test_reference_is_the_architecture(tied: bool) -> None:
    config = LlamaConfig(24, 40, 6, 2, 4, 2, 19, rope_theta=5e4, tied=tied)
    params = dict(random_weights(config, 11))
    tokens = [3, 18, 0, 7, 7, 12, 5]
    wanted = slow_logits(config, params, tokens)
    np.testing.assert_allclose(
        ReferenceLlama(config, params).read(tokens), wanted, rtol=0, atol=2e-5
    )
    chunked = ReferenceLlama(config, params)
    for part in (tokens[:4], tokens[4:6], tokens[6:]):
        last = chunked.read(part)
    np.testing.assert_allclose(last, wanted, rtol=0, atol=2e-5)


def test_answer_stops_at_a_stop_token() -> None:
    params = dict(random_weights(SMALL, 4))
    free = answer(SMALL, params, [1, 2, 3], max_new=6)
    assert free.logits.shape == (6, SMALL.vocab)
    stopped = answer(SMALL, params, [1, 2, 3], max_new=6, stop=[free.tokens[2]])
    first = free.tokens.index(free.tokens[2])
    assert stopped.tokens == free.tokens[: first + 1]


@pytest.mark.parametrize("tokens", [[], [19], [-1]])
def test_reference_refuses_what_is_no_token(tokens: list[int]) -> None:
    with pytest.raises(UserError, match="0 to 18"):
        answer(SMALL, dict(random_weights(SMALL, 4)), tokens, max_new=1)


def test_reference_refuses_what_does_not_fit() -> None:
    with pytest.raises(UserError, match="context of 2048"):
        answer(SMALL, {}, [1] * 2047, max_new=2)


def test_comparison_looks_at_steps_that_read_the_same() -> None:
    logits = np.array([[0, 4, 1], [2, 0, 0], [0, 0, 8]], np.float32)
    reference = Answer((1, 0, 2), logits)
    assert compare((1, 0, 2), logits, reference, TOLERANCE).right
    near = compare((1, 0, 2), logits + np.float32(0.0004), reference, TOLERANCE)
    assert near.right
    assert near.logit_error == pytest.approx(0.00005, rel=1e-2)
    assert not compare((1, 0, 2), logits + np.float32(0.004), reference, TOLERANCE).right
    other = logits.copy()
    other[1:] = 9, 9, 9
    strayed = compare((1, 1, 0), other, reference, TOLERANCE)
    assert not strayed.right
    assert strayed.logit_error == pytest.approx(9 / 4)
    assert compare(
        (1, 0, 2), logits * np.float32("nan"), reference, TOLERANCE
    ).logit_error == float("inf")


def test_tokens_that_are_equally_likely_may_differ() -> None:
    logits = np.array([[0, 4, 4 - 1e-5], [2, 0, 0]], np.float32)
    ours = logits + np.array([[0, 0, 2e-5], [0, 0, 0]], np.float32)
    found = compare_rows((2, 0), ours, logits, TOLERANCE)
    assert (found.same_tokens, found.right) == (False, True)
    # But each follows from the answer's own logits.
    assert not compare_rows((1, 0), ours, logits, TOLERANCE).right
    assert not compare_rows((2, 1), ours, logits, TOLERANCE).right


def test_logits_have_a_row_for_each_token() -> None:
    logits = np.zeros((3, 3), np.float32)
    with pytest.raises(LabError, match="shape"):
        compare((1, 0), logits, Answer((1, 0, 2), logits), TOLERANCE)


def test_the_file_is_beside_what_is_stored_of_it(tmp_path: Path) -> None:
    """q0f32 stores bfloat16: its logits are a few thousandths from those of the file."""
    model = random_model(SMALL, 1, tmp_path)
    stored = ReadParams(convert_params(model, tmp_path))
    of_file = FileWeights(model, SMALL)
    assert set(of_file) == set(stored)
    for name, values in of_file.items():
        np.testing.assert_array_equal(stored[name], from_bfloat16(to_bfloat16(values)), name)
    rows, plain = (ReferenceLlama(SMALL, each).read_all([1, 2, 3]) for each in (stored, of_file))
    assert 1e-4 < np.abs(rows - plain).max() / np.abs(plain).max() < 2e-2
