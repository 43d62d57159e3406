# SPDX-License-Identifier: Apache-2.0
"""All losses of torch.nn.functional in some settings each, by every reduction."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("tvm")

from judging import Judged, judged  # noqa: E402
from torch.nn import functional as f  # noqa: E402

from crosslab.errors import UserError  # noqa: E402
from torchroad.example import Example, make_example  # noqa: E402
from torchroad.importer import function_of  # noqa: E402

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]
QUICK = "multilabel_margin_loss"
# By loss, a text of its refusal. The first reads whether a variance is negative.
REFUSED = {"gaussian_nll_loss": "in gaussian_nll_loss, .*test_losses", "ctc_loss": "aten._ctc_loss"}
REDUCTIONS = ("none", "mean", "sum")

torch.manual_seed(0)
ROWS, OTHERS, THIRD = torch.randn(3, 3, 5).unbind()
POSITIVE = torch.rand(3, 5) + 0.1
WEIGHTS = torch.rand(5)
PROBABILITIES, TRUTHS = torch.sigmoid(ROWS), (OTHERS > 0).float()
CLASSES, SIGNS = torch.tensor([1, 4, 0]), torch.tensor([1, -1, -1])
IMAGE = torch.randn(2, 5, 3, 3)
PIXELS = torch.tensor([[0, 1, 255], [2, 3, 4], [255, 0, 1]]).expand(2, 3, 3)
# Classes before the first -1 count; 0 is a class and, behind a -1, a filling.
LISTS = torch.tensor([[1, 2, -1, 0, 0], [-1, 3, 3, 1, 2], [3, 0, 1, 2, 4]])
ONE_HOT = torch.tensor([[0.0, 1.0, 0.0, 0.0, 0.0]])

# By loss: the inputs and named arguments of each setting.
SETTINGS: dict[str, list[tuple[tuple[Any, ...], dict[str, Any]]]] = {
    "l1_loss": [((ROWS, OTHERS), {})],
    "mse_loss": [((ROWS, OTHERS), {})],
    "smooth_l1_loss": [((ROWS, OTHERS), {"beta": 0.5}), ((ROWS, OTHERS), {"beta": 0.0})],
    "huber_loss": [((ROWS, OTHERS), {"delta": 0.7})],
    "binary_cross_entropy": [((PROBABILITIES, TRUTHS), {}), ((TRUTHS, PROBABILITIES, WEIGHTS), {})],
    "binary_cross_entropy_with_logits": [
        ((ROWS * 50, PROBABILITIES), {}),
        ((ROWS, TRUTHS, WEIGHTS), {"pos_weight": WEIGHTS + 1}),
    ],
    "cross_entropy": [
        ((ROWS, CLASSES), {}),
        ((ROWS, CLASSES, WEIGHTS), {"ignore_index": 4, "label_smoothing": 0.1}),
        ((ROWS, torch.full((3,), -100)), {}),
        ((ROWS, OTHERS.softmax(1)), {"label_smoothing": 0.2}),
        ((IMAGE, PIXELS), {"ignore_index": 255}),
        ((ROWS[0], CLASSES[0]), {}),
    ],
    "nll_loss": [
        ((ROWS, torch.tensor([1, -100, 0])), {}),
        ((ROWS, torch.tensor([-1, 2, -1]), WEIGHTS), {"ignore_index": -1}),
        ((IMAGE, PIXELS, WEIGHTS), {"ignore_index": 255}),
    ],
    "kl_div": [
        ((ROWS.log_softmax(1), ONE_HOT.expand(3, 5)), {}),
        ((ROWS.log_softmax(1), OTHERS.log_softmax(1)), {"log_target": True}),
    ],
    "poisson_nll_loss": [
        ((ROWS, POSITIVE * 3), {"full": True}),
        ((POSITIVE, POSITIVE.flip(1)), {"log_input": False}),
    ],
    "gaussian_nll_loss": [((ROWS, OTHERS, POSITIVE), {})],
    "hinge_embedding_loss": [((ROWS, TRUTHS * 2 - 1), {"margin": 0.5})],
    "cosine_embedding_loss": [((ROWS, OTHERS, SIGNS), {"margin": 0.2})],
    "margin_ranking_loss": [((ROWS[:, 0], OTHERS[:, 0], SIGNS), {"margin": 0.2})],
    "multilabel_margin_loss": [((ROWS, LISTS), {}), ((ROWS[0], LISTS[0]), {})],
    "multilabel_soft_margin_loss": [((ROWS * 30, TRUTHS, WEIGHTS), {})],
    "multi_margin_loss": [
        ((ROWS, CLASSES), {}),
        ((ROWS, CLASSES), {"p": 2, "margin": 0.7, "weight": WEIGHTS}),
        ((ROWS[0], CLASSES[0]), {}),
    ],
    "soft_margin_loss": [((ROWS * 20, TRUTHS * 2 - 1), {})],
    "triplet_margin_loss": [
        ((ROWS, OTHERS, THIRD), {}),
        ((ROWS, OTHERS, THIRD), {"p": 1, "swap": True, "margin": 0.3}),
    ],
    "triplet_margin_with_distance_loss": [
        ((ROWS, OTHERS, THIRD), {"distance_function": f.pairwise_distance, "swap": True}),
    ],
    "ctc_loss": [
        (
            (torch.randn(8, 2, 5).log_softmax(2), torch.tensor([[1, 2, 2], [3, 4, 1]])),
            {"input_lengths": (8, 6), "target_lengths": (3, 2)},
        ),
    ],
}


class Losses(torch.nn.Module):  # type: ignore[misc]
    """A loss by each reduction."""

    def __init__(self, loss: Callable[..., Any], reductions: tuple[str, ...], **named: Any) -> None:
        super().__init__()
        self.loss, self.reductions, self.named = loss, reductions, named

    def forward(self, *inputs: torch.Tensor) -> list[torch.Tensor]:
        """Return the losses."""
        return [self.loss(*inputs, reduction=way, **self.named) for way in self.reductions]


def example_of(name: str, inputs: tuple[Any, ...], named: dict[str, Any]) -> Example:
    """Return a loss with a setting."""
    reductions = (*REDUCTIONS, *(("batchmean",) if name == "kl_div" else ()))
    model = Losses(getattr(f, name), reductions, **named)
    return make_example(lambda: (model, inputs), Path(__file__))


def worst(name: str, folder: Path) -> Judged:
    """Return the worst verdict on a loss's settings."""
    settings = SETTINGS[name]
    found = [judged(example_of(name, *setting), [(1.0, 0.0)], folder) for setting in settings]
    return max(found, key=lambda one: (not one.right, one.error))


@pytest.mark.parametrize(
    "name",
    [name if name == QUICK else pytest.param(name, marks=pytest.mark.survey) for name in SETTINGS],
)
def test_a_loss(name: str, passes: Path, survey: Callable[..., None]) -> None:
    survey(partial(worst, name, passes), refused=name in REFUSED)


@pytest.mark.parametrize("name", REFUSED)
def test_a_refused_loss_is_named(name: str) -> None:
    with pytest.raises(UserError, match=REFUSED[name]):
        function_of(example_of(name, *SETTINGS[name][0]), {})


def test_every_loss_of_torch_has_settings() -> None:
    names = {name for name in dir(f) if "loss" in name or name.startswith("binary_cross")}
    assert names | {"kl_div", "cross_entropy"} == set(SETTINGS)
