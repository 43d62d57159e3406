# SPDX-License-Identifier: Apache-2.0
"""Conversations with calls of tools, as clients send them again, in the models' templates."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import served
from served import CHAT, Served
from support import text_probe, tool_templates

from crosslab.tokenizer.chat_tokenizer import ChatTokenizer
from crosslab.tokenizer.device_tokenizer import pack

USER = {"role": "user", "content": "abc"}
LETTERS = 69  # tokens of a vocabulary without merges
ARGUMENTS = '{"b": 1, "a": null}'


@pytest.fixture(scope="module")
def speaking(program: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Starts a server whose model has a template, once."""
    plain = text_probe.trained("qwen2")
    with ExitStack() as running:

        @cache
        def run(name: str) -> Served:
            folder = tmp_path_factory.mktemp(name)
            table = folder / "tokenizer.bin"
            settings = {**plain.settings, "chat_template": tool_templates.BY_NAME[name]}
            table.write_bytes(pack(ChatTokenizer(plain.tokenizer, settings)))
            words = [str(program), str(table), "8", "0", "127.0.0.1"]
            return running.enter_context(served.serving(words, folder))

        yield run


def prompt(server: Served, *messages: dict[str, Any]) -> str:
    tokens = server.post("/tokenize", {"messages": [*messages]})
    assert tokens.status == 200, tokens.body
    text = server.post("/detokenize", {"tokens": tokens.json()["tokens"]}).json()["prompt"]
    assert isinstance(text, str)
    return text


def call(arguments: Any = ARGUMENTS, **more: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": "f", "arguments": arguments}, **more}


def called(*calls: dict[str, Any]) -> dict[str, Any]:
    return {"role": "assistant", "content": None, "tool_calls": [*calls]}


def test_arguments_keep_their_order_and_null(speaking: Callable[[str], Served]) -> None:
    server = speaking("hermes")
    assert ARGUMENTS in prompt(server, USER, called(call()), USER)
    # The scripted answer is the prompt, from the last token to the first.
    theirs = {"role": "assistant", "tool_calls": [call({"b": 1, "a": None})]}
    ours = {"messages": [USER, called(call()), USER]}
    reply = server.post("/api/chat", {"messages": [USER, theirs, USER], "stream": False})
    said = server.post(CHAT, ours).json()["choices"][0]["message"]["content"]
    assert reply.json()["message"]["content"] == said


@pytest.mark.parametrize("twice", [False, True])
def test_ollamas_calls_keep_their_order(program: Path, tmp_path: Path, twice: bool) -> None:
    """The scripted answer is the prompt, letter by letter from its end."""
    table = tmp_path / "tokenizer.bin"
    table.write_bytes(pack(text_probe.tiny(LETTERS, tool_templates.HERMES)))
    first = '{"z": {"b": 1, "a": 2}, "c": 3' + ', "c": 4' * twice
    answer = '<tool_call>\n{"name": "f", "arguments": ' + first + "}}\n</tool_call>"
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
    asked = {"messages": [{"role": "user", "content": answer[::-1]}], "tools": [tool]}
    with served.serving([str(program), str(table), "8", "0", "127.0.0.1"], tmp_path) as server:
        whole = server.post("/api/chat", {**asked, "stream": False})
        lines = server.post("/api/chat", asked).body.decode().splitlines()
    told = whole.json()
    assert list(told)[:5] == ["model", "created_at", "message", "done", "done_reason"]
    assert list(told["message"]) == ["role", "content", "tool_calls"]
    (streamed,) = (m for line in lines if "tool_calls" in (m := json.loads(line)["message"]))
    for message in (told["message"], streamed):
        (made,) = message["tool_calls"]
        written = {"name": "f", "arguments": {"z": {"b": 1, "a": 2}, "c": 3 + twice}}
        assert json.dumps(made["function"]) == json.dumps(written)


@pytest.mark.parametrize("arguments", ["", None, "{}"])
def test_a_call_may_have_no_arguments(
    speaking: Callable[[str], Served], arguments: str | None
) -> None:
    assert '"arguments": {}' in prompt(speaking("hermes"), USER, called(call(arguments)), USER)


@pytest.mark.parametrize("template", ["mistral", "magistral"])
def test_ids_get_the_length_that_a_template_accepts(
    speaking: Callable[[str], Served], template: str
) -> None:
    server = speaking(template)
    ours = [called(call(id="call_0a1b_0_0"), call(id="abcdefghi"))]
    ours += [{"role": "tool", "content": "d", "tool_call_id": i} for i in ("call_0a1b_0_0", "x")]
    text = prompt(server, USER, *ours, USER)
    assert '"id": "000000000"' in text and '"id": "abcdefghi"' in text
    theirs = {"role": "assistant", "tool_calls": [call({}), call({})]}
    result = {"role": "tool", "content": "d", "tool_name": "f"}
    asked = {"messages": [USER, theirs, result, result, USER], "stream": False}
    assert server.post("/api/chat", asked).status == 200
