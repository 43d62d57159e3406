# SPDX-License-Identifier: Apache-2.0
"""Operators of an exported program without a converter, by name and place."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping
from typing import Any

from torch._ops import OpOverload

from crosslab.errors import UserError
from torchroad.conversion.arguments import Converter
from torchroad.conversion.axes import axes_of_numbers
from torchroad.conversion.dtypes import checked, dtype_of, promoted
from torchroad.conversion.empty import without_elements
from torchroad.conversion.indexing import MASKS, checked_places

REMEDY = (
    "write these places with other operators, or add a converter to "
    "packages/pytorch-road/src/torchroad/conversion/converters.py"
)

# Reasons for which an operator has no converter, by the beginnings of operators' names.
SIZES = "the size of its result depends on the inputs' values"
COMPLEX = "it computes complex numbers, for which compiled code has no type"
SPECIAL = "it is a special function, for which no formula is compiled"
FACTORS = "it factorises or solves a matrix, for which no loop is compiled"
REASONS = {
    SIZES: ("nonzero", "_unique", "unique_", "masked_select", "index.", "repeat_interleave."),
    COMPLEX: ("_fft_", "complex", "view_as_complex", "view_as_real", "polar"),
    SPECIAL: ("digamma", "erfinv", "igamma", "lgamma", "i0", "polygamma", "special_"),
    FACTORS: ("_linalg_", "linalg_", "cholesky", "triangular_solve"),
}


def unknown_operators(program: Any, known: Collection[str]) -> list[str]:
    """Return a line for each operator without a converter and each place of its calls.

    Args:
        program: torch's ``ExportedProgram``.
        known: names in the importer's table.
    """
    places: dict[str, Counter[str]] = {}
    for node in program.graph.nodes:
        if node.op == "call_function" and (node.target.__name__ not in known or _masks(node)):
            # torch wraps an operator that may raise an error.
            wraps = node.target.__name__ == "with_effects"
            target = node.args[1] if wraps else node.target
            # A function of Python, such as sym_float, has no short text.
            name = str(target) if isinstance(target, OpOverload) else target.__name__
            places.setdefault(name, Counter())[place_of(node)] += 1
    return [
        f"{name} in {place}" + (f" ({count} times)" if count > 1 else "") + _reason(name)
        for name, counts in sorted(places.items())
        for place, count in counts.items()
    ]


def _masks(node: Any) -> bool:
    """Return True for a node that returns the elements at which a mask is true."""
    if node.target.__name__ == "masked_select.default":
        return True
    if node.target.__name__ != "index.Tensor":
        return False
    return any(index is not None and dtype_of(index) in MASKS for index in node.args[1])


def _reason(name: str) -> str:
    """Return why an operator has no converter, or "" if nothing but the converter is missing."""
    own = name.removeprefix("aten.")
    return next((f": {reason}" for reason, names in REASONS.items() if own.startswith(names)), "")


def with_places(
    own: Mapping[str, Converter], known: Collection[str], inputs: Collection[str]
) -> dict[str, Converter]:
    """Return converters that check indices and results, and name operator and place if they fail.

    Args:
        own: the project's converters by operator; TVM's importer converts the other operators.
        known: operators that have a converter.
        inputs: names of the model's inputs.
    """
    of_tvm: dict[str, Callable[[Any], Any]] = {}

    def convert(node: Any, importer: Any) -> Any:
        name = node.target.__name__
        try:
            if (constant := without_elements(node)) is not None:
                return importer.block_builder.emit(constant)
            if not of_tvm:
                of_tvm.update(importer.create_convert_map())
            where = f"{node.target} in {module_of(node)}"
            with (
                promoted(node, importer),
                axes_of_numbers(node, importer) as in_own_shape,
                checked_places(node, importer, inputs, where),
            ):
                result = own[name](node, importer) if name in own else of_tvm[name](node)
            return checked(node, in_own_shape(result), importer)
        except Exception as error:
            problem = f"{type(error).__name__}: {error}"
            raise UserError(
                f"{node.target} in {place_of(node)} cannot be imported: {problem}", remedy=REMEDY
            ) from error

    return dict.fromkeys([*known, *own], convert)


def module_of(node: Any) -> str:
    """Return a text that names the module of a node."""
    stack = node.meta.get("nn_module_stack") or {}
    path = next((entry[0] for entry in reversed(list(stack.values())) if entry[0]), "")
    return f"module {path}" if path else "the model itself"


def place_of(node: Any) -> str:
    """Return a text that names the module of a node, and its line of source."""
    module = module_of(node)
    lines = [line.strip() for line in (node.stack_trace or "").splitlines()]
    files = [line for line in lines if line.startswith("File ")]
    if not files:
        return module
    location = files[-1].split(", in ")[0].removeprefix("File ").replace('"', "")
    return f"{module}, {location.replace(', line ', ':')}"
