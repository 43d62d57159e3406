# SPDX-License-Identifier: Apache-2.0
"""Nodes of a model in ONNX, and forms of older operator sets that TVM's importer reads wrongly."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

OWN_DOMAINS = ("", "ai.onnx")
LAST = 10  # operator set with such forms
# The coordinates and rounding of Upsample, and of Resize in operator set 10.
FORMER = {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}


def nodes_of(graph: Any) -> Iterator[Any]:
    """Yield the nodes of a graph and of the graphs in its nodes' attributes."""
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            for inner in (attribute.g, *attribute.graphs):
                yield from nodes_of(inner)


def in_later_forms(model: Any) -> Any:
    """Return a model with Upsample, and with Resize and Slice before sets 11 and 10, as later ones.

    The importer rounds the coordinates of the nearest Upsample to the nearest, not down, and reads
    attributes of Slice and scales of Upsample in the place where later sets have them.
    """
    versions = [each.version for each in model.opset_import if each.domain in OWN_DOMAINS]
    version = min(versions, default=1)  # a file before version 3 of the format names no set
    if version > LAST:
        return model
    made = onnx.ModelProto()
    made.CopyFrom(model)

    def constant(node: Any, name: str, values: Any) -> str:
        """Add a constant for an input of a node, and return its name."""
        name = f"{node.output[0]} {name}"
        made.graph.initializer.append(numpy_helper.from_array(values, name))
        return name

    for node in nodes_of(made.graph):
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
    return made
