# SPDX-License-Identifier: Apache-2.0
"""A model's chat template as the text between messages; the device runs no template."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from crosslab.errors import LabError
from crosslab.tokenizer.chat_tokenizer import ChatTokenizer

SYSTEM, USER, ANSWER, NEXT = "The rules here", "The user's own words", "An answer", "More of them"
Message = tuple[str, str]
STRANGE = ("x", "<think>\n</think> {{ 1 }} {% x %}\n", "\x1c \u00e9\u2003", "\n x")
THOUGHT = "</think>"


class UnsupportedTokenizerError(LabError):
    """The tokenizer needs a feature that the runner does not have."""

    def __init__(self, what: str) -> None:
        super().__init__(
            f"the runner does not support the model's tokenizer: {what}",
            remedy="give the runner token ids instead of text: --tokens ID,ID,...",
            exit_code=2,
        )


@dataclass(frozen=True)
class ChatFrame:
    """The text between messages, which depends on the roles before and after it.

    ``[start] user [end]``, ``[start] user [to_assistant] assistant [to_user] user [end]``, and
    ``[system_start] system [system_end] user [end]``.

    Attributes:
        start: before the first user message where no system message is.
        system_start: before a system message.
        system_end: between it and the user message.
        to_assistant: from a user message to the answer that it got.
        to_user: from an answer to the next user message.
        end: behind the last user message: the answer comes here.
        takes_system: the template takes a system message.
        strips_system: it drops blanks around a system message.
        strips_user: around a user message.
        strips_assistant: around an answer.
        drops_thoughts: of an earlier answer it keeps what is behind the last ``</think>``.
        drops_breaks: and drops line ends before that.
    """

    start: str = ""
    system_start: str = ""
    system_end: str = ""
    to_assistant: str = ""
    to_user: str = ""
    end: str = ""
    takes_system: bool = False
    strips_system: bool = False
    strips_user: bool = False
    strips_assistant: bool = False
    drops_thoughts: bool = False
    drops_breaks: bool = False

    @property
    def texts(self) -> tuple[str, ...]:
        """The six texts, in the order of ``tokenizer.bin``."""
        first = (self.start, self.system_start, self.system_end)
        return (*first, self.to_assistant, self.to_user, self.end)

    def render(self, messages: Sequence[Message]) -> str:
        """The text of a conversation, up to the answer: roles and texts, as the device does it."""
        strips = {
            "system": self.strips_system,
            "user": self.strips_user,
            "assistant": self.strips_assistant,
        }
        text = self.system_start if messages[0][0] == "system" else self.start
        for number, (role, content) in enumerate(messages, start=1):
            said = self._said(content) if role == "assistant" else content
            text += said.strip() if strips[role] else said
            behind = self.to_assistant if number < len(messages) else self.end
            text += {"system": self.system_end, "assistant": self.to_user}.get(role, behind)
        return text

    def _said(self, answer: str) -> str:
        """An earlier answer without the thoughts before it."""
        if not self.drops_thoughts or THOUGHT not in answer:
            return answer
        said = answer.rpartition(THOUGHT)[2]
        return said.lstrip("\n") if self.drops_breaks else said


def with_usable_chat(tokenizer: ChatTokenizer) -> tuple[ChatTokenizer, str]:
    """The tokenizer; without its chat template if no frame gives the template's text.

    Returns:
        the tokenizer, and why it goes without chat; empty when it keeps its chat or has none.
    """
    try:
        chat_frame(tokenizer)
    except LabError as error:
        plain = {k: v for k, v in tokenizer.settings.items() if k != "chat_template"}
        return replace(tokenizer, settings=plain), error.what
    return tokenizer, ""


def chat_frame(tokenizer: ChatTokenizer) -> ChatFrame | None:
    """The frame of a model's chat; None for a model without a chat template.

    Raises:
        UnsupportedTokenizerError: the text depends on the messages otherwise than a frame says.
    """
    if not tokenizer.has_chat:
        return None

    def rendered(messages: Sequence[Message]) -> str:
        return tokenizer.chat_text([{"role": r, "content": c} for r, c in messages])

    def between(messages: Sequence[Message]) -> list[str]:
        """The texts around the messages."""
        texts, rest = [], rendered(messages)
        for role, content in messages:
            before, found, rest = rest.partition(content)
            if not found or content in rest:
                name = "message" if role == "user" else f"{role} message"
                raise UnsupportedTokenizerError(f"its chat template does not hold the {name} once")
            texts.append(before)
        return [*texts, rest]

    user, answer, more = ("user", USER), ("assistant", ANSWER), ("user", NEXT)
    start, end = between([user])
    _, to_assistant, to_user, _ = between([user, answer, more])
    system_start, system_end, takes_system = "", "", True
    try:
        system_start, system_end, _ = between([("system", SYSTEM), user])
    except LabError:
        takes_system = False
    frame = ChatFrame(start, system_start, system_end, to_assistant, to_user, end, takes_system)
    return _proved(frame, rendered)


def _proved(frame: ChatFrame, rendered: Callable[[Sequence[Message]], str]) -> ChatFrame:
    """The frame with the blanks that it strips; its text equals the template's for many chats."""

    def strips(plain: Sequence[Message], changed: int) -> bool:
        role, text = plain[changed]
        blanks = [*plain[:changed], (role, f" \n{text}\t "), *plain[changed + 1 :]]
        return rendered(blanks) == frame.render(plain)

    user, answer = ("user", USER), ("assistant", ANSWER)
    frame = _thoughtless(frame, rendered)
    frame = replace(
        frame,
        strips_user=strips([user], 0),
        strips_assistant=strips([user, answer, user], 1),
        strips_system=frame.takes_system and strips([("system", SYSTEM), user], 0),
    )
    for messages in _conversations(frame.takes_system):
        if rendered(messages) != frame.render(messages):
            raise UnsupportedTokenizerError("its chat template depends on the message")
    return frame


def _thoughtless(frame: ChatFrame, rendered: Callable[[Sequence[Message]], str]) -> ChatFrame:
    """The frame, and the part that it keeps of an earlier answer that begins with thoughts."""
    user, more = ("user", USER), ("user", NEXT)

    def same(answer: str, kept: str) -> bool:
        return rendered([user, ("assistant", answer), more]) == frame.render(
            [user, ("assistant", kept), more]
        )

    thought = f"<think>\nhm\n{THOUGHT}\n\n{ANSWER}"
    breaks = same(thought, ANSWER) and same(f"x{THOUGHT} {ANSWER}", f" {ANSWER}")
    drops = breaks or same(thought, f"\n\n{ANSWER}")
    return replace(frame, drops_thoughts=drops, drops_breaks=breaks)


def _conversations(system: bool) -> Iterator[list[Message]]:
    """Chats of one to six turns, of plain and of strange texts."""
    for turns in range(1, 7):
        for shift in range(1 + len(STRANGE)):
            words = [USER, ANSWER, *STRANGE]
            messages = [
                ("assistant" if n % 2 else "user", words[(n + shift) % len(words)])
                for n in range(2 * turns - 1)
            ]
            yield messages
            if system:
                yield [("system", words[shift]), *messages]
