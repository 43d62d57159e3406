# SPDX-License-Identifier: Apache-2.0
"""Rules that split text into words, from ``word_rules.toml``, which explains its fields."""

from __future__ import annotations

import json
import tomllib
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, models, pre_tokenizers

TABLE = Path(__file__).with_name("word_rules.toml")


@dataclass(frozen=True)
class WordRule:
    """A rule that splits text into words.

    Attributes:
        name: name of the rule.
        number: the runner's number of the rule.
        gguf: names of the rule in GGUF files.
        pre_tokenizer: the rule in the form of ``tokenizer.json``; ``trim_offsets`` is true.
    """

    name: str
    number: int
    gguf: tuple[str, ...]
    pre_tokenizer: dict[str, Any]

    def build(self) -> pre_tokenizers.PreTokenizer:
        """Build the rule as a pre-tokenizer of the tokenizers library."""
        whole = json.loads(Tokenizer(models.BPE()).to_str())
        whole["pre_tokenizer"] = self.pre_tokenizer
        rule: pre_tokenizers.PreTokenizer = Tokenizer.from_str(json.dumps(whole)).pre_tokenizer
        return rule


@cache
def word_rules() -> tuple[WordRule, ...]:
    """Read every rule of the table."""
    table = tomllib.loads(TABLE.read_text(encoding="utf-8"))
    return tuple(
        WordRule(
            name,
            rule["number"],
            tuple(rule["gguf"]),
            rule.get("pre_tokenizer") or _cutting(rule["cuts"]),
        )
        for name, rule in table.items()
    )


def _cutting(cuts: list[str]) -> dict[str, Any]:
    """Return the pre-tokenizer that cuts by expressions in turn, then takes bytes as characters."""
    steps: list[dict[str, Any]] = [
        {"type": "Digits", "individual_digits": True}
        if cut == "digits"
        else {"type": "Split", "pattern": {"Regex": cut}, "behavior": "Isolated", "invert": False}
        for cut in cuts
        if cut != "gpt2"
    ]
    last = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
    steps.append({**last, "use_regex": "gpt2" in cuts})
    return steps[0] if len(steps) == 1 else {"type": "Sequence", "pretokenizers": steps}


def rule_of(pre_tokenizer: Any) -> WordRule | None:
    """Return the rule that equals a ``pre_tokenizer`` except for ``trim_offsets``, or None."""
    plain = _trimmed(pre_tokenizer)
    return next((rule for rule in word_rules() if rule.pre_tokenizer == plain), None)


def _trimmed(value: Any) -> Any:
    """Return a ``pre_tokenizer`` with every ``trim_offsets`` set."""
    if isinstance(value, dict):
        return {k: k == "trim_offsets" or _trimmed(v) for k, v in value.items()}
    return [_trimmed(item) for item in value] if isinstance(value, list) else value
