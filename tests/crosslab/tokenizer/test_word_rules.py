# SPDX-License-Identifier: Apache-2.0
"""The table of word rules: what it builds cuts as the library's own, and is known again."""

import json
import re
from pathlib import Path

import pytest
from support.text_probe import RULES
from tokenizers import Tokenizer, models

from crosslab.tokenizer.word_rules import WordRule, rule_of, word_rules

WORDS_H = Path(__file__).resolve().parents[3] / "runner" / "text" / "words.h"
TEXTS = ["It's 12345 o'clock\r\n\n  and  done ", "naïve ΩΩ 42\u00a0km!!", " a\tb", "日本語 3.14"]


@pytest.mark.parametrize("rule", word_rules(), ids=lambda rule: rule.name)
def test_a_rule_cuts_as_the_librarys_own(rule: WordRule) -> None:
    ours, theirs = rule.build(), RULES[rule.name]()
    for text in TEXTS:
        assert ours.pre_tokenize_str(text) == theirs.pre_tokenize_str(text)


@pytest.mark.parametrize("rule", word_rules(), ids=lambda rule: rule.name)
def test_a_rule_is_known_again_in_a_tokenizer(rule: WordRule) -> None:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = RULES[rule.name]()
    found = rule_of(json.loads(tokenizer.to_str())["pre_tokenizer"])
    assert found == rule


def test_other_rules_are_not_taken_for_one_of_the_table() -> None:
    assert rule_of(None) is None
    for change in ({"add_prefix_space": True}, {"use_regex": False}, {"type": "Digits"}):
        assert rule_of({**word_rules()[0].pre_tokenizer, **change}) is None


def test_the_numbers_are_the_runners() -> None:
    listed = re.findall(r"^\s*k(\w+) = (\d+),", WORDS_H.read_text(encoding="utf-8"), re.MULTILINE)
    assert {(name.lower(), int(number)) for name, number in listed} == {
        (rule.name, rule.number) for rule in word_rules()
    }
    code = WORDS_H.with_suffix(".cc").read_text(encoding="utf-8")
    assert f"number >= 1 && number <= {max(rule.number for rule in word_rules())};" in code
