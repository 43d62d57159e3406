# SPDX-License-Identifier: Apache-2.0
"""The CPU's parts of a model that a device computes run as code for RVV in the emulator."""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

for name in ("torch", "onnx", "onnxruntime", "tvm"):
    pytest.importorskip(name, reason=f"{name} is not installed")

import onnx  # noqa: E402
from onnx import TensorProto, helper, numpy_helper  # noqa: E402
from support import shared_builds  # noqa: E402

from crosslab.assemble.recipe_options import read_recipe  # noqa: E402
from crosslab.errors import LabError  # noqa: E402
from crosslab.run.emulator import GuestMachine, run_guest  # noqa: E402
from torchroad import pictures  # noqa: E402
from torchroad.cli import parser  # noqa: E402
from torchroad.host_parts import HostParts  # noqa: E402
from torchroad.onnx_model import onnxruntime_outputs  # noqa: E402


def network() -> Any:
    """Two convolutions and a linear layer; the CPU's groups have weights, and one reads a shape."""
    random, make = np.random.default_rng(2), helper.make_node
    weights = {
        "first": random.normal(0, 0.3, (8, 3, 3, 3)),
        "gain": random.uniform(0.5, 1.5, (1, 8, 1, 1)),
        "second": random.normal(0, 0.2, (8, 8, 3, 3)),
        "head": random.normal(0, 0.5, (5, 8)),
        "shift": random.normal(size=5),
    }
    nodes = [
        make("Conv", ["x", "first"], ["a"], kernel_shape=[3, 3]),
        make("Sigmoid", ["a"], ["b"]),
        make("Mul", ["a", "b"], ["c"]),
        make("Mul", ["c", "gain"], ["d"]),
        make("Conv", ["d", "second"], ["e"], kernel_shape=[3, 3]),
        make("GlobalAveragePool", ["e"], ["f"]),
        make("Shape", ["f"], ["whole"]),
        make("Slice", ["whole", "start", "end"], ["flat"]),
        make("Reshape", ["f", "flat"], ["g"]),
        make("Gemm", ["g", "head"], ["h"], transB=1),
        make("Add", ["h", "shift"], ["i"]),
        make("Softmax", ["i"], ["y"], axis=-1),
    ]
    tensors = [numpy_helper.from_array(v.astype(np.float32), n) for n, v in weights.items()]
    tensors += [numpy_helper.from_array(np.array([n]), f) for f, n in (("start", 0), ("end", 2))]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, 10, 10])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    graph = helper.make_graph(nodes, "graph", [x], [y], tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.mark.usefixtures("emulator")
def test_the_cpus_parts_run_in_the_emulator(tmp_path: Path) -> None:
    shared_builds.cross()
    tree, cache = shared_builds.tvm_tree(), shared_builds.CACHE
    args = parser().parse_args(["-", "--tvm-tree", str(tree), "--cache", str(cache)])
    recipe = replace(read_recipe(args, "q0f32"), cores=(), strip=False)
    model, file = network(), tmp_path / "model.onnx"
    onnx.save(model, file)
    random = np.random.default_rng(1)
    feeds = [{"x": random.normal(size=(1, 3, 10, 10)).astype(np.float32)} for _ in range(3)]
    classifier = pictures.calibrated(file, feeds[:2], "vta-1x16x16")
    parts = classifier.host_parts
    operators = [[node.op_type for node in part.model.graph.node] for part in parts]
    assert operators == [
        ["Sigmoid", "Mul", "Mul"],
        ["GlobalAveragePool", "Reshape"],
        ["Add", "Softmax"],
    ]
    machine = GuestMachine(vlen=recipe.vlens[0])
    on_cpu = HostParts(parts, recipe, machine, cache, tmp_path / "parts")
    (found,) = replace(classifier, proved=True, on_cpu=on_cpu)(feeds[2])
    (wanted,) = onnxruntime_outputs(model, feeds[2])
    assert found.argmax() == wanted.argmax()
    assert np.abs(found - wanted).max() < 0.03
    assert on_cpu.error < 1e-5
    assert found.sum() == pytest.approx(1)

    other = copy.deepcopy(parts[2].model)
    other.graph.node[1].op_type = "LogSoftmax"
    wrong = replace(parts[2], model=other)
    with pytest.raises(LabError, match=r"the CPU's part of Add, LogSoftmax differs"):
        on_cpu(wrong, {"h": np.zeros((1, 5), np.float32)})

    words = ["run", "--params", str(on_cpu.program.params), "--function", "part_3"]
    words += ["--inputs", str(tmp_path / "in"), "--outputs", str(tmp_path / "out")]
    done = run_guest(on_cpu.runner.program, words, check=False)
    assert done.returncode == 2
    assert done.stderr == "runner: the model library has no function part_3\n"
