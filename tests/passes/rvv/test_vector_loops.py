# SPDX-License-Identifier: Apache-2.0
"""VectorizeLoops and VectorizeRotary: changed and unchanged functions, and their numbers."""

from __future__ import annotations

import importlib
import logging
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from support.passes.functions import VECTORS, host, module_of, riscv64
from support.passes.linear import Array, linear_function
from support.passes.rope_kinds import LLAMA3, YARN, frequencies

from crosslab.compile.overlaypass import load_pass

pytestmark = pytest.mark.release


def rvv256() -> Any:
    """The vectors of a target with registers of 256 bits."""
    target = load_pass("targets")
    return target.vectors_of(riscv64(*VECTORS))


@pytest.fixture(scope="module")
def loops(tvm: ModuleType) -> ModuleType:
    return load_pass("vectors.vectorize_loops")


@pytest.fixture(scope="module")
def rotary(tvm: ModuleType) -> ModuleType:
    return load_pass("vectors.vectorize_rotary")


def vectors_of(function: Any) -> list[int]:
    """Extents of all vectorized loops."""
    from tvm import tirx  # noqa: PLC0415 - the patched tree is on sys.path only in a test

    found: list[int] = []

    def visit(node: Any) -> None:
        if isinstance(node, tirx.For) and node.kind == tirx.ForKind.VECTORIZED:
            found.append(int(node.extent))

    tirx.stmt_functor.post_order_visit(function.body, visit)
    return found


def legalized(build: Any, shape: tuple[Any, ...], *more: tuple[Any, ...]) -> Any:
    """The one PrimFunc that Relax makes of an expression over float32 tensors."""
    from tvm import relax, tirx  # noqa: PLC0415

    symbols = {name: tirx.Var(name, "int64") for name in ("rows",)}
    builder = relax.BlockBuilder()
    arguments = [
        relax.Var(f"x{i}", relax.TensorType([symbols.get(e, e) for e in s], "float32"))
        for i, s in enumerate((shape, *more))
    ]
    with builder.function("main", arguments):
        with builder.dataflow():
            out = builder.emit_output(builder.emit(build(builder.emit, relax.op, *arguments)))
        builder.emit_func_output(out)
    r = relax.transform
    module = builder.get()
    for step in (r.LegalizeOps(), r.AnnotateTIROpPattern(), r.FuseOps(), r.FuseTIR()):
        module = step(module)
    module = r.DeadCodeElimination()(module)
    functions = [f for _, f in module.functions_items() if isinstance(f, tirx.PrimFunc)]
    assert len(functions) == 1
    return functions[0].with_attr("global_symbol", "main")


def swish_gate(emit: Any, op: Any, x: Any) -> Any:
    halves = emit(op.split(x, 2, axis=-1))
    return op.multiply(emit(op.nn.silu(halves[0])), halves[1])


def run(function: Any, arrays: list[Array], shape: tuple[int, ...]) -> Array:
    """Compile for this machine and run; the last parameter is the output."""
    import tvm  # noqa: PLC0415

    module = tvm.ir.IRModule({"main": function.with_attr("global_symbol", "main")})
    out = tvm.runtime.tensor(np.full(shape, np.nan, np.float32))
    tvm.compile(module, host())["main"](*(tvm.runtime.tensor(a) for a in arrays), out)
    return out.numpy()


@pytest.mark.parametrize("rows", ["rows", 1, 5])
def test_an_activation_becomes_vectors_without_libm(loops: ModuleType, rows: Any) -> None:
    before = legalized(swish_gate, (1, rows, 96))
    after = loops.vectorize_function(before, rvv256())
    assert vectors_of(after) == [16], "gcd of 48 and half of the registers of a group of eight"
    assert "T.sigmoid" not in after.script()
    assert "sblock_alloc_buffer" not in after.script()
    count = 5 if rows == "rows" else rows
    x = np.random.default_rng(0).standard_normal((1, count, 96)).astype(np.float32) * 8
    gate, up = (half.astype(np.float64) for half in np.split(x, 2, axis=-1))
    want = gate / (1 + np.exp(-gate)) * up
    assert np.allclose(run(after, [x], want.shape), want, rtol=1e-6, atol=1e-6)


def test_a_gate_of_another_tensor_is_not_silu(loops: ModuleType) -> None:
    """As in an LSTM: the factor beside the gate is a tensor of the gate's shape."""
    before = legalized(lambda emit, op, x, y: op.multiply(emit(op.sigmoid(x)), y), (2, 32), (2, 32))
    after = loops.vectorize_function(before, rvv256())
    x, y = np.random.default_rng(0).standard_normal((2, 2, 32)).astype(np.float32)
    want = y / (1 + np.exp(-x.astype(np.float64)))
    assert np.allclose(run(after, [x, y], want.shape), want, rtol=1e-6, atol=1e-6)


def test_code_does_not_grow_with_each_function_within_another(loops: ModuleType) -> None:
    """As in a GRU: a gate is part of the argument of the next function."""

    def gates(count: int) -> Any:
        def build(emit: Any, op: Any, x: Any, y: Any) -> Any:
            for _ in range(count):
                y = emit(op.sigmoid(emit(op.add(x, emit(op.multiply(x, y))))))
            return op.multiply(y, x)

        return loops.vectorize_function(legalized(build, (2, 32), (2, 32)), rvv256())

    one, four = gates(1), gates(4)
    assert "T.sigmoid" not in four.script()
    assert len(four.script()) < 4.5 * len(one.script())
    x, y = np.random.default_rng(0).standard_normal((2, 2, 32)).astype(np.float32)
    want = y.astype(np.float64)
    for _ in range(4):
        want = 1 / (1 + np.exp(-(x + want * x)))
    assert np.allclose(run(four, [x, y], x.shape), want * x, rtol=1e-6, atol=1e-6)


def test_a_product_of_two_tensors_is_no_sum_of_squares(loops: ModuleType) -> None:
    from tvm import te  # noqa: PLC0415

    x, y = (te.placeholder((3, 8), name=name) for name in "xy")
    k = te.reduce_axis((0, 8), name="k")

    def sums(other: Any) -> Any:
        return te.compute((3,), lambda i: te.sum(x[i, k] * other[i, k], k))

    kinds = [sums(other) for other in (x, y)]
    of_pass = load_pass("stages")
    functions = [te.create_prim_func([x, y, kind]) for kind in kinds]
    found = [of_pass.is_product(of_pass.stages_of(function)[0]) for function in functions]
    assert found == [False, True]


@pytest.mark.parametrize("rows", ["rows", 1])
@pytest.mark.parametrize(
    ("width", "lanes"), [(900, [32, 4]), (23, [16, 4]), (4, [4]), (1001, [32, 8])]
)
def test_an_activation_of_any_width_is_in_vectors(
    loops: ModuleType, rows: Any, width: int, lanes: list[int]
) -> None:
    after = loops.vectorize_function(legalized(swish_gate, (1, rows, 2 * width)), rvv256())
    assert vectors_of(after) == lanes
    count = 5 if rows == "rows" else rows
    x = np.random.default_rng(0).standard_normal((1, count, 2 * width)).astype(np.float32) * 8
    gate, up = (half.astype(np.float64) for half in np.split(x, 2, axis=-1))
    want = gate / (1 + np.exp(-gate)) * up
    assert np.allclose(run(after, [x], want.shape), want, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("width", [900, 71])
def test_a_norm_of_any_width_is_summed_in_vectors(loops: ModuleType, width: int) -> None:
    def norm(_: Any, op: Any, x: Any, weight: Any) -> Any:
        return op.nn.rms_norm(x, weight, axes=-1, epsilon=1e-5)

    after = loops.vectorize_function(legalized(norm, (1, "rows", width), (width,)), rvv256())
    # Beside those of the terms, halves that are added until eight lanes are left.
    assert set(vectors_of(after)) == {32, 4, 16, 8}
    rng = np.random.default_rng(1)
    x, weight = (rng.standard_normal(s).astype(np.float32) for s in ((1, 7, width), (width,)))
    wide = x.astype(np.float64)
    want = wide / np.sqrt((wide**2).mean(-1, keepdims=True) + 1e-5) * weight
    assert np.allclose(run(after, [x, weight], want.shape), want, rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize("rows", ["rows", 1])
def test_a_norm_is_summed_in_vectors(loops: ModuleType, rows: Any) -> None:
    def norm(_: Any, op: Any, x: Any, weight: Any) -> Any:
        return op.nn.rms_norm(x, weight, axes=-1, epsilon=1e-5)

    before = legalized(norm, (1, rows, 192), (192,))
    after = loops.vectorize_function(before, rvv256())
    assert set(vectors_of(after)) == {32, 16, 8}
    assert "llvm.vector.reduce.fadd" in after.script()
    rng = np.random.default_rng(1)
    x, weight = (rng.standard_normal(s).astype(np.float32) for s in ((1, 7, 192), (192,)))
    if rows == 1:
        x = x[:, :1]
    wide = x.astype(np.float64)
    want = wide / np.sqrt((wide**2).mean(-1, keepdims=True) + 1e-5) * weight
    assert np.allclose(run(after, [x, weight], want.shape), want, rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize(("before", "in_vectors"), [(1, False), (2, False), (32, True)])
def test_a_loop_that_reads_what_it_wrote_is_no_vector(
    tvm: ModuleType, loops: ModuleType, rows: int, before: int, in_vectors: bool
) -> None:
    """Nor do threads share it: each iteration needs the sum that one before it stored."""
    from tvm.script import tirx as T  # noqa: N812, PLC0415

    width = 64

    @T.prim_func(s_tir=True)
    def sums(var_x: T.handle, var_y: T.handle) -> None:
        x = T.match_buffer(var_x, (rows, width), "float32")
        y = T.match_buffer(var_y, (rows, width), "float32")
        for i in T.serial(rows):
            with T.sblock("sums"):
                row = T.axis.spatial(rows, i)
                T.reads(x[row, 0:width])
                T.writes(y[row, 0:width])
                for j in T.serial(width):
                    y[row, j] = x[row, j] * T.float32(2)
                for j in T.serial(width - before):
                    y[row, j + before] = y[row, j] + y[row, j + before]

    after = loops.vectorize_function(sums, rvv256())
    assert after.script().count("T.vectorized") == 1 + in_vectors
    assert after.script().count("T.parallel") == (rows > 1)
    x = np.arange(rows * width, dtype=np.float32).reshape(rows, width) % 7
    want = 2 * x
    for start in range(before):
        want[:, start::before] = want[:, start::before].cumsum(axis=1)
    assert np.array_equal(run(after, [x], x.shape), want)


def test_a_named_value_is_not_read_again_after_a_store(tvm: ModuleType, loops: ModuleType) -> None:
    from tvm.script import tirx as T  # noqa: N812, PLC0415

    @T.prim_func(s_tir=True)
    def swap(x: T.Buffer((2, 64), "float32"), y: T.Buffer((2, 64), "float32")) -> None:
        for i, j in T.grid(2, 64):
            with T.sblock("swap"):
                row, column = T.axis.remap("SS", [i, j])
                T.reads(x[row, column], y[row, column])
                T.writes(x[row, column], y[row, column])
                kept: T.float32 = x[row, column]
                x[row, column] = y[row, column]
                y[row, column] = kept

    after = loops.vectorize_function(swap, rvv256()) or swap
    arrays = np.random.default_rng(0).standard_normal((2, 2, 64)).astype(np.float32)
    module = tvm.ir.IRModule({"main": after.with_attr("global_symbol", "main")})
    both = [tvm.runtime.tensor(array) for array in arrays]
    tvm.compile(module, host())["main"](*both)
    assert np.array_equal([one.numpy() for one in both], arrays[::-1])


def test_blocks_may_have_one_name(tvm: ModuleType, loops: ModuleType) -> None:
    from tvm.script import tirx as T  # noqa: N812, PLC0415

    @T.prim_func(s_tir=True)
    def twice(x: T.Buffer((2, 64), "float32"), y: T.Buffer((2, 64), "float32")) -> None:
        between = T.sblock_alloc_buffer((2, 64), "float32")
        for i, j in T.grid(2, 64):
            with T.sblock("double"):
                row, column = T.axis.remap("SS", [i, j])
                between[row, column] = x[row, column] + x[row, column]
        for i, j in T.grid(2, 64):
            with T.sblock("double"):
                row, column = T.axis.remap("SS", [i, j])
                y[row, column] = between[row, column] + between[row, column]

    after = loops.vectorize_function(twice, rvv256())
    x = np.arange(128, dtype=np.float32).reshape(2, 64)
    assert vectors_of(after)
    assert np.array_equal(run(after, [x], x.shape), 4 * x)


def test_rows_are_shared_among_threads(loops: ModuleType) -> None:
    after = loops.vectorize_function(legalized(swish_gate, (1, "rows", 128)), rvv256())
    assert after.script().count("T.parallel") == 1
    single = loops.vectorize_function(legalized(swish_gate, (1, 1, 128)), rvv256())
    assert "T.parallel" not in single.script()


def test_the_copy_into_the_cache_becomes_vectors(loops: ModuleType) -> None:
    """Its value named by a local buffer is put where it is used; padding (-1) is not written."""
    import tvm  # noqa: PLC0415

    kv_cache = importlib.import_module("tvm.relax.frontend.nn.llm.kv_cache")
    before = kv_cache._kv_cache_transpose_append(2, 64, "float32")
    after = loops.vectorize_function(before, rvv256())
    assert vectors_of(after) == [32]
    rng = np.random.default_rng(2)
    pages = rng.standard_normal((3, 2, 2, 16, 64)).astype(np.float32)
    k, v = (rng.standard_normal((4, 2, 64)).astype(np.float32) for _ in range(2))
    places = np.array([5, -1, 47, 16], np.int32)
    want = pages.copy()
    for row, place in enumerate(places):
        if place >= 0:
            want[place // 16, :, :, place % 16] = k[row], v[row]
    module = tvm.ir.IRModule({"main": after.with_attr("global_symbol", "main")})
    arguments = [tvm.runtime.tensor(a) for a in (pages, k, v, places)]
    tvm.compile(module, host())["main"](*arguments)
    assert np.array_equal(arguments[0].numpy(), want)


def test_functions_without_a_gain_are_left_alone(loops: ModuleType) -> None:
    def reshape(_: Any, op: Any, x: Any) -> Any:
        return op.reshape(x, (6, 4, 16))

    def transpose(_: Any, op: Any, x: Any) -> Any:
        return op.permute_dims(x, (1, 0))

    assert loops.vectorize_function(legalized(reshape, (6, 64)), rvv256()) is None
    assert loops.vectorize_function(legalized(transpose, (64, 64)), rvv256()) is None
    assert loops.vectorize_function(linear_function(4, 64, 64), rvv256()) is None
    done = legalized(swish_gate, (1, 1, 96)).with_attr("tirx.is_scheduled", True)
    assert loops.vectorize_function(done, rvv256()) is None


def test_a_sum_of_integers_is_left_alone(tvm: ModuleType, loops: ModuleType) -> None:
    from tvm import te  # noqa: PLC0415

    x, k = te.placeholder((4, 64), "int64", name="x"), te.reduce_axis((0, 64), name="k")
    y = te.compute((4,), lambda i: te.sum(x[i, k], axis=k), name="y")
    assert loops.vectorize_function(te.create_prim_func([x, y]), rvv256()) is None


@pytest.mark.parametrize("axis", [0, 1])
def test_a_sum_of_elements_with_a_distance_is_left_alone(loops: ModuleType, axis: int) -> None:
    def experts(_: Any, op: Any, x: Any) -> Any:
        return op.sum(x, axis=axis)

    assert loops.vectorize_function(legalized(experts, (8, 16, 64)), rvv256()) is None


def test_only_targets_with_vectors_are_touched(loops: ModuleType, rotary: ModuleType) -> None:
    module = module_of(gate=legalized(swish_gate, (1, 3, 96)), turn=rope())
    for make in (loops.VectorizeLoops, rotary.VectorizeRotary):
        assert make(machine("x86_64", "x86-64"))(module).same_as(module)
        assert make(riscv64())(module).same_as(module)
    targets = riscv64(*VECTORS), machine("x86_64", "x86-64-v3"), machine("aarch64", "generic")
    for target in targets:
        changed = rotary.VectorizeRotary(target)(loops.VectorizeLoops(target)(module))
        assert vectors_of(changed["gate"])
        assert vectors_of(changed["turn"])


def machine(arch: str, cpu: str) -> Any:
    """A target for a CPU of that kind."""
    from tvm.target import Target  # noqa: PLC0415

    return Target({"kind": "llvm", "mtriple": f"{arch}-linux-gnu", "mcpu": cpu})


@pytest.mark.parametrize(
    ("arch", "cpu", "expected"),
    [
        ("x86_64", "x86-64-v3", (8, 4, 2)),
        ("x86_64", "x86-64-v2", None),
        ("aarch64", "generic", (4, 4, 2)),
        ("riscv64", "generic-rv64", None),
    ],
)
def test_vectors_follow_the_target(
    loops: ModuleType, arch: str, cpu: str, expected: tuple[int, int, int] | None
) -> None:
    target = load_pass("targets")
    found = target.vectors_of(machine(arch, cpu))
    assert (found and (found.words, found.registers, found.with_math)) == expected
    assert rvv256().most == 32


MOVED = "qkv position_map apply_rope q k v"


def rope(
    q_heads: int = 4, kv_heads: int = 2, dim: int = 64, scale: float = 1.0, **options: Any
) -> Any:
    embedding = importlib.import_module("tvm.relax.frontend.nn.llm.position_embedding")
    scaling = options.pop("rope_scaling", {})
    theta = options.get("theta", 1e4)
    return embedding.llama_rope_with_position_map(
        theta,
        scale,
        dim,
        q_heads,
        kv_heads,
        options.get("dtype", "float32"),
        scaling,
        options.get("rotary_dim"),
    )


def turned(x: Array, positions: Array, rotary_dim: int, scale: float) -> Array:
    """Heads [rows, heads, dim] turned, in float64."""
    half = rotary_dim // 2
    frequency = 1e4 ** -(np.arange(half) / half)
    angle = (positions * np.float64(np.float32(scale)))[:, None, None] * frequency
    one, other = x[..., :half].astype(np.float64), x[..., half:rotary_dim].astype(np.float64)
    out = x.astype(np.float64)
    out[..., :half] = np.cos(angle) * one - np.sin(angle) * other
    out[..., half:rotary_dim] = np.cos(angle) * other + np.sin(angle) * one
    return out


@pytest.mark.parametrize(
    ("dim", "rotary_dim", "scale"),
    [(64, None, 1.0), (80, None, 1.0), (96, None, 0.25), (128, 32, 1.0)],
)
@pytest.mark.parametrize("apply", [1, 0])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_rotary_embeddings_are_right(
    rotary: ModuleType, dim: int, rotary_dim: int | None, scale: float, apply: int, dtype: str
) -> None:
    import tvm  # noqa: PLC0415

    before = rope(dim=dim, rotary_dim=rotary_dim, scale=scale, dtype=dtype)
    if dtype == "float16":
        before = load_pass("half.compute_in_float32").compute_in_float32(before)
    after = rotary.vectorize_rotary(before, rvv256().most_with_math)
    for call in ("T.pow", "T.cos", "T.sin"):
        assert call not in after.script()
    positions = np.array([0, 1, 17, 511, 4000], np.int32)
    rng = np.random.default_rng(4)
    qkv = rng.standard_normal((len(positions), 8, dim)).astype(dtype)
    outs = [np.full((len(positions), heads, dim), np.nan, dtype) for heads in (4, 2, 2)]
    module = tvm.ir.IRModule({"main": after.with_attr("global_symbol", "main")})
    tensors = [tvm.runtime.tensor(a) for a in (qkv, positions, *outs)]
    tvm.compile(module, host())["main"](*tensors, apply)
    rounding = float(np.finfo(dtype).eps)
    q, k, v = np.split(qkv, [4, 6], axis=1)
    if apply:
        q, k = (turned(x, positions, rotary_dim or dim, scale) for x in (q, k))
    for got, want in zip(tensors[2:], (q, k, v), strict=True):
        # An angle of 4000 radians is itself only good to 2^-13 in float32.
        assert np.allclose(got.numpy(), want, rtol=rounding, atol=2e-3 if apply else 0)
        assert np.allclose(got.numpy()[:3], want[:3], rtol=rounding, atol=5e-6)


def test_the_number_of_a_rotary_function_keeps_its_place(rotary: ModuleType) -> None:
    """A model that calls the function itself has the number before the outputs."""
    from tvm import tirx  # noqa: PLC0415

    whole = rope()
    x, positions, q, k, v, apply = whole.params
    moved = tirx.PrimFunc([x, positions, apply, q, k, v], whole.body, whole.ret_type, whole.attrs)
    for func, names in ((whole, "qkv position_map q k v apply_rope"), (moved, MOVED)):
        after = rotary.vectorize_rotary(func, rvv256().most_with_math)
        assert [param.name for param in after.params] == names.split()


def turned_by(x: Array, angle: Array, *, neighbours: bool) -> Array:
    """Heads [rows, heads, dim] turned by angles [rows, dim], in float64."""
    wide = x.astype(np.float64)
    if neighbours:
        other = np.stack([-wide[..., 1::2], wide[..., ::2]], -1).reshape(wide.shape)
    else:
        other = np.concatenate(np.split(wide * [[[-1]]], 2, -1)[::-1], -1)
        other[..., x.shape[-1] // 2 :] *= -1
    return np.asarray(np.cos(angle)[:, None] * wide + np.sin(angle)[:, None] * other)


@pytest.mark.parametrize(
    "scaling", [LLAMA3, YARN, {"rope_type": "gptj"}], ids=lambda s: s["rope_type"]
)
@pytest.mark.parametrize("dim", [64, 80])
def test_scaled_embeddings_are_right(rotary: ModuleType, scaling: dict[str, Any], dim: int) -> None:
    import tvm  # noqa: PLC0415

    after = rotary.vectorize_rotary(rope(dim=dim, rope_scaling=scaling), rvv256().most_with_math)
    for call in ("T.pow", "T.cos", "T.sin"):
        assert call not in after.script()
    assert vectors_of(after)
    positions = np.unique(np.r_[:300, np.arange(0, 8193, 97), 8192]).astype(np.int32)
    rng = np.random.default_rng(5)
    qkv = rng.standard_normal((len(positions), 8, dim)).astype(np.float32)
    outs = [np.full((len(positions), heads, dim), np.nan, np.float32) for heads in (4, 2, 2)]
    module = tvm.ir.IRModule({"main": after.with_attr("global_symbol", "main")})
    tensors = [tvm.runtime.tensor(a) for a in (qkv, positions, *outs)]
    tvm.compile(module, host())["main"](*tensors, 1)
    heads = np.split(qkv, [4, 6], axis=1)
    angle = positions[:, None] * frequencies(scaling, dim)
    # An angle is good to the rounding of a frequency, of the product, and of the result.
    allowed = (np.abs(angle) * 2**-22 + 5e-6)[:, None]
    for got, x in zip(tensors[2:4], heads[:2], strict=True):
        want = turned_by(x, angle, neighbours=scaling["rope_type"] == "gptj")
        assert (np.abs(got.numpy() - want) <= allowed * np.abs(x).max()).all()
    assert np.array_equal(tensors[4].numpy(), heads[2])


def test_other_embeddings_are_left_alone_and_named(
    rotary: ModuleType, caplog: pytest.LogCaptureFixture
) -> None:
    module = module_of(turn=rope(dtype="float64"))
    with caplog.at_level(logging.WARNING):
        after = rotary.VectorizeRotary(riscv64(*VECTORS))(module)
    assert after["turn"].same_as(module["turn"])
    assert "turn is left as it is" in caplog.text


def test_models_without_rotary_embeddings_compile(
    rotary: ModuleType, caplog: pytest.LogCaptureFixture
) -> None:
    # MLC-LLM gives GPT-2's kin, whose cache turns nothing, a base of -1.
    module = module_of(turn=rope(theta=-1.0))
    with caplog.at_level(logging.WARNING):
        after = rotary.VectorizeRotary(riscv64(*VECTORS))(module)
    assert after["turn"].same_as(module["turn"])
    assert "a power of -1" in caplog.text
