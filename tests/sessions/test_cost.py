# SPDX-License-Identifier: Apache-2.0
"""The cost session asks whether there is the device before it makes anything for it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from sessions import cost, trees


def test_a_device_that_is_none_is_refused_before_the_trees(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_session: Any, *words: str, **_variables: str) -> None:
        assert words == ("accelerator", "describe", "tpu")
        raise LookupError

    def never(*_given: Any) -> None:
        pytest.fail("the trees were made first")

    for module in (cost, trees):
        monkeypatch.setattr(module, "install", lambda *_groups: None)
        monkeypatch.setattr(module, "run_module", refuse)
    monkeypatch.setattr(cost, "apply", never)
    words = ["--accelerator", "tpu", "--model", "smollm2"]
    monkeypatch.setattr(cost, "split_options", lambda *_given: ([], words))
    session: Any = SimpleNamespace(posargs=words)
    with pytest.raises(LookupError):
        cost.estimate(session)
