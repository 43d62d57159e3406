# SPDX-License-Identifier: Apache-2.0
"""Hugging Face folders of small models with random weights, in the shape of published ones."""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from safetensors.numpy import save_file

from crosslab.job.job_options import MODEL, Job, parse_job
from crosslab.models.config import read_family
from crosslab.models.llama_params import param_shapes, sources_of
from support import text_probe
from support.shared_builds import PROJECT

SEED = 20261122
# What of a published config.json makes its shape, at a size that compiles in seconds.
CONFIGS: dict[str, dict[str, Any]] = {
    "llama": {
        "architectures": ["LlamaForCausalLM"],
        "hidden_act": "silu",
        "rope_theta": 500000.0,
        "rope_scaling": {
            "factor": 8.0,
            "high_freq_factor": 4.0,
            "low_freq_factor": 1.0,
            "original_max_position_embeddings": 64,
            "rope_type": "llama3",
        },
        "tie_word_embeddings": False,
        "attention_bias": False,
        "mlp_bias": False,
    },
    "qwen2": {
        "architectures": ["Qwen2ForCausalLM"],
        "hidden_act": "silu",
        "rope_theta": 1000000.0,
        "tie_word_embeddings": True,
        "use_sliding_window": False,
    },
    "qwen3": {
        "architectures": ["Qwen3ForCausalLM"],
        "hidden_act": "silu",
        "rope_theta": 1000000.0,
        "rope_scaling": None,
        "tie_word_embeddings": True,
        "attention_bias": False,
        "use_sliding_window": False,
        "sliding_window": None,
        "max_window_layers": 2,
    },
    "gemma": {
        "architectures": ["GemmaForCausalLM"],
        "hidden_act": "gelu_pytorch_tanh",
        "hidden_activation": "gelu_pytorch_tanh",
        "rope_theta": 10000.0,
        "tie_word_embeddings": True,
        "attention_bias": False,
    },
    "plain": {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "hidden_act": "silu",
        "rope_theta": 10000.0,
        "tie_word_embeddings": True,
    },
}
SIZES = {
    "hidden_size": 192,
    "intermediate_size": 176,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "num_key_value_heads": 1,
    "head_dim": 64,
    "rms_norm_eps": 1e-6,
    "max_position_embeddings": 256,
}


def write_tokenizer(folder: Path) -> Path:
    """Write a small tokenizer with a chat template, as a folder has it."""
    trained = text_probe.trained("llama3")
    trained.tokenizer.save(str(folder / "tokenizer.json"))
    # Special tokens with their properties, as some are saved.
    settings = {**trained.settings, "bos_token": {"content": "<|start|>", "lstrip": False}}
    template = settings.pop("chat_template")
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    (folder / "chat_template.jinja").write_text(str(template))
    return folder


def write_folder(folder: Path, family: str, tokenizer: Path, **changes: Any) -> Path:
    """Write config, weights in two shards of bfloat16, and the tokenizer's files.

    Args:
        folder: where to; it is made.
        family: a name of CONFIGS.
        tokenizer: folder of tokenizer.json and what belongs to it.
        changes: fields of config.json.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for path in tokenizer.iterdir():
        shutil.copyfile(path, folder / path.name)
    vocabulary = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    ids = [*vocabulary["model"]["vocab"].values(), *(t["id"] for t in vocabulary["added_tokens"])]
    config = {
        "model_type": family,
        **CONFIGS[family],
        **SIZES,
        "vocab_size": max(ids) + 1,
        **changes,
    }
    (folder / "config.json").write_text(json.dumps(config, indent=2), encoding="utf-8")
    weights = dict(random_weights(folder))
    names = list(weights)
    table = {}
    for number, part in enumerate((names[: len(names) // 2], names[len(names) // 2 :]), start=1):
        file = f"model-{number:05}-of-00002.safetensors"
        save_file({name: weights[name] for name in part}, folder / file)
        table |= dict.fromkeys(part, file)
    index = json.dumps({"metadata": {}, "weight_map": table})
    (folder / "model.safetensors.index.json").write_text(index, encoding="utf-8")
    return folder


def change(folder: Path, **fields: Any) -> None:
    """Set fields of a folder's config.json."""
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))


def job_of_model(folder: Path, cache: Path, *options: str, mlc: bool = False) -> Job:
    """The job of ``crosslab model FOLDER``, on trees that need not be there."""
    trees = ["--tvm-tree", "tvm", *(["--mlc-tree", "mlc"] if mlc else [])]
    words = [str(folder), "--project", str(PROJECT), "--cache", str(cache), *trees, *options]
    return parse_job(words, MODEL)


def write_sparse(folder: Path, tokenizer: Path, **changes: Any) -> Path:
    """Write a plain Llama of zeros that takes no room on the disk, a file a layer.

    Args:
        folder: where to; it is made.
        tokenizer: folder of tokenizer.json and what belongs to it.
        changes: fields of config.json.
    """
    write_folder(folder, "plain", tokenizer)
    for path in folder.glob("model*"):
        path.unlink()
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    (folder / "config.json").write_text(json.dumps({**config, **changes}), encoding="utf-8")
    layers: dict[str, list[tuple[str, tuple[int, ...]]]] = defaultdict(list)
    for name, shape in hf_shapes(folder):
        layers[name.rpartition("layers.")[2].partition(".")[0]].append((name, shape))
    for number, part in layers.items():
        header, end = {}, 0
        for name, shape in part:
            start, end = end, end + 2 * int(np.prod(shape))
            entry = {"dtype": "BF16", "shape": list(shape), "data_offsets": [start, end]}
            header[name] = entry
        text = json.dumps(header).encode()
        with (folder / f"model-{number}.safetensors").open("wb") as stream:
            stream.write(len(text).to_bytes(8, "little") + text)
            stream.truncate(8 + len(text) + end)
    return folder


def hf_shapes(folder: Path) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Names and shapes of a folder's weights, as its config has them."""
    config = read_family(folder / "config.json")
    heads = [n * config.head_dim for n in (config.heads, config.kv_heads, config.kv_heads)]
    for name, shape in param_shapes(config).items():
        sources = sources_of(name)
        rows = heads if len(sources) == 3 else [shape[0] // len(sources)] * len(sources)
        for source, count in zip(sources, rows, strict=True):
            yield source, (count, *shape[1:])


def random_weights(folder: Path) -> Iterator[tuple[str, np.ndarray]]:
    """Weights in bfloat16 under Hugging Face's names, drawn so that activations keep their size."""
    config = read_family(folder / "config.json")
    draw = np.random.default_rng(SEED)
    for name, shape in hf_shapes(folder):
        values = draw.standard_normal(shape, dtype=np.float32)
        if len(shape) == 1:
            values = values * 0.1 + (0 if config.gelu or name.endswith("bias") else 1)
        elif "embed_tokens" not in name:
            values /= np.float32(shape[1] ** 0.5)
        yield name, values.astype(ml_dtypes.bfloat16)


if __name__ == "__main__":  # python -m support.models.model_folder FOLDER
    with tempfile.TemporaryDirectory() as trained:
        write_folder(Path(sys.argv[1]), "plain", write_tokenizer(Path(trained)))
