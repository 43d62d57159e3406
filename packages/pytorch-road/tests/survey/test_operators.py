# SPDX-License-Identifier: Apache-2.0
"""Operators that no module of torch.nn calls, on inputs of five scales, and refused operators."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("tvm")

from judging import SCALES, judged  # noqa: E402

from crosslab.errors import UserError  # noqa: E402
from torchroad.conversion.operators import REASONS  # noqa: E402
from torchroad.example import Example, make_example  # noqa: E402
from torchroad.importer import function_of  # noqa: E402

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]
aten = torch.ops.aten
PLACES = torch.tensor([[0, 2, 1], [2, 0, 0]])

# Functions of a matrix that are refused, each for a reason of `conversion.operators.REASONS`.
REFUSED: dict[str, Callable[[Any], Any]] = {
    "unique": lambda x: x.unique(),
    "nonzero": lambda x: x.nonzero(),
    "where of one argument": lambda x: torch.where(x > 0)[0],
    "elements at a mask": lambda x: x[x > 0],
    "masked_select": lambda x: x.masked_select(x > 0),
    "repeat_interleave by counts": lambda x: x.repeat_interleave(x[:, 0].int() ** 2, 0),
    "fft": lambda x: torch.fft.fft(x).abs(),
    "rfft": lambda x: torch.fft.rfft(x).real,
    "complex": lambda x: torch.complex(x, x).abs(),
    "lgamma": torch.lgamma,
    "digamma": torch.digamma,
    "polygamma": lambda x: torch.polygamma(1, x),
    "gammainc": lambda x: torch.special.gammainc(x, x),
    "erfinv": torch.erfinv,
    "i0": torch.i0,
    "bessel_j0": torch.special.bessel_j0,
    "inv": lambda x: torch.linalg.inv(x[:, :5]),
    "solve": lambda x: torch.linalg.solve(x[:, :5], x[:, 5:]),
    "cholesky": lambda x: torch.linalg.cholesky(x @ x.T + torch.eye(5)),
    "det": lambda x: torch.linalg.det(x[:, :5]),
    "qr": lambda x: torch.linalg.qr(x)[0],
    "svd": lambda x: torch.linalg.svd(x)[1],
    "eigh": lambda x: torch.linalg.eigh(x @ x.T)[0],
    "pinv": torch.linalg.pinv,
    "matrix_exp": lambda x: torch.matrix_exp(x[:, :5]),
}
# Functions of a matrix.
OPERATORS: dict[str, Callable[[Any], Any]] = {
    "min of an axis": lambda x: x.min(1),
    "any": lambda x: (x > 1).any(),
    "diagonal": lambda x: x.diagonal(1),
    "shifts": lambda x: (x.int() << 2, x.int() >> 1),
    "mask in index_put": lambda x: aten.index_put(x, [x > 0], torch.tensor(2.0)),
    "mask of bytes": lambda x: aten.index_put(x, [(x > 0).byte()], torch.tensor(2.0)),
    "index_put": lambda x: aten.index_put(x, [None, PLACES[0]], x[:, :3], True),
    "scatter_reduce": lambda x: x[:2].scatter_reduce(1, PLACES, x[:2], "mean"),
    "masked_scatter": lambda x: x.masked_scatter(x > 0, -x),
    "cummax": lambda x: x.cummax(1),
    "cummin": lambda x: x.cummin(0),
    "unfold": lambda x: x.unfold(1, 3, 2),
    "stable sort": lambda x: torch.sort(x, stable=True, descending=True),
    "topk": lambda x: x.topk(3),
    "var_mean": lambda x: torch.var_mean(x, 1),
    "std": lambda x: x.std((0, 1)),
    "roll": lambda x: x.roll(5),
    "exp2": torch.exp2,
    "logcumsumexp": lambda x: x.logcumsumexp(1),
    "cdist": lambda x: (torch.cdist(x, x[:3] * 0.75), torch.cdist(x, x[:2] * 0.5, p=1.0)),
    "pdist": lambda x: torch.pdist(x, 3.0),
    "dist": lambda x: torch.dist(x, x * 0.5),
    "sums of no elements": lambda x: (x[:, :0] @ x[:0], x[:, :0].mean(1), x[:, :0].cumsum(1)),
    "hypot": lambda x: torch.hypot(x, x.flip(1)),
    "kthvalue": lambda x: x.kthvalue(3, 1),
    "searchsorted": lambda x: torch.searchsorted(x[0].sort().values, x[1:] * 1.01, right=True),
    "rounded quotients": lambda x: (x // 0.3, x % 0.3, x // x.flip(0), 5.0 % x),
    "factors of sums": lambda x: (x.add(x.flip(0), alpha=0.5), x.sub(3, alpha=2)),
    "truth values": lambda x: ((x > 0) + (x > 1), (x > 0) == (x > 1)),
    "grid_sample": lambda x: torch.nn.functional.grid_sample(
        x[None, None], (x[:4, :4] / (1 + x.abs().amax())).reshape(1, 2, 4, 2), align_corners=False
    ),
    **{
        name: getattr(torch, name)
        for name in ("expm1", "log1p", "sinh", "cosh", "asinh", "erf", "erfc", "atan", "sin")
    },
}


class Operator(torch.nn.Module):  # type: ignore[misc]
    """A function of a matrix as a module."""

    def __init__(self, function: Callable[[Any], Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Any) -> Any:
        """Return the function of a matrix."""
        return self.function(x)


def example_of(function: Callable[[Any], Any]) -> Example:
    """Return a function with a random matrix."""
    torch.manual_seed(0)
    inputs = (torch.randn(5, 8),)
    return make_example(lambda: (Operator(function), inputs), Path("operator"))


@pytest.mark.survey
@pytest.mark.parametrize("name", OPERATORS)
def test_an_operator(name: str, passes: Path, survey: Callable[..., None]) -> None:
    survey(lambda: judged(example_of(OPERATORS[name]), SCALES, passes))


@pytest.mark.parametrize("name", REFUSED)
def test_a_function_without_a_converter_is_refused_with_the_reason(
    name: str, record_property: Callable[[str, object], None]
) -> None:
    """As the page says."""
    with pytest.raises(UserError) as caught:
        function_of(example_of(REFUSED[name]), {})
    reasons = [reason for reason in REASONS if caught.value.what.strip().endswith(f": {reason}")]
    assert len(reasons) == 1
    page = Path(__file__).parents[2] / "docs" / "pytorch.md"
    assert f"| {name} | refused: {reasons[0]} |" in page.read_text(encoding="utf-8")
    record_property("survey", f"refused: {reasons[0]} | | ")
