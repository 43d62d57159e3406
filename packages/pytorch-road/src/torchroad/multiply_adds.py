# SPDX-License-Identifier: Apache-2.0
"""Multiply-adds of a compiled model, and the kernels' share of them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

from crosslab.compile.driver import CompiledModel
from crosslab.compile.modes import WORK_FILE
from groundwork.extents import evaluate

# Attention's products to the blocks of the functions that compute them on a paged cache.
ATTENTION = {"QK": "S_gemm", "PV": "O_gemm"}


@dataclass(frozen=True)
class MultiplyAdds:
    """The multiply-adds of a call.

    Attributes:
        total: all multiply-adds.
        on_kernels: multiply-adds of products that call a kernel.
        plain: multiply-adds of products without a kernel, by function.
    """

    total: int
    on_kernels: int
    plain: Mapping[str, int]

    @property
    def share(self) -> float:
        """The kernels' share; 1 for a model without products."""
        return self.on_kernels / self.total if self.total else 1.0


def multiply_adds(library: CompiledModel, entry: str, sizes: Mapping[str, int]) -> MultiplyAdds:
    """Count the multiply-adds of a call.

    Args:
        library: the compiled model, with its work file and its report of kernels.
        entry: name of the called function.
        sizes: values of the varying sizes, by name.
    """
    kernels = {(e["function"], e["block"]) for e in library.tensorized if e["symbol"]}
    of_cache = {e["block"] for e in library.tensorized if not e["symbol"]}
    work = json.loads((library.folder / WORK_FILE).read_text(encoding="utf-8"))
    total, plain = 0, dict[str, int]()
    for product in work["entries"][entry]["products"]:
        extents = ("count", "batch", "m", "n", "k")
        amount = prod(evaluate(product[name], sizes) for name in extents)
        total += amount
        block = ATTENTION.get(product["block"]) if product["kind"] == "attention" else None
        if block in of_cache if block else (product["function"], product["block"]) not in kernels:
            plain[product["function"]] = plain.get(product["function"], 0) + amount
    return MultiplyAdds(total, total - sum(plain.values()), plain)
