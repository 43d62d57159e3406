# SPDX-License-Identifier: Apache-2.0
"""Operators of an exported program that no converter knows, by name and place."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping
from typing import Any

from crosslab.errors import UserError
from torchroad.conversion.dtypes import checked, promoted
from torchroad.conversion.indexing import checked_places

Converter = Callable[[Any, Any], Any]
REMEDY = (
    "write these places with other operators, or add a converter to "
    "packages/pytorch-road/src/torchroad/conversion/converters.py"
)


def unknown_operators(program: Any, known: Collection[str]) -> list[str]:
    """Lines that name each operator without a converter, and the places of its calls.

    Args:
        program: torch's ``ExportedProgram``.
        known: names in the importer's table.
    """
    places: dict[str, Counter[str]] = {}
    for node in program.graph.nodes:
        if node.op == "call_function" and node.target.__name__ not in known:
            places.setdefault(str(node.target), Counter())[place_of(node)] += 1
    return [
        f"{name} in {place}" + (f" ({count} times)" if count > 1 else "")
        for name, found in sorted(places.items())
        for place, count in found.items()
    ]


def with_places(
    own: Mapping[str, Converter], known: Collection[str], inputs: Collection[str]
) -> dict[str, Converter]:
    """Converters that name their operator and its place when they fail.

    Args:
        own: the project's, by operator; TVM's convert the others.
        known: operators that have a converter.
        inputs: names of the model's inputs.
    """
    of_tvm: dict[str, Callable[[Any], Any]] = {}

    def convert(node: Any, importer: Any) -> Any:
        name = node.target.__name__
        try:
            if not of_tvm:
                of_tvm.update(importer.create_convert_map())
            where = f"{node.target} in {module_of(node)}"
            with promoted(node, importer), checked_places(node, importer, inputs, where):
                made = own[name](node, importer) if name in own else of_tvm[name](node)
            return checked(node, made, importer)
        except Exception as error:
            told = f"{type(error).__name__}: {error}"
            raise UserError(
                f"{node.target} in {place_of(node)} cannot be imported: {told}", remedy=REMEDY
            ) from error

    return dict.fromkeys([*known, *own], convert)


def module_of(node: Any) -> str:
    """The module that a node belongs to."""
    stack = node.meta.get("nn_module_stack") or {}
    path = next((entry[0] for entry in reversed(list(stack.values())) if entry[0]), "")
    return f"module {path}" if path else "the model itself"


def place_of(node: Any) -> str:
    """The module that a node belongs to, and the line of source that it is from."""
    module = module_of(node)
    lines = [line.strip() for line in (node.stack_trace or "").splitlines()]
    files = [line for line in lines if line.startswith("File ")]
    if not files:
        return module
    place = files[-1].split(", in ")[0].removeprefix("File ").replace('"', "")
    return f"{module}, {place.replace(', line ', ':')}"
