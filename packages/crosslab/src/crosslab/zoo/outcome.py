# SPDX-License-Identifier: Apache-2.0
"""Outcome of the check of a family in a quantization."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from enum import StrEnum
from typing import Any, NamedTuple

from crosslab.host.cost import Cost
from crosslab.models.formats import weight_formats

# Smallest bound of the logit error: transformers and compiled models approximate some functions
# (GELU, soft caps) differently.
APPROXIMATED = 1e-3
_ERROR = re.compile(r"^(?:[\w.]*(?:Error|Exception|Failure)\b|LLVM ERROR|error:|Check failed)")
_PATHS = re.compile(r"(?:/[\w.+@-]+){2,}/")


def error_bound(quantization: str) -> float:
    """Return the largest accepted error of a logit, divided by the largest logit."""
    return max(weight_formats()[quantization].tolerance, APPROXIMATED)


class FamilyStatus(StrEnum):
    """Last step of a family's check, and correctness of the answer."""

    RIGHT = "right"
    WRONG = "wrong"
    NOT_COMPILED = "does not compile"
    NOT_RUN = "does not run"
    NO_REFERENCE = "no reference"
    TIMEOUT = "out of time"


class Fault(StrEnum):
    """Origin of a failure."""

    UPSTREAM = "upstream"
    OURS = "ours"
    UNKNOWN = "unknown"


class MatrixKey(NamedTuple):
    """Position in the matrix; ``layers`` is that of a model of real size, 0 of a small one."""

    family: str
    quantization: str
    vlen: int
    release: str
    layers: int = 0

    def __str__(self) -> str:
        real = f", {self.layers} layers of real size" if self.layers else ""
        return f"{self.family} {self.quantization}, VLEN {self.vlen}, release {self.release}{real}"


@dataclass(frozen=True)
class FamilyOutcome:
    """Outcome of a family: a cell of the table.

    Attributes:
        family: name of the family.
        quantization: MLC-LLM's name of the parameters' format.
        outcome: status of the check.
        max_logit_error: largest difference of a logit, divided by the largest logit; None without
            an answer.
        tensorized: number of matrix products that call a kernel.
        total: number of matrix products.
        reason: line of the failure's output that names the error; empty without a failure.
        fault: origin of the failure; None without a failure.
        plain: number of products without a kernel, by reason.
        seconds: duration of the whole check.
        vlen: bits in a vector register.
        release: release of the trees.
        schedules: message about schedules from a database; empty without a database.
        layers: number of layers of a model of real size; 0: a small model.
        largest: bytes of the largest parameter of a model of real size, as it is stored.
        converted: cost of the conversion of a model of real size; None: not converted.
        compiled: cost of the compilation of a model of real size; None: not compiled.
    """

    family: str
    quantization: str
    outcome: FamilyStatus
    max_logit_error: float | None = None
    tensorized: int = 0
    total: int = 0
    reason: str = ""
    fault: Fault | None = None
    plain: Mapping[str, int] | None = None
    seconds: float = 0.0
    vlen: int = 256
    release: str = "unnamed"
    schedules: str = ""
    layers: int = 0
    largest: int = 0
    converted: Cost | None = None
    compiled: Cost | None = None

    @property
    def key(self) -> MatrixKey:
        """Position of the family in the matrix."""
        return MatrixKey(self.family, self.quantization, self.vlen, self.release, self.layers)

    def table(self) -> dict[str, Any]:
        """Return the outcome as a JSON-ready table."""
        return asdict(self)

    @classmethod
    def read(cls, table: Mapping[str, Any]) -> FamilyOutcome:
        """Read the result of :meth:`table`."""
        fault = Fault(table["fault"]) if table["fault"] else None
        values = {field.name: table[field.name] for field in fields(cls) if field.name in table}
        steps = ("converted", "compiled")
        costs = {step: Cost(*values[step]) for step in steps if values.get(step)}
        outcome = FamilyStatus(table["outcome"])
        return cls(**{**values, **costs, "outcome": outcome, "fault": fault})


def count_products(report: Sequence[Mapping[str, Any]]) -> tuple[int, int, dict[str, int]]:
    """Return the number of products with a kernel, of all products, and of the rest by reason.

    The reasons name files without their folders.
    """
    plain: dict[str, int] = {}
    for entry in report:
        if not entry["symbol"]:
            reason = _PATHS.sub("", entry["reason"])
            plain[reason] = plain.get(reason, 0) + 1
    return sum(1 for entry in report if entry["symbol"]), len(report), plain


def first_reason(text: str) -> str:
    """Return the line of a failure's output that names the error, without folders.

    It is the last such line, else the first line, cut after 200 characters.
    """
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [line for line in lines if _ERROR.match(line)]
    named = (errors or lines or ["it said nothing"])[-1 if errors else 0]
    return _PATHS.sub("", named)[:200]
