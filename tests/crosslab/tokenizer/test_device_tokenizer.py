# SPDX-License-Identifier: Apache-2.0
"""The device's tokenizer against the library that models come with: the same ids, the same text."""

from __future__ import annotations

import json
import string
import struct
import subprocess
import unicodedata
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support import shared_builds, text_probe
from support.shared_builds import PROJECT
from tokenizers import AddedToken, Tokenizer, decoders, normalizers, pre_tokenizers

from crosslab.assemble import libraries
from crosslab.errors import LabError, UserError
from crosslab.host.toolchain import Toolchain
from crosslab.models.sources.asset import fetch_asset
from crosslab.models.sources.gguf_import import import_gguf
from crosslab.models.sources.pins import read_pins
from crosslab.tokenizer import nfc_tables, unicode_tables
from crosslab.tokenizer.chat_tokenizer import ChatTokenizer
from crosslab.tokenizer.device_tokenizer import MAGIC, device_tokenizer, pack
from crosslab.tokenizer.unsupported import UnsupportedTokenizerError

RULES = text_probe.BYTE_LEVEL
TRICKY = [
    "",
    "What is the capital of France?",
    " ",
    "   a  b   ",
    "a\n\n\n  b\t\t c \r\n\r\n d",
    " \n \n",
    "x \u00a0\u2003\u3000 y\u0085z\u2028",
    "I'm you're we've they'll he'd it's don't 'tis 's 'S 'RE 'Ve'LL 'llama 'sx",
    "'\u017f a'\u017fb \u212a",
    "12345678 1,000.50 x2y3 \u0663\u0664\u0665 \u00bd\u00b2 \u2167 \U0001d7d8",
    "\U0001f600\U0001f44d\U0001f3fd\U0001f468\u200d\U0001f469\u200d\U0001f467\U0001f1eb\U0001f1f7",
    "東京の天気は晴れです。中文\uff0c한국어",
    "e\u0301 n\u0303 a\u0308\u0301\u0323 \u0e01\u0e34\u0e19 \u0915\u094d\u0937",
    "<|im_start|>user\nhello<|im_end|>\n<|endoftext|><|im_st",
    "<|start|>user\n<|end|>><|end|><tool> x <tool>> \u00e9\u2003<|sta<|start|><<|end|>",
    "a" * 5000,
    "ab" * 3000 + " " * 3000 + "\u00e9" * 2000,
    "\x00\x01\x04\x1c\x1f\x7f\ufeff\ufffd\uffff\U0010ffff\u00ad",
    "#include <x>\n\tint main() { return a->b[3] != 0x1F; }  // $5.00!?\n",
    "zqxj zqxjzqxj xzqxj",
    "\u0301\u0301 \u200b\u200e\u202e",
    "camelCaseXYZ HTTPServer it'S WE'LLx \u01c4\u01c5\u01c6 \u02b0A a\u0301B\u0301 //\n/ \n/",
    "\u30ab\u30bf\u30ab\u30ca\u30fb\u3072\u3089\u309b1\u4e0023\u3007 \x00a\x01\u0378b .ab?c:",
    "\u2581a \u2581\u2581 \u2581 <0x41> \u2581<|start|> x \u2581<|end|>  y",
]


@pytest.fixture(scope="module")
def sanitized_probe(sanitizers: Toolchain) -> list[str]:
    return [str(text_probe.build_probe(sanitizers, shared_builds.CACHE))]


@pytest.fixture(scope="module")
def answer_probe(sanitizers: Toolchain) -> str:
    return str(text_probe.build_probe(sanitizers, shared_builds.CACHE, "answer_probe"))


@pytest.fixture(scope="module")
def smollm2() -> ChatTokenizer:
    try:
        asset = read_pins(PROJECT).asset("smollm2-135m")
        return ChatTokenizer.load(
            import_gguf(fetch_asset(asset, shared_builds.CACHE), shared_builds.CACHE)
        )
    except LabError as error:
        pytest.skip(f"the model cannot be had: {error.what}")


def table_of(tokenizer: ChatTokenizer, folder: Path) -> Path:
    path = folder / "tokenizer.bin"
    path.write_bytes(pack(tokenizer))
    return path


def check(command: list[str], tokenizer: ChatTokenizer, folder: Path, texts: list[str]) -> None:
    """Ids, and the text that they decode to, are the library's; nothing is lost."""
    path = table_of(tokenizer, folder)
    answers = text_probe.ask(command, path, "raw", [t.encode() for t in texts])
    library = tokenizer.tokenizer
    first = library.encode("<|start|>").ids if "<|start|>" in library.get_vocab() else []
    for text, answer in zip(texts, answers, strict=True):
        ids = [*first, *library.encode(text, add_special_tokens=False).ids]
        if not ids:
            assert "the text has no tokens in this model" in answer["error"]
            continue
        assert answer["ids"] == ids, text
        assert answer["text"] == tokenizer.decode(ids), text
        # Special tokens are not shown, and others may stand for bytes.
        changed = any(
            token.content in text and library.decode([index]) != token.content
            for index, token in library.get_added_tokens_decoder().items()
        )
        plain = library.normalizer is None and isinstance(library.decoder, decoders.ByteLevel)
        plain = plain and not getattr(library.pre_tokenizer, "add_prefix_space", False)
        if plain and not changed and answer["dropped"] == 0:
            assert answer["text"] == text


@pytest.mark.parametrize("whole_words", [False, True])
@pytest.mark.parametrize("rule", RULES)
def test_every_rule_is_the_librarys(
    sanitized_probe: list[str], tmp_path: Path, rule: str, whole_words: bool
) -> None:
    check(sanitized_probe, text_probe.trained(rule, whole_words=whole_words), tmp_path, TRICKY)


@pytest.mark.parametrize("strips", [False, True])
@pytest.mark.parametrize("blanks", text_probe.BLANKS)
def test_tokenizers_of_characters_are_the_librarys(
    sanitized_probe: list[str], tmp_path: Path, blanks: str, strips: bool
) -> None:
    """Llama 2's and Gemma's way, with bytes for characters that are no token."""
    check(sanitized_probe, text_probe.by_character(blanks, strips=strips), tmp_path, TRICKY)


def test_bytes_of_a_missing_character_are_shown_as_the_library_does(
    answer_probe: str, tmp_path: Path
) -> None:
    """A run of them is text, or each is U+FFFD; a marker that is not shown does not end a run."""
    tokenizer = text_probe.by_character("prepend", strips=True)
    vocabulary = tokenizer.tokenizer.get_vocab()
    path = table_of(tokenizer, tmp_path)
    whole, broken = "\U0001f600".encode(), b"\xf0\x9f a\xff"
    names = [f"<0x{byte:02X}>" for byte in whole]
    for tokens in (
        names,
        ["\u2581", "\u2581", *names, "e"],
        ["\u2581", *names, "<0xF0>", "<0x9F>", "a", "\u2581"],
        [names[0], names[1], "<|start|>", names[2], names[3], "<0x20>", "<|end|>>"],
        ["<0x20>", "<0x41>", "a"],
        ["<|start|>", "\u2581", *(f"<0x{byte:02X}>" for byte in broken)],
    ):
        ids = [vocabulary[token] for token in tokens]
        done = subprocess.run(
            [answer_probe, str(path), *map(str, ids)], capture_output=True, check=True, timeout=60
        )
        pieces = [json.loads(line) for line in done.stdout.splitlines()]
        assert "".join(pieces) == tokenizer.decode(ids), tokens


def test_a_blank_before_a_text_and_around_markers_is_the_librarys(
    sanitized_probe: list[str], tmp_path: Path
) -> None:
    tokenizer = text_probe.trained("gpt2")
    tokenizer.tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    tokenizer.tokenizer.add_tokens(
        [
            AddedToken("<left>", lstrip=True, normalized=False),
            AddedToken("<right>", rstrip=True, normalized=False),
            AddedToken(" \t", lstrip=True, rstrip=True, normalized=False),
            AddedToken("<late>", lstrip=True, rstrip=True, normalized=True),
        ]
    )
    around = [
        "a  <left>  b<right> \u2003 c <right><left>",
        "<right> <right> <left> \n<left>x",
        "<right>  \t <left> \t  \t<right> \t",
        "  <late>\u00a0 <tool> <late>x <left> <late>",
    ]
    check(sanitized_probe, tokenizer, tmp_path, [*TRICKY, *around])


def test_markers_of_characters_that_stand_for_bytes_are_the_librarys(
    sanitized_probe: list[str], tmp_path: Path
) -> None:
    """DeepSeek's way: such a marker is found as it is written, and shown as its bytes."""
    tokenizer = text_probe.trained("gpt2", whole_words=True)
    markers = ["\u00f8", "\u0120foo", "\u00c3\u00a9", "\u00e9\u2014", "\u00ad"]
    added = [AddedToken(marker, normalized=False) for marker in markers]
    tokenizer.tokenizer.add_tokens([*added, AddedToken("\u00fe", normalized=True)])
    texts = ["a\u00f8b \u00f8", "\u0120foo foo\u0120", "caf\u00e9 \u00c3\u00a9 \u00e9\u2014"]
    check(sanitized_probe, tokenizer, tmp_path, [*texts, "\u00ad\u00fe \u00fe\u00c3", *TRICKY])


def test_normalized_text_is_the_librarys(sanitized_probe: list[str], tmp_path: Path) -> None:
    """Qwen's way: NFC, but for markers; a text that is composed over a marker is not."""
    over = ["e<|start|>\u0301 e<tool>\u0301 <tool>\u0338", "\u1112\u1161\u11ab \uac00\u11a7\u11a8"]
    check(sanitized_probe, text_probe.trained("qwen2", nfc=True), tmp_path, [*TRICKY, *over])


# Unassigned planes are all alike.
CODES = [
    code
    for code in range(0x110000)
    if not 0xD800 <= code < 0xE000
    and (code < 0x33480 or 0xE0000 <= code < 0xE0200 or code % 997 == 0)
]

# Those at which a class of characters begins or ends, those with a case or a blank, and a sample.
_CLASSES = [unicodedata.category(chr(code)) for code in CODES]
BORDERS = [
    code
    for n, code in enumerate(CODES)
    if n % 32 == 0
    or _CLASSES[n - 1] != _CLASSES[n]
    or _CLASSES[min(n + 1, len(CODES) - 1)] != _CLASSES[n]
    or chr(code).casefold() != chr(code)
    or chr(code).isspace()
]


@pytest.mark.thorough
def test_every_code_point_is_normalized_as_the_library_does(
    sanitized_probe: list[str], tmp_path: Path
) -> None:
    """Alone, behind a letter, and among marks: each that is a mark or is composed, others too."""
    nfd = normalizers.NFD()
    codes = [
        code
        for n, code in enumerate(CODES)
        if n % 10 == 0
        or unicodedata.combining(chr(code))
        or (not 0xAC00 <= code < 0xD7A4 and nfd.normalize_str(chr(code)) != chr(code))
    ]
    texts = [
        "".join(
            f"{chr(c)} a{chr(c)} {chr(c)}\u0301 o\u0302{chr(c)}\u0323\u0334{chr(c)}\u0345"
            for c in codes[i : i + 2048]
        )
        for i in range(0, len(codes), 2048)
    ]
    check(sanitized_probe, text_probe.trained("qwen2", nfc=True), tmp_path, texts)


# The rules with the most classes are tried on all code points: the tables are everybody's.
@pytest.mark.parametrize(
    ("rule", "codes"),
    [
        *(pytest.param(rule, BORDERS, id=rule) for rule in RULES),
        *(
            pytest.param(rule, CODES, id=f"{rule}-all", marks=pytest.mark.thorough)
            for rule in ("deepseekv3", "gptoss")
        ),
    ],
)
def test_code_points_are_cut_as_the_library_does(
    sanitized_probe: list[str], tmp_path: Path, rule: str, codes: list[int]
) -> None:
    """Each between letters, digits, signs and blanks, so that its class decides about words."""
    texts = [
        "".join(f"a{chr(c)}b 1{chr(c)}2 {chr(c)}. {chr(c)}" for c in codes[i : i + 2048])
        for i in range(0, len(codes), 2048)
    ]
    check(sanitized_probe, text_probe.trained(rule), tmp_path, texts)


def test_smollm2_is_the_librarys(
    sanitized_probe: list[str], smollm2: ChatTokenizer, tmp_path: Path
) -> None:
    check(sanitized_probe, smollm2, tmp_path, TRICKY)


@pytest.mark.usefixtures("emulator")
def test_the_same_under_the_emulator(smollm2: ChatTokenizer, tmp_path: Path) -> None:
    tools, name = shared_builds.cross(), "tokenizer_probe"
    program = text_probe.build_probe(tools, shared_builds.CACHE, name, target=name)
    guest = text_probe.in_guest(program)
    check(guest, smollm2, tmp_path, TRICKY)
    check(guest, text_probe.trained("llama3", whole_words=True), tmp_path, TRICKY)
    check(guest, text_probe.trained("qwen2", nfc=True), tmp_path, TRICKY)


pieces = st.one_of(
    st.text(max_size=12),
    st.text(alphabet=" \t\n\r\u00a0\u0085'sStTdm19\u0663aé,.!", max_size=12),
    st.sampled_from(["<|start|>", "<|end|>", "<tool>", "<|en", "'ll", "\U0001f44d\U0001f3fd"]),
)
texts = st.lists(pieces, max_size=8).map("".join)


@pytest.mark.parametrize("rule", RULES)
def test_any_text(sanitized_probe: list[str], tmp_path: Path, rule: str) -> None:
    tokenizer = text_probe.trained(rule, whole_words=rule == "llama3")

    @settings(
        max_examples=12,
        suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    )
    @given(st.lists(texts, min_size=50, max_size=100))
    def same(batch: list[str]) -> None:
        check(sanitized_probe, tokenizer, tmp_path, batch)

    same()


MARKED = st.text(
    alphabet="aeouAE\u00e4\u1ea5\u0300\u0301\u0302\u0308\u0316\u031b\u0323\u0327\u0338\u0345"
    "\u093c\u094d\u0915\u05d1\u05bc\u05c1\u3099\u304b\u0344\u0958\u212b\u1100\u1161\u11a8\uac00"
    "\U0001d15e\U0001d165 <",
    max_size=60,
)


def test_any_marked_text_is_normalized(sanitized_probe: list[str], tmp_path: Path) -> None:
    tokenizer = text_probe.trained("qwen2", nfc=True)

    @settings(
        max_examples=40,
        suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    )
    @given(st.lists(MARKED, min_size=50, max_size=100))
    def same(batch: list[str]) -> None:
        check(sanitized_probe, tokenizer, tmp_path, batch)

    same()


def test_the_chat_is_the_templates(
    sanitized_probe: list[str], smollm2: ChatTokenizer, tmp_path: Path
) -> None:
    for number, tokenizer in enumerate((smollm2, text_probe.trained("qwen2"))):
        folder = tmp_path / str(number)
        folder.mkdir()
        # The engine on the device trims ASCII blanks alone, Jinja in Python those of Unicode, too.
        alike = [t for t in TRICKY if t.strip() and t.strip() == t.strip(string.whitespace)]
        asked = [*alike, " \t é \n", "{{ 1 }}"]
        path = table_of(tokenizer, folder)
        answers = text_probe.ask(sanitized_probe, path, "chat", [t.encode() for t in asked])
        for text, answer in zip(asked, answers, strict=True):
            assert answer["ids"] == tokenizer.chat_ids(text), text
        for blank in ("", " \n\t", "\u2003\x1c"):
            (answer,) = text_probe.ask(sanitized_probe, path, "chat", [blank.encode()])
            assert answer == {"error": "the prompt is blank"}
            with pytest.raises(UserError, match="empty"):
                tokenizer.chat_ids(blank)


EACH = "{{% for m in messages %}}{}{{% endfor %}}"
CHATS = [
    [("system", " Be\nbrief. "), ("user", " \u00e9 "), ("assistant", " {{ 1 }}\n"), ("user", "go")],
    [("user", "a"), ("assistant", ""), ("user", "b"), ("assistant", "<|end|>"), ("user", "c")],
    [("system", ""), ("user", "x")],
]


def test_a_chat_of_several_turns_is_the_templates(
    sanitized_probe: list[str], smollm2: ChatTokenizer, tmp_path: Path
) -> None:
    for number, tokenizer in enumerate((smollm2, text_probe.trained("qwen2"))):
        folder = tmp_path / str(number)
        folder.mkdir()
        path = table_of(tokenizer, folder)
        asked = ["".join(f"{role[0].upper()}{text}\0" for role, text in chat) for chat in CHATS]
        told = text_probe.ask(sanitized_probe, path, "turns", [t.encode() for t in asked])
        for chat, answer in zip(CHATS, told, strict=True):
            text = tokenizer.chat_text([{"role": role, "content": text} for role, text in chat])
            ids = tokenizer.tokenizer.encode(text, add_special_tokens=False).ids
            assert answer["ids"] == ids, chat


def test_a_template_may_refuse_messages(sanitized_probe: list[str], tmp_path: Path) -> None:
    refuses = "{% if messages[0].role == 'system' %}{{ raise_exception('no') }}{% endif %}"
    settings = {"chat_template": refuses + text_probe.TEMPLATE}
    tokenizer = ChatTokenizer(text_probe.trained("gpt2").tokenizer, settings)
    path = table_of(tokenizer, tmp_path)
    asked = [b"Ss\0Uu\0", b"Uu\0"]
    refused, answer = text_probe.ask(sanitized_probe, path, "turns", asked)
    assert refused == {"error": "the model's chat template refuses the messages: no"}
    assert answer["ids"] == tokenizer.chat_ids("u")


THINKS = (
    "{% for m in messages %}{% set c = m.content %}"
    "{% if '</think>' in c and m.role == 'assistant' %}"
    "{% set c = c.split('</think>')[-1]CUT %}{% endif %}<|start|>{{ m.role }}\n{{ c }}<|end|>"
    "{% endfor %}<|start|>assistant\n"
)


@pytest.mark.parametrize("cut", ["", ".lstrip('\\n')"])
def test_earlier_answers_go_without_their_thoughts_where_the_template_says_so(
    sanitized_probe: list[str], tmp_path: Path, cut: str
) -> None:
    """Qwen 3's way, which drops the line ends behind them too, and DeepSeek R1's."""
    settings = {"chat_template": THINKS.replace("CUT", cut)}
    tokenizer = ChatTokenizer(text_probe.trained("qwen2").tokenizer, settings)
    path = table_of(tokenizer, tmp_path)
    for answer in ("<think>\na</think> b\n</think>\n\n c", "plain", "\nx", "</think>", "<think> a"):
        messages = [("user", "hi </think> "), ("assistant", answer), ("user", "so?")]
        asked = "".join(f"{role[0].upper()}{text}\0" for role, text in messages)
        text = tokenizer.chat_text([{"role": r, "content": c} for r, c in messages])
        (told,) = text_probe.ask(sanitized_probe, path, "turns", [asked.encode()])
        assert told["ids"] == tokenizer.tokenizer.encode(text, add_special_tokens=False).ids


def test_a_template_that_fails_costs_the_chat_alone(tmp_path: Path) -> None:
    """Text of one's own still works: the device gets the tokenizer without a chat."""
    settings = {"chat_template": "{{ raise_exception('not today') }}" + text_probe.TEMPLATE}
    tokenizer = ChatTokenizer(text_probe.trained("qwen2").tokenizer, settings)
    plain, why = tokenizer.with_usable_chat()
    assert "not today" in why and not plain.has_chat
    model = tmp_path / "model"
    model.mkdir()
    tokenizer.tokenizer.save(str(model / "tokenizer.json"))
    (model / "tokenizer_config.json").write_text(json.dumps(settings))
    assert device_tokenizer(model, tmp_path / "cache").read_bytes() == pack(plain)
    assert plain.chat_ids("some text") == plain.tokenizer.encode("some text").ids


@pytest.mark.parametrize(
    "template",
    [
        "{{ 1 / 0 }}",
        "{{ range(10 ** 7) | list }}",
        "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
        "{{ " + "(" * 3000 + "1" + ")" * 3000 + " }}",
        "{{ 5 | dictsort }}",
    ],
    ids=["division", "range", "macro", "brackets", "filter"],
)
def test_any_error_of_a_template_is_the_templates(template: str) -> None:
    tokenizer = ChatTokenizer(text_probe.trained("gpt2").tokenizer, {"chat_template": template})
    plain, why = tokenizer.with_usable_chat()
    assert "the model's chat template fails: " in why and not plain.has_chat


def test_a_folder_says_its_stops_and_special_tokens(tmp_path: Path) -> None:
    """Tokens with their properties, a template of its own file, more stop ids beside the config."""
    tokenizer = text_probe.trained("gpt2").tokenizer
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    settings = {"eos_token": {"content": "<|end|>", "lstrip": False}, "bos_token": None}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [5, 7, 10**9]}))
    (tmp_path / "config.json").write_text(json.dumps({"eos_token_id": 5}))
    (tmp_path / "chat_template.jinja").write_text("{{ bos_token }}" + text_probe.TEMPLATE)
    loaded = ChatTokenizer.load(tmp_path)
    assert loaded.stop_ids == (tokenizer.token_to_id("<|end|>"), 5, 7)
    assert loaded.chat_text([{"role": "user", "content": "x"}]).startswith("<|start|>user\nx")
    tokenizer.add_tokens(["None"])
    assert ChatTokenizer(tokenizer, {"eos_token": None}).stop_ids == ()
    about = json.loads(tokenizer.to_str())  # ids with a gap
    about["model"]["vocab"]["far"] = far = tokenizer.get_vocab_size() + 100
    (tmp_path / "tokenizer.json").write_text(json.dumps(about))
    (tmp_path / "config.json").write_text(json.dumps({"eos_token_id": [far, far - 1]}))
    assert ChatTokenizer.load(tmp_path).stop_ids[-1] == far
    (tmp_path / "chat_template.jinja").write_bytes(b"\xff")
    with pytest.raises(UserError, match="its chat template cannot be read: UnicodeDecodeError"):
        ChatTokenizer.load(tmp_path)
    (tmp_path / "chat_template.jinja").unlink()
    for wrong in ("x", {"name": "default"}):
        (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": [wrong]}))
        with pytest.raises(UserError, match="its chat template cannot be read: "):
            ChatTokenizer.load(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text("[]")
    with pytest.raises(UserError, match="a table of fields was expected"):
        ChatTokenizer.load(tmp_path)


@pytest.mark.parametrize(
    ("text", "at"),
    [
        (b"ab\xff", 2),
        (b"\xc0\x80", 0),
        (b"x\xed\xa0\x80", 1),
        (b"\xf4\x90\x80\x80", 0),
        (b"\xe2\x82", 0),
    ],
)
def test_what_is_not_utf8_is_refused(
    sanitized_probe: list[str], tmp_path: Path, text: bytes, at: int
) -> None:
    with pytest.raises(UnicodeDecodeError):
        text.decode()
    path = table_of(text_probe.trained("gpt2"), tmp_path)
    (answer,) = text_probe.ask(sanitized_probe, path, "raw", [text])
    assert answer == {"error": f"text: byte {at} is not UTF-8"}


def test_broken_answers_are_mended_as_the_library_does(
    sanitized_probe: list[str], answer_probe: str, tmp_path: Path
) -> None:
    """A model may say half of a character: such ids are asked for as the bytes' own markers."""
    broken = [b"\xf0\x9f", b"\xff\xfea", b"\xe2\x82x\xe2\x82\xac", b"\xc3", b"\xed\xa0\x80\xf4\x90"]
    tokenizer = text_probe.trained("gpt2")
    alphabet = {byte: char for char, byte in text_probe.byte_alphabet().items()}
    library = tokenizer.tokenizer
    vocabulary = library.get_vocab()
    path = table_of(tokenizer, tmp_path)
    for text in broken:
        ids = [vocabulary[alphabet[byte]] for byte in text]
        done = subprocess.run(
            [answer_probe, str(path), *map(str, ids)], capture_output=True, check=True, timeout=60
        )
        pieces = [json.loads(line) for line in done.stdout.splitlines()]
        assert "".join(pieces) == tokenizer.decode(ids)
        assert "".join(pieces) == text.decode(errors="replace")
        assert len(pieces) == len(ids) + 1


def test_bytes_without_tokens_are_left_out_and_counted(
    sanitized_probe: list[str], tmp_path: Path
) -> None:
    tokenizer = text_probe.trained("gpt2", bytes_too=False)
    path = table_of(tokenizer, tmp_path)
    (answer,) = text_probe.ask(sanitized_probe, path, "raw", [b"a\x04\x05b"])
    assert answer["dropped"] == 2
    assert answer["text"] == "ab"


def rejected(change: Callable[[dict[str, object]], None]) -> str:
    tokenizer = text_probe.trained("gpt2")
    about = json.loads(tokenizer.tokenizer.to_str())
    change(about)
    changed = ChatTokenizer(Tokenizer.from_str(json.dumps(about)), tokenizer.settings)
    with pytest.raises(UnsupportedTokenizerError) as caught:
        pack(changed)
    assert caught.value.exit_code == 2
    return str(caught.value)


def test_what_the_device_cannot_do_is_refused_by_name() -> None:
    nfd = json.loads(normalizers.NFD().__getstate__())
    assert "it has the normalizer NFD" in rejected(lambda a: a.update(normalizer=nfd))
    fuse = json.loads(decoders.Fuse().__getstate__())
    assert "neither byte-level nor has byte_fallback" in rejected(lambda a: a.update(decoder=fuse))
    blank = json.loads(pre_tokenizers.Whitespace().__getstate__())
    assert "its pre_tokenizer is" in rejected(lambda a: a.update(pre_tokenizer=blank))
    tokenizer = text_probe.trained("gpt2")
    tokenizer.tokenizer.add_tokens([AddedToken("<x>", single_word=True)])
    with pytest.raises(UnsupportedTokenizerError, match="<x> has single_word"):
        pack(tokenizer)
    composing = text_probe.trained("qwen2", nfc=True)
    composing.tokenizer.add_tokens([AddedToken("e\u0301", normalized=True)])
    with pytest.raises(UnsupportedTokenizerError, match="is normalized itself"):
        pack(composing)


def test_a_model_without_chat_takes_raw_text(sanitized_probe: list[str], tmp_path: Path) -> None:
    path = table_of(ChatTokenizer(text_probe.trained("gpt2").tokenizer, {}), tmp_path)
    (answer,) = text_probe.ask(sanitized_probe, path, "chat", [b"hello"])
    assert answer == {"error": "this model has no chat template; use --raw"}
    assert text_probe.ask(sanitized_probe, path, "raw", [b"hello"])[0]["text"] == "hello"


def test_the_file_is_made_once(tmp_path: Path) -> None:
    tokenizer = text_probe.trained("smollm")
    model = tmp_path / "model"
    model.mkdir()
    tokenizer.tokenizer.save(str(model / "tokenizer.json"))
    (model / "tokenizer_config.json").write_text(json.dumps(dict(tokenizer.settings)))
    made = device_tokenizer(model, tmp_path / "cache")
    assert made.read_bytes() == pack(tokenizer)
    before = made.stat().st_mtime_ns
    assert device_tokenizer(model, tmp_path / "cache").stat().st_mtime_ns == before


def with_checksum(data: bytes) -> bytes:
    return data[:12] + struct.pack("<I", zlib.crc32(data[16:])) + data[16:]


def number(data: bytes, at: int, value: int) -> bytes:
    return data[:at] + struct.pack("<I", value) + data[at + 4 :]


def with_text(data: bytes, which: int, text: bytes) -> bytes:
    """The file with another chat template (0), variables (1) or format of calls (2)."""
    sizes = struct.unpack_from("<4I", data, 44)
    start = len(data) - sum(sizes[which:])
    data = data[:start] + text + data[start + sizes[which] :]
    return with_checksum(number(data, 44 + 4 * which, len(text)))


DEEP = "the model's chat template is malformed: it has more than 100 parts inside each other"


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda _: b"", "not a tokenizer file"),
        (lambda d: b"{" + d[1:], "not a tokenizer file"),
        (lambda _: MAGIC, "it ends too early"),
        (lambda d: number(d, 8, 1), "version 1 of the format"),
        (lambda d: d[:-1], "its checksum is wrong"),
        (lambda d: d[:100] + bytes([d[100] ^ 1]) + d[101:], "its checksum is wrong"),
        (lambda d: with_checksum(d[:-1]), "its counts do not match its size"),
        (lambda d: with_checksum(number(d, 24, 0xFFFFFFFF)), "its counts do not match its size"),
        (lambda d: with_checksum(number(d, 28, 0x40000000)), "its counts do not match its size"),
        (lambda d: with_checksum(number(d, 16, 99)), "unknown rule for words: 99"),
        (lambda d: with_checksum(number(d, 20, 1 << 30)), "unknown flags"),
        (lambda d: with_checksum(number(d, 60, 0xFFFF)), "its tokens are not in order"),
        (lambda d: with_checksum(d[:-1] + b"\xff"), "one of its texts is not UTF-8"),
        (lambda d: with_text(d, 0, b"{{ " + b"[(" * 9999), DEEP),
        (lambda d: with_text(d, 0, b"{% if a %}" * 9999), DEEP),
        (lambda d: with_text(d, 0, b"{% if a %}" + b"{% elif a %}" * 9999), DEEP),
        (lambda d: with_text(d, 0, b"{% set a | f(b=1) %}" * 9999), DEEP),
        (lambda d: with_text(d, 0, b"{{ a" + b" + a" * 9999 + b" }}"), DEEP),
        (lambda d: with_text(d, 0, b"{{ " + b"not " * 9999 + b"a }}"), DEEP),
        (lambda d: with_text(d, 1, b"[" * 9999), "variables: nested more than 64 deep"),
        (lambda d: with_text(d, 2, b"[" * 9999), "the format of its calls: nested more than 64"),
        (lambda d: with_text(d, 2, b"{}"), "the format of its calls lacks a field"),
    ],
)
def test_a_damaged_file_is_refused(
    sanitized_probe: list[str], tmp_path: Path, spoil: Callable[[bytes], bytes], message: str
) -> None:
    path = tmp_path / "tokenizer.bin"
    path.write_bytes(spoil(pack(text_probe.trained("smollm"))))
    done = subprocess.run(
        [*sanitized_probe, str(path), "raw"],
        input=b"",
        capture_output=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 2
    assert f"{path}: " in done.stderr.decode()
    assert message in done.stderr.decode()


def test_a_long_template_is_read(sanitized_probe: list[str], tmp_path: Path) -> None:
    """Its blocks, assignments and comments stand side by side."""
    part = (
        b"{% if a %}{% elif b %}{% endif %}{% set c = f(d=[1]) %}{# e #}{% set c %}{% endset %}\n"
    )
    path = tmp_path / "tokenizer.bin"
    source = b"{% macro f(d) %}{% endmacro %}" + part * 3000 + b"{{ messages[0].content }}"
    path.write_bytes(with_text(pack(text_probe.trained("smollm")), 0, source))
    (answer,) = text_probe.ask(sanitized_probe, path, "chat", [b"hello"])
    assert answer["text"].endswith("hello")


def test_the_runner_has_the_tables_of_the_installed_packages() -> None:
    folder = libraries.unicode_tables(shared_builds.CACHE) / "text"
    letters = (folder / unicode_tables.TABLES_FILE).read_text(encoding="utf-8")
    assert "constexpr CodeRange kLetters[] = {\n    {0x41, 0x5A}, {0x61, 0x7A}," in letters
    wide = letters.partition("kWide[]")[2].partition("};")[0]
    assert "{0x1100, 0x115F}, {0x231A, 0x231B}" in wide and "{0x20000, 0x2FFFD}" in wide
    pairs = (folder / nfc_tables.FILE).read_text(encoding="utf-8")
    assert "{0x41, 0x300, 0xC0}" in pairs
