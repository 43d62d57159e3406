# SPDX-License-Identifier: Apache-2.0
"""Serve a model of random float32 weights on this machine, for ``load.py``; Ctrl-C ends it.

It has 43 M weights in 12 layers; with fewer layers it answers more requests in a time.

Call, with FORKPATCH_TREES=.work/2026.08 and PYTHONPATH=tests in the environment:
``uv run python tests/server/load_model.py PORT [LAYERS]``
"""

from __future__ import annotations

import os
import sys
import tempfile
from dataclasses import replace
from importlib import metadata
from pathlib import Path

from load import KEY
from support import shared_builds, text_probe, tiny_runner, tool_templates

from crosslab.assemble.link import LinkRequest, link_runner
from crosslab.compile.driver import CompileRequest, compile_llama
from crosslab.compile.targets import LabTarget
from crosslab.models.config import LlamaConfig
from crosslab.models.llama_params import random_weights
from crosslab.models.params import write_params
from crosslab.tokenizer.device_tokenizer import pack

MODEL = LlamaConfig(768, 2048, 12, 4, 64, 6, 97, rope_theta=1e4, tied=True, context=4096)


def main(port: int, layers: int) -> None:
    """Compile, link without sanitizers, and become the server."""
    libraries = metadata.distribution("apache-tvm").locate_file("tvm/lib")
    os.environ.setdefault("TVM_LIBRARY_PATH", str(libraries))
    model = replace(MODEL, layers=layers)
    tree, host = shared_builds.tvm_tree(), LabTarget("host")
    request = CompileRequest(tree, model, host, prefill_chunk=512, gemv=False)
    library = compile_llama(request, shared_builds.CACHE).library
    parts = (shared_builds.host_runtime(), shared_builds.sanitizing())
    runner = link_runner(LinkRequest(*parts, library=library), shared_builds.CACHE)
    folder = Path(tempfile.mkdtemp())
    (folder / "params").mkdir()
    write_params(random_weights(model, 3), folder / "params")
    tokenizer = folder / "tokenizer.bin"
    tokenizer.write_bytes(pack(text_probe.tiny(model.vocab, tool_templates.HERMES)))
    key = folder / "key"
    key.write_text(f"{KEY}\n")
    os.environ.update(tiny_runner.host_environment())
    print(f"server {os.getpid()} at port {port}", flush=True)
    files = ["--params", str(folder / "params"), "--tokenizer", str(tokenizer)]
    words = ["serve", *files, "--port", str(port), "--log-level", "warn"]
    words += ["--api-key-file", str(key)]
    os.execv(runner, [str(runner), *words])


if __name__ == "__main__":
    if len(sys.argv) not in (2, 3):
        sys.exit(__doc__)
    main(int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) == 3 else MODEL.layers)
