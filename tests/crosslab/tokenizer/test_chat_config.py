# SPDX-License-Identifier: Apache-2.0
"""Sampling that goes to the device with a model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from crosslab.errors import UserError
from crosslab.tokenizer.chat_config import CONFIG_FILE, DEFAULTS, SOURCE_FILE, chat_config


def written(model: Path) -> dict[str, float]:
    table: dict[str, float] = json.loads(chat_config(model, model / "cache").read_text())
    return table


def test_a_model_that_says_nothing_gets_mlc_llms_values(tmp_path: Path) -> None:
    assert written(tmp_path) == DEFAULTS


def test_the_models_values_are_taken(tmp_path: Path) -> None:
    said = {"temperature": 0.6, "top_p": 0.95, "top_k": 20, "repetition_penalty": None}
    (tmp_path / SOURCE_FILE).write_text(json.dumps(said))
    assert written(tmp_path) == {**DEFAULTS, "temperature": 0.6, "top_p": 0.95}
    (tmp_path / CONFIG_FILE).write_text(json.dumps({"temperature": 0, "vocab_size": 3}))
    assert written(tmp_path) == {**DEFAULTS, "temperature": 0.0, "top_p": 0.95}


@pytest.mark.parametrize("text", ['{"top_p": "x"}', '{"top_p": true}', '{"top_p": NaN}', "[]", "{"])
def test_what_is_no_number_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / SOURCE_FILE).write_text(text)
    with pytest.raises(UserError, match=SOURCE_FILE):
        written(tmp_path)
