# SPDX-License-Identifier: Apache-2.0
"""Extraction from modules: products by structure, widths, scales, symbolic sizes."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from accelerator.workload.extraction import load_pass

tvm = pytest.importorskip("tvm", reason="needs apache-tvm")
from tvm import relax, te, tirx  # noqa: E402
from tvm.relax.frontend import nn  # noqa: E402
from tvm.relax.frontend.nn import op  # noqa: E402


@pytest.fixture(scope="module")
def estimate() -> Any:
    return load_pass()


def found(estimate: Any, model: nn.Module, spec: dict[str, Any]) -> dict[str, Any]:
    module, _ = model.export_tvm({"main": {**spec, "$": {"param_mode": "packed"}}})
    entries = estimate.workloads(estimate.lower_graph(module))["entries"]
    assert list(entries) == ["main"]
    report: dict[str, Any] = entries["main"]
    return report


def extents(product: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(product[n] for n in ("batch", "m", "n", "k"))


class TwoLayers(nn.Module):  # type: ignore[misc]
    def __init__(self) -> None:
        self.up = nn.Linear(32, 48, bias=True)
        self.down = nn.Linear(48, 32, bias=False)

    def main(self, x: Any) -> Any:
        return self.down(op.relu(self.up(x))) + x


def test_linear_layers_with_fused_epilogues_and_a_symbolic_length(estimate: Any) -> None:
    report = found(estimate, TwoLayers(), {"x": nn.spec.Tensor([1, "length", 32], "float32")})
    products = report["products"]
    assert [extents(p) for p in products] == [(1, "length", 48, 32), (1, "length", 32, 48)]
    assert [p["b"]["weight"] for p in products] == [True, True]
    assert [p["a"]["weight"] for p in products] == [False, False]
    assert products[0]["b"]["name"].startswith("up_weight")
    work = {o["block"]: o["elements"] for o in report["others"]}
    assert any("relu" in block or "compute" in block for block in work)
    assert report["unclassified"] == []


class Heads(nn.Module):  # type: ignore[misc]
    def main(self, q: Any, k: Any, v: Any) -> Any:
        scores = op.softmax(op.matmul(q, op.permute_dims(k, [0, 1, 3, 2])), axis=-1)
        return op.matmul(scores, v)


def test_attention_written_out_is_two_batched_products(estimate: Any) -> None:
    shape = nn.spec.Tensor([1, 4, "rows", 16], "float16")
    keys = nn.spec.Tensor([1, 4, "context", 16], "float16")
    report = found(estimate, Heads(), {"q": shape, "k": keys, "v": keys})
    first, second = report["products"]
    assert extents(first) == (4, "rows", "context", 16)
    assert extents(second) == (4, "rows", 16, "context")
    assert not first["b"]["weight"] and not second["b"]["weight"]
    assert first["a"]["bits"] == 16


class Grouped(nn.Module):  # type: ignore[misc]
    """Four-bit weights, eight in a word, a scale for each 32, as MLC-LLM's q4f32_1 has them."""

    def __init__(self, separate: bool) -> None:
        self.words = nn.Parameter((96, 64 // 8), "uint32")
        self.scales = nn.Parameter((96, 64 // 32), "float32")
        self.separate = separate

    def main(self, x: Any) -> Any:
        def value(words: Any, scales: Any, j: Any, k: Any) -> Any:
            shift = tirx.Cast("uint32", (k % 8) * 4)
            mask = tirx.const(15, "uint32")
            nibble = tirx.bitwise_and(tirx.shift_right(words[j, k // 8], shift), mask)
            centred = tirx.Cast("float32", nibble) - tirx.const(7, "float32")
            return centred * scales[j, k // 32]

        def dequantize(words: Any, scales: Any) -> Any:
            return te.compute((96, 64), lambda j, k: value(words, scales, j, k), name="dequantize")

        def product(a: Any, get: Any) -> Any:
            k = te.reduce_axis((0, 64), name="k")
            return te.compute(
                (a.shape[0], 96), lambda i, j: te.sum(a[i, k] * get(j, k), axis=k), name="product"
            )

        if self.separate:
            full = op.tensor_expr_op(dequantize, "dequantize", [self.words, self.scales])
            return op.tensor_expr_op(
                lambda a, w: product(a, lambda j, k: w[j, k]), "product", [x, full]
            )
        return op.tensor_expr_op(
            lambda a, w, s: product(a, lambda j, k: value(w, s, j, k)),
            "product",
            [x, self.words, self.scales],
        )


@pytest.mark.parametrize("separate", [True, False], ids=["fused block", "inlined"])
def test_grouped_weights_are_seen_through_dequantization(estimate: Any, separate: bool) -> None:
    report = found(estimate, Grouped(separate), {"x": nn.spec.Tensor(["n", 64], "float32")})
    (product,) = report["products"]
    assert extents(product) == (1, "n", 96, 64)
    assert product["b"]["bits"] == 4
    assert product["b"]["weight"]
    assert product["b"]["quantization"] == {
        "grain": "group",
        "group": 32,
        "scale_bits": 32,
        "zero_bits": 0,
    }
    assert product["a"]["quantization"]["grain"] == "none"


class Int8(nn.Module):  # type: ignore[misc]
    """Integer product; scales of rows and of columns applied to the sums."""

    def __init__(self) -> None:
        self.weight = nn.Parameter((24, 40), "int8")
        self.scale = nn.Parameter((24,), "float32")

    def main(self, x: Any, token: Any) -> Any:
        def product(a: Any, w: Any, per_column: Any, per_row: Any) -> Any:
            k = te.reduce_axis((0, 40), name="k")
            sums = te.compute(
                (a.shape[0], 24),
                lambda i, j: te.sum(
                    tirx.Cast("int32", a[i, k]) * tirx.Cast("int32", w[j, k]), axis=k
                ),
                name="sums",
            )
            return te.compute(
                (a.shape[0], 24),
                lambda i, j: tirx.Cast("float32", sums[i, j]) * per_column[j] * per_row[i],
                name="scaled",
            )

        return op.tensor_expr_op(product, "int8", [x, self.weight, self.scale, token])


def test_scales_of_integer_products_are_found_after_the_sum(estimate: Any) -> None:
    spec = {"x": nn.spec.Tensor(["n", 40], "int8"), "token": nn.spec.Tensor(["n"], "float32")}
    report = found(estimate, Int8(), spec)
    (product,) = report["products"]
    assert (product["a"]["bits"], product["b"]["bits"], product["c_dtype"]) == (8, 8, "int32")
    assert product["b"]["quantization"]["grain"] == "channel"
    assert product["a"]["quantization"]["grain"] == "token"


class Experts(nn.Module):  # type: ignore[misc]
    def __init__(self) -> None:
        self.weight = nn.Parameter((8, 24, 40), "float16")

    def main(self, x: Any, chosen: Any) -> Any:
        def product(a: Any, w: Any, e: Any) -> Any:
            k = te.reduce_axis((0, 40), name="k")
            return te.compute(
                (a.shape[0], 24),
                lambda i, j: te.sum(a[i, k] * w[e[i], j, k], axis=k),
                name="moe",
            )

        return op.tensor_expr_op(product, "moe", [x, self.weight, chosen])


def test_experts_are_a_batch_of_vectors(estimate: Any) -> None:
    spec = {"x": nn.spec.Tensor(["n", 40], "float16"), "chosen": nn.spec.Tensor(["n"], "int32")}
    (product,) = found(estimate, Experts(), spec)["products"]
    assert product["kind"] == "moe"
    assert extents(product) == ("n", 1, 24, 40)


class NoProduct(nn.Module):  # type: ignore[misc]
    def __init__(self) -> None:
        self.norm = nn.RMSNorm(64, -1, bias=False)

    def main(self, x: Any) -> Any:
        return op.softmax(self.norm(x), axis=-1)


def test_norm_and_softmax_are_no_products(estimate: Any) -> None:
    report = found(estimate, NoProduct(), {"x": nn.spec.Tensor(["n", 64], "float32")})
    assert report["products"] == []
    assert len(report["others"]) >= 2
    # The extraction separates the norm's weights from its activations; the softmax has no weights.
    assert sorted(o["bits_weights"] for o in report["others"]) == [0, 64 * 32]


def test_what_is_not_known_is_listed(estimate: Any) -> None:
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType([4, 4], "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            called = builder.emit(
                relax.call_dps_packed("my.kernel", (x,), relax.TensorType([4, 4], "float32"))
            )
            out = builder.emit_output(called)
        builder.emit_func_output(out)
    report = estimate.workloads(builder.get())["entries"]["main"]
    assert report["unclassified"] == [
        {"callee": "my.kernel", "reason": "a packed function", "count": 1}
    ]


def test_the_pass_is_the_identity_and_writes_a_report(estimate: Any, tmp_path: Path) -> None:
    spec = {"main": {"x": nn.spec.Tensor([1, "n", 32], "float32"), "$": {"param_mode": "packed"}}}
    module, _ = TwoLayers().export_tvm(spec)
    lowered = estimate.lower_graph(module)
    target = tvm.target.Target("llvm")
    configuration = SimpleNamespace(reports=tmp_path)
    passed = estimate.EstimateCost(target, configuration, file="work.json")(lowered)
    assert passed.same_as(lowered) or tvm.ir.assert_structural_equal(passed, lowered) is None
    dumped = json.loads((tmp_path / "work.json").read_text())
    with pytest.raises(RuntimeError, match="the configuration of the passes names no reports"):
        estimate.EstimateCost(target, SimpleNamespace(reports=None), file="work.json")
    assert len(dumped["entries"]["main"]["products"]) == 2
