# SPDX-License-Identifier: Apache-2.0
"""The hooks of a compile pipeline, and the passes that are short enough to be tested with them."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from support.passes.functions import VECTORS, host, riscv64
from support.passes.functions import module_of as module_with
from support.passes.linear import linear_function

from crosslab.compile.modes import ExtraPass
from crosslab.compile.overlaypass import PACKAGE, PASSES, folders_of, load_pass
from crosslab.errors import UserError

ROOT = Path(__file__).resolve().parents[3]
BARRIER = 'T.tvm_storage_sync("shared")'


@pytest.fixture
def hooks(tvm: ModuleType, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.delenv("MLC_RVV_PASSES", raising=False)
    return load_pass("hooks")


def module_of(function: str) -> Any:
    """A module of one function in TVM's own notation."""
    from tvm.script import from_source, ir, tirx  # noqa: PLC0415 - the patched tree's

    text = f"@I.ir_module\nclass Module:\n    @T.prim_func(s_tir=True)\n{function}"
    return from_source(text, extra_vars={"I": ir, "T": tirx})


def threads(body: str) -> Any:
    return module_of(
        f"""
    def main(x: T.Buffer((8,), "float32")):
        for b in T.thread_binding(2, thread="blockIdx.x"):
            for t in T.thread_binding(4, thread="threadIdx.x"):
                {body}
"""
    )


def test_the_list_holds_every_pass_once(hooks: ModuleType) -> None:
    files = {item.module: item.name for item in hooks.PASSES}
    assert len(files) == len(hooks.PASSES)
    for path in PASSES.rglob("*.py"):
        module = path.relative_to(PASSES).with_suffix("").as_posix().replace("/", ".")
        text = path.read_text(encoding="utf-8")
        is_pass = "\n@function_pass\n" in text or "\n@tvm.transform.module_pass" in text
        assert is_pass == (module in files), module
        assert not is_pass or f" {files[module]}" in text


def test_the_page_of_passes_is_the_list(hooks: ModuleType) -> None:
    page = (ROOT / "docs/passes.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\|[ \w]*\| ([A-Z]\w+) \|(?: (\w+))? \|", page, re.MULTILINE)
    assert rows == [(item.name, item.step) for item in hooks.PASSES]


def test_loops_bound_to_threads_become_serial(hooks: ModuleType) -> None:
    before = threads("x[b * 4 + t] = T.float32(1)")
    assert "thread_binding" in before["main"].script()
    after = hooks.before_fusion(riscv64(*VECTORS))(before)["main"].script()
    assert "thread_binding" not in after
    assert "x[b * 4 + t]" in after


def test_threads_that_wait_for_each_other_stay_bound(hooks: ModuleType) -> None:
    before = threads(f"T.evaluate({BARRIER})")
    after = hooks.before_fusion(riscv64(*VECTORS))(before)
    assert "thread_binding" in after["main"].script()


@pytest.mark.parametrize(("parameter", "opaque"), [(", n: T.int64", True), ("", False)])
def test_functions_with_scalar_parameters_are_opaque_to_fusion(
    hooks: ModuleType, parameter: str, opaque: bool
) -> None:
    before = module_of(
        f"""
    def main(x: T.Buffer((8,), "float32"){parameter}):
        T.func_attr({{"op_pattern": 0}})
        x[0] = T.float32(1)
"""
    )
    after = hooks.before_fusion(host())(before)
    assert (int(after["main"].attrs["op_pattern"]) == 8) == opaque


def test_every_function_gets_the_promise_before_emission(
    hooks: ModuleType, configure: Callable[..., None]
) -> None:
    from tvm.target import Target  # noqa: PLC0415

    module = threads("x[b * 4 + t] = T.float32(1)")

    def promised(target: Any) -> bool:
        attrs = hooks.before_emission(target)(module)["main"].attrs or {}
        return bool(attrs.get("tirx.noalias", False))

    assert promised(host())
    assert not promised(Target({"kind": "c"}))
    configure(steps=("-noalias",))
    assert not promised(host())


@pytest.mark.parametrize(
    ("steps", "what"),
    [(("linaer",), "unknown linaer; the steps are: rows, "), (("linear", "-rows"), "not both")],
)
def test_steps_that_cannot_be_chosen_are_refused(
    hooks: ModuleType, configure: Callable[..., None], steps: tuple[str, ...], what: str
) -> None:
    configure(steps=steps)
    with pytest.raises(RuntimeError, match=what):
        hooks.before_emission(host())


def test_passes_without_a_step_need_no_overlay_of_tvm(
    hooks: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tree without patches has no overlay, and the bench compiles on one."""
    for name in [name for name in sys.modules if name.startswith(f"{PACKAGE}.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "tvm.relax.frontend.nn.llm._vector_math", None)
    for item in hooks.PASSES:
        if not item.step:
            load_pass(item.module)


def extra(name: str, **options: Any) -> Any:
    """An entry of a configuration's extras."""
    return load_pass("configuration").Extra(name, "mlc-rvv-accelerator-study", options)


def test_an_extra_pass_runs_at_its_place_where_it_is_named(
    hooks: ModuleType, configure: Callable[..., None], tmp_path: Path
) -> None:
    module = module_with(layer=linear_function(4, 96, 64))
    hooks.before_scheduling(host())(module)
    assert not (tmp_path / "work.json").exists()
    configure(reports=tmp_path, extras=(extra("estimate_cost", file="work.json"),))
    passes = hooks.before_scheduling(host())
    assert [one.info.name for one in passes.passes][:2] == ["EstimateCost", "TensorizePrefill"]
    passes(module)
    assert json.loads((tmp_path / "work.json").read_text("utf-8"))["schema"] == 1


def test_an_extra_pass_that_is_not_there_is_an_error(
    hooks: ModuleType, configure: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    configure(extras=(extra("no_such_pass"),))
    for before in (hooks.before_fusion, hooks.before_scheduling, hooks.before_emission):
        with pytest.raises(RuntimeError, match="has the pass no_such_pass; install mlc-rvv-acc"):
            before(host())
    with pytest.raises(UserError, match="has the pass no_such_pass") as caught:
        folders_of([ExtraPass("no_such_pass", "mlc-rvv-accelerator-study")])
    assert caught.value.remedy == "install mlc-rvv-accelerator-study"
    configure(extras=(extra("estimate_cost"),))
    elsewhere = SimpleNamespace(load=lambda: hooks.ExtraPass("nowhere", None))
    monkeypatch.setattr(hooks.metadata, "entry_points", lambda **_: [elsewhere])
    with pytest.raises(RuntimeError, match="place 'nowhere'; the places are: fused, attention, li"):
        hooks.before_fusion(host())
