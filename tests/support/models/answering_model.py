# SPDX-License-Identifier: Apache-2.0
"""A compiled model in the engine, whose answers transformers judges."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from support import tiny_runner


@dataclass(frozen=True)
class AnsweringModel:
    """A program around the engine with a model, and transformers' model of the same weights.

    Attributes:
        probe: see ``tiny_runner.build_engine_probe``.
        params: folder of the parameters.
        torch_model: transformers' model.
        sizes: entries of each plan.
        library: the model's library, unless it is in the probe.
        tie: largest distance of a chosen token's logit from the largest one, as a part of the
            largest number.
    """

    probe: Path
    params: Path
    torch_model: Any
    sizes: dict[str, Any]
    library: Path | None = None
    tie: float = 1e-3

    def run(self, requests: list[dict[str, Any]], **plan: Any) -> dict[str, Any]:
        """Answers and statistics of the engine; without a library, in the emulator."""
        plan = {**self.sizes, "steps": 0, "requests": requests, **plan}
        where = {"library": self.library, "emulated": self.library is None}
        return tiny_runner.run_plan(self.probe, self.params, **where, **plan)

    def check(self, prompt: list[int], answer: list[int]) -> None:
        """Each token of the answer has the largest logit, or one as large."""
        torch = importlib.import_module("torch")
        with torch.no_grad():
            logits = self.torch_model(torch.tensor([prompt + answer]), use_cache=False).logits[0]
        rows = logits[len(prompt) - 1 : -1].double()
        chosen = rows.gather(1, torch.tensor(answer)[:, None])[:, 0]
        distance = (rows.max(dim=1).values - chosen) / rows.abs().max()
        worst = int(distance.argmax())
        assert float(distance.max()) < self.tie, f"token {worst}: {float(distance.max()):.2g}"
