# SPDX-License-Identifier: Apache-2.0
"""The compiling process: ``python -m crosslab.compile.worker SPEC.json``.

It runs with the patched tree's Python first on its path. The specification is written by
``driver``; the results are the model library and ``model.json`` (metadata, functions).
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import tvm
from tvm import relax
from tvm.support import cc

from crosslab.compile.llama import add_kv_cache, export
from crosslab.compile.overlaypass import load_pass
from crosslab.compile.pipeline import PASS_CONFIG, pipeline
from crosslab.errors import LabError
from crosslab.models.config import LlamaConfig


def metadata(config: LlamaConfig, spec: dict[str, Any], params: list[Any]) -> dict[str, Any]:
    """Metadata of the library under MLC-LLM's names."""
    return {
        "model_type": "llama",
        "quantization": "q0f32",
        "context_window_size": config.context,
        "sliding_window_size": -1,
        "attention_sink_size": -1,
        "prefill_chunk_size": spec["prefill_chunk"],
        "tensor_parallel_shards": 1,
        "pipeline_parallel_stages": 1,
        "kv_state_kind": "kv_cache",
        "max_batch_size": spec["batch"],
        "model_task": "chat",
        "vlen": spec["vlen"],
        "params": params,
        "kv_cache": {
            "num_hidden_layers": config.layers,
            "num_attention_heads": config.heads,
            "num_key_value_heads": config.kv_heads,
            "head_dim": config.head_dim,
        },
    }


def build(spec: dict[str, Any], output: Path) -> None:
    """Compile one model to ``output`` as the specification says."""
    config = LlamaConfig(**spec["config"])
    target = tvm.target.Target(spec["target"])
    with target:
        module, params = export(config)
        module = add_kv_cache(module, config, target)
        about = metadata(config, spec, params)
        bounds = {"seq_len": spec["prefill_chunk"], "batch_size": spec["batch"]}
        passes = pipeline(target, bounds, about, gemv=spec["gemv"])
        with tvm.transform.PassContext(config=PASS_CONFIG):
            static = spec["form"] == "static"
            library = relax.build(
                module,
                target,
                relax_pipeline=passes,
                tir_pipeline=load_pass("tir_pipeline").registered(),
                system_lib=static,
            )
    _write(library, spec, output)
    (output / "model.json").write_text(json.dumps(about, indent=2) + "\n", encoding="utf-8")


def _write(library: Any, spec: dict[str, Any], output: Path) -> None:
    if spec["form"] == "static":
        library.export_library(str(output / "model.tar"))
        return
    linker = spec["linker"]
    compiler = cc.cross_compiler(linker[0], options=linker[1:]) if linker else None
    library.export_library(str(output / "model.so"), fcompile=compiler)


def main(arguments: list[str]) -> int:
    """Compile; 1 with a message when it fails in a way that is understood."""
    path = Path(arguments[0])
    try:
        build(json.loads(path.read_text(encoding="utf-8")), path.parent)
    except LabError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
