# SPDX-License-Identifier: Apache-2.0
"""Run a host model library in TVM's VM: ``python -m crosslab.compile.native SPEC.json``.

It runs with the tree's Python first on its path. SPEC has ``library``, ``params``, ``chunks``
(lists of token ids, one prefill call each), ``max_new``, ``stop``, ``max_seq`` and ``output``
(an ``.npz`` file: tokens int64 [n]; logits float32 [n, vocab]; seconds float64 [calls]).
"""

from __future__ import annotations

import json
import math
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import tvm
from numpy.typing import NDArray
from tvm import relax
from tvm.runtime import ShapeTuple

from crosslab.models.params import read_stored

PAGE = 16
SEQUENCE = 0


def arrange_weights(module: Any, vm: Any, params: list[Any]) -> None:
    """Reorder in place the parameters that a library reads in tiles."""
    try:
        about = json.loads(vm["weights_in_tiles"]())
    except AttributeError:
        return
    for weight in about["parameters"]:
        tensor, item = params[weight["index"]], weight["item"]
        *counts, rows, columns = tensor.shape
        width = columns * tvm.DataType(str(tensor.dtype)).bits // 8 // item
        view = tensor._create_view((math.prod(counts), rows, width), f"uint{8 * item}")
        module.get_function(f"reorder_weights_{8 * item}", query_imports=True)(view)


class NativeModel:
    """A model library in TVM's VM with its parameters, and a KV cache for one sequence."""

    def __init__(self, library: Path, params: Path, max_seq: int, chunk: int) -> None:
        self.device = tvm.cpu()
        module = tvm.runtime.load_module(str(library))
        self.vm = relax.VirtualMachine(module, self.device)
        stored = read_stored(params)
        names = [p["name"] for p in json.loads(self.vm["_metadata"]())["params"]]
        self.params = [tvm.runtime.tensor(stored[name], self.device) for name in names]
        arrange_weights(module, self.vm, self.params)
        sizes = (1, max_seq, chunk, PAGE, 0)
        create = self.vm["create_tir_paged_kv_cache"]
        self.cache: Any = create(*(ShapeTuple([size]) for size in sizes))
        self.restart()

    def restart(self) -> None:
        """Empty the cache and begin a new sequence."""
        self._builtin("clear")
        self._builtin("add_sequence", SEQUENCE)

    def _builtin(self, name: str, *arguments: object) -> None:
        tvm.get_global_func(f"vm.builtin.kv_state_{name}")(self.cache, *arguments)

    def read(self, tokens: list[int]) -> NDArray[np.float32]:
        """Read tokens; return the logits [vocab] after the last token."""
        ids = tvm.runtime.tensor(np.array(tokens, np.int32), self.device)
        embedded = self.vm["embed"](ids, self.params)
        embedded = tvm.runtime.tensor(embedded.numpy()[None], self.device)
        self._builtin("begin_forward", ShapeTuple([SEQUENCE]), ShapeTuple([len(tokens)]))
        step = self.vm["prefill"] if len(tokens) > 1 else self.vm["decode"]
        logits = step(embedded, self.cache, self.params)[0].numpy()
        self._builtin("end_forward")
        row: NDArray[np.float32] = logits.reshape(-1)
        return row


def run(spec: dict[str, Any]) -> None:
    """Prefill the chunks, generate an answer greedily, and write the result."""
    chunks: list[list[int]] = spec["chunks"]
    chunk = max(map(len, chunks))
    model = NativeModel(Path(spec["library"]), Path(spec["params"]), spec["max_seq"], chunk)
    seconds: list[float] = []

    def timed(tokens: list[int]) -> NDArray[np.float32]:
        start = time.perf_counter()
        row = model.read(tokens)
        seconds.append(time.perf_counter() - start)
        return row

    logits = [[timed(tokens) for tokens in chunks][-1]]
    answer = [int(np.argmax(logits[0]))]
    while len(answer) < spec["max_new"] and answer[-1] not in spec["stop"]:
        logits.append(timed(answer[-1:]))
        answer.append(int(np.argmax(logits[-1])))
    np.savez(spec["output"], tokens=answer, logits=np.stack(logits), seconds=seconds)


if __name__ == "__main__":
    run(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")))
