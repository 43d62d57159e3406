# SPDX-License-Identifier: Apache-2.0
"""GGUF files by llama.cpp's own converter, of the pinned source.

``python llama_cpp_converter.py TREE FORMAT FOLDER...`` writes ``model.gguf`` into each folder.
"""

from __future__ import annotations

import importlib
import json
import logging
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from crosslab.models.families import Family

PARTS = ("conversion/", "gguf-py/")
# Classes of published models whose code is in their repository; others are transformers'.
CLASSES = {
    "baichuan": "BaichuanForCausalLM",
    "chatglm": "ChatGLMModel",
    "deepseek": "DeepseekForCausalLM",
    "internlm2": "InternLM2ForCausalLM",
    "llama4": "Llama4ForConditionalGeneration",
    "rwkv6": "Rwkv6ForCausalLM",
    "minicpm": "MiniCPMForCausalLM",
    "orion": "OrionForCausalLM",
    "qwen": "QWenLMHeadModel",
    "qwen3_5": "Qwen3_5ForConditionalGeneration",
}
TOKENS = ("a", "b", "ab")


def name_class(folder: Path, family: Family) -> None:
    """Write the class of a published model into a family's ``config.json``."""
    table = _config(folder) | {"architectures": [CLASSES.get(family.kind, family.reference)]}
    (folder / "config.json").write_text(json.dumps(table), encoding="utf-8")


def convert(tree: Path, folders: Iterable[Path], format_: str = "ALL_F32") -> None:
    """Convert Hugging Face folders, each with the published classes in ``architectures``."""
    command = [sys.executable, __file__, str(tree), format_, *map(str, folders)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def main(tree: Path, format_: str, folders: Iterable[Path]) -> None:
    """Convert folders in this process."""
    sys.path[:0] = [str(tree), str(tree / "gguf-py")]
    torch, gguf, theirs = map(importlib.import_module, ("torch", "gguf", "conversion"))
    logging.disable(logging.ERROR)
    # The published config.json itself, not what transformers makes of it.
    theirs.ModelBase.load_hparams = staticmethod(lambda folder, *_, **__: _config(folder))
    _mend(importlib.import_module("conversion.baichuan").BaichuanModel, theirs.TextModel)
    for folder in folders:
        table = _config(folder)
        # It counts words in this file for Gemma 3.
        words = {
            "model": {"type": "WordPiece", "vocab": dict.fromkeys(range(_vocab(table)))},
            "added_tokens": [],
        }
        (folder / "tokenizer.json").write_text(json.dumps(words), encoding="utf-8")
        kind = theirs.get_model_class(table["architectures"][0])
        kind.set_vocab, kind.no_mtp = _set_vocab, True
        with torch.inference_mode():
            kind(folder, gguf.LlamaFileType[format_], folder / "model.gguf").write()


def _config(folder: Path) -> dict[str, Any]:
    table: dict[str, Any] = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    return table


def _vocab(table: dict[str, Any]) -> int:
    return int(table.get("text_config", table)["vocab_size"])


def _set_vocab(model: Any) -> None:
    """Write a small tokenizer: that of a published model is a file of its own."""
    writer = getattr(model, "impl", model).gguf_writer
    size = _vocab(model.hparams)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list([*TOKENS, *(f"token {n}" for n in range(len(TOKENS), size))])
    writer.add_token_merges(["a b"])
    writer.add_token_types([1] * size)


def _mend(baichuan: Any, plain: Any) -> None:
    """End the endless recursion of the pinned version for tensors that it does not split."""
    split = baichuan.modify_tensors

    def modify(self: Any, data: Any, name: str, bid: int | None) -> Any:
        return (split if "W_pack" in name else plain.modify_tensors)(self, data, name, bid)

    baichuan.modify_tensors = modify


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], [Path(folder) for folder in sys.argv[3:]])
