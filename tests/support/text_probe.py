# SPDX-License-Identifier: Apache-2.0
"""The runner's text half as a program of its own, and tokenizers of every kind that it knows."""

from __future__ import annotations

import json
import shutil
import struct
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

from crosslab.assemble.cmake import RUNNER, built
from crosslab.assemble.libraries import configuration_of
from crosslab.cached_build import cached_build
from crosslab.host.toolchain import Machine, Toolchain, require_qemu
from crosslab.run.emulator import GuestMachine
from crosslab.tokenizer.byte_pieces import byte_alphabet
from crosslab.tokenizer.chat_tokenizer import ChatTokenizer
from crosslab.tokenizer.word_rules import word_rules
from groundwork.hashing import digest

__all__ = ["byte_alphabet"]

HERE = Path(__file__).parent
NATIVE = HERE / "native"
# Sources of the test programs; the first folder also has what they include.
SOURCES = (HERE.parent / "server", NATIVE, HERE.parent / "fuzz" / "native")
SANITIZERS = ("address", "undefined")


def build_probe(
    tools: Toolchain, cache: Path, name: str = "tokenizer_probe", target: str = "native_tests"
) -> Path:
    """A test program, with the text half and the server of the runner in it.

    Args:
        tools: the compiler. A program for this machine has sanitizers.
        cache: folder of finished builds.
        name: of the program: one of those in ``native_tests``, which a link with its name starts;
            or the target.
        target: of the CMake project.
    """
    sanitizers = SANITIZERS if tools.machine is Machine.HOST else ()
    configuration = configuration_of(tools, cache, sanitizers)
    sources = [path for folder in SOURCES for path in sorted(folder.glob("*.[ch]*"))]
    key = digest(tools.digest, target, RUNNER, *configuration.variables.values(), *sources)

    def make(out: Path) -> None:
        with built("tests", configuration, [target], cache) as folder:
            shutil.copy(folder / target, out)
        for path in sources:
            if path.suffix == ".cc" and path.stem != target:
                (out / path.stem).symlink_to(target)

    return cached_build(cache, f"{target}-{tools.machine}", key, make) / name


def ask(command: Sequence[str], table: Path, mode: str, texts: Sequence[bytes]) -> list[Any]:
    """Answers of the program to each text."""
    stream = b"".join(struct.pack("<I", len(text)) + text for text in texts)
    done = subprocess.run(
        [*command, str(table), mode], input=stream, capture_output=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr.decode(errors="replace")[-2000:]
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(answers) == len(texts)
    return answers


def in_guest(program: Path) -> list[str]:
    """The command that runs a program in the emulator."""
    return [str(require_qemu().path), "-cpu", GuestMachine().cpu, str(program)]


CORPUS = """
The quick brown fox isn't jumping over 13 lazy dogs, and they've 4567 more; WE'LL SEE.
def encode(text):\n    return [t for t in text.split(' ')]\n\n\n
Der Fuß, la señora, žluťoučký kůň, 東京の天気は晴れです。 中文 한국어 😀👍🏽 👨‍👩‍👧
  spaces   and\ttabs \r\n 1999-12-31 3.14159 x²½ ٣٤٥ १२३
"""
TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}<|start|>{{ m.role }}\n{{ m.content | trim }}<|end|>"
    "{% endfor %}<|start|>assistant\n"
)


LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|"
    r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


DEEPSEEK = (
    r"\p{N}{1,3}",
    "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+",
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|"""
    "[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|"
    r"\s+(?!\S)|\s+",
)
LARGE, SMALL = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
BEFORE, BEHIND = r"[^\r\n\p{L}\p{N}]?", r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
GPT_OSS = (
    f"{BEFORE}{LARGE}*{SMALL}+{BEHIND}|{BEFORE}{LARGE}+{SMALL}*{BEHIND}|"
    r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
TEKKEN = GPT_OSS.replace(BEHIND, "").replace("{1,3}", "")


QWEN35 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}|"
    r" ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


EASTERN = "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"
DEEPSEEK_CODER = ("[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", EASTERN)
# Letters with a case as of Unicode 12: the table alone has them.
CASED = next(rule for rule in word_rules() if rule.name == "deepseekllm").pre_tokenizer
DEEPSEEK_LLM = (
    "[\r\n]",
    CASED["pretokenizers"][1]["pattern"]["Regex"],
    "\\s?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+",
    r"\s+$",
    EASTERN,
)


def _split(*expressions: str, digits: bool = False) -> pre_tokenizers.PreTokenizer:
    splits = [pre_tokenizers.Split(Regex(e), "isolated") for e in expressions]
    splits += [pre_tokenizers.Digits(individual_digits=True)] * digits
    return pre_tokenizers.Sequence(
        [*splits, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )


def _gpt2() -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)


RULES: dict[str, Callable[[], pre_tokenizers.PreTokenizer]] = {
    "gpt2": _gpt2,
    "smollm": lambda: pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), _gpt2()]
    ),
    "llama3": lambda: _split(LLAMA3),
    "qwen2": lambda: _split(LLAMA3.replace("{1,3}", "")),
    "qwen35": lambda: _split(QWEN35),
    "deepseekv3": lambda: _split(*DEEPSEEK),
    "gptoss": lambda: _split(GPT_OSS),
    "tekken": lambda: _split(TEKKEN),
    "deepseekllm": lambda: _split(*DEEPSEEK_LLM, digits=True),
    "deepseekcoder": lambda: _split(*DEEPSEEK_CODER, digits=True),
    "whole": lambda: pre_tokenizers.Split(" ", "merged_with_previous"),
}
# Byte-level tokenizers cut by them; "whole" is of those that merge characters.
BYTE_LEVEL = tuple(name for name in RULES if name != "whole")
MARKERS = [
    AddedToken("<|start|>", special=True, normalized=False),
    AddedToken("<|end|>", special=True, normalized=False),
    AddedToken("<|end|>>", special=False, normalized=False),
    AddedToken("<tool>", special=False, normalized=True),
    AddedToken(" \u00e9\u2003", special=False, normalized=False),
]


def trained(
    rule: str, *, whole_words: bool = False, bytes_too: bool = True, nfc: bool = False
) -> ChatTokenizer:
    """A tokenizer of this kind, trained on a few lines."""
    model = models.BPE(ignore_merges=whole_words)
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = RULES[rule]()
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet() if bytes_too else []
    trainer = trainers.BpeTrainer(
        vocab_size=700, initial_alphabet=alphabet, show_progress=False, special_tokens=["<unk>"]
    )
    tokenizer.train_from_iterator([CORPUS], trainer)
    if whole_words:
        # Words that no merge makes.
        about = json.loads(tokenizer.to_str())
        about["model"]["vocab"] |= {"zqxj": 700, "\u0120zqxj": 701}
        tokenizer = Tokenizer.from_str(json.dumps(about))
    if nfc:
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.add_tokens(MARKERS)
    settings = {
        "chat_template": TEMPLATE,
        "bos_token": "<|start|>",
        "eos_token": "<|end|>",
        "add_bos_token": True,
    }
    return ChatTokenizer(tokenizer, settings)


def in_pieces(*, lowercase: bool = True) -> ChatTokenizer:
    """A tokenizer of pieces of words, as BERT's."""
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=lowercase)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece(cleanup=False)
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    trainer = trainers.WordPieceTrainer(
        vocab_size=400, show_progress=False, special_tokens=special, limit_alphabet=120
    )
    tokenizer.train_from_iterator([CORPUS], trainer)
    outer = [(token, tokenizer.token_to_id(token)) for token in ("[CLS]", "[SEP]")]
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=outer
    )
    return ChatTokenizer(tokenizer, {})


BLANKS: dict[str, tuple[normalizers.Normalizer | None, pre_tokenizers.PreTokenizer | None]] = {
    "prepend": (
        normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")]),
        None,
    ),
    "replace": (normalizers.Replace(" ", "\u2581"), RULES["whole"]()),
    **{
        scheme: (None, pre_tokenizers.Metaspace(prepend_scheme=scheme, split=False))
        for scheme in ("first", "always", "never")
    },
}


def by_character(blanks: str, *, strips: bool) -> ChatTokenizer:
    """A tokenizer of characters with bytes for those that are no token, as SentencePiece makes.

    Args:
        blanks: how blanks become U+2581, a name of BLANKS.
        strips: an answer's first blank is dropped.
    """
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    names = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256))]
    trainer = trainers.BpeTrainer(
        vocab_size=700, limit_alphabet=80, show_progress=False, special_tokens=names
    )
    tokenizer.train_from_iterator([CORPUS], trainer)
    about = json.loads(tokenizer.to_str())
    tokenizer = Tokenizer.from_str(json.dumps({**about, "added_tokens": about["added_tokens"][:1]}))
    normalizer, pre_tokenizer = BLANKS[blanks]
    if normalizer:
        tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = pre_tokenizer
    steps = [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence(
        [*steps, *([decoders.Strip(" ", 1, 0)] if strips else [])]
    )
    tokenizer.add_tokens([token for token in MARKERS if not token.normalized])
    tokenizer.add_tokens([AddedToken("\u2581\u2581", normalized=False)])
    return ChatTokenizer(tokenizer, {"bos_token": "<|start|>", "add_bos_token": True})


def tiny(size: int, template: str = TEMPLATE) -> ChatTokenizer:
    """A tokenizer of exactly ``size`` tokens, whose alphabet is a few ASCII and other bytes."""
    alphabet = {byte: char for char, byte in byte_alphabet().items()}
    markers = [t for t in MARKERS if t.special]
    words = b" abcdefghijklmnopqrstuvwxyz?\n\x00" + "\u00e9\U0001f600".encode()
    words += b'0123456789+-."\\/{}[]:,<>_ABCDEF'
    vocab = {alphabet[byte]: n for n, byte in enumerate(dict.fromkeys(words))}
    merges = []
    for left in "abcdefghijkl":
        for right in "mnopqr":
            if len(vocab) + len(markers) < size:
                vocab[left + right] = len(vocab)
                merges.append((left, right))
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges))
    tokenizer.pre_tokenizer = _gpt2()
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_tokens(markers)
    assert tokenizer.get_vocab_size() == size
    return ChatTokenizer(tokenizer, {"chat_template": template, "eos_token": "<|end|>"})
