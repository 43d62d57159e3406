# SPDX-License-Identifier: Apache-2.0
"""The compiler process: ``python -m crosslab.compile.worker SPEC.json``.

It runs with the patched tree's Python first on its path. ``driver`` writes the specification; the
results are the model library and ``model.json`` (metadata, functions).
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

# tvm_ffi imports PyTorch if it is installed, which takes longer than all of TVM.
sys.modules.setdefault("torch", None)  # type: ignore[arg-type]

import tvm
from tvm import relax

from crosslab.compile.driver import IR_FOLDER
from crosslab.compile.ir_dump import ModuleDump
from crosslab.compile.llama import add_kv_cache, export
from crosslab.compile.overlaypass import load_pass
from crosslab.compile.pipeline import PASS_CONFIG, pipeline
from crosslab.errors import LabError
from crosslab.host.objects import shared_linker
from crosslab.host.toolchain import find_native
from crosslab.models.config import LlamaConfig


def metadata(
    kind: str, context: int, sizes: dict[str, int], spec: dict[str, Any], params: list[Any]
) -> dict[str, Any]:
    """Return the metadata of a language model's library, under MLC-LLM's names.

    Args:
        kind: kind of model.
        context: longest sequence in tokens.
        sizes: sizes of the cache, see :func:`crosslab.compile.llama.add_kv_cache`.
        spec: the driver's specification.
        params: name, shape and dtype of the parameters in order.
    """
    return {
        "model_type": kind,
        "quantization": "q0f32",
        "context_window_size": context,
        "sliding_window_size": -1,
        "attention_sink_size": -1,
        "prefill_chunk_size": min(spec["prefill_chunk"], context),
        "tensor_parallel_shards": 1,
        "pipeline_parallel_stages": 1,
        "kv_state_kind": "kv_cache",
        "max_batch_size": spec["batch"],
        "model_task": "chat",
        "vlen": spec["vlen"],
        "zvfh": spec["zvfh"],
        "params": params,
        "kv_cache": {
            "num_hidden_layers": sizes["layers"],
            "num_attention_heads": sizes["heads"],
            "num_key_value_heads": sizes["kv_heads"],
            "head_dim": sizes["head_dim"],
            "row_bytes": load_pass("configuration").configured().row_bytes(sizes["head_dim"]),
        },
    }


def define_llama(spec: dict[str, Any], target: Any) -> tuple[Any, dict[str, Any], dict[str, int]]:
    """Return a Llama's module, metadata, and the largest values of its symbolic sizes."""
    config = LlamaConfig(**spec["config"])
    module, params = export(config)
    sizes = asdict(config)
    about = metadata(config.family, config.context, sizes, spec, params)
    bounds = {"seq_len": about["prefill_chunk_size"], "batch_size": spec["batch"]}
    return add_kv_cache(module, sizes, target, config.rope_theta, config.rope), about, bounds


def read_imported(
    spec: dict[str, Any], folder: Path, target: Any
) -> tuple[Any, dict[str, Any], dict[str, int]]:
    """Read module, metadata and bounds of a :class:`crosslab.compile.driver.ImportedModule`."""
    module = tvm.ir.load_json((folder / "module.json").read_text(encoding="utf-8"))
    about = json.loads((folder / "model.json").read_text(encoding="utf-8"))
    if language := about.get("language"):
        sizes = language["attention"]
        table = metadata("imported", language["context"], sizes, spec, about["params"])
        return add_kv_cache(module, sizes, target, None), table, about["bounds"]
    table = {name: about[name] for name in ("inputs", "params")}
    return module, {**table, "vlen": spec["vlen"], "zvfh": spec["zvfh"]}, about["bounds"]


def build(spec: dict[str, Any], output: Path) -> None:
    """Compile a model to the folder ``output``, as the specification says."""
    target = tvm.target.Target(spec["target"])
    with target:
        defined = (
            define_llama(spec, target) if spec["config"] else read_imported(spec, output, target)
        )
        module, about, bounds = defined
        passes = pipeline(target, bounds, about, gemv=spec["gemv"])
        dump = [ModuleDump(output / IR_FOLDER)] if spec["dump_ir"] else []
        with tvm.transform.PassContext(config=PASS_CONFIG, instruments=dump):
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
    command = spec["linker"] or find_native().cc
    linker = shared_linker(command, spec["target"]["mtriple"])
    library.export_library(str(output / "model.so"), fcompile=linker)


def main(arguments: list[str]) -> int:
    """Compile a model; for a known failure, print a message and return its exit code."""
    path = Path(arguments[0])
    try:
        build(json.loads(path.read_text(encoding="utf-8")), path.parent)
    except LabError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
