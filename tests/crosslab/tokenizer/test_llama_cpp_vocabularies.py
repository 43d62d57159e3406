# SPDX-License-Identifier: Apache-2.0
"""Vocabularies in llama.cpp's source: its own tokens of its own texts."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import pytest
from support.shared_builds import CACHE, PROJECT

from crosslab.assemble.pinned_archive import read_archive, unpack_source
from crosslab.cached_build import cached_build
from crosslab.errors import LabError, UserError
from crosslab.models.sources.gguf_import import open_gguf
from crosslab.tokenizer.chat_tokenizer import build_tokenizer

pytestmark = pytest.mark.thorough
PREFIX = "ggml-vocab-"
BETWEEN = "\n__ggml_vocab_test__\n"
# The others have the same rules, and more tokens.
READ = (
    *("bert-bge", "command-r", "deepseek-coder", "deepseek-llm", "gpt-2", "llama-bpe"),
    *("llama-spm", "mpt", "phi-3", "qwen35", "refact"),
)
REFUSED = ("falcon",)


@pytest.fixture(scope="module")
def vocabularies() -> Path:
    source = read_archive(PROJECT)

    def make(folder: Path) -> None:
        with tempfile.TemporaryDirectory() as scratch:
            tree = unpack_source(source, [f"models/{PREFIX}"], Path(scratch))
            for path in (tree / "models").iterdir():
                shutil.move(path, folder)

    try:
        return cached_build(CACHE, "llama-cpp-vocabularies", source.sha256, make)
    except LabError as error:
        pytest.skip(f"llama.cpp's source cannot be had: {error.what}")


@pytest.mark.parametrize("name", READ)
def test_the_tokens_are_llama_cpps(vocabularies: Path, name: str) -> None:
    path = vocabularies / f"{PREFIX}{name}.gguf"
    tokenizer = build_tokenizer(open_gguf(path)[1])
    *texts, _ = Path(f"{path}.inp").read_text(encoding="utf-8").split(BETWEEN)
    lines = Path(f"{path}.out").read_text(encoding="utf-8").splitlines()
    assert len(texts) > 40
    for text, line in zip(texts, lines, strict=True):
        ids = tokenizer.encode(text, add_special_tokens=False).ids
        assert ids == [int(number) for number in line.split()], text


@pytest.mark.parametrize("name", REFUSED)
def test_a_vocabulary_with_other_rules_is_refused_by_name(vocabularies: Path, name: str) -> None:
    with pytest.raises(UserError, match=rf"tokenizer\.ggml\.pre = '{name}'"):
        build_tokenizer(open_gguf(vocabularies / f"{PREFIX}{name}.gguf")[1])
