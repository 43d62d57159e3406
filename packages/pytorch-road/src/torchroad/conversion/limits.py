# SPDX-License-Identifier: Apache-2.0
"""Refusal of programs that would give wrong results although all operators have converters."""

from __future__ import annotations

from typing import Any

import torch
from torch.export.graph_signature import OutputKind, TensorArgument

from crosslab.errors import UserError
from torchroad.conversion.operators import COMPLEX, place_of

SHORT = (torch.float16, torch.bfloat16)
# Tagged as random, but random only with dropout, which the converter refuses.
ATTENTION = "scaled_dot_product_attention.default"


def check_limits(program: Any) -> None:
    """Refuse a program whose results would be wrong, or that computes what compiled code has not.

    Raises:
        UserError: the program changes a buffer, has no tensor as input, an output that is not a
            tensor, a float of 16 bits, a complex input, or random numbers; the message names the
            operator or the input.
    """
    signature = program.graph_signature
    if changed := sorted(set(signature.buffers_to_mutate.values())):
        raise UserError(
            f"the model changes its buffer {', '.join(changed)}: the change would be lost "
            "between calls",
            remedy="make it an input and an output of the model, and feed the output to the input",
        )
    if not signature.user_inputs:
        raise UserError("no input of the model is a tensor")
    results = [spec.arg for spec in signature.output_specs if spec.kind is OutputKind.USER_OUTPUT]
    if others := [spec for spec in results if not isinstance(spec, TensorArgument)]:
        kind = type(getattr(others[0], "value", 0)).__name__
        raise UserError(
            f"an output of the model is {kind}, not a tensor",
            remedy="wrap the model in a module whose outputs are tensors only",
        )
    for node in program.graph.nodes:
        value = node.meta.get("val")
        if isinstance(value, torch.Tensor) and value.dtype in SHORT:
            raise UserError(
                f"{node.name} in {place_of(node)} has the dtype {value.dtype}; weights and "
                "activations must be float32",
                remedy="convert the model and its inputs with .float()",
            )
        if node.op == "placeholder" and isinstance(value, torch.Tensor) and value.is_complex():
            raise UserError(
                f"{node.name} of the model has the dtype {value.dtype}: {COMPLEX}",
                remedy="let the model read and return real and imaginary parts",
            )
        random = torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ())
        if random and node.target.__name__ != ATTENTION:
            raise UserError(
                f"{node.target} in {place_of(node)} draws random numbers, which cannot be "
                "compared with torch's",
                remedy="make them an input of the model, or leave them out",
            )
