# SPDX-License-Identifier: Apache-2.0
"""Extraction of matrix products from a model that TVM builds, or from an IRModule in a file."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from types import ModuleType
from typing import Any

from crosslab.errors import UserError
from crosslab.models.config import FAMILIES, LlamaConfig, read_family

NAMED = ("gpt2", "smollm2")
GPT, LLAMA = "accelerator.workload.gpt2", "crosslab.compile.llama"

# openai-community/gpt2 and HuggingFaceTB/SmolLM2-135M, their config.json.
GPT2: dict[str, Any] = {
    "model_type": "gpt2",
    "n_embd": 768,
    "n_layer": 12,
    "n_head": 12,
    "n_positions": 1024,
    "vocab_size": 50257,
}
SMOLLM2: dict[str, Any] = {
    "hidden": 576,
    "intermediate": 1536,
    "heads": 9,
    "kv_heads": 3,
    "head_dim": 64,
    "layers": 30,
    "vocab": 49152,
    "rope_theta": 100000.0,
    "tied": True,
    "context": 8192,
}


def model_workloads(name: str) -> dict[str, Any]:
    """Return the workloads of a model's name, ``config.json``, IRModule or work file.

    Raises:
        UserError: the model cannot be read, or TVM is missing.
    """
    if name == "gpt2":
        return extract(_exported(GPT, GPT2))
    if name == "smollm2":
        return extract(_exported(LLAMA, LlamaConfig(**SMOLLM2))[0])
    return from_file(Path(name))


def from_file(path: Path) -> dict[str, Any]:
    """Return the workloads of a JSON file; its content determines its kind.

    Raises:
        UserError: the file cannot be read, its model is not supported, or TVM is missing.
    """
    try:
        text = path.read_text(encoding="utf-8")
        content = json.loads(text)
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(
            f"{path} cannot be read as a model: {error}",
            remedy=f"give one of {', '.join(NAMED)}, a config.json, an IRModule saved by "
            "tvm.ir.save_json, or a work file",
        ) from error
    if isinstance(content, dict) and "entries" in content:
        return content
    if isinstance(content, dict) and "model_type" in content:
        return extract(_from_config(path, content))
    return extract(_load_module(path, text))


def _load_module(path: Path, text: str) -> Any:
    tvm = _tvm()
    try:
        module = tvm.ir.load_json(text)
    except (RuntimeError, ValueError, TypeError, KeyError) as error:
        raise UserError(f"{path} is neither a config.json, a work file nor an IRModule") from error
    if not isinstance(module, tvm.IRModule):
        raise UserError(f"{path}: contains a {type(module).__name__}, not an IRModule")
    return module


def extract(module: Any) -> dict[str, Any]:
    """Return the workloads of an IRModule; lower and fuse a graph of Relax operators first."""
    estimate = load_pass()
    work: dict[str, Any] = estimate.workloads(estimate.lower_graph(module))
    return work


def load_pass() -> ModuleType:
    """Import and return the module of the extraction pass.

    Raises:
        UserError: TVM is missing.
    """
    _tvm()
    return importlib.import_module("accelerator.passes.cost.estimate_cost")


def _tvm() -> Any:
    try:
        return importlib.import_module("tvm")
    except ImportError as error:
        raise UserError(
            f"this needs TVM: {error}",
            remedy="nox -s cost installs TVM; a work file (*.work.json) needs none",
        ) from error


def _from_config(path: Path, config: dict[str, Any]) -> Any:
    """Build the IRModule of a Hugging Face ``config.json``."""
    kind = config["model_type"]
    if kind == "gpt2":
        return _exported(GPT, config)
    if kind in FAMILIES:
        return _exported(LLAMA, read_family(path))[0]
    raise UserError(
        f"{path}: model_type {kind!r} is not supported",
        remedy="give its IRModule, saved by tvm.ir.save_json, instead",
    )


def _exported(module: str, config: Any) -> Any:
    """Return ``export(config)`` of the module with this name, which needs TVM."""
    _tvm()
    return importlib.import_module(module).export(config)
