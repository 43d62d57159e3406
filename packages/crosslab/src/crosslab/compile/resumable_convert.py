# SPDX-License-Identifier: Apache-2.0
"""MLC-LLM's command line, with a ``convert_weight`` that can resume an interrupted run.

:mod:`crosslab.compile.mlc` runs this program. Its path has the patched trees, but not this project.
The journal in the shards' folder lists the complete shards, which are not written again. TVM begins
each shard with no pending data, so the later shards are identical to those of an uninterrupted run.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import tvm
from mlc_llm.__main__ import main
from mlc_llm.loader.huggingface_loader import HuggingFaceLoader
from tvm.contrib import tvmjs

JOURNAL = Path(os.environ["MLC_RVV_JOURNAL"])
DONE = [json.loads(line) for line in JOURNAL.read_text(encoding="utf-8").splitlines()]
HELD = {record["name"]: record for shard in DONE for record in shard["records"]}
PARENT = os.getppid()

_dump = tvmjs.dump_tensor_cache
_load = HuggingFaceLoader.load
_load_or_quantize = HuggingFaceLoader._load_or_quantize


class Shards(tvmjs.TensorCacheShardingManager):  # type: ignore[misc]
    """Writer of shards that continues after the shards of an earlier run."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options | {"initial_shard_records": list(DONE)})

    def append_or_update(self, data: bytes, name: str, *about: Any, **options: Any) -> None:
        """Add a parameter to the shards, unless a complete shard already has the parameter."""
        if name not in HELD:
            super().append_or_update(data, name, *about, **options)

    def _commit_internal(self, data: bytes, records: list[dict[str, Any]]) -> None:
        if os.getppid() != PARENT:
            os._exit(1)  # The parent process was killed, and another run may have started.
        super()._commit_internal(data, records)
        with JOURNAL.open("a", encoding="utf-8") as journal:
            journal.write(json.dumps(self.shard_records[-1]) + "\n")


def dump(params: Iterator[tuple[str, Any]], *arguments: Any, **options: Any) -> None:
    """Store parameters; for parameters in complete shards, TVM gets an empty array."""
    seen = (
        (name, np.empty(0, np.float32 if value.dtype == "float32" else np.uint8))
        if name in HELD
        else (name, value)
        for name, value in params
    )
    exact = {"encode_format": "raw"} if os.environ["MLC_RVV_EXACT"] else {}
    _dump(seen, *arguments, **options | exact)


def outputs(loader: Any, name: str) -> list[str]:
    """Return the names under which a parameter is stored."""
    quantized = loader.quantize_param_map
    table = quantized.param_map if quantized else {}
    return [str(output) for output in table.get(name, [name])]


def load(self: Any, *arguments: Any, **options: Any) -> Iterator[tuple[str, Any]]:
    """Load parameters; skip the computation of parameters in complete shards."""
    for name in self.extern_param_map.param_map:
        if HELD.keys() >= set(outputs(self, name)):
            self.extern_param_map.map_func[name] = lambda *_: np.empty(0, np.float32)
    return _load(self, *arguments, **options)  # type: ignore[no-any-return]


def load_or_quantize(self: Any, name: str, param: Any, device: Any) -> Iterator[tuple[str, Any]]:
    """Yield a parameter's arrays, which are empty if complete shards have the parameter."""
    names = outputs(self, name)
    if not HELD.keys() >= set(names):
        yield from _load_or_quantize(self, name, param, device)
        return
    for record in (HELD[output] for output in names):
        yield record["name"], tvm.runtime.empty(tuple(record["shape"]), record["dtype"])


tvmjs.TensorCacheShardingManager = Shards
tvmjs.dump_tensor_cache = dump
HuggingFaceLoader.load = load
HuggingFaceLoader._load_or_quantize = load_or_quantize

if __name__ == "__main__":
    main()
