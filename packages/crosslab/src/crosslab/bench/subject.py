# SPDX-License-Identifier: Apache-2.0
"""The model of a bench, and the recipe of each variant's runner."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from crosslab.assemble.recipe import Recipe
from crosslab.assemble.runner import store_params
from crosslab.bench.options import MLC, Bench, Variant
from crosslab.compile.modes import KernelMode
from crosslab.models.config import (
    DEFAULT_CONTEXT,
    LlamaConfig,
    longest_of,
    read_config,
    read_table,
)
from crosslab.models.formats import GGUF
from crosslab.models.llama_params import random_model
from crosslab.models.sources.asset import fetch_asset
from crosslab.models.sources.gguf_import import import_gguf
from crosslab.models.sources.pins import read_pins
from crosslab.peers.gguf_export import store_in_blocks

SEED = 0


@dataclass(frozen=True)
class Subject:
    """The model of a bench: folder, sizes, prompts, and inputs of the builds."""

    bench: Bench

    @cached_property
    def folder(self) -> Path:
        """Folder of the model in Hugging Face's layout: of a file, pinned, or random weights."""
        bench = self.bench
        if bench.file:
            return import_gguf(bench.file, bench.cache, blocks=True)
        if bench.config:
            return random_model(bench.config, SEED, bench.cache)
        asset = read_pins(bench.project).asset(bench.asset)
        return import_gguf(fetch_asset(asset, bench.cache), bench.cache)

    @cached_property
    def in_blocks(self) -> Path:
        """Folder of the same model with weights in the blocks of a GGUF file."""
        if self.bench.file:
            return self.folder
        return store_in_blocks(self.folder, self.bench.gguf, self.bench.cache)

    @cached_property
    def config(self) -> LlamaConfig:
        """Sizes of the model, if it is like a Llama."""
        return self.bench.config or read_config(self.folder / "config.json")

    @cached_property
    def vocab(self) -> int:
        """Tokens of the vocabulary."""
        table = self._table
        return int(table["vocab_size"]) if table else self.config.vocab

    @cached_property
    def longest(self) -> int:
        """Longest sequence of the model, tokens."""
        table = self._table
        return (longest_of(table) or DEFAULT_CONTEXT) if table else self.config.context

    @cached_property
    def _table(self) -> dict[str, Any]:
        return read_table(self.folder / "config.json") if self.bench.file else {}

    def prompt(self, length: int) -> list[int]:
        """Return ``length`` made-up token ids of a prompt, always the same."""
        return [(7 * i + 3) % self.vocab for i in range(length)]

    def recipe(self, variant: Variant, quantization: str, vlen: int) -> Recipe:
        """Return the inputs of a variant's runner."""
        bench, shared = self.bench, self.bench.recipe
        context = bench.context(self.longest)
        return replace(
            shared,
            model=self.in_blocks if quantization == GGUF else self.folder,
            quantization=quantization,
            vlens=(vlen,),
            tvm_tree=variant.tree,
            mlc_tree=variant.mlc_tree if bench.path_of(quantization) == MLC else None,
            kernels=variant.kernels,
            require_tensorize=variant.kernels and bench.kernels_fit,
            steps=variant.passes,
            context=context,
            prefill_chunk=context,
            strip=False,
            mode=bench.mode_of(quantization) if variant.kernels else KernelMode(),
            tuned=shared.tuned if variant.kernels else None,
        )

    def params(self, recipe: Recipe) -> Path:
        """Store a recipe's parameters, by the last variant's MLC-LLM if any; return the folder."""
        last = self.bench.variants[-1]
        if recipe.mlc_tree:
            recipe = replace(recipe, tvm_tree=last.tree, mlc_tree=last.mlc_tree or recipe.mlc_tree)
        return store_params(recipe, self.bench.cache)
