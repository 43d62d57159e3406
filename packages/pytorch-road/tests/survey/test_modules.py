# SPDX-License-Identifier: Apache-2.0
"""Modules of torch.nn in three settings each, on inputs of five scales."""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("tvm")

from judging import SCALES, Judged, enliven, in_double, judge_outputs, judged  # noqa: E402

from torchroad.example import make_example  # noqa: E402

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]
FILE = Path(__file__).with_name("modules.toml")
MODULES: dict[str, list[dict[str, Any]]] = tomllib.loads(FILE.read_text(encoding="utf-8"))
QUICK = "ConvTranspose2d"
REFUSED = {"RReLU"}  # draws random numbers


def made(name: str, setting: dict[str, Any]) -> Any:
    """Return a module and its inputs."""
    arguments = dict(setting)
    shapes, integers = arguments.pop("shapes", [[2, 6]]), arguments.pop("integers", 0)
    module = getattr(torch.nn, name)(*arguments.pop("args", []), **arguments).eval()
    enliven(module)
    if integers:
        return module, tuple(torch.randint(integers, shape) for shape in shapes)
    return module, tuple(torch.randn(shape) for shape in shapes)


def worst(name: str, folder: Path) -> Judged:
    """Return the worst verdict on a module's settings."""
    found = []
    for setting in MODULES[name]:
        torch.manual_seed(0)
        example = make_example(partial(made, name, setting), FILE)
        found.append(judged(example, SCALES, folder))
    return max(found, key=lambda one: (not one.right, one.error))


@pytest.mark.parametrize(
    "name",
    [name if name == QUICK else pytest.param(name, marks=pytest.mark.survey) for name in MODULES],
)
def test_a_module(name: str, passes: Path, survey: Callable[..., None]) -> None:
    survey(lambda: worst(name, passes), refused=name in REFUSED)


def test_outputs_may_be_as_far_from_float64_as_those_of_torch() -> None:
    class Cancelling(torch.nn.Module):  # type: ignore[misc]
        """Loses digits of float32: the last bits of x, a million times as large."""

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return (x + 1e6) - 1e6

    example = make_example(lambda: (Cancelling(), (torch.tensor([0.1, 0.7]),)), Path())
    theirs = example.outputs()[0].numpy()
    assert judge_outputs(example, [theirs]).error == 0
    exact = in_double(example).outputs()[0].numpy().astype(theirs.dtype)
    nearer = judge_outputs(example, [exact])
    assert nearer.right
    assert nearer.error < 1e-6
    assert "torch's float32" in nearer.note
    assert not judge_outputs(example, [2 * theirs - exact + 0.1]).right
