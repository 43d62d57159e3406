# SPDX-License-Identifier: Apache-2.0
"""Outcome of a family in a quantization."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from enum import StrEnum
from typing import Any, NamedTuple

from crosslab.models.formats import weight_formats

# Largest logit error with weights that a format represents exactly: transformers approximates some
# functions (GELU, soft caps) otherwise than compiled models.
APPROXIMATED = 1e-3


def error_bound(quantization: str) -> float:
    """Largest difference of a logit to transformers', as a part of the largest, that is right."""
    return max(weight_formats()[quantization].tolerance, APPROXIMATED)


class FamilyStatus(StrEnum):
    """Stage that a family reached, and correctness of its answer."""

    RIGHT = "right"
    WRONG = "wrong"
    NOT_COMPILED = "does not compile"
    NOT_RUN = "does not run"
    NO_REFERENCE = "no reference"
    TIMEOUT = "out of time"


class Fault(StrEnum):
    """Origin of an outcome that is not right."""

    UPSTREAM = "upstream"
    OURS = "ours"
    UNKNOWN = "unknown"


class MatrixKey(NamedTuple):
    """A place in the matrix: a family, a quantization, a VLEN and a release."""

    family: str
    quantization: str
    vlen: int
    release: str

    def __str__(self) -> str:
        return f"{self.family} {self.quantization}, VLEN {self.vlen}, release {self.release}"


@dataclass(frozen=True)
class FamilyOutcome:
    """One cell of the table.

    Attributes:
        family: the family's name.
        quantization: MLC-LLM's name of the parameters' format.
        outcome: what became of it.
        max_logit_error: largest difference of a logit, as a part of the largest; None without an
            answer.
        tensorized: products that call a kernel.
        total: products.
        reason: first line of why it is not right; empty when it is.
        fault: whose fault that is; None when it is right.
        plain: reasons of the products that call none, with how often each was given.
        seconds: what the whole took.
        vlen: bits in a vector register.
        release: of the trees.
        schedules: what it took of a database of schedules; empty where none was named.
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

    @property
    def key(self) -> MatrixKey:
        """The family's place in the matrix."""
        return MatrixKey(self.family, self.quantization, self.vlen, self.release)

    def table(self) -> dict[str, Any]:
        """The outcome as plain data."""
        return asdict(self)

    @classmethod
    def read(cls, table: Mapping[str, Any]) -> FamilyOutcome:
        """Read the result of :meth:`table`."""
        fault = Fault(table["fault"]) if table["fault"] else None
        own = {field.name: table[field.name] for field in fields(cls) if field.name in table}
        return cls(**{**own, "outcome": FamilyStatus(table["outcome"]), "fault": fault})


def count_products(report: Sequence[Mapping[str, Any]]) -> tuple[int, int, dict[str, int]]:
    """Number of products that call kernels, of all, and the reasons of the others with counts."""
    plain: dict[str, int] = {}
    for entry in report:
        if not entry["symbol"]:
            plain[entry["reason"]] = plain.get(entry["reason"], 0) + 1
    return sum(1 for entry in report if entry["symbol"]), len(report), plain


_ERROR = re.compile(r"^(?:[\w.]*(?:Error|Exception|Failure)\b|LLVM ERROR|error:|Check failed)")
_PATHS = re.compile(r"(?:/[\w.+@-]+){2,}/")


def first_reason(text: str) -> str:
    """The line of a failure's output that names the error, without its folders."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [line for line in lines if _ERROR.match(line)]
    found = (errors or lines or ["it said nothing"])[-1 if errors else 0]
    return _PATHS.sub("", found)[:200]
