# SPDX-License-Identifier: Apache-2.0
"""llama.cpp's own GGUF file of each family becomes the published folder that it was made from."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from support.mlc_tree import run_python
from support.models.gguf_rewrite import rewrite
from support.models.llama_cpp_converter import PARTS, convert, name_class
from support.shared_builds import PROJECT

from crosslab.assemble.pinned_archive import read_archive, unpack_source
from crosslab.errors import LabError, UserError
from crosslab.models.config import FAMILIES, read_table
from crosslab.models.families import Family, families
from crosslab.models.gguf_params import TYPES, GgufWeights
from crosslab.models.sources import gguf_families
from crosslab.models.sources.gguf_import import import_into, kind_of_file
from crosslab.models.sources.model_folder import check_source, import_model, name_of
from crosslab.models.weights_file import StoredWeights
from crosslab.tokenizer.chat_tokenizer import ChatTokenizer
from crosslab.zoo.reference import make_model

pytestmark = pytest.mark.slow

# llama.cpp has no files of the first two. The next one's experts are weights of their own after an
# import: test_zoo.py compares its answers. The last one's files have its text model alone: gemma3.
NO_FILE = ("gptj", "rwkv5", "llava", "gpt_oss", "gemma3_4b")
# What a file does not have: some numbers are those of every published model.
PUBLISHED: Mapping[str, Mapping[str, Any]] = {
    "gemma2": {"query_pre_attn_scalar": 128},
    "gpt2": {"n_embd": 128, "n_layer": 2, "n_head": 2, "vocab_size": 512},
    "llama": {
        "rope_scaling": {
            "factor": 32.0,
            "high_freq_factor": 4.0,
            "low_freq_factor": 1.0,
            "original_max_position_embeddings": 8192,
            "rope_type": "llama3",
        }
    },
    # The converter of Llamas, which this family's files come from, asks for it.
    "internlm": {"num_key_value_heads": 2},
    "llama4": {"floor_scale": 8192},
    # From the seventh layer, files hold halves of some weights.
    "rwkv6": {"num_hidden_layers": 7, "context_length": 1048576},
    # Of these lengths, the converter writes the one that the published models were trained for.
    "nomic_bert": {
        **{"max_position_embeddings": 2048, "n_positions": 8192, "max_trained_positions": 2048},
        **{"activation_function": "swiglu", "causal": False, "prenorm": False},
        **{"qkv_proj_bias": False, "mlp_fc1_bias": False, "mlp_fc2_bias": False},
        **{"rotary_emb_base": 1000.0, "rotary_emb_fraction": 1.0, "rotary_emb_interleaved": False},
        "rotary_emb_scale_base": None,
    },
}
# Fields that MLC-LLM does not read.
IDLE = ("architectures", "use_dynamic_ntk", "use_logn_attn")
# A file has no window that the model does not use, and a Mistral is a Llama.
IDLE_OF = {
    "mistral": ("model_type", "sliding_window"),
    "nomic_bert": ("hidden_act", *PUBLISHED["nomic_bert"]),
    "phi3": ("pad_token_id",),
    "qwen2": ("sliding_window",),
    "qwen2_moe": ("sliding_window",),
    "smollm3": ("pad_token_id",),
    "starcoder2": ("sliding_window",),
}
CONVERTED = [family for family in families().values() if family.name not in NO_FILE]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The families' published folders, each with its file."""
    pytest.importorskip("torch", reason="torch is not installed")
    root = tmp_path_factory.mktemp("families")
    try:
        tree = unpack_source(read_archive(PROJECT), PARTS, root)
    except LabError as error:
        pytest.skip(f"llama.cpp cannot be had: {error.what}")
    for family in CONVERTED:
        folder = root / family.name
        folder.mkdir()
        config = {**family.config, **PUBLISHED.get(family.name, {})}
        make_model(replace(family, config=config), folder)
        name_class(folder, family)
    convert(tree, [root / family.name for family in CONVERTED])
    return root


@pytest.mark.parametrize("family", CONVERTED, ids=lambda family: family.name)
def test_a_file_becomes_the_folder_that_it_was_made_from(
    folders: Path, family: Family, tmp_path: Path
) -> None:
    folder = folders / family.name
    import_into(folder / "model.gguf", tmp_path)
    before, after = StoredWeights.of_model(folder), StoredWeights.of_model(tmp_path)
    assert set(after.places) == set(before.places)
    for name in before.places:
        # A norm less one, and the logarithm of an exponential, are rounded.
        np.testing.assert_allclose(after.read(name), before.read(name), 1e-6, 1e-6, err_msg=name)
    wanted, found = (plain(read_table(at / "config.json")) for at in (folder, tmp_path))
    for name in set(wanted) - {*IDLE, *IDLE_OF.get(family.name, ())}:
        if isinstance(wanted[name], float):
            assert found[name] == pytest.approx(wanted[name], rel=1e-7), name
        else:
            assert found[name] == wanted[name], name


READ = """
import dataclasses, json, sys
from pathlib import Path
from mlc_llm.model.model import MODELS

read = []
for folder in sys.argv[1:]:
    path = Path(folder) / "config.json"
    kind = json.loads(path.read_text())["model_type"]
    table = dataclasses.asdict(MODELS[kind].config.from_file(path))
    table |= table.pop("text_config", None) or {}
    read.append({name: value for name, value in table.items() if name != "kwargs"})
print(json.dumps(read))
"""


def test_mlc_llm_reads_the_config_of_a_file_as_the_published_one(
    folders: Path, tmp_path: Path
) -> None:
    # A Mistral's file is a Llama's.
    names = [family.name for family in CONVERTED if family.name != "mistral"]
    published, imported = (tmp_path / kind for kind in ("published", "imported"))
    for name in names:
        for root in (published, imported):
            (root / name).mkdir(parents=True)
        table = read_table(folders / name / "config.json")
        (published / name / "config.json").write_text(json.dumps(table), encoding="utf-8")
        import_into(folders / name / "model.gguf", imported / name)
    both = [str(root / name) for root in (published, imported) for name in names]
    done = run_python("-c", READ, *both)
    assert done.returncode == 0, done.stderr
    read = json.loads(done.stdout.splitlines()[-1])
    for name, before, after in zip(names, read[: len(names)], read[len(names) :], strict=True):
        for field in set(before) - {"pad_token_id", "sliding_window"}:
            wanted = before[field]
            if isinstance(wanted, float):
                wanted = pytest.approx(wanted, rel=1e-7)
            assert after[field] == wanted, (name, field)


def plain(table: dict[str, Any]) -> dict[str, Any]:
    """A config with the fields of its tables beside its own."""
    table.pop("text_config", None)
    return table


@pytest.mark.parametrize("kind", FAMILIES)
def test_all_weights_stay_in_the_blocks_of_a_file(folders: Path, kind: str, tmp_path: Path) -> None:
    path = folders / kind / "model.gguf"
    in_blocks = tmp_path / "blocks.gguf"
    rewrite(path, in_blocks)
    out = tmp_path / "out"
    out.mkdir()
    import_into(in_blocks, out, blocks=True)
    before, after = StoredWeights.of_model(folders / kind), GgufWeights(out)
    types = read_table(out / "config.json")[TYPES]
    assert set(types) == {name for name, shape, _ in before.shapes() if len(shape) == 2}
    for name in types:
        values = before.read(name)
        largest = np.abs(values).max(axis=1, keepdims=True)
        assert np.all(np.abs(after.read(name) - values) <= largest / 127), name


def test_weights_whose_rows_are_made_of_several_leave_their_blocks(
    folders: Path, tmp_path: Path
) -> None:
    rewrite(folders / "deepseek_v2" / "model.gguf", tmp_path / "blocks.gguf")
    out = tmp_path / "out"
    out.mkdir()
    import_into(tmp_path / "blocks.gguf", out, blocks=True)
    types = read_table(out / "config.json")[TYPES]
    assert "model.layers.0.self_attn.kv_b_proj.weight" not in types
    assert {"model.layers.1.mlp.experts.7.up_proj.weight", "lm_head.weight"} <= set(types)


@pytest.mark.parametrize("kind", ["phi3", "llama", "bert", "qwen2_moe", "internlm", "llama4"])
def test_the_kind_of_a_file(folders: Path, kind: str) -> None:
    assert kind_of_file(folders / kind / "model.gguf") == (kind, kind == "qwen2_moe")


WRONG = {
    "embedding_length": ("lacks the field qwen3.embedding_length", None),
    "block_count": ("qwen3.block_count has the wrong value 'two'", "two"),
    "attention.head_count": ("qwen3.attention.head_count has the wrong value", 0),
    "context_length": ("qwen3.context_length has the wrong value", [256]),
    "feed_forward_length": ("qwen3.feed_forward_length has the wrong value", 2 * 10**9),
    "rope.scaling.type": ("qwen3.rope.scaling.type = yarn is not supported", "yarn"),
    # Without a type, llama.cpp scales linearly.
    "rope.scaling.factor": ("qwen3.rope.scaling.factor = 4.0 is not supported", 4.0),
    "attention.clamp_kqv": ("qwen3.attention.clamp_kqv = 8.0 is not supported", 8.0),
    "attention.value_length": ("qwen3.attention.value_length = 64 is not supported", 64),
}


@pytest.mark.parametrize(
    ("name", "value", "why"),
    [
        ("general.type", "adapter", "it holds changes of another model's weights"),
        ("general.type", "mmproj", "the language model is in another file"),
        ("general.architecture", "clip", "the language model is in another file"),
        ("general.architecture", "mamba", "reads no GGUF files of this architecture"),
        ("qwen3.rope.scale_linear", 4.0, "this older field of linear scaling is not read"),
        ("qwen3.rope.scaling.attn_factor", 1.19, "(longrope) is read"),
        ("qwen3.pooling_type", 3, "a vector is the mean of the tokens or the first token"),
        ("qwen3.attention.window", 8, "it is not known what the field changes"),
    ],
)
def test_a_refusal_says_field_value_and_reason(
    folders: Path, tmp_path: Path, name: str, value: Any, why: str
) -> None:
    path, architecture = tmp_path / "wrong.gguf", value if name == "general.architecture" else None
    fields = {} if architecture else {name: value}
    rewrite(folders / "qwen3" / "model.gguf", path, fields, architecture=architecture)
    with pytest.raises(UserError) as caught:
        kind_of_file(path)
        import_into(path, tmp_path)
    said = caught.value.what
    assert said.startswith(f"wrong.gguf: {name} = ")
    assert str(value) in said
    assert said.endswith(why)


def test_the_documentation_has_every_reason() -> None:
    page = (PROJECT / "docs" / "files.md").read_text(encoding="utf-8")
    reasons = gguf_families.reasons()
    refused = {n for family in gguf_families.families().values() for n in family.refuse}
    # A field that is compared in other families only, or always right.
    assert {n for n in refused if n not in reasons["field"]} == {
        "rope.scaling.original_context_length"
    }
    for kind, table in reasons.items():
        for name, why in table.items():
            field = f"`{name}`" if kind == "field" else f"`general.{kind}` `{name}`"
            assert f"| {field} | {why} |" in page, name


@pytest.mark.parametrize("field", WRONG)
def test_a_file_is_refused_by_the_field(folders: Path, field: str, tmp_path: Path) -> None:
    message, value = WRONG[field]
    rewrite(folders / "qwen3" / "model.gguf", tmp_path / "wrong.gguf", {f"qwen3.{field}": value})
    with pytest.raises(UserError, match=message):
        import_into(tmp_path / "wrong.gguf", tmp_path)


@pytest.mark.parametrize("family", ["llama", "mixtral", "internlm"])
def test_two_scalings_and_linear_ones_of_relatives_are_refused(
    folders: Path, family: str, tmp_path: Path
) -> None:
    """The file of Llama 3 has factors of its own."""
    scaled = {"llama.rope.scaling.factor": 4.0}
    rewrite(folders / family / "model.gguf", tmp_path / "wrong.gguf", scaled)
    with pytest.raises(UserError, match=r"llama\.rope\.scaling\.factor = 4\.0 is not supported"):
        import_into(tmp_path / "wrong.gguf", tmp_path)


def test_a_field_of_a_table_that_is_missing_is_named(folders: Path, tmp_path: Path) -> None:
    gone = {"mistral3.rope.scaling.factor": None}
    rewrite(folders / "ministral3" / "model.gguf", tmp_path / "wrong.gguf", gone)
    with pytest.raises(UserError, match=r"lacks the field mistral3\.rope\.scaling\.factor"):
        import_into(tmp_path / "wrong.gguf", tmp_path)


def test_a_number_of_layers_under_another_name_is_checked(folders: Path, tmp_path: Path) -> None:
    wrong = {"gpt2.block_count": "two"}
    rewrite(folders / "gpt2" / "model.gguf", tmp_path / "wrong.gguf", wrong)
    with pytest.raises(UserError, match=r"gpt2\.block_count has the wrong value 'two'"):
        import_into(tmp_path / "wrong.gguf", tmp_path)


def test_the_end_of_a_turn_ends_an_answer(folders: Path, tmp_path: Path) -> None:
    ends = {f"tokenizer.ggml.{n}_token_id": id for n, id in (("eos", 1), ("eot", 7), ("eom", 9))}
    rewrite(folders / "qwen3" / "model.gguf", tmp_path / "chat.gguf", ends)
    import_into(tmp_path / "chat.gguf", tmp_path)
    assert set(ChatTokenizer.load(tmp_path).stop_ids) == {1, 7, 9}


def test_a_field_with_a_default_may_be_missing(folders: Path, tmp_path: Path) -> None:
    gone = dict.fromkeys(["qwen3.rope.freq_base", "qwen3.attention.head_count_kv"])
    rewrite(folders / "qwen3" / "model.gguf", tmp_path / "short.gguf", gone)
    import_into(tmp_path / "short.gguf", tmp_path)
    table = read_table(tmp_path / "config.json")
    assert (table["rope_theta"], table["num_key_value_heads"]) == (10000.0, 4)


# Llama 3's rule with all waves longer than the original length.
DIVIDED = {
    "rope_type": "llama3",
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 1,
}
# Fields that older files lack, or that change nothing, and what becomes of the config.
VARIANTS: Mapping[str, tuple[str, Mapping[str, Any], Mapping[str, Any]]] = {
    "scaled-by-one": (
        "qwen3",
        {
            "qwen3.rope.scaling.type": "linear",
            "qwen3.rope.scaling.factor": 1.0,
            "qwen3.rope.scaling.original_context_length": 256,
            "qwen3.rope.scaling.finetuned": False,
        },
        {},
    ),
    "not-scaled": (
        "qwen3",
        {"qwen3.rope.scaling.type": "none", "qwen3.rope.scaling.factor": 4.0},
        {},
    ),
    "linear": (
        "mistral",
        {"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 4.0},
        {"rope_scaling": DIVIDED},
    ),
    "linear-by-default": (
        "mistral",
        {"llama.rope.scaling.factor": 4.0},
        {"rope_scaling": DIVIDED},
    ),
    "gemma-2-of-june-2024": (
        "gemma2",
        dict.fromkeys(
            f"gemma2.{name}"
            for name in (
                *("attn_logit_softcapping", "final_logit_softcapping"),
                "attention.sliding_window",
            )
        ),
        {"sliding_window": 4096},
    ),
    "gemma-3-1b": (
        "gemma3",
        dict.fromkeys(f"gemma3.rope.scaling.{name}" for name in ("type", "factor")),
        {"rope_scaling": None},
    ),
    "experts-by-the-width": (
        "qwen2_moe",
        dict.fromkeys(
            f"qwen2moe.{name}"
            for name in ("expert_feed_forward_length", "expert_shared_feed_forward_length")
        ),
        {"moe_intermediate_size": 192, "shared_expert_intermediate_size": 384},
    ),
    "older-minicpm": (
        "minicpm",
        dict.fromkeys(
            f"minicpm.{name}" for name in ("embedding_scale", "residual_scale", "logit_scale")
        ),
        {"dim_model_base": 256},
    ),
    "older-chatglm": ("chatglm3", {"chatglm.rope.freq_base": None}, {}),
    "latent-attention-without-scaling": (
        "deepseek_v2",
        dict.fromkeys(
            f"deepseek2.{name}"
            for name in (
                *("leading_dense_block_count", "rope.scaling.type", "rope.scaling.factor"),
                *("rope.scaling.original_context_length", "rope.scaling.yarn_log_multiplier"),
                *("rope.scaling.yarn_beta_fast", "rope.scaling.yarn_beta_slow"),
            )
        ),
        {"first_k_dense_replace": 0, "rope_scaling": None},
    ),
    "yarn-by-default": (
        "ministral3",
        dict.fromkeys(f"mistral3.rope.scaling.yarn_beta_{name}" for name in ("fast", "slow")),
        {},
    ),
    "phi-4": ("phi3", {"phi3.attention.sliding_window": 0}, {"sliding_window": None}),
    "each-layer": (
        "qwen3",
        {"qwen3.feed_forward_length": [384, 384], "qwen3.attention.head_count_kv": [2, 2]},
        {},
    ),
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_variants_of_published_files(folders: Path, tmp_path: Path, variant: str) -> None:
    name, changed, other = VARIANTS[variant]
    tables = []
    for number, fields in enumerate(({}, changed)):
        out = tmp_path / str(number)
        out.mkdir()
        rewrite(folders / name / "model.gguf", tmp_path / "variant.gguf", fields)
        import_into(tmp_path / "variant.gguf", out)
        tables.append(read_table(out / "config.json"))
    assert tables[1] == {**tables[0], **other}


def test_a_number_for_each_layer_is_refused(folders: Path, tmp_path: Path) -> None:
    widths = {"qwen3.feed_forward_length": [384, 256]}
    rewrite(folders / "qwen3" / "model.gguf", tmp_path / "wrong.gguf", widths)
    with pytest.raises(UserError, match=r"feed_forward_length has the wrong value '\[384, 256\]'"):
        import_into(tmp_path / "wrong.gguf", tmp_path)


def test_a_tensor_of_another_shape_is_refused(folders: Path, tmp_path: Path) -> None:
    heads = {"llama.attention.head_count": 3}
    rewrite(folders / "mistral" / "model.gguf", tmp_path / "wrong.gguf", heads)
    with pytest.raises(UserError, match=r"q_proj\.weight has the shape .*, which does not fit"):
        import_into(tmp_path / "wrong.gguf", tmp_path)


def test_a_layer_more_than_the_file_says_is_refused(folders: Path, tmp_path: Path) -> None:
    rewrite(folders / "qwen3" / "model.gguf", tmp_path / "one.gguf", {"qwen3.block_count": 1})
    with pytest.raises(UserError, match=r"unknown tensor blk\.1\."):
        import_into(tmp_path / "one.gguf", tmp_path)


def test_layers_that_guess_tokens_are_left_out(folders: Path, tmp_path: Path) -> None:
    guessing = {"qwen35.nextn_predict_layers": 1}
    rewrite(folders / "qwen3_5" / "model.gguf", tmp_path / "guess.gguf", guessing)
    import_into(tmp_path / "guess.gguf", tmp_path)
    table = read_table(tmp_path / "config.json")
    assert table["num_hidden_layers"] == len(table["layer_types"]) == 3
    assert not [name for name in StoredWeights.of_model(tmp_path).places if ".layers.3." in name]


def test_factors_of_no_release_are_refused(folders: Path, tmp_path: Path) -> None:
    base = {"llama.rope.freq_base": 10000.0}
    rewrite(folders / "llama" / "model.gguf", tmp_path / "other.gguf", base)
    with pytest.raises(UserError, match=r"rope_freqs\.weight has other factors"):
        import_into(tmp_path / "other.gguf", tmp_path)


def split(path: Path, folder: Path, more: Mapping[int, Mapping[str, Any]] | None = None) -> Path:
    """Split a file in three, the first without tensors, as gguf-split can; return the first part.

    Args:
        path: the file.
        folder: folder of the parts.
        more: other fields of parts, by their number.
    """
    names = [str(tensor.name) for tensor in gguf.GGUFReader(path).tensors]
    cuts = [[], names[:7], names[7:]]
    for number, kept in enumerate(cuts):
        fields = {"split.no": number, "split.count": 3, "split.tensors.count": len(names)}
        target = folder / f"Model-{number + 1:05}-of-00003.gguf"
        rewrite(path, target, {**fields, **(more or {}).get(number, {})}, only=kept)
    return folder / "Model-00001-of-00003.gguf"


def test_the_parts_of_a_model_are_read_together(folders: Path, tmp_path: Path) -> None:
    path, whole, parts = folders / "mixtral" / "model.gguf", tmp_path / "whole", tmp_path / "parts"
    for folder in (whole, parts):
        folder.mkdir()
    rewrite(path, tmp_path / "model.gguf")
    import_into(tmp_path / "model.gguf", whole, blocks=True)
    first = split(tmp_path / "model.gguf", tmp_path)
    assert kind_of_file(first) == ("mixtral", True)
    import_into(first, parts, blocks=True)
    for name in ("config.json", "model.safetensors", "tokenizer.json"):
        assert (parts / name).read_bytes() == (whole / name).read_bytes(), name
    origin = import_model(str(first), "model", PROJECT, tmp_path / "cache", blocks=True).origin
    assert len(origin.table["files"]) == 3
    assert name_of(str(first)) == "model"
    # A changed part is another model.
    split(tmp_path / "model.gguf", tmp_path, {2: {"general.name": "another"}})
    again = import_model(str(first), "model", PROJECT, tmp_path / "cache", blocks=True).origin
    assert again.sha256 != origin.sha256


WRONG_PARTS: Mapping[str, tuple[int, dict[str, int], str]] = {
    "other-number": (2, {"split.no": 1}, r"00003-of-00003\.gguf: split\.no = 1 is not"),
    "other-count": (0, {"split.count": 4}, r"split\.count = 4"),
    "lost-tensors": (0, {"split.tensors.count": 99}, r"tensors, but split\.tensors\.count = 99"),
}


@pytest.mark.parametrize("wrong", WRONG_PARTS)
def test_parts_that_do_not_belong_together_are_refused(
    folders: Path, tmp_path: Path, wrong: str
) -> None:
    number, fields, message = WRONG_PARTS[wrong]
    first = split(folders / "qwen3" / "model.gguf", tmp_path, {number: fields})
    with pytest.raises(UserError, match=message):
        import_into(first, tmp_path)


def test_a_model_without_all_of_its_parts_is_refused(folders: Path, tmp_path: Path) -> None:
    first = split(folders / "qwen3" / "model.gguf", tmp_path)
    second = first.with_name("Model-00002-of-00003.gguf")
    with pytest.raises(UserError, match="is not the first part") as caught:
        check_source(str(second), PROJECT)
    assert caught.value.remedy == f"give {first}"
    second.unlink()
    with pytest.raises(UserError, match=r"1 of 3 parts are not beside it: Model-00002-of-00003"):
        check_source(str(first), PROJECT)


@pytest.mark.parametrize("more", [{}, {"general.architecture": None}], ids=["first", "other"])
def test_a_part_with_another_name_is_refused(
    folders: Path, tmp_path: Path, more: dict[str, None]
) -> None:
    part = {"split.count": 2, **more}
    rewrite(folders / "qwen3" / "model.gguf", tmp_path / "part.gguf", part)
    with pytest.raises(UserError, match=r"split\.count = 2") as caught:
        import_into(tmp_path / "part.gguf", tmp_path)
    assert "--merge" in caught.value.remedy


@pytest.mark.parametrize("family", gguf_families.families().values(), ids=lambda f: f.kind)
def test_the_package_has_a_name_for_each_tensor(family: gguf_families.GgufFamily) -> None:
    assert len(set(family.published_names(2).values())) == len(family.published_names(2))
