# SPDX-License-Identifier: Apache-2.0
"""Text format of a model's tool calls, derived from a call that its chat template renders."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from crosslab.errors import LabError
from crosslab.tokenizer.chat_tokenizer import ChatTokenizer

FIRST, SECOND = "some_first_tool", "some_second_tool"
KEY, VALUE = '"some_key"', '"some_value"'
IDS = ("abcdefghi", "jklmnopqr")  # nine characters, as Mistral's templates require
SAID = "Some plain answer"
RESULT = "17"
OTHER = {
    "type": "function",
    "function": {"name": "other", "description": "", "parameters": {"type": "object"}},
}


@dataclass(frozen=True)
class ToolFormat:
    """The texts around the parts of an answer that calls tools, as the runner reads them.

    An answer is ``begin call between call end``, and a call is ``open NAME middle ARGUMENTS
    close``, where ARGUMENTS is JSON.

    Attributes:
        open: text before the name.
        middle: text between the name and the arguments.
        begin: text before the first call; may be empty.
        close: text after the arguments; may be empty.
        id_length: characters of the call's id after ``close``; 0: calls have no id.
        after_id: text after the id.
        between: text between two calls.
        end: text after the last call; may be empty.
        parallel: an answer can call several tools.
    """

    open: str
    middle: str
    begin: str = ""
    close: str = ""
    id_length: int = 0
    after_id: str = ""
    between: str = ""
    end: str = ""
    parallel: bool = False


# gpt-oss: a call is a message to the tool. Its template writes the tool before the channel; the
# model itself writes it behind.
_TO = "to=functions."
_IN_CHANNELS = ToolFormat(f"<|channel|>commentary {_TO}", " <|constrain|>json<|message|>")


@dataclass(frozen=True)
class _Call:
    """Offsets of a tool call and of its arguments in a text."""

    text: str
    begin: int
    arguments: int
    behind: int
    end: int


def tool_format(tokenizer: ChatTokenizer) -> ToolFormat | None:
    """Return the format of a model's tool calls; None if the template has no supported format."""
    try:
        plain = _rendered(tokenizer, [])
        called = _rendered(tokenizer, [FIRST])
    except LabError:
        return None
    if _TO + FIRST in called:
        return _IN_CHANNELS
    call = _find(called, FIRST, IDS[0])
    stop = _first_stop(tokenizer, call.text[call.end :]) if call else None
    if call is None or stop is None or SAID not in plain:
        return None
    before = plain[: plain.index(SAID)]
    pairs = enumerate(zip(before, called, strict=False))
    start = next((at for at, (a, b) in pairs if a != b), min(len(before), len(called)))
    start = _token_begin(tokenizer, called, start)
    end = called[call.end : call.end + stop]
    if RESULT in end:
        return None  # the stop token is that of a later message
    tail = called[call.behind : call.end]
    close, _, after_id = tail.partition(IDS[0])
    head = called[call.begin : call.arguments]
    opening, _, middle = head.partition(FIRST)
    between = _between(tokenizer)
    return ToolFormat(
        begin=called[start : call.begin],
        open=opening,
        middle=middle,
        close=close,
        id_length=len(IDS[0]) if IDS[0] in tail else 0,
        after_id=after_id,
        between=between or "",
        end=end,
        parallel=between is not None,
    )


def _rendered(tokenizer: ChatTokenizer, names: Sequence[str]) -> str:
    """Render a conversation whose answer calls the named tools; without names, a plain answer."""
    calls = [
        {
            "id": IDS[number],
            "type": "function",
            "function": {"name": name, "arguments": {KEY.strip('"'): VALUE.strip('"')}},
        }
        for number, name in enumerate(names)
    ]
    results = [
        {"role": "tool", "name": name, "tool_call_id": IDS[number], "content": RESULT}
        for number, name in enumerate(names)
    ]
    called: list[dict[str, Any]] = [
        {"role": "assistant", "content": "", "tool_calls": calls},
        *results,
        {"role": "assistant", "content": f"It is {RESULT}."},
    ]
    plain = [{"role": "assistant", "content": SAID}]
    question, more = ({"role": "user", "content": text} for text in ("What is it?", "?"))
    return tokenizer.chat_text([question, *(called if names else plain), more], [OTHER])


def _find(text: str, name: str, name_id: str) -> _Call | None:
    """Find a tool's call by its braces; None without them, or with an id before the arguments."""
    if text.count(name) < 1 or KEY not in text:
        return None
    named = text.index(name)
    key = text.find(KEY, named)
    arguments = text.rfind("{", named, max(key, named))
    behind = text.find("}", text.find(VALUE, key)) + 1
    begin = text.rfind("{", 0, named)
    end = text.find("}", behind) + 1
    if min(key, arguments, begin) < 0 or not behind or not end:
        return None
    if name_id in text[begin:behind]:
        return None  # an id before the arguments
    return _Call(text, begin, arguments, behind, end)


def _between(tokenizer: ChatTokenizer) -> str | None:
    """Return the text between two calls; None if the template allows only one call."""
    try:
        text = _rendered(tokenizer, [FIRST, SECOND])
    except LabError:
        return None
    first, second = _find(text, FIRST, IDS[0]), _find(text, SECOND, IDS[1])
    if first is None or second is None or second.begin < first.end:
        return None
    frames = [
        text[call.begin : call.arguments] + text[call.behind : call.end] for call in (first, second)
    ]
    if frames[0] != frames[1].replace(SECOND, FIRST).replace(IDS[1], IDS[0]):
        return None  # such as a number of the call
    return text[first.end : second.begin]


def _token_begin(tokenizer: ChatTokenizer, text: str, at: int) -> int:
    """Return the begin of the added token in a text that an offset is inside of; else the offset.

    Plain answers and calls may begin with two markers, such as ``<|START_RESPONSE|>`` and
    ``<|START_ACTION|>``.
    """
    added = tokenizer.tokenizer.get_added_tokens_decoder().values()
    # A token of blanks is no marker: it may begin in the prompt and end in the answer.
    names = (token.content for token in added if token.content.strip())
    sizes = ((name, len(name)) for name in names)
    found = (text.find(name, max(0, at - size + 1), at + size - 1) for name, size in sizes)
    return min((begin for begin in found if begin >= 0), default=at)


def _first_stop(tokenizer: ChatTokenizer, text: str) -> int | None:
    """Return the character offset of the first stop token's text in a text; None without one."""
    names = (tokenizer.tokenizer.id_to_token(index) for index in tokenizer.stop_ids)
    offsets = [text.index(name) for name in names if name and name in text]
    return min(offsets, default=None)
