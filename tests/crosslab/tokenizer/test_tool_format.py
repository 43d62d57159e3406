# SPDX-License-Identifier: Apache-2.0
"""Calls of tools: their format comes out of chat templates, which the device runs as Jinja does."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support import shared_builds, text_probe, tool_templates
from support.models.published_tokenizers import published
from tokenizers import AddedToken
from transformers.utils.chat_template_utils import render_jinja_template

from crosslab.errors import LabError
from crosslab.host.toolchain import Toolchain
from crosslab.tokenizer.chat_tokenizer import ChatTokenizer
from crosslab.tokenizer.device_tokenizer import pack
from crosslab.tokenizer.tool_format import ToolFormat, tool_format

FORMATS = {
    "hermes": ToolFormat(
        begin="<tool_call>\n",
        open='{"name": "',
        middle='", "arguments": ',
        close="}",
        id_length=0,
        after_id="",
        between="\n</tool_call>\n<tool_call>\n",
        end="\n</tool_call>",
        parallel=True,
    ),
    "llama3": ToolFormat(
        begin="",
        open='{"name": "',
        middle='", "parameters": ',
        close="}",
        id_length=0,
        after_id="",
        between="",
        end="",
        parallel=False,
    ),
    "mistral": ToolFormat(
        begin="[TOOL_CALLS] [",
        open='{"name": "',
        middle='", "arguments": ',
        close=', "id": "',
        id_length=9,
        after_id='"}',
        between=", ",
        end="]",
        parallel=True,
    ),
    "channels": ToolFormat(
        begin="",
        open="<|channel|>commentary to=functions.",
        middle=" <|constrain|>json<|message|>",
        close="",
        id_length=0,
        after_id="",
        between="",
        end="",
        parallel=False,
    ),
}


# Command R's way: another marker than that of a plain answer, and numbers of the calls.
ACTION = (
    "{% for m in messages %}{% if m.tool_calls %}<|start_action|>["
    "{% for call in m.tool_calls %}{{ ', ' if not loop.first }}"
    '{"id": "NUMBER", "name": "{{ call.function.name }}", "parameters": '
    "{{ call.function.arguments | tojson }}}{% endfor %}]<|end_action|>"
    "{% else %}<|start_response|>{{ m.content }}{% endif %}<|end|>{% endfor %}"
)


def of_template(template: str) -> ChatTokenizer:
    tokenizer = text_probe.trained("qwen2")
    return ChatTokenizer(tokenizer.tokenizer, {**tokenizer.settings, "chat_template": template})


@pytest.mark.parametrize("name", FORMATS)
def test_a_format_is_read_from_its_template(name: str) -> None:
    assert tool_format(of_template(tool_templates.BY_NAME[name])) == FORMATS[name]


@pytest.mark.parametrize(("number", "parallel"), [("{{ loop.index0 }}", False), ("0", True)])
def test_a_format_begins_with_a_whole_marker(number: str, parallel: bool) -> None:
    tokenizer = of_template(ACTION.replace("NUMBER", number))
    names = ("<|start_action|>", "<|start_response|>", "<|end_action|>")
    tokenizer.tokenizer.add_special_tokens(
        [AddedToken(name, special=True, normalized=False) for name in names]
    )
    found = tool_format(tokenizer)
    assert found == ToolFormat(
        begin="<|start_action|>[",
        open='{"id": "0", "name": "',
        middle='", "parameters": ',
        close="}",
        id_length=0,
        after_id="",
        between=", " if parallel else "",
        end="]<|end_action|>",
        parallel=parallel,
    )


def test_a_format_does_not_begin_in_the_prompt() -> None:
    """A token of two line ends: one ends the prompt, one begins the call."""
    called = "{{ '\n' }}<tool_call>"
    tokenizer = of_template(tool_templates.HERMES.replace("<tool_call>", called, 1))
    begin = getattr(tool_format(tokenizer), "begin", None)
    tokenizer.tokenizer.add_tokens([AddedToken("\n\n", normalized=False)])
    assert getattr(tool_format(tokenizer), "begin", None) == begin == "\n<tool_call>\n"


def test_the_result_of_a_tool_is_not_a_part_of_its_call() -> None:
    """Without a stop token between them, the end of a call is unknown."""
    unended = "{% if not m.tool_calls %}<|end|>\n{% endif %}{%- endfor"
    template = tool_templates.HERMES.replace("<|end|>\n{%- endfor", unended)
    assert unended in template and tool_format(of_template(template)) is None


@pytest.mark.parametrize(
    "template",
    [
        text_probe.TEMPLATE,
        "{{ messages[0].content }}",
        "{{ raise_exception('no') }}",
        # Arguments that are not JSON.
        tool_templates.HERMES.replace("call.function.arguments | tojson", "'<a>b</a>'"),
    ],
)
def test_other_templates_call_no_tools(template: str) -> None:
    assert tool_format(of_template(template)) is None


TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "It's <b>weather</b> \u00e9",
        "parameters": {"type": "object", "properties": {"town": {"type": "string"}}},
    },
}
CALL = {
    "type": "function",
    "id": "abcdefghi",
    "function": {"name": "weather", "arguments": {"town": "K\u00f6ln", "days": [1, 2.5, None]}},
}
CONVERSATIONS: list[list[dict[str, Any]]] = [
    [{"role": "user", "content": " Hello \u00e9 \n"}],
    [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "x"}],
    [{"role": "user", "content": "a"}, {"role": "user", "content": "b"}],
    [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "<think>\nhm\n</think>\n\nb"},
        {"role": "system", "content": "now in French"},
        {"role": "user", "content": "c"},
    ],
    [
        {"role": "user", "content": "How is it?"},
        {"role": "assistant", "content": "", "tool_calls": [CALL]},
        {"role": "tool", "content": "sunny", "tool_call_id": "abcdefghi", "name": "weather"},
        {"role": "assistant", "content": "Sunny."},
        {"role": "user", "content": "Thanks."},
    ],
]


@pytest.fixture(scope="module")
def probe(sanitizers: Toolchain) -> list[str]:
    return [str(text_probe.build_probe(sanitizers, shared_builds.CACHE))]


def check_all(tokenizer: ChatTokenizer, probe: list[str], folder: Path) -> int:
    """Compare the device's text of each conversation with Jinja's; return the number."""
    table = folder / "tokenizer.bin"
    table.write_bytes(pack(tokenizer))
    cases = [(messages, tools) for messages in CONVERSATIONS for tools in ([], [TOOL])]
    asked = [json.dumps({"messages": m, "tools": t}).encode() for m, t in cases]
    same = 0
    for (messages, tools), told in zip(
        cases, text_probe.ask(probe, table, "conversation", asked), strict=True
    ):
        try:
            text = tokenizer.chat_text(messages, tools)
        except LabError:
            assert "the model's chat template" in told["error"]
            continue
        assert told["ids"] == tokenizer.tokenizer.encode(text, add_special_tokens=False).ids
        same += 1
    return same


@pytest.mark.parametrize("name", FORMATS)
def test_the_device_runs_templates_as_jinja(name: str, probe: list[str], tmp_path: Path) -> None:
    assert check_all(of_template(tool_templates.BY_NAME[name]), probe, tmp_path) >= 8


TRANSFORMERS_TEMPLATES = {
    # SmolLM3's and LFM2.5's tags.
    "generation": "{% for m in messages %}{{ m.role }}{% if m.role == 'assistant' %}"
    "{%- generation -%}{% set t = m.content | trim %}[{{ t }}]{% endgeneration %}"
    "{% else %}{{ m.content }}{% endif %}\n{% endfor %}",
    # GLM's, Kimi's and Command R's ways of writing JSON.
    "tojson": "{% for tool in tools or [] %}{{ tool | tojson(ensure_ascii=False) }}"
    "{{ tool | tojson(ensure_ascii=True, separators=(',', ':')) }}"
    "{{ tool | tojson(indent=2) }}{{ tool | tojson(true, 2) }}"
    "{{ tool | tojson(false, none, (',', ':')) }}{% endfor %}"
    "{{ messages | tojson(separators=(', ', '= ')) }}",
}


@pytest.mark.parametrize("name", TRANSFORMERS_TEMPLATES)
def test_templates_may_use_what_transformers_adds(
    name: str, probe: list[str], tmp_path: Path
) -> None:
    tokenizer = of_template(TRANSFORMERS_TEMPLATES[name])
    assert check_all(tokenizer, probe, tmp_path) == 2 * len(CONVERSATIONS)
    for messages in CONVERSATIONS:
        rendered, _ = render_jinja_template(
            [messages],
            tools=[TOOL],
            chat_template=TRANSFORMERS_TEMPLATES[name],
            add_generation_prompt=True,
        )
        assert tokenizer.chat_text(messages, [TOOL]) == rendered[0]


@pytest.mark.parametrize("name", ["qwen3", "llama3_1"])
def test_the_device_runs_published_templates(name: str, probe: list[str], tmp_path: Path) -> None:
    assert check_all(ChatTokenizer.load(published(name)), probe, tmp_path) >= 8


def test_an_answer_may_be_continued(probe: list[str], tmp_path: Path) -> None:
    tokenizer = of_template(tool_templates.HERMES)
    table = tmp_path / "tokenizer.bin"
    table.write_bytes(pack(tokenizer))
    # The template itself writes some of them behind an answer.
    said = ["So it ", "<", ">", "end", "|", "im", "<|", "\u00a0a\u00a0"]
    asked = [*(f"Ua\0A{text}\0".encode() for text in said), b"Ua\0A\0"]
    *told, refused = text_probe.ask(probe, table, "turns", asked)
    before = tokenizer.chat_text([{"role": "user", "content": "a"}])
    for text, got in zip(said, told, strict=True):
        whole = tokenizer.tokenizer.encode(before + text.rstrip(), add_special_tokens=False)
        assert got["ids"] == whole.ids
    assert "does not let an answer be continued" in refused["error"]
