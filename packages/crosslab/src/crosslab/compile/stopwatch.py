# SPDX-License-Identifier: Apache-2.0
"""Measure host model libraries in TVM's VM: ``python -m crosslab.compile.stopwatch SPEC.json``.

It runs with a tree's Python first on its path. SPEC has ``libraries`` (name to path), ``params``,
``prompt`` (token ids), ``decode`` (steps), ``threads`` (list), ``repeats`` and ``output``. The
output is JSON: rows of variant, threads, phase and seconds; and for each variant the logits'
largest deviation from the first variant's, divided by the first's largest logit. The libraries run
alternately in one process, so that other load of the machine affects all of them.
"""

from __future__ import annotations

import json
import sys
import time
from collections import defaultdict
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import numpy as np
import tvm

from crosslab.compile.native import NativeModel


def run(spec: dict[str, Any]) -> dict[str, Any]:
    """Return ``rows``, shortest seconds of prefill and median decode step, and ``deviation``."""
    prompt, steps = spec["prompt"], spec["decode"]
    max_seq = len(prompt) + steps + 1
    models = {
        name: NativeModel(Path(path), Path(spec["params"]), max_seq, len(prompt))
        for name, path in spec["libraries"].items()
    }
    set_threads = tvm.get_global_func("runtime.config_threadpool")
    count_threads = tvm.get_global_func("runtime.NumThreads")
    best: dict[tuple[str, int, str], float] = defaultdict(lambda: float("inf"))
    logits: dict[str, Any] = {}
    for _ in range(spec["repeats"]):
        for threads in spec["threads"]:
            set_threads(1, threads)
            if count_threads() != threads:
                raise RuntimeError(f"TVM works with {count_threads()} threads, not with {threads}")
            for name, model in models.items():
                row, seconds = _turn(model, prompt, steps)
                logits[name] = row
                for phase, value in seconds.items():
                    key = name, threads, phase
                    best[key] = min(best[key], value)
    first = next(iter(logits.values()))
    scale = float(np.abs(first).max())
    rows = [
        {"variant": name, "threads": threads, "phase": phase, "seconds": value}
        for (name, threads, phase), value in best.items()
    ]
    deviation = {name: float(np.abs(row - first).max()) / scale for name, row in logits.items()}
    return {"rows": rows, "deviation": deviation}


def _turn(model: NativeModel, prompt: list[int], steps: int) -> tuple[Any, dict[str, float]]:
    model.restart()
    start = time.perf_counter()
    row = model.read(prompt)
    prefill = time.perf_counter() - start
    times = []
    for token in islice(cycle(prompt), steps):
        start = time.perf_counter()
        row = model.read([token])
        times.append(time.perf_counter() - start)
    return row, {"prefill": prefill, "decode": float(np.median(times))}


if __name__ == "__main__":
    request = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    Path(request["output"]).write_text(json.dumps(run(request)), encoding="utf-8")
