# SPDX-License-Identifier: Apache-2.0
"""Refusal of programs that would be computed wrong, although their operators are known."""

from __future__ import annotations

from typing import Any

import torch
from torch.export.graph_signature import OutputKind, TensorArgument

from crosslab.errors import UserError
from torchroad.conversion.operators import place_of

SHORT = (torch.float16, torch.bfloat16)
# It is random only if it is asked to drop something, which its converter refuses.
ATTENTION = "scaled_dot_product_attention.default"


def check_limits(program: Any) -> None:
    """Make sure that a program computes from its inputs alone, in types that are computed in.

    Raises:
        UserError: names what does not, with its place.
    """
    signature = program.graph_signature
    if changed := sorted(set(signature.buffers_to_mutate.values())):
        raise UserError(
            f"the model changes its buffer {', '.join(changed)}: it would be forgotten between "
            "calls",
            remedy="make it an input and an output of the model, and feed the one from the other",
        )
    if not signature.user_inputs:
        raise UserError("the model has no input that is a tensor")
    made = [one.arg for one in signature.output_specs if one.kind is OutputKind.USER_OUTPUT]
    if others := [one for one in made if not isinstance(one, TensorArgument)]:
        kind = type(getattr(others[0], "value", 0)).__name__
        raise UserError(
            f"an output of the model is {kind}, not a tensor",
            remedy="let a module around the model leave out what is no tensor",
        )
    for node in program.graph.nodes:
        value = node.meta.get("val")
        if isinstance(value, torch.Tensor) and value.dtype in SHORT:
            raise UserError(
                f"{node.name} in {place_of(node)} is of {value.dtype}: weights and activations "
                "are float32",
                remedy="give the model and its inputs as .float()",
            )
        random = torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ())
        if random and node.target.__name__ != ATTENTION:
            raise UserError(
                f"{node.target} in {place_of(node)} draws random numbers: torch's cannot be "
                "drawn again",
                remedy="make them an input of the model, or leave them out",
            )
