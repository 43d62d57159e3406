# SPDX-License-Identifier: Apache-2.0
"""The runner's chat on a tiny model, on this machine: turns, commands, a full context, Ctrl-C."""

from __future__ import annotations

import json
import os
import platform
import pty
import select
import signal
import subprocess
import termios
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from support import text_probe, tiny_runner
from support.tiny_runner import LONG
from tokenizers import AddedToken

from crosslab.models.params import read_params
from crosslab.models.reference import answer
from crosslab.tokenizer.chat_tokenizer import ChatTokenizer
from crosslab.tokenizer.device_tokenizer import pack

TEMPLATE = (
    "{% for m in messages %}<|start|>{{ m.role[0] }}{{ m.content | trim }}<|end|>{% endfor %}"
    "<|start|>a"
)
MAX_NEW = 5
# A context that a few messages fill.
ROOM = 64
SHORT = ["--max-seq", str(ROOM)]
XOFF, XON, CTRL_C, CTRL_D = b"\x13", b"\x11", b"\x03", b"\x04"


@pytest.fixture(scope="module")
def params(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("params")
    return tiny_runner.write_random_params(tiny_runner.host_library().library, folder)


@pytest.fixture(scope="module")
def words() -> ChatTokenizer:
    tokenizer = text_probe.tiny(LONG.vocab).tokenizer
    return ChatTokenizer(tokenizer, {"chat_template": TEMPLATE, "eos_token": "<|end|>"})


@pytest.fixture
def command(host_runner: Path, params: Path, words: ChatTokenizer, tmp_path: Path) -> list[str]:
    table = tmp_path / "tokenizer.bin"
    table.write_bytes(pack(words))
    return [str(host_runner), "--chat", "--params", str(params), "--tokenizer", str(table)]


def talk(command: list[str], *lines: str, rc: int = 0) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        command,
        env=tiny_runner.host_environment(),
        input="".join(f"{line}\n" for line in lines),
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == rc, done.stderr[-3000:]
    return done


def ids_of(words: ChatTokenizer, messages: list[tuple[str, str]]) -> list[int]:
    text = words.chat_text([{"role": role, "content": content} for role, content in messages])
    ids: list[int] = words.tokenizer.encode(text, add_special_tokens=False).ids
    return ids


def reference(
    words: ChatTokenizer, params: Path, said: list[str], system: str = "", max_new: int = MAX_NEW
) -> list[str]:
    """Answers to messages, each after all before it."""
    messages = [("system", system)] if system else []
    values, answers = read_params(params), []
    for text in said:
        messages.append(("user", text))
        ids = ids_of(words, messages)
        room = min(max_new, ROOM - len(ids))
        tokens = answer(LONG, values, ids, max_new=room, stop=words.stop_ids).tokens
        answers.append(words.decode(tokens))
        messages.append(("assistant", answers[-1]))
    return answers


GREEDY = ["--temperature", "0", "--max-new", str(MAX_NEW)]


@pytest.mark.parametrize("system", ["", "fed"])
def test_turns_are_the_references(
    command: list[str], words: ChatTokenizer, params: Path, tmp_path: Path, system: str
) -> None:
    said = ["hi you", "and then", "why"]
    expected = reference(words, params, said, system)
    more = ["--system", system] if system else []
    saved = tmp_path / "talk.json"
    leave = "/quit" if system else "/exit"
    done = talk([*command, *GREEDY, *more], *said, f"/save {saved}", "/stats", leave, "never")
    assert done.stdout == "".join(f"{text}\n" for text in expected)
    messages = json.loads(saved.read_text())
    assert [m["content"] for m in messages if m["role"] == "assistant"] == expected
    assert [m["content"] for m in messages if m["role"] == "user"] == said
    assert [m["content"] for m in messages if m["role"] == "system"] == ([system] if system else [])
    # The earlier turns are not computed again.
    whole = [("system", system)] if system else []
    for text, answered in zip(said, expected, strict=True):
        whole += [("user", text), ("assistant", answered)]
    last = len(ids_of(words, whole[:-1]))
    (stats,) = [line for line in done.stderr.splitlines() if line.startswith("last answer: ")]
    kept = int(stats.split(" of them from the cache")[0].split()[-1])
    assert stats.startswith(f"last answer: {last} tokens read")
    assert kept >= len(ids_of(words, whole[:-3])) > 16
    assert "KV cache: " in done.stderr
    assert "memory: " in done.stderr


def test_commands(command: list[str], words: ChatTokenizer, params: Path, tmp_path: Path) -> None:
    (once,) = reference(words, params, ["abc"])
    (slash,) = reference(words, params, ["/abc"])
    (tmp_path / "message").write_text("abc")
    lines = ["abc", "/reset", f"/read {tmp_path}/message", "/reset", "//abc", "/what", "/read /no"]
    (tmp_path / "link").symlink_to(tmp_path / "saved")
    saves = (f"/save {tmp_path}/no/file", f"/save {tmp_path}/link", f"/save {tmp_path}/link")
    done = talk([*command, *GREEDY], *lines, "/read -", *saves, "/help", "  ")
    assert (tmp_path / "link").is_symlink()
    assert [m["content"] for m in json.loads((tmp_path / "saved").read_text())] == ["/abc", slash]
    assert not list(tmp_path.glob("*.part"))
    assert done.stdout == f"{once}\n{once}\n{slash}\n"
    assert "unknown command, or no FILE after it: /what" in done.stderr
    assert "cannot read /no" in done.stderr
    assert "/read needs a file" in done.stderr
    assert f"cannot write {tmp_path}/no/file" in done.stderr
    assert "/stats       show speed and memory" in done.stderr


@pytest.mark.parametrize(
    ("closed", "code", "message"),
    [("<&-", 2, "cannot read the standard input"), ("<&- 2>&-", 2, ""), (">&-", 1, "")],
)
def test_a_closed_stream_ends_the_chat(
    command: list[str], closed: str, code: int, message: str
) -> None:
    shell = ["sh", "-c", f'exec "$@" {closed}', "sh", *command, *GREEDY]
    environment = tiny_runner.host_environment()
    done = subprocess.run(
        shell,
        env=environment,
        input="abc\n",
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == code
    assert done.stdout == ""
    assert message in done.stderr


def test_thoughts_in_channels_are_told_apart(
    host_runner: Path, params: Path, tmp_path: Path
) -> None:
    """As the templates of gpt-oss do, this one refuses markers of channels in earlier answers."""
    answered = (
        "<|channel|>analysis<|message|>hm<|end|><|start|>a<|channel|>final<|message|>yes<|end|>"
    )
    template = (
        "{% for m in messages %}{% if '<|channel|>' in m.content %}{{ raise_exception('channel') }}"
        "{% endif %}" + TEMPLATE.removeprefix("{% for m in messages %}")
    )
    tokenizer = text_probe.tiny(LONG.vocab - 1).tokenizer
    tokenizer.add_tokens([AddedToken(answered, normalized=False)])
    table, saved = tmp_path / "tokenizer.bin", tmp_path / "saved.json"
    table.write_bytes(pack(ChatTokenizer(tokenizer, {"chat_template": template})))
    command = [str(host_runner), "--params", str(params), "--tokenizer", str(table)]
    always = [*command, "--max-new", "2", "--logit-bias", f"{LONG.vocab - 1}:100"]
    done = talk([*always, "--chat"], "hi", "why", f"/save {saved}")
    assert done.stdout == "yesyes\n" * 2
    assert done.stderr.count("<think>\nhm\n</think>\n") == 4
    contents = [m["content"] for m in json.loads(saved.read_text())]
    assert contents == ["hi", "yesyes", "why", "yesyes"]
    once = talk([*always, "--prompt", "hi"])
    assert once.stdout == "yesyes\n"
    assert once.stderr.count("<think>\nhm\n</think>\n") == 2
    assert talk([*always, "--raw", "--prompt", "hi"]).stdout == answered * 2 + "\n"


def test_a_full_context_refuses_and_says_so(
    command: list[str], words: ChatTokenizer, params: Path
) -> None:
    said = ["yes yes yes yes yes", "no no no no", "yes yes yes yes yes no no no no", "hi"]
    first = reference(words, params, said[:2])
    done = talk([*command, *SHORT, *GREEDY], *said[:3])
    assert done.stdout == "".join(f"{text}\n" for text in first)
    assert "the context is full: with this message it would take" in done.stderr
    assert "the message was not sent" in done.stderr
    long = talk([*command, *SHORT, "--temperature", "0"], "hi")
    assert "(the context of 64 tokens is full: the answer ends here)" in long.stderr
    assert long.stdout == "".join(
        f"{text}\n" for text in reference(words, params, ["hi"], max_new=ROOM)
    )


def test_a_full_context_slides_and_says_so(
    command: list[str], words: ChatTokenizer, params: Path, tmp_path: Path
) -> None:
    said = ["yes yes yes yes yes", "no no no no", "hi hi hi hi hi"]
    slides = [*command, *SHORT, *GREEDY, "--context-full", "slide", "--system", "fed"]
    done = talk(slides, *said, f"/save {tmp_path}/talk.json")
    told = [line for line in done.stderr.splitlines() if "messages are left out)" in line]
    assert told, done.stderr
    assert told[-1].startswith("(the context of 64 tokens is full: the oldest ")
    assert "was not sent" not in done.stderr
    left_out = sum(int(line.split("the oldest ")[1].split()[0]) for line in told)
    assert left_out in (2, 4)
    # The last answer is the one to what is left, which still begins with the system message.
    saved = json.loads((tmp_path / "talk.json").read_text())
    messages = [(m["role"], m["content"]) for m in saved]
    assert len(messages) == 1 + 2 * len(said) - left_out
    assert messages[0] == ("system", "fed")
    ids = ids_of(words, messages[:-1])
    tokens = answer(LONG, read_params(params), ids, max_new=MAX_NEW, stop=words.stop_ids).tokens
    assert messages[-1] == ("assistant", words.decode(tokens))


def test_sampling_comes_from_the_model_and_from_options(
    command: list[str], words: ChatTokenizer, params: Path, tmp_path: Path
) -> None:
    seeded = [*command, "--max-new", "8", "--seed", "3"]
    warm = talk(seeded, "abc").stdout
    assert warm == talk(seeded, "abc").stdout
    greedy = reference(words, params, ["abc"], max_new=8)[0] + "\n"
    assert warm != greedy
    assert talk([*seeded, "--temperature", "0"], "abc").stdout == greedy
    assert talk([*seeded, "--top-k", "1"], "abc").stdout == greedy
    config = params / "mlc-chat-config.json"
    try:
        config.write_text(json.dumps({"temperature": 0, "top_p": None, "conv_template": {}}))
        assert talk(seeded, "abc").stdout == greedy
        assert talk([*seeded, "--temperature", "1.0"], "abc").stdout == warm
        config.write_text(json.dumps({"top_p": 2}))
        refused = talk(seeded, "abc", rc=2)
        assert f"{config}: top_p: 2 is outside 0 to 1" in refused.stderr
    finally:
        config.unlink()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--prompt", "x"], "--chat cannot be combined with --prompt"),
        (["--context-full", "x"], "--context-full: 'x' is not one of refuse, slide"),
        (["--temperature", "x"], "--temperature: 'x' is not a number"),
        (["--temperature", "-1"], "runner: --temperature: -1 is outside 0 to 100"),
        (["--top-p", "nan"], "runner: --top-p: nan is outside 0 to 1"),
        (["--logit-bias", "97:1"], "--logit-bias: token 97 is outside the vocabulary of 97"),
        (["--stop", "97"], "--stop: token 97 is outside the vocabulary of 97"),
        (["--logit-bias", "5"], "--logit-bias: '5' must be ID:X"),
        (["--max-seq", "1025"], "more than the model's context of 1024"),
    ],
)
def test_bad_options_are_refused(command: list[str], options: list[str], message: str) -> None:
    refused = talk([*command, *options], "abc", rc=2)
    assert message in refused.stderr
    assert refused.stdout == ""


def read_until(terminal: int, wanted: bytes) -> bytes:
    seen = b""
    while wanted not in seen:
        ready, _, _ = select.select([terminal], [], [], 120)
        assert ready, seen
        seen += os.read(terminal, 4096)
    return seen


def until_held(program: subprocess.Popen[bytes], stream: int) -> None:
    """Wait for a write to a stream of the program that does not come back."""
    for _ in range(600):
        if Path(f"/proc/{program.pid}/syscall").read_text().startswith(f"1 0x{stream} "):
            break
        time.sleep(0.1)


@contextmanager
def in_terminal(command: list[str], term: str) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """The program in a terminal of its own, which has asked for a line."""
    terminal, side = pty.openpty()
    program = subprocess.Popen(
        ["setsid", "--ctty", *command, "--temperature", "0"],
        env={**os.environ, **tiny_runner.host_environment(), "TERM": term},
        stdin=side,
        stdout=side,
        stderr=side,
    )
    try:
        os.close(side)
        read_until(terminal, b"> ")
        yield program, terminal
    finally:
        if program.poll() is None:
            program.send_signal(signal.SIGKILL)
            program.wait()
        os.close(terminal)


def test_a_terminal_edits_lines(command: list[str], tmp_path: Path) -> None:
    history, saved = tmp_path / "history", tmp_path / "saved.json"
    command = [*command, "--history", str(history), "--max-new", "2"]
    left, up, home, delete, paste = b"\x1b[D", b"\x1b[A", b"\x1b[H", b"\x1b[3~", b"\x1b[200~"
    typed = (
        (b"acd" + left * 2 + b"b", "abcd"),
        (b"a\xc3\xa9b" + left * 2 + b"\x7fx" + b"\x05y", "x\u00e9by"),
        (b"one two three" + b"\x17" + home + delete, "ne two "),
        (paste + b"1\r2\r\n3\n4\x1b[201~", "1\n2\n3\n4"),
        (b"a\\\rb\x1b\rc" + up + b"x", "a\nbx\nc"),
        (up, "a\nbx\nc"),  # the last message
        (up * 5 + b"\x1b[B", "1\n2\n3\n4"),  # its lines, one of the message before, and back
    )
    long = b"a" * 5000  # more than a terminal's own line takes
    with in_terminal(command, "xterm") as (program, terminal):
        for keys, _ in typed:
            os.write(terminal, keys + b"\r")
            read_until(terminal, b"\x1b[?2004h")  # of the next prompt
        os.write(terminal, long + b"\r")
        read_until(terminal, b"drops the oldest turns\r\n\x1b[?2004h")
        os.write(terminal, b"dropped\x03")
        read_until(terminal, b"(type /exit or Ctrl-D to leave)")
        os.write(terminal, f"/save {saved}\r".encode())
        read_until(terminal, b"saved ")
        os.write(terminal, CTRL_D)
        assert program.wait(timeout=60) == 0
    said = [m["content"] for m in json.loads(saved.read_text()) if m["role"] == "user"]
    assert said == [text for _, text in typed]
    assert history.stat().st_mode & 0o777 == 0o600
    with in_terminal(command, "xterm") as (program, terminal):
        os.write(terminal, up * 3 + b"z\r")  # what was typed before the long text and /save
        read_until(terminal, b"\x1b[?2004l")
        # To edit the message, and its answer again.
        os.write(terminal, b"/edit\r" + b"\x15only\r/regen\r" + f"/save {saved}\r".encode())
        read_until(terminal, b"saved 2 messages")
        program.terminate()
        program.wait(timeout=60)
        settings = termios.tcgetattr(terminal)
        assert settings[3] & termios.ICANON
        assert settings[3] & termios.ECHO
    assert next(m["content"] for m in json.loads(saved.read_text())) == "1\n2\n3\nonly"
    kept = history.read_text().splitlines()
    assert long.decode() in kept
    assert kept[-5].endswith("4z")


def test_ctrl_z_gives_the_terminal_back_until_fg(command: list[str], tmp_path: Path) -> None:
    shell = ["sh", "-m", "-c", '"$0" "$@"; stty -a; fg', *command, "--history", "none"]
    with in_terminal(shell, "xterm") as (_, terminal):
        os.write(terminal, b"ab\x1a")
        settings = read_until(terminal, b"> ab")
        assert b" icanon" in settings
        assert b" echo " in settings
        saved = tmp_path / "saved.json"
        os.write(terminal, b"c\r" + f"/save {saved}\r".encode())
        read_until(terminal, b"saved ")
        assert json.loads(saved.read_text())[0]["content"] == "abc"


def test_edit_and_regen_without_a_terminal(command: list[str], tmp_path: Path) -> None:
    saved = tmp_path / "saved.json"
    lines = ("/regen", "abc", "/edit", "/edit xyz", "b", "/regen", f"/save {saved}")
    done = talk([*command, "--temperature", "1", "--seed", "3", "--max-new", "9"], *lines)
    assert done.stderr.count("there is no message yet") == 1
    assert "there is no line editor here: type /edit TEXT" in done.stderr
    answers = done.stdout.splitlines()
    assert len(answers) == 4
    assert answers[2] != answers[3]
    said = json.loads(saved.read_text())
    assert [m["content"] for m in said] == ["xyz", answers[1], "b", answers[3]]


@pytest.mark.skipif(platform.machine() != "x86_64", reason="knows the system calls of x86-64")
def test_ctrl_c_ends_the_answer_and_not_the_program(command: list[str]) -> None:
    """The terminal's flow control holds the answer still while Ctrl-C comes."""
    with in_terminal(command, "dumb") as (program, terminal):
        os.write(terminal, CTRL_C)
        read_until(terminal, b"(type /exit or Ctrl-D to leave)\r\n> ")
        os.write(terminal, b"a\x1b[Db\n")
        assert b"not sent: the line holds the code of a key" in read_until(terminal, b"\r\n> ")
        os.write(terminal, b"a" * 4200 + b"\n")
        assert b"cut this line after 4095 bytes" in read_until(terminal, b"/read FILE\r\n> ")
        os.write(terminal, XOFF)
        os.write(terminal, b"abc\n")
        until_held(program, 1)
        os.write(terminal, CTRL_C)
        os.write(terminal, XON)
        assert b"(ended by Ctrl-C)" in read_until(terminal, b"> ")
        # One that comes before the program waits for a line.
        os.write(terminal, XOFF)
        os.write(terminal, b"/what\n")
        until_held(program, 2)
        os.write(terminal, CTRL_C)
        os.write(terminal, XON)
        read_until(terminal, b"(type /exit or Ctrl-D to leave)\r\n> ")
        os.write(terminal, CTRL_D)
        assert program.wait(timeout=60) == 0
