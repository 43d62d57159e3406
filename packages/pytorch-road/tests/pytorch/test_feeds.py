# SPDX-License-Identifier: Apache-2.0
"""Outputs of a model that become its inputs; where torch is at hand."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from crosslab.errors import UserError  # noqa: E402
from torchroad.example import Example  # noqa: E402


def example(feeds: dict[str, int], *inputs: Any) -> Example:
    class Model(torch.nn.Module):
        def forward(self, token: Any, state: Any) -> Any:
            return torch.nn.functional.one_hot((token.long() + 1) % 5, 5).float(), state * 2

    return Example(Model(), inputs, {}, {}, feeds)


def test_the_largest_of_the_last_row_is_the_next_token() -> None:
    start = (torch.tensor([[3, 1]]), torch.ones(2))
    outputs, chosen = example({"token": 0, "state": 1}, *start).answer(4)
    assert chosen == {"token": [2, 3, 4, 0]}
    assert outputs[1].tolist() == [16.0, 16.0]


def test_inputs_without_names_are_numbered() -> None:
    class Model(torch.nn.Module):
        def forward(self, x: Any, *others: Any) -> Any:
            return x + others[0], others[1]

    inputs = (torch.ones(2), torch.ones(2), torch.zeros(2))
    numbered = Example(Model(), inputs, {}, {}, {"others_1": 0})
    assert numbered.names == ["x", "others_0", "others_1"]
    assert numbered.answer(2)[0][1].tolist() == [2.0, 2.0]


@pytest.mark.parametrize(
    ("feeds", "dtype", "message"),
    [
        ({"tokens": 0}, "int64", "the inputs are token, state, the outputs 0 to 1"),
        ({"state": 2}, "int64", "the outputs 0 to 1"),
        ({"token": 0}, "int32", "cannot become an input of torch.int32"),
    ],
)
def test_a_feed_that_does_not_fit_is_refused(
    feeds: dict[str, int], dtype: str, message: str
) -> None:
    start = (torch.tensor([[3]], dtype=getattr(torch, dtype)), torch.ones(2))
    with pytest.raises(UserError, match=message):
        example(feeds, *start).answer(2)
