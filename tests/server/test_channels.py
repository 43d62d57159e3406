# SPDX-License-Identifier: Apache-2.0
"""Answers that are messages in channels, as gpt-oss writes them: thoughts and text of each API."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import served
from served import CHAT, RESPONSES, Served
from support import text_probe, tool_templates
from tokenizers import AddedToken

from crosslab.tokenizer.chat_tokenizer import SETTINGS_FILE, TOKENIZER_FILE, ChatTokenizer
from crosslab.tokenizer.device_tokenizer import pack

MARKERS = (*tool_templates.CHANNEL_MARKERS, "<|call|>", "<|return|>")
# The scripted answerer repeats its prompt from the last token to the first.
TEMPLATE = (
    "{# <|channel|> #}{% for m in messages %}{% for call in m.tool_calls or [] %}"
    "to=functions.{{ call.function.name }}{% endfor %}{% endfor %}{{ messages[-1].content }}"
)
FINAL = "<|start|>assistant<|channel|>final<|message|>"
ANSWERS = [
    ("<|channel|>analysis<|message|>so it is<|end|>" + FINAL + "a cab", "so it is", "a cab"),
    ("<|channel|>final<|message|>a cab", "", "a cab"),
    (
        "<|channel|>commentary<|message|>be quick\n<|end|><|start|>assistant<|channel|>analysis"
        "<|message|>so<|end|>" + FINAL + "yes",
        "so",
        "be quick\nyes",
    ),
    ("<|channel|>analysis<|message|>on and", "on and", ""),
    ("without a message", "", "without a message"),
]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> ChatTokenizer:
    # Without merges: a text that is read backwards has the same tokens.
    made = text_probe.tiny(69).tokenizer
    made.add_tokens([AddedToken("=", normalized=False)])
    made.add_special_tokens([AddedToken(m, special=True, normalized=False) for m in MARKERS])
    folder = tmp_path_factory.mktemp("model")
    made.save(str(folder / TOKENIZER_FILE))
    settings = {"chat_template": TEMPLATE, "eos_token": "<|return|>"}
    (folder / SETTINGS_FILE).write_text(json.dumps(settings))
    loaded = ChatTokenizer.load(folder)
    assert loaded.decode(made.encode("<|channel|>a<|return|>").ids) == "<|channel|>a"
    return loaded


@pytest.fixture(scope="module")
def server(
    program: Path, tokenizer: ChatTokenizer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("channels")
    table = folder / "tokenizer.bin"
    table.write_bytes(pack(tokenizer))
    with served.serving([str(program), str(table), "8", "0", "127.0.0.1"], folder) as running:
        yield running


def asking(tokenizer: ChatTokenizer, answer: str) -> dict[str, Any]:
    """The request whose answer is a text."""
    library = tokenizer.tokenizer
    ids = library.encode(answer, add_special_tokens=False).ids
    prompt = library.decode(ids[::-1], skip_special_tokens=False)
    assert library.encode(prompt, add_special_tokens=False).ids == ids[::-1]
    return {"messages": [{"role": "user", "content": prompt}]}


@pytest.mark.parametrize(("answer", "thought", "text"), ANSWERS)
def test_channels_are_apart(
    server: Served, tokenizer: ChatTokenizer, answer: str, thought: str, text: str
) -> None:
    asked = asking(tokenizer, answer)
    message = server.post(CHAT, asked).json()["choices"][0]["message"]
    assert (message.get("reasoning_content", ""), message["content"] or "") == (thought, text)
    deltas = [event["choices"][0]["delta"] for event in server.stream(CHAT, **asked)]
    for field, wanted in (("reasoning_content", thought), ("content", text)):
        assert "".join(delta.get(field) or "" for delta in deltas) == wanted


def test_other_interfaces_have_them_apart(server: Served, tokenizer: ChatTokenizer) -> None:
    answer, thought, text = ANSWERS[0]
    asked = asking(tokenizer, answer)
    line = server.post("/api/chat", {**asked, "model": server.model, "stream": False}).json()
    assert (line["message"]["thinking"], line["message"]["content"]) == (thought, text)
    told = server.post(RESPONSES, {"input": asked["messages"]}).json()["output"]
    said = {item["type"]: item["content"][0]["text"] for item in told}
    assert said == {"reasoning": thought, "message": text}
    shown = server.post("/api/show", {"model": server.model}).json()
    assert "thinking" in shown["capabilities"]


ANALYSIS = "<|channel|>analysis<|message|>so<|end|><|start|>assistant"
TOOL = {"name": "f", "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}}}
CALLS = [
    (ANALYSIS + "<|channel|>commentary to=functions.f <|constrain|>json", "so"),
    (ANALYSIS + " to=functions.f<|channel|>commentary json", "so"),
    (" to=functions.f<|channel|>commentary <|constrain|>json", ""),
]


@pytest.mark.parametrize(("header", "thought"), CALLS)
def test_a_message_to_a_tool_is_a_call(
    server: Served, tokenizer: ChatTokenizer, header: str, thought: str
) -> None:
    messages = asking(tokenizer, header + '<|message|>{"a": 1}')["messages"]
    tools = [{"type": "function", "function": TOOL}]
    asked = {"messages": messages, "tools": tools}
    (choice,) = server.post(CHAT, asked).json()["choices"]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"].get("reasoning_content", "") == thought
    assert choice["message"]["content"] is None
    (call,) = choice["message"]["tool_calls"]
    assert call["function"] == {"name": "f", "arguments": '{"a": 1}'}
    deltas = [event["choices"][0]["delta"] for event in server.stream(CHAT, **asked)]
    pieces = [piece for delta in deltas for piece in delta.get("tool_calls", [])]
    assert pieces[0]["function"]["name"] == "f"
    assert "".join(piece["function"]["arguments"] for piece in pieces) == '{"a": 1}'
    line = server.post("/api/chat", {**asked, "stream": False}).json()
    (call,) = line["message"]["tool_calls"]
    assert call["function"] == {"name": "f", "arguments": {"a": 1}}
    flat = {"input": messages, "tools": [{"type": "function", **TOOL}]}
    item = server.post(RESPONSES, flat).json()["output"][-1]
    assert (item["type"], item["name"], item["arguments"]) == ("function_call", "f", '{"a": 1}')


def test_calls_in_channels_are_checked(server: Served, tokenizer: ChatTokenizer) -> None:
    tools = [{"type": "function", "function": TOOL}]
    for message, fault in (
        (' to=functions.f<|channel|>commentary json<|message|>{"a": "b"}', "the arguments of f: "),
        (" to=functions.e<|channel|>commentary json<|message|>{}", "it calls a tool that is not"),
    ):
        reply = server.post(CHAT, {**asking(tokenizer, message), "tools": tools})
        assert (reply.status, fault in reply.error["message"]) == (500, True), reply.body


def test_an_answer_with_a_schema_is_in_the_final_channel(
    server: Served, tokenizer: ChatTokenizer
) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "integer"}}}
    asked = {**asking(tokenizer, "abc"), "response_format": form}
    *events, last = server.stream(CHAT, **asked)
    said = "".join(event["choices"][0]["delta"].get("content", "") for event in events)
    assert said == "<|message|>lanif<|channel|>abc"
    assert last["error"]["message"].startswith("the answer does not match its schema: ")
