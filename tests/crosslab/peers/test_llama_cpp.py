# SPDX-License-Identifier: Apache-2.0
"""llama.cpp as a peer: the model that it is given, the pin, and the phases of its run."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from gguf import GGMLQuantizationType, GGUFReader, dequantize
from safetensors import safe_open
from support.shared_builds import PROJECT

from crosslab.assemble.pinned_archive import read_archive
from crosslab.bench.cli import main
from crosslab.errors import LabError, UserError
from crosslab.models.config import LlamaConfig
from crosslab.models.gguf_params import GgufWeights
from crosslab.models.llama_params import random_model
from crosslab.models.params import from_bfloat16, to_bfloat16
from crosslab.models.sources.gguf_families import swapped
from crosslab.models.weights_file import WEIGHTS_FILE, StoredWeights, save_weights
from crosslab.peers.gguf_export import (
    IN_BLOCKS,
    export_gguf,
    fits,
    gguf_names,
    padded,
    store_in_blocks,
)
from crosslab.peers.llama_cpp import CACHE, PeerRun, fill_cache
from crosslab.peers.llama_cpp_build import WITHOUT_POLICY
from crosslab.peers.quantize import quantize
from crosslab.run.measurement import Counts, Measurement

# A feed-forward width that no block of 32 divides.
CONFIG = LlamaConfig(64, 80, 2, 1, 32, 1, 64, context=64)
_CODES = [("Q4_K", 0.11), ("Q5_K", 0.07), ("Q6_K", 0.035), ("IQ4_NL", 0.12)]
BOUNDS = {"F32": 0, "F16": 1e-3, "Q8_0": 0.01, "Q4_0": 0.14, "IQ4_NL": 0.15}


@pytest.mark.parametrize("format_", BOUNDS)
def test_the_exported_model_is_the_same_model(tmp_path: Path, format_: str) -> None:
    model = random_model(CONFIG, 3, tmp_path)
    reader = GGUFReader(export_gguf(model, format_, tmp_path))
    stored = {str(t.name): dequantize(t.data, t.tensor_type) for t in reader.tensors}
    with safe_open(model / WEIGHTS_FILE, framework="numpy") as weights:
        for name in weights.keys():  # noqa: SIM118 -- no mapping
            want = from_bfloat16(to_bfloat16(weights.get_tensor(name)))
            got = stored.pop(gguf_names(CONFIG)[name])
            for part, heads in (("q_proj", CONFIG.heads), ("k_proj", CONFIG.kv_heads)):
                if part in name:
                    got = swapped(got, 0, 0, heads, -1, 2, 1)
            rows = [slice(n) for n in want.shape]
            left = got.copy()
            left[tuple(rows)] = 0
            # IQ4_NL has no zero; what these weights multiply is zero.
            assert not left.any() or (format_ == "IQ4_NL" and "down_proj" in name)
            bound = 0 if want.ndim == 1 else BOUNDS[format_]
            assert np.abs(got[tuple(rows)] - want).max() <= bound * np.abs(want).max()
    assert stored == {}
    fields = {name: field.contents() for name, field in reader.fields.items()}
    assert fields["llama.feed_forward_length"] == padded(80, 32) == 96
    assert fields["llama.vocab_size"] == CONFIG.vocab


def test_a_model_in_several_files_is_exported(tmp_path: Path) -> None:
    model, shards = random_model(CONFIG, 3, tmp_path), tmp_path / "shards"
    shards.mkdir()
    shutil.copy(model / "config.json", shards)
    weights = StoredWeights.of_model(model)
    save_weights(((name, weights.read(name)) for name in weights.places), shards, shard_bytes=8192)
    assert len(list(shards.glob("*.safetensors"))) > 1
    one, several = (export_gguf(folder, "Q8_0", tmp_path) for folder in (model, shards))
    tables = [
        {str(t.name): t.data.tobytes() for t in GGUFReader(path).tensors} for path in (one, several)
    ]
    assert tables[0] == tables[1]


def test_the_mix_gives_some_matrices_more_bits(tmp_path: Path) -> None:
    config = replace(CONFIG, hidden=256, heads=4, kv_heads=4, head_dim=64, layers=3)
    reader = GGUFReader(export_gguf(random_model(config, 3, tmp_path), "Q4_K_M", tmp_path))
    kinds = {str(t.name): t.tensor_type.name for t in reader.tensors}
    better = {name for name, kind in kinds.items() if kind == "Q6_K"}
    layers = {f"blk.2.{part}.weight" for part in ("attn_v", "ffn_down")}
    assert better - {"output.weight"} == layers
    assert {kind for name, kind in kinds.items() if "ffn_up" in name} == {"Q4_K"}
    assert reader.fields["llama.feed_forward_length"].contents() == padded(80, 256) == 256


def test_the_mix_has_small_blocks_where_large_ones_do_not_fit(tmp_path: Path) -> None:
    config = replace(CONFIG, hidden=96, heads=3, kv_heads=3, head_dim=32, intermediate=256)
    assert fits(config) and not fits(replace(config, hidden=80))
    model = random_model(config, 3, tmp_path)
    reader = GGUFReader(export_gguf(model, "Q4_K_M", tmp_path))
    kinds = {str(t.name): t.tensor_type.name for t in reader.tensors if len(t.shape) == 2}
    assert kinds["blk.0.ffn_down.weight"] in ("Q4_K", "Q6_K")
    assert kinds["output.weight"] == "Q8_0" and kinds["blk.0.attn_q.weight"] == "Q5_0"
    stored = GgufWeights(store_in_blocks(model, "Q4_K_M", tmp_path)).types
    assert {gguf_names(config)[name]: kind for name, kind in stored.items()} == kinds


@pytest.mark.parametrize("format_", IN_BLOCKS)
def test_a_model_in_blocks_has_the_numbers_of_its_file(tmp_path: Path, format_: str) -> None:
    config = replace(CONFIG, hidden=256, heads=4, kv_heads=2, head_dim=64)
    model = random_model(config, 3, tmp_path)
    reader = GGUFReader(export_gguf(model, format_, tmp_path))
    file = {str(t.name): dequantize(t.data, t.tensor_type) for t in reader.tensors}
    weights = GgufWeights(store_in_blocks(model, format_, tmp_path))
    with safe_open(model / WEIGHTS_FILE, framework="numpy") as names:
        for name in names.keys():  # noqa: SIM118 -- no mapping
            want = file.pop(gguf_names(config)[name])
            for part, heads in (("q_proj", config.heads), ("k_proj", config.kv_heads)):
                if part in name:
                    want = swapped(want, 0, 0, heads, -1, 2, 1)
            assert np.array_equal(weights.read(name), want), name
    assert file == {}


def test_the_cache_before_a_prompt_is_filled_once(tmp_path: Path) -> None:
    program, model = tmp_path / "program", tmp_path / "model.gguf"
    model.write_bytes(b"weights")
    program.write_text('#!/bin/sh\ncat "$1" > "$3"\necho "$2" >> "$3"\n')
    program.chmod(0o755)
    filled = fill_cache(program, model, 40, tmp_path / "cache")
    assert filled.read_bytes() == b"weights"
    assert filled.with_name(CACHE).read_bytes() == b"weights40\n"
    assert fill_cache(program, model, 40, tmp_path / "cache") == filled
    program.write_text("#!/bin/sh\necho 'no context' >&2\nexit 1\n")
    with pytest.raises(LabError, match=r"cannot read 40 tokens with .*: no context"):
        fill_cache(program, model, 40, tmp_path / "cache")


@pytest.mark.parametrize(("kind", "bound"), _CODES)
def test_blocks_that_gguf_reads_have_the_weights_back(kind: str, bound: float) -> None:
    """The bound is half of the coarsest step, with room for the rounding of scales."""
    type_ = GGMLQuantizationType[kind]
    values = np.random.default_rng(0).uniform(-1, 1, (5, 512)).astype(np.float32)
    values[0], values[1] = 0, np.abs(values[1])
    found = dequantize(quantize(values, type_), type_)
    assert np.abs(found - values).max() <= bound
    assert not found[0].any()


def test_the_pin_is_whole(tmp_path: Path) -> None:
    source = read_archive(PROJECT)
    assert (len(source.sha256), source.file.removesuffix(".tar.gz")[-6:]) == (64, "0.3.36")
    (tmp_path / "VERSIONS.lock").write_text("", encoding="utf-8")
    with pytest.raises(UserError, match=r"peers\.\"llama\.cpp\""):
        read_archive(tmp_path)


def test_policies_are_added_where_assembly_leaves_them_out() -> None:
    text = r'"vsetivli zero, 16, e8, m1\n\t" "vsetvli zero, %[n], e8, m2, ta, mu\n" "vse8.v v1\n"'
    done, changed = WITHOUT_POLICY.subn(r"\1, tu, mu\2", text)
    assert changed == 1
    assert r"e8, m1, tu, mu\n" in done
    assert r"e8, m2, ta, mu\n" in done


def test_every_layer_takes_the_last_rows_lm_head() -> None:
    regions = tuple(Counts(insns=n) for n in (1000, 300, 700, 3, 90, 40, 42))
    run = PeerRun((1, 2, 3), Measurement(Counts(), regions, 1))
    phases = (run.every_layer, run.as_shipped, run.decode)
    assert [phase.counts(regions).insns for phase in phases] == [1003, 703, 41]


def test_several_threads_with_a_peer_are_refused() -> None:
    options = ["--project", str(PROJECT), "--tvm-tree", "T", "--variant", "ours=T"]
    with pytest.raises(UserError, match="one thread"):
        main([*options, "--peer", "llama.cpp", "--threads", "2"])
