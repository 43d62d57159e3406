# SPDX-License-Identifier: Apache-2.0
"""Nodes of a model in ONNX, and the forms of nodes and weights that TVM's importer reads."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

OWN_DOMAINS = ("", "ai.onnx")
LAST = 10  # operator set with forms that the importer does not read
# The coordinates and rounding of Upsample, and of Resize in operator set 10.
FORMER = {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}


def nodes_of(graph: Any) -> Iterator[Any]:
    """Yield the nodes of a graph and of the graphs in its nodes' attributes."""
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            for inner in (attribute.g, *attribute.graphs):
                yield from nodes_of(inner)


def version_of(model: Any) -> int:
    """Return the version of ONNX's operator set that a model uses."""
    versions = [int(each.version) for each in model.opset_import if each.domain in OWN_DOMAINS]
    return min(versions, default=1)  # a file before version 3 of the format names no set


def constants_of(graph: Any) -> dict[str, Any]:
    """Return a graph's initial values and results of ``Constant`` by name, as ONNX has them."""
    nodes = [node for node in nodes_of(graph) if node.op_type == "Constant"]
    values = {node.output[0]: helper.get_attribute_value(node.attribute[0]) for node in nodes}
    return values | {tensor.name: tensor for tensor in graph.initializer}


def array_of(constants: Mapping[str, Any], name: str) -> NDArray[Any]:
    """Return a constant; an empty array of bool if it is not known before a run."""
    value = constants.get(name)
    if value is None:
        return np.empty(0, bool)
    return numpy_helper.to_array(value) if isinstance(value, TensorProto) else np.asarray(value)


def in_known_forms(model: Any) -> Any:
    """Return a copy of a model in the forms that TVM's importer reads."""
    made = onnx.ModelProto()
    made.CopyFrom(model)
    if (version := version_of(model)) <= LAST:
        _to_later_forms(made.graph, version)
    graph = made.graph
    names = {tensor.name: _kept(tensor.name) for tensor in graph.initializer}
    constants = constants_of(graph)
    for node in nodes_of(graph):
        if node.op_type == "Reshape":
            _without_need(node, constants)
        node.input[:] = [names.get(name, name) for name in node.input]
        if node.op_type == "Constant":
            _to_tensor(node)
    for value in graph.output:
        value.name = names.get(value.name, value.name)
    for tensor in graph.initializer:
        tensor.name = names[tensor.name]
    _to_constants(graph)
    return made


def _without_need(node: Any, constants: Mapping[str, Any]) -> None:
    """Remove the ``allowzero`` of a Reshape to a constant shape in which no size is 0."""
    if node.input[1] in constants and array_of(constants, node.input[1]).all():
        kept = [one for one in node.attribute if one.name != "allowzero"]
        del node.attribute[:]
        node.attribute.extend(kept)


def _kept(name: str) -> str:
    """Return a weight's name, in dots if the importer would change it, perhaps to another's."""
    return name if name == name.strip("onx:") else f".{name}."


def _to_constants(graph: Any) -> None:
    """Change integers and lists of them among the weights to the constants that shapes must be."""
    weights, nodes = graph.initializer, list(graph.node)
    for place in reversed(range(len(weights))):
        tensor = weights[place]
        if tensor.data_type == TensorProto.INT64 and len(tensor.dims) < 2:
            nodes.insert(0, helper.make_node("Constant", [], [tensor.name], value=tensor))
            del weights[place]
    del graph.node[:]
    graph.node.extend(nodes)


def _to_tensor(node: Any) -> None:
    """Change the number or numbers of a ``Constant`` to a tensor."""
    given = node.attribute[0]
    kind = {"value_float": np.float32, "value_int": np.int64}.get(given.name.removesuffix("s"))
    if kind:
        value = numpy_helper.from_array(np.asarray(helper.get_attribute_value(given), kind))
        del node.attribute[:]
        node.attribute.append(helper.make_attribute("value", value))


def _to_later_forms(graph: Any, version: int) -> None:
    """Change Upsample, and Resize and Slice before sets 11 and 10, to the forms of later sets.

    The importer rounds the coordinates of the nearest Upsample to the nearest, not down, and reads
    attributes of Slice and scales of Upsample in the place where later sets have them.
    """

    def constant(node: Any, name: str, values: Any) -> str:
        """Add a constant for an input of a node, and return its name."""
        name = f"{node.output[0]} {name}"
        graph.initializer.append(numpy_helper.from_array(values, name))
        return name

    for node in nodes_of(graph):
        if node.domain not in OWN_DOMAINS:
            continue
        given = {one.name: helper.get_attribute_value(one) for one in node.attribute}
        others = node.input[1:]
        match node.op_type:
            case "Slice" if version < 10:
                axes = given.get("axes", range(len(given["starts"])))
                parts = {"starts": given["starts"], "ends": given["ends"], "axes": axes}
                others = [constant(node, n, np.array(v, np.int64)) for n, v in parts.items()]
                attributes = {}
            case "Upsample" | "Resize":
                if "scales" in given:
                    others = [constant(node, "scales", np.array(given["scales"], np.float32))]
                others = ["", *others]
                attributes = {"mode": given.get("mode", b"nearest"), **FORMER}
            case _:
                continue
        name = "Resize" if node.op_type == "Upsample" else node.op_type
        inputs = [node.input[0], *others]
        later = helper.make_node(name, inputs, node.output, node.name, **attributes)
        node.CopyFrom(later)
