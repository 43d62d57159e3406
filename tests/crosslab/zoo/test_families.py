# SPDX-License-Identifier: Apache-2.0
"""The families' configs and weights, and what is said of an outcome; without torch or MLC-LLM."""

from __future__ import annotations

import itertools
import json
import tracemalloc
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from support.passes.made_up_formats import ALL_PACKINGS
from support.patched_trees import trees
from support.shared_builds import PROJECT

from crosslab.assemble.kernels import read_kernels
from crosslab.errors import UserError
from crosslab.host.cost import Cost
from crosslab.models.families import Family, chosen, families, refusals
from crosslab.models.formats import Packing
from crosslab.models.params import from_bfloat16, to_bfloat16
from crosslab.models.weights_file import F32
from crosslab.zoo.cli import ABOUT, main
from crosslab.zoo.outcome import FamilyOutcome, FamilyStatus, Fault, count_products, first_reason
from crosslab.zoo.table import document, merged, read_report, with_real_sizes, write_report
from crosslab.zoo.weights import USUAL, fill_tensor

ASKED = [
    "llama",
    "gpt2",
    "gpt_neox",
    "qwen2",
    "qwen3",
    "gemma",
    "gemma2",
    "gemma3",
    "phi",
    "phi3",
    "mistral",
    "stablelm",
    "starcoder2",
    "olmo",
    "mixtral",
]
NORM = (0.5, 1.5)


def test_the_page_begins_with_the_text_before_the_table() -> None:
    about = ABOUT.read_text(encoding="utf-8").rstrip()
    page = (PROJECT / "docs" / "zoo.md").read_text(encoding="utf-8")
    assert page.startswith(f"{about}\n\n| family |")


def test_the_families_that_were_asked_for_are_there() -> None:
    assert set(ASKED) <= set(families())


@pytest.mark.parametrize("family", families().values(), ids=lambda f: f.name)
def test_a_config_is_in_the_shape_of_a_model(family: Family) -> None:
    # A model that sees holds its language model's settings in a table of their own.
    config = {**family.config, **family.config.get("text_config", {})}
    width = config.get("hidden_size") or config["n_embd"]
    heads = config.get("num_attention_heads") or config.get("n_head") or config["head_size"]
    assert width % heads == 0
    assert heads % config.get("num_key_value_heads", heads) == 0
    # Groups of 32 along every matrix's inputs: quantization loses nothing.
    for name in ("hidden_size", "intermediate_size", "n_embd", "moe_intermediate_size"):
        assert config.get(name, 0) % 32 == 0
    assert family.context >= 64
    assert "/" in family.like


def test_gpt2_has_its_real_size() -> None:
    config = chosen(["gpt2"])[0].config
    sizes = [config[n] for n in ("n_embd", "n_layer", "n_head", "n_positions", "vocab_size")]
    assert sizes == [768, 12, 12, 1024, 50257]


@pytest.mark.parametrize("family", families().values(), ids=lambda f: f.name)
def test_real_sizes_are_sizes_of_the_config(family: Family) -> None:
    real = family.of_real_size(3)
    assert real.layers == 3 <= family.real["layers"]
    assert family.config.keys() == real.config.keys()
    assert {name: type(value) for name, value in family.config.items()} == {
        name: type(value) for name, value in real.config.items()
    }
    assert family.settings.keys() == real.settings.keys()
    assert real.vocab >= 30000


@pytest.mark.parametrize(
    "family", [f for f in families().values() if "rwkv" not in f.name], ids=lambda f: f.name
)
def test_attention_of_real_sizes_has_kernels(family: Family) -> None:
    """Heads' keys and values, and latent vectors."""
    config = family.of_real_size().config
    config = config.get("text_config", config)
    heads = config.get("num_attention_heads") or config.get("n_head")
    sizes = [config.get("head_dim") or (config.get("hidden_size") or config["n_embd"]) // heads] * 2
    if latent := config.get("kv_lora_rank"):
        turned = config["qk_rope_head_dim"]
        sizes = [config["qk_nope_head_dim"] + turned, config["v_head_dim"], latent + turned, latent]
    products = itertools.cycle(("qk", "pv"))
    wanted = {(p, 16, kv, d) for p, d in zip(products, sizes, strict=False) for kv in (16, 32)}
    assert wanted <= {(k.product, k.q_tile, k.kv_tile, k.d) for k in read_kernels()}


def test_a_model_of_real_size_has_each_kind_of_layer() -> None:
    hybrid = chosen(["qwen3_5"])[0]
    assert hybrid.of_real_size().config == hybrid.of_real_size(4).config
    kinds = hybrid.of_real_size(6).config["layer_types"]
    assert kinds == [*hybrid.config["layer_types"], "linear_attention", "linear_attention"]
    assert hybrid.config["vocab_size"] == 512
    assert chosen(["gpt_oss"])[0].of_real_size().layers == 2
    with pytest.raises(UserError, match="the sizes of llava-hf/llava"):
        replace(chosen(["llava"])[0], real={}).of_real_size()


def test_a_model_that_sees_has_the_layers_of_its_language_model() -> None:
    family = chosen(["llava"])[0].of_real_size(5)
    assert family.config["text_config"]["num_hidden_layers"] == family.layers == 5
    assert family.config["vision_config"]["num_hidden_layers"] == 3
    assert family.config["text_config"]["vocab_size"] == family.vocab == 32064


def test_unknown_families_are_refused() -> None:
    with pytest.raises(UserError, match="no family lama") as refused:
        chosen(["lama"])
    assert "llama" in refused.value.remedy


def test_names_are_those_of_published_files() -> None:
    assert chosen(["gpt2"])[0].published("transformer.h.0.ln_1.weight") == "h.0.ln_1.weight"


def random_tensor(name: str, shape: Sequence[int], seed: int, packing: Packing = USUAL) -> F32:
    values = np.empty(shape, np.float32)
    fill_tensor(values, name, NORM, seed, packing)
    return values


@pytest.mark.parametrize("shape", [(64, 96), (50, 64), (8, 128), (3, 64, 32), (768, 256)])
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("packing", [p for p in ALL_PACKINGS.values() if p], ids=str)
def test_quantization_in_groups_gives_weights_back(
    packing: Packing, shape: tuple[int, ...], transposed: bool
) -> None:
    values = random_tensor("w", shape, 7, packing).reshape(-1, shape[-1])
    values = values.T if transposed and len(shape) == 2 and shape[0] > packing.group else values
    # As in mlc_llm/quantization/group_quantization.py, with float32 throughout.
    for first in range(0, values.shape[1], packing.group):
        group, largest = values[:, first : first + packing.group], np.float32(packing.zero_point)
        scale = np.abs(group).max(-1, keepdims=True) / largest
        stored = np.clip(np.round(group / scale + largest), 0, 2 * largest)
        assert np.array_equal((stored - largest) * scale, group)
        assert np.array_equal(scale.astype(np.float16), scale)


def test_narrow_formats_hold_weights_exactly() -> None:
    shapes = {"w.weight": (64, 96), "norm.weight": (96,), "w.bias": (64,)}
    for name, shape in shapes.items():
        values = random_tensor(name, shape, 3)
        assert np.array_equal(from_bfloat16(to_bfloat16(values)), values)
        assert np.array_equal(values.astype(np.float16).astype(np.float32), values)
        assert len(np.unique(values)) > 10


@pytest.mark.parametrize("shape", [(8192, 256), (4, 2048, 256)])
def test_large_weights_take_little_more_memory_than_their_own(shape: tuple[int, ...]) -> None:
    values = np.empty(shape, np.float32)
    tracemalloc.start()
    try:
        fill_tensor(values, "w", NORM, 3)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < values.nbytes / 4
    assert np.array_equal(values, random_tensor("w", shape, 3))


def test_weights_depend_on_their_name_and_the_seed() -> None:
    made = random_tensor("a", (32, 32), 1)
    assert np.array_equal(made, random_tensor("a", (32, 32), 1))
    assert not np.array_equal(made, random_tensor("b", (32, 32), 1))
    assert not np.array_equal(made, random_tensor("a", (32, 32), 2))


def test_products_are_counted_by_what_they_call() -> None:
    report = [
        {"symbol": "gemm", "reason": None},
        {"symbol": None, "reason": "too small"},
        {"symbol": None, "reason": "too small"},
    ]
    assert count_products(report) == (1, 3, {"too small": 2})


def test_the_reason_is_the_error_and_not_the_traceback() -> None:
    text = 'Traceback\n  File "/home/me/tvm/x.py", line 3, in f\nValueError: no /home/me/tvm/x.py\n'
    assert first_reason(text) == "ValueError: no x.py"


def test_a_report_is_read_as_it_was_written(tmp_path: Path) -> None:
    right = FamilyOutcome("llama", "q0f32", FamilyStatus.RIGHT, 1e-6, 22, 22, plain={})
    wrong = FamilyOutcome(
        "llama", "q4f32_1", FamilyStatus.WRONG, 0.5, 20, 22, "logits", Fault.OURS, {"x": 2}
    )
    path = tmp_path / "out" / "zoo.json"
    write_report(path, [right, wrong])
    assert read_report(path) == [right, wrong]
    mended = FamilyOutcome("llama", "q4f32_1", FamilyStatus.RIGHT, 1e-6, 22, 22)
    assert merged(read_report(path), [mended]) == [right, mended]


def test_the_table_says_what_is_right_and_what_is_not() -> None:
    outcomes = [
        FamilyOutcome("llama", "q0f32", FamilyStatus.RIGHT, 8.6e-7, 22, 22),
        FamilyOutcome(
            "phi", "q0f32", FamilyStatus.NOT_COMPILED, None, 0, 0, "ValueError: no", Fault.UPSTREAM
        ),
    ]
    text = document(chosen(["llama", "phi"]), outcomes, "# About\n")
    assert "| llama | meta-llama/Llama-3.2-1B | right (9e-07) | 22/22 |" in text
    assert "does not compile, upstream's" in text
    assert "1 of 2 right" in text
    assert "`ValueError: no`" in text


def test_each_vlen_and_release_is_a_column_of_its_own() -> None:
    first = FamilyOutcome("llama", "q0f32", FamilyStatus.RIGHT, 1e-6, release="A", vlen=512)
    others = [
        replace(first, vlen=256),
        replace(first, release="B", vlen=256, outcome=FamilyStatus.WRONG, reason="logits"),
    ]
    assert [o.key[2:4] for o in merged([first], others)] == [(256, "A"), (512, "A"), (256, "B")]
    text = document(chosen(["llama"]), merged([first], others), "# About\n")
    assert "| q0f32, A, VLEN 256 | q0f32, A, VLEN 512 | q0f32, B, VLEN 256 | kernels |" in text
    assert "q0f32, B, VLEN 256: 0 of 1 right" in text
    assert "* **llama, q0f32, B, VLEN 256**" in text


def test_models_of_real_size_have_a_table_of_their_own(tmp_path: Path) -> None:
    small = FamilyOutcome("llama", "q4f16_1", FamilyStatus.RIGHT, 1e-6)
    converted, compiled = Cost(2_100_000_000, 30.2), Cost(900_000_000, 61.0)
    real = replace(small, layers=2, largest=131_000_000, converted=converted, compiled=compiled)
    failed = replace(real, layers=16, compiled=None, outcome=FamilyStatus.TIMEOUT, reason="late")
    write_report(tmp_path / "zoo.json", [small])
    write_report(tmp_path / "zoo.json", merged(read_report(tmp_path / "zoo.json"), [failed, real]))
    known = read_report(tmp_path / "zoo.json")
    assert known == [small, real, failed]
    text = document(chosen(["llama"]), known, "# About\n")
    assert "q4f16_1: 1 of 1 right" in text
    costs_of = "| 131 MB | 2.1 GB, 30 s | 0.9 GB, 61 s |"
    assert f"| llama | q4f16_1 | 2 of 16 | right (1e-06) {costs_of}" in text
    assert "| 16 of 16 | out of time: `late` | 131 MB | 2.1 GB, 30 s | - |" in text
    assert "not right, and why" not in text
    assert "at most 16.0 times its largest tensor\n(measured up to 2.1 GB for 131 MB)" in text
    assert "a tensor of 1372 MB" in text
    page = with_real_sizes(text, chosen(["phi", "llama"]), [replace(real, family="phi"), failed])
    assert page.count("| 131 MB |") == 2
    assert page.index("| phi | q4f16_1 | 2 of 32") < page.index("| llama | q4f16_1 | 16 of 16")
    start = page.index("## Real")
    assert page[:start] == text[:start]
    assert page[page.index("## Refused") :] == text[text.index("## Refused") :]
    with pytest.raises(UserError, match="no heading '## Real sizes'"):
        with_real_sizes("# About\n", chosen(["llama"]), [real])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--real", "-1"], "--real -1"),
        (["--tuned", "there"], "--tuned needs --core"),
        (["--core", "spacemit-x60", "--tuned", "there"], "--tuned: no database in there"),
        (["--core", "spacemit-x60", "--vlen", "128"], "--vlen 128: spacemit-x60 has 256"),
        (
            ["--core", "spacemit-x60", "--vlen", "128,256"],
            "--vlen 128,256: spacemit-x60 has 256",
        ),
        (["--core", "spacemit-x60", "--scheduler", "127.0.0.1:1"], "workers do not compile"),
    ],
)
def test_a_core_is_one_and_brings_its_database(options: list[str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        main(["--project", str(PROJECT), *options])


def test_without_mlc_llm_it_says_how_to_give_it(tmp_path: Path) -> None:
    given = ["--tvm-tree", str(tmp_path), "--project", str(tmp_path), "--family", "llama"]
    mlc = {"name": "mlc-llm", "state": "missing", "reason": "no network", "remedy": "get one"}
    (tmp_path / "apply.json").write_text(json.dumps({"upstreams": [mlc]}))
    with pytest.raises(UserError, match="no network") as refused:
        main([*given, "--applied", str(tmp_path / "apply.json")])
    assert "--mirror mlc-llm=" in refused.value.remedy
    assert refused.value.exit_code == 2


def test_each_folder_of_mlc_llm_is_a_family_or_is_refused() -> None:
    models = trees() / "mlc-llm" / "python" / "mlc_llm" / "model"
    if not models.is_dir():
        pytest.skip(f"no patched MLC-LLM tree in {models}; make it with: nox -s apply_patches")
    # A folder is a model's if it has a loader or a definition; `vision` has parts of others.
    found = {path.parent.name for path in models.glob("*/*_model.py")}
    refused = {refusal.folder for refusal in refusals()}
    known = {family.folder for family in families().values() if family.folder}
    assert found == known | refused
    assert not known & refused
    assert len(found) == 42


def test_a_refusal_is_one_sentence() -> None:
    kinds = [kind for refusal in refusals() for kind in refusal.kinds]
    assert len(kinds) == len(set(kinds))
    assert not {family.kind for family in families().values()} & set(kinds)
    for refusal in refusals():
        assert 20 < len(refusal.why) < 140
        assert ". " not in refusal.why
        assert not refusal.why.endswith(".")


def test_weights_are_fused_as_published_files_hold_them() -> None:
    """Rows of three parts; with groups, the queries of each before its key and value."""
    at = "model.layers.0.self_attn"
    rows = {"q": 8, "k": 4, "v": 4}  # four heads of queries, two groups; two elements a head
    stored = {
        f"{at}.{part}_proj.weight": np.arange(n)[:, None] + 100 * i
        for i, (part, n) in enumerate(rows.items())
    }
    (plain,) = chosen(["baichuan"])[0].published_weights(stored).values()
    assert plain[:, 0].tolist() == [*range(8), *range(100, 104), *range(200, 204)]
    fused = chosen(["internlm2"])[0].published_weights(stored)
    assert list(fused) == ["model.layers.0.attention.wqkv.weight"]
    groups = [0, 1, 2, 3, 100, 101, 200, 201, 4, 5, 6, 7, 102, 103, 202, 203]
    assert fused["model.layers.0.attention.wqkv.weight"][:, 0].tolist() == groups


def test_a_gate_that_files_lack_is_a_factor_of_their_weights() -> None:
    family = chosen(["deepseek"])[0]
    at = "model.layers.1.mlp.shared_expert"
    stored = {f"{at}_gate.weight": np.zeros(2), f"{at}.down_proj.weight": np.ones(2, np.float32)}
    (half,) = family.published_weights(stored).items()
    assert half[0] == "model.layers.1.mlp.shared_experts.down_proj.weight"
    assert half[1].tolist() == [0.5, 0.5]
    assert half[1].dtype == np.float32
