# SPDX-License-Identifier: Apache-2.0
"""A real run on the Relax VM, recorded and estimated."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

tvm = pytest.importorskip("tvm", reason="needs apache-tvm")
import tvm_ffi  # noqa: E402
from tvm import relax  # noqa: E402
from tvm.relax.frontend import nn  # noqa: E402
from tvm.relax.frontend.nn import op  # noqa: E402

from accelerator.workload.extraction import load_pass  # noqa: E402
from accelerator.workload.recorder import Recorder  # noqa: E402
from costmodel.cli import main  # noqa: E402
from costmodel.estimate.trace import trace_phases  # noqa: E402
from costmodel.estimate.workload import Phase, bind_phase  # noqa: E402
from crosslab.compile import overlaypass  # noqa: E402
from crosslab.compile.pipeline import pipeline  # noqa: E402
from crosslab.models.config import LlamaConfig  # noqa: E402


class TwoLayers(nn.Module):  # type: ignore[misc]
    def __init__(self) -> None:
        self.up = nn.Linear(32, 48, bias=False)
        self.down = nn.Linear(48, 32, bias=False)

    def main(self, x: Any) -> Any:
        return self.down(op.relu(self.up(x))) + x


def test_a_run_is_recorded_with_its_real_sizes(tmp_path: Path) -> None:
    spec = {"main": {"x": nn.spec.Tensor(["rows", 32], "float32"), "$": {"param_mode": "packed"}}}
    module, params = TwoLayers().export_tvm(spec)
    estimate = load_pass()
    lowered = estimate.lower_graph(module)
    library = relax.build(lowered, target="llvm", relax_pipeline="default")
    machine = relax.VirtualMachine(library, tvm.cpu())
    recorder = Recorder()
    machine.set_instrument(recorder)
    weights = [tvm.runtime.tensor(np.ones(p.shape, "float32")) for _, p in params]
    for name, rows in (("prefill", 7), ("decode", 1)):
        recorder.begin(name)
        machine["main"](tvm.runtime.tensor(np.ones((rows, 32), "float32")), weights)
    path = tmp_path / "trace.json"
    recorder.save(path, estimate.workloads(lowered))
    prefill, decode = trace_phases(path)
    assert [(i.gemm.m, i.gemm.n, i.gemm.k) for i in prefill.items] == [(7, 48, 32), (7, 32, 48)]
    assert [(i.gemm.m, i.gemm.n, i.gemm.k) for i in decode.items] == [(1, 48, 32), (1, 32, 48)]
    assert all(i.gemm.weight for i in prefill.items)
    assert {i.kind for i in prefill.items} == {"up", "down"}
    assert prefill.unclassified == ()


@pytest.mark.slow
@pytest.mark.thorough
def test_a_generation_with_a_paged_cache(tmp_path: Path) -> None:
    """The project's Llama, prompted with five tokens, then two steps of decode."""
    llama = pytest.importorskip("crosslab.compile.llama")
    sizes = LlamaConfig(64, 96, 4, 2, 16, layers=2, vocab=128, tied=True, context=64)
    # Only shapes are looked at, so the code need not be good.
    target = tvm.target.Target({"kind": "llvm", "opt-level": 0})
    with target:
        module, params = llama.export(sizes)
        estimate = load_pass()
        # The pipeline drops a prompt's other rows after the last attention.
        rows = overlaypass.load_pass("choose_rows_early").ChooseRowsEarly(target)
        chosen = rows(relax.transform.LegalizeOps()(module))
        report = estimate.workloads(estimate.lower_graph(chosen))
        whole = llama.add_kv_cache(chosen, asdict(sizes), target, sizes.rope_theta)
        bounds = {"seq_len": 16}
        config = {"tirx.disable_cse_tir": True}
        with tvm.transform.PassContext(config=config):
            lowering = {
                "relax_pipeline": pipeline(target, bounds, {}),
                "tir_pipeline": overlaypass.load_pass("tir_pipeline").registered(),
            }
            library = relax.build(whole, target, **lowering)
    machine = relax.VirtualMachine(library, tvm.cpu())
    rng = np.random.default_rng(7)
    weights = [tvm.runtime.tensor(rng.standard_normal(p["shape"], "float32") * 0.1) for p in params]
    shapes = [tvm_ffi.Shape([n]) for n in (1, 64, 16, 16, 0)]
    cache = machine["create_tir_paged_kv_cache"](*shapes)
    call = tvm.get_global_func
    call("vm.builtin.kv_state_add_sequence")(cache, 0)
    recorder = Recorder()
    machine.set_instrument(recorder)
    for name, tokens in (("prefill", [1, 2, 3, 4, 5]), ("decode", [6]), ("decode", [7])):
        recorder.begin(name)
        ids = tvm.runtime.tensor(np.array(tokens, "int32"))
        embedded = machine["embed"](ids, weights).numpy().reshape(1, len(tokens), 64)
        begin = call("vm.builtin.kv_state_begin_forward")
        begin(cache, tvm_ffi.Shape([0]), tvm_ffi.Shape([len(tokens)]))
        machine[name](tvm.runtime.tensor(embedded), cache, weights)
        call("vm.builtin.kv_state_end_forward")(cache)
    path = tmp_path / "trace.json"
    recorder.save(path, report)
    phases = trace_phases(path)
    expected = [
        bind_phase(report, name, size, {})
        for name, size in (("prefill", 5), ("decode", 6), ("decode", 7))
    ]
    for recorded, bound in zip(phases, expected, strict=True):
        assert macs(recorded) == macs(bound)
        assert recorded.unclassified == ()
    assert main(["--trace", str(path), "--hardware", "edge8x8", "--quiet"]) == 0


def macs(phase: Phase) -> dict[tuple[int, ...], int]:
    found: dict[tuple[int, ...], int] = {}
    for item in phase.items:
        key = (item.gemm.batch, item.gemm.m, item.gemm.n, item.gemm.k)
        found[key] = found.get(key, 0) + item.count * item.gemm.macs
    return found
