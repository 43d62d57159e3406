# SPDX-License-Identifier: Apache-2.0
"""Half precision in memory alone: conversions to the bit, and products for the kernels."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from support.passes.functions import VECTORS, called, module_of, riscv64
from support.passes.linear import Array, linear_function

from crosslab.assemble.kernels import KernelTarget, cached_kernels
from crosslab.cached_build import default_cache
from crosslab.compile.overlaypass import load_pass
from crosslab.models.formats import Packing, packings

EVERY_HALF = np.arange(1 << 16, dtype=np.uint16).view(np.float16)


@pytest.fixture(scope="module")
def passes(tvm: ModuleType) -> Callable[[str], ModuleType]:
    """A module of the passes by name."""
    return load_pass


@pytest.fixture(scope="module")
def convert(passes: Callable[[str], Any]) -> Callable[[str, Array], Array]:
    """Applies widen (to uint16) or narrow (to float32) to an array, in vectors on this machine."""
    import tvm  # noqa: PLC0415 - the patched tree is on sys.path only in a test
    from tvm import te  # noqa: PLC0415

    half_precision = passes("half.convert_by_bits")
    results = {"widen": np.float32, "narrow": np.uint16}

    def run(name: str, values: Array) -> Array:
        padded = np.concatenate([values, np.zeros(-len(values) % 8, values.dtype)])
        x = te.placeholder(padded.shape, str(padded.dtype), name="x")
        y = te.compute(x.shape, lambda i: getattr(half_precision, name)(x(i)), name="y")
        schedule = tvm.s_tir.Schedule(te.create_prim_func([x, y]))
        (loop,) = schedule.get_loops(schedule.get_sblock("y"))
        schedule.vectorize(schedule.split(loop, [None, 8])[-1])
        out = tvm.runtime.tensor(np.zeros(padded.shape, results[name]))
        tvm.compile(schedule.mod, "llvm")["main"](tvm.runtime.tensor(padded), out)
        found: Array = out.numpy()[: len(values)]
        return found

    return run


def test_every_half_is_widened_exactly(convert: Callable[[str, Array], Array]) -> None:
    got, want = convert("widen", EVERY_HALF.view(np.uint16)), EVERY_HALF.astype(np.float32)
    assert np.array_equal(got, want, equal_nan=True)
    assert np.array_equal(np.signbit(got), np.signbit(want))


def test_numbers_are_narrowed_to_the_next_half(convert: Callable[[str, Array], Array]) -> None:
    halves = np.sort(EVERY_HALF[np.isfinite(EVERY_HALF)]).astype(np.float32)
    ties = halves[:-1] + (halves[1:] - halves[:-1]) / 2
    infinity = np.float32(np.inf)
    beside = [np.nextafter(ties, infinity), np.nextafter(ties, -infinity)]
    rng = np.random.default_rng(1)
    drawn = rng.integers(0, 1 << 32, 1 << 18, dtype=np.uint32).view(np.float32)
    ends = np.array([65504, 65519.996, 65520, 1e30, np.inf, -np.inf, np.nan, 0, -0.0], np.float32)
    values = np.concatenate([halves, ties, *beside, drawn, ends])
    got = convert("narrow", values).view(np.float16)
    with np.errstate(over="ignore", invalid="ignore"):
        want = values.astype(np.float16)
    assert np.array_equal(got, want, equal_nan=True)
    numbers = ~np.isnan(want)
    assert np.array_equal(np.signbit(got[numbers]), np.signbit(want[numbers]))


@pytest.mark.parametrize(("rows", "symbol"), [("seq_len", "gemm"), (7, "gemm"), (1, "gemv")])
@pytest.mark.parametrize(("kind", "packing"), packings().items())
@pytest.mark.parametrize("add", [False, True])
def test_products_of_halves_are_given_to_kernels(
    passes: Callable[[str], Any],
    kernels: Path,
    configure: Callable[..., None],
    rows: Any,
    symbol: str,
    kind: str,
    packing: Packing | None,
    add: bool,
) -> None:
    configure(kernels=kernels)
    target = riscv64(*VECTORS)
    module = module_of(
        layer=linear_function(rows, 96, 80, packing=packing, add=add, dtype="float16")
    )
    layer = passes("hooks").before_scheduling(target)(module)["layer"]
    assert called(layer)[-1] == f"mlc_rvv_{symbol}_{kind}"
    assert [str(p.dtype) for p in layer.params if str(p.dtype) == "float32"] == []
    # What is widened is widened before the call that reads it.
    text = layer.script()
    assert text.index('T.sblock("x_float32")') < text.index("mlc_rvv_")
    assert 'T.Cast("float16"' not in text


@pytest.mark.parametrize("add", [False, True])
def test_one_row_of_halves_is_multiplied_as_it_is_stored(
    passes: Callable[[str], Any], add: bool
) -> None:
    kernels = cached_kernels(KernelTarget.RISCV64, default_cache(), zvfh=True)
    target = riscv64(*VECTORS, "+zvfh")
    library = passes("kernel_library").KernelLibrary.load(kernels)
    routines = passes("linear.calls").Routines.of(library, target)

    def calls_of(rows: Any, *, tiled: bool) -> tuple[list[str], str]:
        module = module_of(layer=linear_function(rows, 96, 80, add=add, dtype="float16"))
        widened = passes("half.compute_in_float32").ComputeInFloat32(target)(module)["layer"]
        call = passes("linear.call_kernels").call_kernels
        layer, _ = call("layer", widened, routines, tiled=tiled)
        return called(layer), layer.script()

    symbols, text = calls_of(1, tiled=True)
    assert symbols == ["mlc_rvv_gemv_f16_tiles"]
    assert 'T.sblock("x_float32")' not in text
    for rows, tiled, symbol in ((1, False, "gemv_f32"), (7, True, "gemm_f32_tiles")):
        symbols, text = calls_of(rows, tiled=tiled)
        assert symbols == [f"mlc_rvv_{symbol}"]
        assert 'T.sblock("x_float32")' in text


def test_conversions_are_left_to_a_target_that_has_them(passes: Callable[[str], Any]) -> None:
    module = module_of(layer=linear_function(7, 96, 80, dtype="float16"))
    convert = passes("half.convert_by_bits").ConvertByBits
    widened = passes("half.compute_in_float32").ComputeInFloat32(riscv64(*VECTORS))(module)
    native = riscv64(*VECTORS, "+zvfh")
    assert convert(native)(widened)["layer"].same_as(widened["layer"])
    by_bits = convert(riscv64(*VECTORS))(widened)["layer"].script()
    assert "T.reinterpret" in by_bits
    assert 'T.Cast("float16"' not in by_bits


@pytest.mark.parametrize("kind", ["Let", "Select", "Mul"])
def test_functions_of_halves_are_widened(passes: Callable[[str], Any], kind: str) -> None:
    import tvm  # noqa: PLC0415 - the patched tree is on sys.path only in a test
    from tvm import te, tirx  # noqa: PLC0415

    def value(x: Any, i: Any) -> Any:
        angle = tirx.Var("angle", "float32")
        made = {
            "Let": lambda: tirx.Let(angle, i.astype("float32"), tirx.cos(angle).astype("float16")),
            "Select": lambda: tirx.Select(i < 3, x(i), x(0)),
            "Mul": lambda: x(i) * x(0),
        }
        return x(i) * made[kind]()

    x = te.placeholder((8,), "float16", name="x")
    y = te.compute(x.shape, lambda i: value(x, i), name="y")
    function = te.create_prim_func([x, y]).with_attr("global_symbol", "main")
    widen, target = passes("half.compute_in_float32").ComputeInFloat32, riscv64(*VECTORS)
    widened = widen(target)(tvm.IRModule({"main": function}))
    # It is refused where anything computes in halves.
    convert = passes("half.convert_by_bits").ConvertByBits
    assert "T.reinterpret" in convert(target)(widened)["main"].script()


def test_decode_attention_keeps_halves_in_vectors(passes: Callable[[str], Any]) -> None:
    from tvm.relax.frontend.nn.llm._decode_tiled_cpu import (  # noqa: PLC0415
        _attention_decode_cpu,
    )

    module = module_of(decode=_attention_decode_cpu(2, 4, 64, "float16", False, {}))
    widen = passes("half.compute_in_float32").ComputeInFloat32
    allocated = 'alloc_buffer((2, 64), "float16")'
    kept = widen(riscv64(*VECTORS, "+zvfh"))(module)
    assert kept["decode"].same_as(module["decode"])
    assert allocated in kept.script()
    without = riscv64(*VECTORS)
    widened = widen(without)(module)
    assert allocated not in widened.script()
    # It does no more with the halves of the pages than to load and convert them.
    by_bits = passes("half.convert_by_bits").ConvertByBits(without)(widened)
    assert 'T.Cast("float16"' not in by_bits.script()


def test_a_function_that_still_computes_in_halves_is_refused(passes: Callable[[str], Any]) -> None:
    module = module_of(layer=linear_function(7, 96, 80, dtype="float16"))
    with pytest.raises(RuntimeError, match="layer computes in float16"):
        passes("half.convert_by_bits").ConvertByBits(riscv64(*VECTORS))(module)


def test_the_logistic_function_of_halves_is_built(passes: Callable[[str], Any]) -> None:
    """The compile ends in a moment, as for float32; conversions as arithmetic take TVM minutes."""
    import tvm  # noqa: PLC0415
    from tvm import te  # noqa: PLC0415

    sigmoid = passes("vectors.elementary").sigmoid
    x = te.placeholder((32,), "float16", name="x")
    y = te.compute(x.shape, lambda i: sigmoid(x(i).astype("float32")).astype("float16"), name="y")
    schedule = tvm.s_tir.Schedule(te.create_prim_func([x, y]))
    schedule.vectorize(schedule.get_loops(schedule.get_sblock("y"))[0])
    target = riscv64(*VECTORS)
    whole = tvm.ir.IRModule({"main": schedule.mod["main"].with_attr("target", target)})
    made = passes("half.convert_by_bits").ConvertByBits(target)(whole)
    assert "vfrdiv.vf" in tvm.tirx.build(made, target).inspect_source("asm")
