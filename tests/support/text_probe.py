# SPDX-License-Identifier: Apache-2.0
"""The runner's text half as a program of its own, and tokenizers of every kind that it knows."""

from __future__ import annotations

import json
import shlex
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
    trainers,
)

from crosslab.assemble.libraries import (
    include_folders,
    jinja_sources,
    json_headers,
    library_objects,
    template_objects,
)
from crosslab.assemble.link import RUNNER_SOURCES
from crosslab.assemble.runtime import LANGUAGE_FLAGS, sanitizer_flags
from crosslab.cached_build import cached_build
from crosslab.host.objects import compile_objects
from crosslab.host.toolchain import Machine, Toolchain, require_qemu
from crosslab.run.emulator import GuestMachine
from crosslab.tokenizer.chat_tokenizer import ChatTokenizer
from crosslab.tokenizer.device_tokenizer import byte_alphabet
from crosslab.tokenizer.unicode_tables import runner_tables
from groundwork.hashing import digest

__all__ = ["byte_alphabet"]

NATIVE = Path(__file__).parent / "native"
SCRIPTED = Path(__file__).parents[1] / "server"
# What needs no runtime.
TEXT_SOURCES = (
    *sorted(RUNNER_SOURCES.glob("input/*.cc")),
    *sorted(RUNNER_SOURCES.glob("text/*.cc")),
    *sorted(RUNNER_SOURCES.glob("tensors/*.cc")),
    *(RUNNER_SOURCES / "engine" / f"{name}.cc" for name in ("answer_text", "pace", "sampling")),
    *(RUNNER_SOURCES / "model" / f"{name}.cc" for name in ("cpus", "param_index", "vector_unit")),
    RUNNER_SOURCES / "program" / "arguments.cc",
)
SERVER_SOURCES = (
    *sorted(RUNNER_SOURCES.glob("grammar/*.cc")),
    *sorted(RUNNER_SOURCES.glob("api/*.cc")),
    *(p for p in sorted(RUNNER_SOURCES.glob("server/*.cc")) if p.stem != "engine_thread"),
)
# Headers that nearly all of them read: to read them once saves half of the server's build.
TEXT_HEADERS = ("algorithm", "map", "memory", "optional", "string", "vector")
SERVER_HEADERS = (
    *("fstream", "functional", "iostream", "mutex", "thread"),
    *("httplib.h", "nlohmann/json.hpp"),
)
SANITIZERS = ("address", "undefined")
_FLAGS = (*LANGUAGE_FLAGS, "-Wall", "-Wextra", "-Werror")


def build_probe(
    tools: Toolchain,
    cache: Path,
    main: Path = NATIVE / "tokenizer_probe.cc",
    sanitizers: Sequence[str] = SANITIZERS,
    *,
    server: bool = False,
) -> Path:
    """The program around ``main``, with the server or without; on this machine with sanitizers."""
    host = tools.machine is Machine.HOST
    folders = [runner_tables(cache), json_headers(), jinja_sources(cache)]
    # The same objects serve libFuzzer, where the compiler has it.
    covered = ("fuzzer-no-link",) if tools.is_clang else ()
    kinds = (*covered, *SANITIZERS) if host else ()
    command, text = _objects(tools, cache, ("text", "-O1"), TEXT_SOURCES, folders, kinds)
    ready = [*sorted(text.glob("*.o"))]
    if not server:
        ready += template_objects(tools, cache)
    else:
        # Most of their compiler's time would go into optimising what sanitizers add.
        folders += include_folders(cache).values()
        how = ("server", "-O0")
        command, more = _objects(tools, cache, how, SERVER_SOURCES, folders, kinds)
        ready += [*sorted(more.glob("*.o")), *library_objects(tools, cache)]
    link = sanitizer_flags(sanitizers) if host else ("-static",)
    made = [f"{path.parent.name}/{path.name}" for path in ready]
    key = digest(*made, shlex.join(link), main, *sorted(SCRIPTED.glob("*.h")))

    def make(out: Path) -> None:
        own = [*command, str(main), f"-I{SCRIPTED}", *map(str, ready), *tools.link, *link]
        subprocess.run([*own, "-pthread", "-o", str(out / "probe")], check=True)

    return cached_build(cache, f"probe-{tools.machine}", key, make) / "probe"


def _objects(
    tools: Toolchain,
    cache: Path,
    how: tuple[str, str],
    sources: Sequence[Path],
    folders: Sequence[Path],
    sanitizers: Sequence[str],
) -> tuple[list[str], Path]:
    """A compiler's command, and the folder of the objects that it makes, for any main."""
    name, optimisation = how
    headers = (*TEXT_HEADERS, *(SERVER_HEADERS if name == "server" else ()))
    flags = [*_FLAGS, optimisation, *sanitizer_flags(sanitizers)]
    includes = [f"-I{RUNNER_SOURCES}", *(f"-isystem{folder}" for folder in folders)]
    command = [*tools.cxx, *flags, *includes]
    key = digest(tools.digest, shlex.join([*flags, *headers]), RUNNER_SOURCES, *folders)

    def make(out: Path) -> None:
        names = [source.relative_to(RUNNER_SOURCES).as_posix() for source in sources]
        precompiled = headers if tools.is_clang else ()
        compile_objects("probe", command, names, RUNNER_SOURCES, out, precompiled=precompiled)

    return command, cached_build(cache, f"probe-{name}-{tools.machine}", key, make)


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


def _split(*expressions: str) -> pre_tokenizers.PreTokenizer:
    splits = [pre_tokenizers.Split(Regex(e), "isolated") for e in expressions]
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
    "deepseekv3": lambda: _split(*DEEPSEEK),
    "gptoss": lambda: _split(GPT_OSS),
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
