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
from support import text_probe
from tokenizers import AddedToken

from crosslab.tokenizer.chat_tokenizer import SETTINGS_FILE, TOKENIZER_FILE, ChatTokenizer
from crosslab.tokenizer.device_tokenizer import pack

MARKERS = ("<|start|>", "<|channel|>", "<|message|>", "<|end|>", "<|return|>")
# The scripted answerer repeats its prompt from the last token to the first.
TEMPLATE = "{# <|channel|> #}{{ messages[-1].content }}"
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
