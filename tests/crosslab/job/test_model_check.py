# SPDX-License-Identifier: Apache-2.0
"""Models and options that are refused before anything long starts."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from support import mlc_tree
from support.models.model_folder import change, job_of_model, write_folder
from support.shared_builds import PROJECT

from crosslab.assemble.runner import Clock
from crosslab.errors import UserError
from crosslab.job import model_check, model_job
from crosslab.job.main_job import ask
from crosslab.job.model_check import check_model
from crosslab.models.config import read_table
from crosslab.models.families import families
from crosslab.models.sources.hub import parse_reference
from crosslab.models.sources.model_folder import import_model
from crosslab.models.weights_file import INDEX_FILE


def keep_one_shard(folder: Path) -> None:
    max(folder.glob("*.safetensors")).unlink()


def cut_a_shard(folder: Path) -> None:
    path = max(folder.glob("*.safetensors"))
    path.write_bytes(path.read_bytes()[:-5])


def as_torch(folder: Path) -> None:
    for path in (*folder.glob("*.safetensors"), folder / INDEX_FILE):
        path.unlink()
    (folder / "pytorch_model.bin").write_bytes(b"x")


def as_gguf(folder: Path) -> None:
    (folder / "config.json").unlink()
    (folder / "model.gguf").write_bytes(b"GGUF")


def drop_weights(folder: Path, part: str) -> None:
    """Leave out the weights with a name that holds ``part``."""
    for path in folder.glob("*.safetensors"):
        kept = {name: values for name, values in load_file(path).items() if part not in name}
        save_file(kept, path)


Spoil = Callable[[Path], object]
HYBRID = {"model_type": "qwen3_5", "vision_config": {}}
LLAMA3 = families()["llama"].config["rope_scaling"]
REFUSED: list[tuple[Spoil, str, str]] = [
    (lambda f: (f / "config.json").unlink(), "has no config.json", "give a Hugging Face folder"),
    (as_gguf, "has no config.json", "give the file: "),
    (keep_one_shard, "lacks 1 of 2 files of weights", "download the files"),
    (cut_a_shard, "is not a complete safetensors file", "compare its sha256"),
    (as_torch, "in pytorch_model.bin, not in safetensors", "save_pretrained"),
    (lambda f: (f / "tokenizer.json").unlink(), "no tokenizer.json", "AutoTokenizer"),
    (lambda f: (f / "tokenizer.json").write_text("{}"), "not a tokenizer that", "AutoTokenizer"),
    (lambda f: change(f, vision_config={}), "reads more than text", "reads only text"),
    (
        lambda f: change(f, quantization_config={"quant_method": "awq"}),
        "already quantized .awq",
        "unquant",
    ),
    (lambda f: change(f, hidden_size=256), "has the shape .* as its config says", ""),
    (lambda f: change(f, num_hidden_layers=3), "the weights lack model.layers.2", "again"),
    (lambda f: change(f, vocab_size=10), "the tokenizer has token", ""),
    (lambda f: change(f, model_type="qwen3"), "without MLC-LLM", "--mirror mlc-llm="),
    (lambda f: change(f, rope_scaling={"rope_type": "yarn"}), "rope_scaling", "'llama3'"),
    (lambda f: change(f, rope_scaling=LLAMA3), "rope_scaling", "--mirror"),
]


@pytest.mark.parametrize(("spoil", "what", "remedy"), REFUSED)
def test_a_model_that_cannot_be_done_is_refused_first(
    plain: Path, tmp_path: Path, spoil: Spoil, what: str, remedy: str
) -> None:
    spoil(plain)
    with pytest.raises(UserError, match=what) as caught:
        check_model(job_of_model(plain, tmp_path / "cache"), plain)
    assert remedy in caught.value.remedy
    assert not list((tmp_path / "cache").glob("model-*"))


@pytest.mark.parametrize(
    ("fields", "what"),
    [
        ({"head_dim": 10}, "a multiple of 4"),
        ({"head_dim": None, "hidden_size": None}, "a multiple of 4"),
        ({"head_dim": None, "num_attention_heads": "8"}, "a multiple of 4"),
        ({"kv_lora_rank": 8}, "latent attention"),
    ],
)
def test_a_cache_without_int8_kernels_is_refused_first(
    plain: Path, tmp_path: Path, fields: dict[str, Any], what: str
) -> None:
    asked = job_of_model(plain, tmp_path / "cache", mlc=True)
    mode = replace(asked.recipe.mode, kv_cache="int8")
    int8 = replace(asked, recipe=replace(asked.recipe, mode=mode))
    check_model(int8, plain)
    change(plain, **fields)
    with pytest.raises(UserError, match=f"--kv-cache int8: .*{what}") as caught:
        check_model(int8, plain)
    assert "leave out --kv-cache" in caught.value.remedy


@pytest.mark.parametrize(
    ("family", "fields", "lacks"),
    [
        ("qwen3", {}, "0.self_attn.q_norm.weight and 1 more"),
        ("plain", {"model_type": "qwen2"}, "0.self_attn.k_proj.bias and 5 more"),
    ],
)
def test_weights_that_only_relatives_have_are_missed_first(
    tokenizer: Path, tmp_path: Path, family: str, fields: dict[str, str], lacks: str
) -> None:
    folder = write_folder(tmp_path / family, family, tokenizer)
    asked = job_of_model(folder, tmp_path / "cache", mlc=True)
    change(folder, **fields)
    if not fields:
        check_model(asked, folder)
        drop_weights(folder, "q_norm")
    with pytest.raises(UserError, match=f"the weights lack model.layers.{lacks}") as caught:
        check_model(asked, folder)
    assert caught.value.exit_code == 2


LAYER = "model.layers.0."
LLAMA4 = {"model_type": "llama4_text", "attention_chunk_size": 64}


@pytest.mark.parametrize(
    ("name", "shape", "what"),
    [
        (f"{LAYER}self_attn.q_proj.bias", (64,), "self_attn.q_proj.bias is not read"),
        (f"{LAYER}mlp.up_proj.weight_scale_inv", (1, 1), "weight_scale_inv is not read"),
        (f"{LAYER}self_attn.q_proj.lora_A.weight", (4, 4), "lora_A.weight is not read"),
        ("model.norm.bias", (64,), "model.norm.bias is not read"),
        (f"{LAYER}self_attn.rotary_emb.inv_freq", (8,), ""),
        (f"{LAYER}self_attn.bias", (1, 1, 8, 8), ""),
        ("model.layers.9.mlp.up_proj.weight", (4, 4), ""),
        ("vision_tower.layers.0.weight", (4, 4), ""),
    ],
)
def test_weights_of_a_layer_that_nothing_reads_are_refused(
    plain: Path, tmp_path: Path, name: str, shape: tuple[int, ...], what: str
) -> None:
    save_file({name: np.zeros(shape, np.float32)}, plain / "more.safetensors")
    (plain / INDEX_FILE).unlink()
    asked = job_of_model(plain, tmp_path / "cache")
    if not what:
        check_model(asked, plain)
        return
    with pytest.raises(UserError, match=what) as caught:
        check_model(asked, plain)
    assert caught.value.exit_code == 2 and "without adapters" in caught.value.remedy


def test_weights_in_bytes_are_refused_by_name(plain: Path, tmp_path: Path) -> None:
    """A quantized model whose config.json does not say so."""
    for path in plain.glob("*.safetensors"):
        packed = {
            name: values.astype(np.int8) if "up_proj" in name else values
            for name, values in load_file(path).items()
        }
        save_file(packed, path)
    with pytest.raises(UserError, match=r"up_proj\.weight and 1 more has values of the type I8"):
        check_model(job_of_model(plain, tmp_path / "cache"), plain)


@pytest.mark.slow
def test_weights_of_families_without_a_reference_are_missed_first(
    tokenizer: Path, tmp_path: Path
) -> None:
    """MLC-LLM itself says what it takes from the files, before they are hashed and read."""
    tools = mlc_tree.tools()
    folder = write_folder(tmp_path / "olmo", "plain", tokenizer)
    # The shape of OLMo, of which MLC-LLM takes no norms.
    change(folder, model_type="olmo", clip_qkv=None)
    drop_weights(folder, "layers.1.mlp.down_proj")
    asked = job_of_model(folder, tmp_path / "cache", "--unchecked", mlc=True)
    recipe = replace(asked.recipe, tvm_tree=tools.tvm_tree, mlc_tree=tools.mlc_tree)
    asked = replace(asked, recipe=recipe)
    with pytest.raises(UserError, match=r"lack model\.layers\.1\.mlp\.down_proj\.weight\n"):
        check_model(asked, folder)
    change(folder, hidden_size="wide")
    with pytest.raises(UserError, match=r"MLC-LLM rejects .*config\.json: ") as caught:
        check_model(asked, folder)
    assert caught.value.exit_code == 2 and "published" in caught.value.remedy


def test_a_prompt_and_its_answer_have_to_fit(plain: Path, tmp_path: Path) -> None:
    """Refused before weights are converted: the emulator would find out after all else."""
    words = "to be or not " * 8
    asked = job_of_model(plain, tmp_path / "cache", "--context", "30", "--prompt", words)
    with pytest.raises(
        UserError, match="up to 8 do not fit the model's context of 30 tokens"
    ) as caught:
        ask(asked, Clock())
    assert "--context" in caught.value.remedy
    assert not list((tmp_path / "cache").glob("params-*"))


def test_what_cannot_be_packed_is_not_built(plain: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="--applied FILE is missing") as caught:
        model_job.main([str(plain), "--tvm-tree", "tvm", "--cache", str(tmp_path / "cache")])
    assert "nox -s model" in caught.value.remedy
    assert not (tmp_path / "cache").exists()


def test_no_sequence_is_longer_than_the_model_reads(plain: Path, tmp_path: Path) -> None:
    def longest(*options: str, mlc: bool = True) -> int:
        return job_of_model(plain, tmp_path, *options, mlc=mlc).recipe.of(plain).longest

    assert longest() == longest(mlc=False) == 256
    assert longest("--context", "100") == 100
    for kind in ("mistral", "mixtral", "phi3", "starcoder2", "gemma2"):
        change(plain, model_type=kind, sliding_window=64)
        assert longest() == 64
    change(plain, model_type="gpt_oss")
    assert longest() == 256
    change(plain, model_type="qwen2", use_sliding_window=False)
    assert longest() == 256
    change(plain, model_type="qwen", use_sliding_window=None, seq_length=64)
    assert longest() == 64
    change(plain, model_type="chatglm", max_position_embeddings=None)
    assert longest() == 64
    change(plain, model_type="llama", max_position_embeddings=131072)
    assert (longest(), longest(mlc=False)) == (2048, 131072)


@pytest.mark.parametrize(
    ("fields", "what"),
    [
        ({"model_type": "olmo"}, "give wrong answers: of a cause"),
        ({"model_type": "eagle"}, "models of type 'eagle' are not supported: .* another model"),
        ({"model_type": "mamba"}, "models of type 'mamba' are not supported"),
        ({"model_type": "llava", "text_config": {}}, "lacks the table 'vision_config'"),
        ({"model_type": "phi", "hidden_act": "gelu_new"}, "cannot be checked"),
        ({"model_type": "deepseek_v2"}, "cannot be checked"),
    ],
)
def test_families_that_are_not_right_are_refused_by_name(
    plain: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    fields: dict[str, str],
    what: str,
) -> None:
    known = families()
    wrong = known | {"olmo": replace(known["olmo"], known="of a cause")}
    monkeypatch.setattr(model_check, "families", lambda: wrong)
    change(plain, **fields)
    with pytest.raises(UserError, match=what):
        check_model(job_of_model(plain, tmp_path / "cache", mlc=True), plain)


@pytest.mark.parametrize(
    ("fields", "options", "what"),
    [
        (
            {"model_type": "olmo", "rope_scaling": {"rope_type": "spiral"}},
            (),
            "'spiral'.*not checked",
        ),
        ({"model_type": "olmo2", "rope_scaling": {"type": "linear"}}, (), "'linear'.*not checked"),
        ({"model_type": "deepseek_v2", "rope_scaling": {"type": "linear"}}, (), "'linear'"),
        ({"model_type": "olmo"}, ("--context", "257"), "reads 256 tokens at most"),
        ({"model_type": "qwen", "seq_length": 64}, ("--context", "65"), "reads 64 tokens at most"),
        (
            {"model_type": "llama4", "text_config": LLAMA4},
            ("--context", "65"),
            "reads 64 tokens at most",
        ),
        (
            {"model_type": "gemma3_text", "rope_scaling": {"rope_type": "yarn", "factor": 8.0}},
            (),
            "'yarn'.*not checked",
        ),
        (
            {
                "model_type": "gemma3_text",
                "rope_parameters": {"full_attention": {"rope_type": "yarn", "factor": 8.0}},
            },
            (),
            "'yarn'.*not checked",
        ),
        ({"model_type": "gemma3_text", "rope_local_base_freq": 5e4}, (), "rope_local_base_freq"),
        ({"model_type": "gemma3_text", "layer_types": ["full_attention"]}, (), "number 6 divides"),
        ({"model_type": "gemma3_text", "use_bidirectional_attention": True}, (), "bidirectional"),
        ({"model_type": "gemma3_text", "final_logit_softcapping": 30.0}, (), "softcapping = 30"),
        ({"model_type": "cohere", "use_qk_norm": True}, (), "use_qk_norm = True is not supported"),
        ({"model_type": "phi"}, (), "hidden_act = silu is not supported"),
        ({"model_type": "phi3", "sliding_window": 99}, ("--context", "100"), "reads 99 tokens"),
        ({"model_type": "baichuan", "z_loss_weight": 0}, (), "z_loss_weight = 0 is not supported"),
        ({"model_type": "chatglm", "rope_ratio": 50}, (), "rope_ratio = 50 is not supported"),
        ({**HYBRID, "text_config": {"layer_types": ["full_attention"]}}, (), "number 4 divides"),
        ({**HYBRID, "text_config": {"layer_types": 5}}, (), "number 4 divides"),
        ({**HYBRID, "text_config": {"full_attention_interval": 0}}, (), "interval = 0"),
        ({**HYBRID, "text_config": {"attn_output_gate": False}}, (), "attn_output_gate = false"),
    ],
)
def test_what_no_reference_would_notice_is_refused(
    plain: Path, tmp_path: Path, fields: dict[str, Any], options: tuple[str, ...], what: str
) -> None:
    change(plain, **fields)
    asked = job_of_model(plain, tmp_path / "cache", "--unchecked", *options, mlc=True)
    with pytest.raises(UserError, match=what):
        check_model(asked, plain)


# Gemma 3 4B's part for text says how its two kinds of layers scale in either form.
LINEAR = {"rope_type": "linear", "factor": 8.0}
LAYERS = {"full_attention": LINEAR, "sliding_attention": {"rope_type": "default"}}


@pytest.mark.parametrize(
    ("kind", "scaling"),
    [
        ("deepseek_v2", {"rope_scaling": families()["deepseek_v2"].config["rope_scaling"]}),
        ("deepseek_v2", {"rope_scaling": None}),
        ("deepseek_v2", {"rope_scaling": {"rope_type": "default"}}),
        ("gemma3_text", {"rope_scaling": LINEAR}),
        ("gemma3_text", {"rope_parameters": LAYERS}),
        ("gemma3_text", {}),
        ("llama", {"rope_scaling": LINEAR}),
    ],
)
def test_scaling_that_the_zoo_has_is_made(
    plain: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
    scaling: dict[str, Any],
) -> None:
    monkeypatch.setattr(model_check, "wanted_weights", lambda *_: set())
    change(plain, model_type=kind, **scaling)
    check_model(job_of_model(plain, tmp_path / "cache", "--unchecked", mlc=True), plain)


SCALINGS: list[Any] = [
    LINEAR,
    {"type": "dynamic", "factor": 2.0},
    {"rope_type": "ntk", "factor": 2.0},
    {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64},
    families()["gpt_oss"].config["rope_scaling"] | {"attention_factor": 1.0},
    {"rope_type": "longrope", "short_factor": [1.0] * 32, "long_factor": [2.0] * 32},
    LLAMA3,
    {"factor": 2.0},
    "linear",
]


@pytest.mark.parametrize("family", families())
def test_rotary_positions_that_the_zoo_lacks_are_refused(
    plain: Path, tmp_path: Path, family: str
) -> None:
    """Each kind of scaling in each family, and a part of the features."""
    known = families()[family]
    asked = job_of_model(plain, tmp_path / "cache", "--unchecked", mlc=True)

    def refused(fields: dict[str, Any]) -> bool:
        own = {"model_type": known.config["model_type"], **fields}
        change(plain, **({"model_type": known.kind, "text_config": own} if known.within else own))
        try:
            check_model(asked, plain)
        except UserError as error:
            return " is not checked for models of type" in error.what
        return False

    kinds = {"llama": {"linear", "llama3"}, "llama4": {"llama3"}}
    kinds |= {name: {"linear"} for name in ("gemma3", "gemma3_4b")}
    for scaling in SCALINGS:
        kind = scaling.get("rope_type") if isinstance(scaling, dict) else None
        wanted = kind not in kinds.get(family, ())
        assert refused({"rope_scaling": scaling}) is wanted, scaling
        if isinstance(scaling, dict) and kind:
            newer = {"rope_scaling": None, "rope_parameters": scaling}
            assert refused(newer) is wanted, scaling
    plain_positions = {"rope_scaling": None, "rope_parameters": None}
    turned = ("phi", "stablelm", "nemotron", "gpt_neox", "qwen3_5")
    part = {**plain_positions, "partial_rotary_factor": 0.5}
    assert refused(part) is (family not in turned)
    assert not refused({**plain_positions, "partial_rotary_factor": 1.0})


def test_the_text_of_a_hybrid_is_made(
    plain: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its settings are in a table of their own, beside those of an encoder of images."""
    monkeypatch.setattr(model_check, "wanted_weights", lambda *_: set())
    rope = {"rope_type": "default", "rope_theta": 1e7, "partial_rotary_factor": 0.25}
    layers = [*["linear_attention"] * 3, "full_attention"] * 2
    text = {"layer_types": layers, "rope_parameters": rope, "max_position_embeddings": 99}
    change(plain, **HYBRID, text_config=text, max_position_embeddings=None)
    check_model(job_of_model(plain, tmp_path / "cache", mlc=True), plain)
    assert read_table(plain / "config.json")["layer_types"] == layers


def test_the_text_of_a_gemma_3_with_an_encoder_of_images_is_made(
    plain: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Published files of 4B leave out what transformers' class has by default."""
    monkeypatch.setattr(model_check, "wanted_weights", lambda *_: set())
    text = {"model_type": "gemma3_text", "hidden_size": 2560, "intermediate_size": 10240}
    text |= {"num_hidden_layers": 34, "rope_scaling": LINEAR, "sliding_window": 1024}
    whole = {"model_type": "gemma3", "text_config": text, "vision_config": {"image_size": 896}}
    (plain / "config.json").write_text(json.dumps(whole), encoding="utf-8")
    check_model(job_of_model(plain, tmp_path / "cache", "--unchecked", mlc=True), plain)
    table = read_table(plain / "config.json")
    names = ("num_attention_heads", "num_key_value_heads", "head_dim", "vocab_size")
    assert [table[name] for name in names] == [8, 4, 256, 262208]
    text["layer_types"] = ["full_attention"] * 34
    (plain / "config.json").write_text(json.dumps(whole), encoding="utf-8")
    with pytest.raises(UserError, match="number 6 divides"):
        check_model(job_of_model(plain, tmp_path / "cache", "--unchecked", mlc=True), plain)


def test_options_that_cannot_be_are_refused(
    plain: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(UserError, match="reads 256 tokens at most"):
        check_model(job_of_model(plain, tmp_path, "--context", "257"), plain)
    assert job_of_model(plain, tmp_path, "--context", "100").recipe.context == 100
    with pytest.raises(SystemExit, match="2"):
        job_of_model(plain, tmp_path, "--core", "nobody")
    assert "'nobody' is not a known core; choose from" in capsys.readouterr().err
    assert job_of_model(plain, tmp_path, "--core", "spacemit-x60").recipe.vlens == (256,)
    with pytest.raises(UserError, match="--name A b"):
        job_of_model(plain, tmp_path, "--name", "A b")
    with pytest.raises(UserError, match="a quantization of MLC-LLM"):
        job_of_model(plain, tmp_path, "--quantization", "q4f16_1")
    assert job_of_model(plain, tmp_path).recipe.quantization == "q0f32"
    assert job_of_model(plain, tmp_path, mlc=True).recipe.quantization == "q4f16_1"
    for wrong in ("./nowhere", "x.gguf"):
        with pytest.raises(UserError, match="is not there"):
            import_model(wrong, "x", PROJECT, tmp_path)
    with pytest.raises(UserError, match="is not a model on the hub"):
        parse_reference("hf:one-part")
