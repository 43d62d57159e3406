# SPDX-License-Identifier: Apache-2.0
"""Ours on this machine: upstream's logits, whatever the number of threads; the command's report."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from support.shared_builds import tvm_tree
from support.tiny_runner import GQA, tensorizing

from crosslab.bench import host_bench
from crosslab.cached_build import default_cache
from crosslab.compile.driver import CompileRequest, compile_llama
from crosslab.compile.targets import LabTarget
from crosslab.errors import UserError
from crosslab.models.llama_params import random_params

pytestmark = pytest.mark.slow

CACHE = default_cache()


@pytest.fixture(scope="module")
def result() -> dict[str, object]:
    """Both on the same patched tree: the one without passes is what TVM makes of the loops."""
    ours = tensorizing(LabTarget("host"))
    plain = replace(ours, steps=(), kernels=None, require_tensorize=False)
    built = compile_llama(ours, CACHE)
    assert built.tensorized
    assert all(entry["symbol"] for entry in built.tensorized)
    libraries = {"upstream": compile_llama(plain, CACHE).library, "ours": built.library}
    # The same library once more: how many threads worked on it must not show in its answer.
    libraries["again"] = built.library
    spec = {
        "libraries": {name: str(path) for name, path in libraries.items()},
        "params": str(random_params(GQA, 3, CACHE)),
        "prompt": [(5 * i + 1) % GQA.vocab for i in range(29)],
        "decode": 3,
        "threads": [1, 2],
        "repeats": 1,
    }
    return host_bench.time_turns(tvm_tree(), spec)


@pytest.mark.thorough
def test_logits_are_upstreams(result: dict[str, object]) -> None:
    apart = result["deviation"]
    assert isinstance(apart, dict)
    assert apart["ours"] < 1e-5


@pytest.mark.thorough
def test_threads_do_not_change_the_answer(result: dict[str, object]) -> None:
    apart = result["deviation"]
    assert isinstance(apart, dict)
    assert apart["again"] == apart["ours"]


@pytest.mark.thorough
def test_every_variant_is_timed_with_every_number_of_threads(result: dict[str, object]) -> None:
    rows = host_bench.rows_of("tiny", 29, result)
    assert len(rows) == 3 * 2 * 2
    upstream = {(r.phase, r.threads): r.seconds for r in rows if r.variant == "upstream"}
    for row in rows:
        assert row.ratio == pytest.approx(upstream[row.phase, row.threads] / row.seconds)
        assert row.seconds > 0


def test_a_long_prompt_is_one_call_of_both_libraries(monkeypatch: pytest.MonkeyPatch) -> None:
    chunks = []

    def compiled(request: CompileRequest, _: Path) -> SimpleNamespace:
        chunks.append(request.prefill_chunk)
        return SimpleNamespace(library=Path("model.so"))

    monkeypatch.setattr(host_bench, "compile_llama", compiled)
    trees = ["--tvm-tree", str(tvm_tree()), "--upstream-tree", str(tvm_tree())]
    args = host_bench.parser().parse_args([*trees, "--prefill", "64", "--prefill", "3000"])
    host_bench.build(args, GQA)
    assert chunks == [3000, 3000]


@pytest.mark.parametrize(
    "options",
    [
        ["--prefill", "1"],
        ["--threads", "0"],
        ["--threads", "9999"],
        ["--prefill", "128", "--prefill", "32760"],
    ],
)
def test_a_mistake_is_said(options: list[str]) -> None:
    trees = ["--tvm-tree", str(tvm_tree()), "--upstream-tree", str(tvm_tree())]
    with pytest.raises(UserError):
        host_bench.main([*trees, *options])
