# SPDX-License-Identifier: Apache-2.0
"""Answers that call tools: within the model's format, and cut into names and arguments."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from support import text_probe, tool_templates
from tokenizers import AddedToken

from crosslab.tokenizer.chat_tokenizer import ChatTokenizer
from crosslab.tokenizer.device_tokenizer import pack

TEXT, THOUGHT, CALL, ARGUMENTS = range(4)
TOOLS: dict[str, Any] = {
    "weather": {
        "type": "object",
        "properties": {
            "town": {"type": "string", "maxLength": 6},
            "days": {"type": "array", "items": {"type": "integer"}, "maxItems": 2},
        },
        "required": ["town"],
    },
    "stop-now": {"type": "object", "properties": {}},
}
BEGINS = {"hermes": "<tool_call>\n", "llama3": '{"name": "', "mistral": "[TOOL_CALLS] ["}


@pytest.fixture(params=BEGINS)
def named(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, Path]:
    plain = text_probe.trained("qwen2")
    plain.tokenizer.add_tokens([AddedToken("[TOOL_CALLS]", special=True, normalized=False)])
    settings = {**plain.settings, "chat_template": tool_templates.BY_NAME[request.param]}
    table = tmp_path / "tokenizer.bin"
    table.write_bytes(pack(ChatTokenizer(plain.tokenizer, settings)))
    return request.param, table


def answers(
    probe: Path, table: Path, count: int, tokens: int = 3000, **asked: Any
) -> list[dict[str, Any]]:
    line = json.dumps({"calls": True, "tools": TOOLS, "most": 3, "text": None, **asked})
    command = [str(probe), str(table), "1", str(tokens)]
    done = subprocess.run(
        command, input=f"{line}\n" * count, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return [json.loads(one) for one in done.stdout.rstrip("\n").split("\n")]


def calls_of(answer: dict[str, Any]) -> list[tuple[str, Any]]:
    """The calls that the parts tell."""
    calls: list[tuple[str, str]] = []
    for kind, text in answer["parts"]:
        if kind == CALL:
            calls.append((text, ""))
        elif kind == ARGUMENTS:
            calls[-1] = (calls[-1][0], calls[-1][1] + text)
    return [(name, json.loads(text)) for name, text in calls]


def check(answer: dict[str, Any]) -> int:
    calls = calls_of(answer)
    assert answer["done"] and calls and answer["fault"] == ""
    for name, arguments in calls:
        jsonschema.validate(arguments, TOOLS[name])
    return len(calls)


def test_an_answer_that_has_to_call_does(probe: Path, named: tuple[str, Path]) -> None:
    name, table = named
    given = answers(probe, table, 20)
    numbers = {check(answer) for answer in given}
    assert all(kind != TEXT for answer in given for kind, _ in answer["parts"])
    assert numbers == {1} if name == "llama3" else numbers <= {1, 2, 3} and len(numbers) > 1
    only = answers(probe, table, 5, most=1, tools={"weather": TOOLS["weather"]})
    assert {check(answer) for answer in only} == {1}
    assert {name for answer in only for name, _ in calls_of(answer)} == {"weather"}


@pytest.mark.parametrize(
    "parameters",
    [
        {},
        True,
        {"properties": {"a": {"type": "null"}}, "required": ["a"]},
        {"additionalProperties": {"maxLength": 2}},
        {"type": ["null", "object"], "maxProperties": 1},
    ],
)
def test_arguments_are_an_object(
    probe: Path, named: tuple[str, Path], parameters: dict[str, Any]
) -> None:
    """Also those of a tool whose schema permits other values."""
    for answer in answers(probe, named[1], 8, most=1, tools={"f": parameters}):
        assert answer["done"] and answer["fault"] == "", answer
        ((_, arguments),) = calls_of(answer)
        jsonschema.validate(arguments, {"type": "object", "allOf": [parameters]})


def test_a_tool_without_objects_is_refused(probe: Path, named: tuple[str, Path]) -> None:
    (answer,) = answers(probe, named[1], 1, tools={"f": {"type": "string"}})
    assert answer["field"] == "tools.f.type"


def test_a_call_that_is_cut_leaves_no_scraps(probe: Path, named: tuple[str, Path]) -> None:
    name, table = named
    for tokens in range(1, 24):
        for answer in answers(probe, table, 3, tokens):
            said = "".join(text for kind, text in answer["parts"] if kind == TEXT)
            # A beginning of the marker may as well be text.
            assert BEGINS[name].startswith(said) and len(said) < len(BEGINS[name])
            assert said in ("", answer["text"])


def test_a_call_begins_in_a_text(probe: Path, named: tuple[str, Path]) -> None:
    name, table = named
    before = "" if name == "llama3" else "Let me see. "
    for answer in answers(probe, table, 5, text=before + BEGINS[name]):
        check(answer)
        assert "".join(text for kind, text in answer["parts"] if kind == TEXT) == before


@pytest.mark.parametrize("begun", [False, True])
def test_a_thought_calls_nothing(probe: Path, named: tuple[str, Path], begun: bool) -> None:
    name, table = named
    thought = BEGINS[name] + " or so"
    text = ("" if begun else "<think>") + thought + "</think>\n\n" + BEGINS[name]
    for answer in answers(probe, table, 3, text=text, begun=begun):
        check(answer)
        assert "".join(text for kind, text in answer["parts"] if kind == THOUGHT) == thought


FINAL = "<|channel|>final<|message|>"
ANALYSIS = "<|channel|>analysis<|message|>so<|end|><|start|>assistant"


@pytest.fixture
def channels(tmp_path: Path) -> Path:
    plain = text_probe.trained("qwen2")
    markers = tool_templates.CHANNEL_MARKERS
    plain.tokenizer.add_tokens([AddedToken(m, special=False, normalized=False) for m in markers])
    settings = {**plain.settings, "chat_template": tool_templates.CHANNELS}
    table = tmp_path / "tokenizer.bin"
    table.write_bytes(pack(ChatTokenizer(plain.tokenizer, settings)))
    return table


def without_calls(given: list[Any]) -> list[Any]:
    """Check the answers that call a tool; return the others, which are whole."""
    called = [answer for answer in given if calls_of(answer)]
    assert 0 < len(called) < len(given)
    for answer in called:
        check(answer)
    others = [answer for answer in given if answer not in called]
    assert all(answer["done"] and answer["fault"] == "" for answer in others)
    return others


def test_calls_in_channels(probe: Path, channels: Path) -> None:
    begin = "<|channel|>commentary to=functions."
    for answer in answers(probe, channels, 10):
        assert check(answer) == 1 and answer["text"].startswith(begin)
    for answer in answers(probe, channels, 5, text=ANALYSIS + begin):
        assert check(answer) == 1
        assert "".join(text for kind, text in answer["parts"] if kind == THOUGHT) == "so"
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    for answer in without_calls(answers(probe, channels, 20, schema=schema)):
        assert answer["text"].startswith(FINAL)
        said = "".join(text for kind, text in answer["parts"] if kind == TEXT)
        jsonschema.validate(json.loads(said), schema)


@pytest.mark.parametrize("text", ["<tool_call> it", 'so {"name": "x"}', "a [TOOL", "<think>a"])
def test_other_texts_call_nothing(probe: Path, named: tuple[str, Path], text: str) -> None:
    (answer,) = answers(probe, named[1], 1, text=text, most=1)
    said = "".join(part for kind, part in answer["parts"] if kind in (TEXT, THOUGHT))
    assert calls_of(answer) == []
    assert answer["text"] == ("<think>" if text.startswith("<think>") else "") + said


def test_an_answer_calls_or_matches_a_schema(probe: Path, named: tuple[str, Path]) -> None:
    name, table = named
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    given = answers(probe, table, 20, schema=schema)
    if name == "llama3":  # its calls begin as JSON does
        assert {answer["field"] for answer in given} == {"tools"}
        return
    for answer in without_calls(given):
        jsonschema.validate(json.loads(answer["text"]), schema)
