# SPDX-License-Identifier: Apache-2.0
"""Tokenizers from GGUF metadata or a model's folder, and chat prompts."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any

from jinja2 import TemplateError, nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import (
    AddedToken,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
)

from crosslab.errors import LabError, UserError
from crosslab.json_table import PUBLISHED, read_json_table
from crosslab.tokenizer.byte_pieces import longest_pieces
from crosslab.tokenizer.word_rules import word_rules

TOKENIZER_FILE = "tokenizer.json"
SETTINGS_FILE = "tokenizer_config.json"
TEMPLATE_FILE = "chat_template.jinja"
OLDER_TEMPLATE_FILE = "chat_template.json"
# Values of GGUF's token_type. Merging never creates control tokens and never splits user tokens.
NORMAL_TOKEN, UNKNOWN_TOKEN, CONTROL_TOKEN, USER_TOKEN = 1, 2, 3, 4
BLANK = "\u2581"
_GOES_ON = "##"  # before a piece that continues a word
# llama.cpp's defaults for values of tokenizer.ggml.pre: texts begin with BOS; words that are tokens
# are not merged.
_BEGINS_WITH_BOS = (
    *("llama3", "llama-v3", "llama-bpe", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2"),
    "tekken",
)
_IGNORES_MERGES = (*_BEGINS_WITH_BOS, "glm4", "glm5")
# Families whose words are cut by GPT-2's rule; older files do not name it.
_OLDER_GPT2 = ("gpt2", "gptneox", "phi2")
# Phi-3's other special tokens take the blanks behind them; a GGUF file does not say so.
_KEEPS_BLANKS = ("<unk>", "<s>", "<|endoftext|>")
# Tokens that end a turn in the chats of published models. Files seldom name all of them, so
# llama.cpp finds them by their text, too.
_ENDS_TURN = frozenset(
    [
        *("<|eot_id|>", "<|eom_id|>", "<|im_end|>", "<|end|>", "<|return|>", "<|call|>"),
        *("<|endoftext|>", "<|end_of_text|>", "<end_of_turn>", "<turn|>", "<end_of_utterance>"),
        *("<eos>", "<EOT>", "\u2581<EOT>", "[EOT]", "[EOS]"),
        "<\uff5cend\u2581of\u2581sentence\uff5c>",
    ]
)
# Markers of an answer that is messages in channels (gpt-oss), as in runner/text/chat.h.
_CHANNEL = "<|channel|>"
_CHANNEL_MARKERS = ("<|start|>", _CHANNEL, "<|message|>", "<|end|>", "<|constrain|>")
# A model with these tokens also ends other messages than its last one with <|end|> (gpt-oss).
_HARMONY = ("<|return|>", "<|call|>")


def build_tokenizer(fields: Mapping[str, Any]) -> Tokenizer:
    """Build a tokenizer from the ``tokenizer.ggml.*`` fields of a GGUF file.

    Args:
        fields: GGUF metadata: plain values by name.

    Raises:
        UserError: the file's tokenizer is of an unsupported kind, or malformed.
    """
    kind = fields.get("tokenizer.ggml.model")
    named = _named_tokens(fields)
    if kind == "bert":
        tokenizer, special = _in_pieces(fields, named), {CONTROL_TOKEN}
    elif kind == "rwkv":
        special = {CONTROL_TOKEN}
        pieces = {i: token for i, (token, of) in enumerate(named) if of == NORMAL_TOKEN}
        others = {token: i for i, (token, of) in enumerate(named) if of in special}
        tokenizer = longest_pieces(pieces, others)
    else:
        tokenizer = _by_character(fields, named) if kind == "llama" else _byte_level(fields, kind)
        special = {CONTROL_TOKEN, UNKNOWN_TOKEN}
        tokenizer.add_tokens(_added(fields, named, {USER_TOKEN}))
    tokenizer.add_special_tokens(_added(fields, named, special))
    return tokenizer


def stop_tokens(fields: Mapping[str, Any]) -> list[int]:
    """Return the ids of the tokens that end an answer.

    They are the ends of a text, of a turn and of a message to a tool that the file names, and
    tokens that end a turn by their text, as in llama.cpp. A token of the normal kind does not.

    Args:
        fields: GGUF metadata: plain values by name.

    Raises:
        UserError: the file's tokens are malformed.
    """
    said = (fields.get(f"tokenizer.ggml.{name}_token_id") for name in ("eos", "eot", "eom"))
    ends = _ENDS_TURN
    named = _named_tokens(fields)
    if {*_HARMONY} <= {token for token, _ in named}:
        ends -= {"<|end|>"}
    known = [i for i, (t, kind) in enumerate(named) if t in ends and kind != NORMAL_TOKEN]
    return list(dict.fromkeys([*(index for index in said if index is not None), *known]))


def _named_tokens(fields: Mapping[str, Any]) -> list[tuple[str, int]]:
    """Return (text, kind) of each token; all are normal if the file has no kinds."""
    tokens = _texts(fields, "tokenizer.ggml.tokens")
    if len(set(tokens)) != len(tokens):
        raise UserError("the model's tokenizer lists a token twice")
    types = fields.get("tokenizer.ggml.token_type", [NORMAL_TOKEN] * len(tokens))
    if not isinstance(types, list) or len(types) != len(tokens):
        raise UserError("the model's file has no tokenizer.ggml.token_type for each token")
    return list(zip(tokens, types, strict=True))


def _added(
    fields: Mapping[str, Any], named: Sequence[tuple[str, int]], kinds: Set[int]
) -> list[AddedToken]:
    """Return the tokens of given kinds, which are found in a text before it is cut into words."""
    phi3 = fields.get("general.architecture") == "phi3"
    strips = phi3 and fields.get("tokenizer.ggml.model") == "llama"
    return [
        AddedToken(
            token,
            special=kind != USER_TOKEN,
            normalized=False,
            rstrip=strips and token not in _KEEPS_BLANKS,
        )
        for token, kind in named
        if kind in kinds
    ]


def _byte_level(fields: Mapping[str, Any], kind: object) -> Tokenizer:
    """Build a tokenizer that merges the bytes of words."""
    older = "gpt-2" if fields.get("general.architecture") in _OLDER_GPT2 else None
    pre = fields.get("tokenizer.ggml.pre", older)
    if kind == "gpt2" and pre is None:
        raise UserError(
            "the model's file lacks tokenizer.ggml.pre, the rule that cuts text into words",
            remedy="convert the model again with a newer llama.cpp",
        )
    rules = {name: rule for rule in word_rules() for name in rule.gguf}
    if kind != "gpt2" or pre not in rules:
        known = ", ".join(sorted(rules))
        raise UserError(
            f"tokenizer.ggml.model = {kind!r} with tokenizer.ggml.pre = {pre!r} is not supported",
            remedy=f"supported: 'llama', 'bert', 'rwkv', and 'gpt2' with one of: {known}",
        )
    vocabulary = {t: i for i, t in enumerate(_texts(fields, "tokenizer.ggml.tokens"))}
    halves = (pair.partition(" ") for pair in _texts(fields, "tokenizer.ggml.merges"))
    merges = [(left, right) for left, _, right in halves]
    # Checked here, because the library raises a plain Exception or panics.
    for pair in merges:
        if not {*pair, "".join(pair)} <= vocabulary.keys():
            raise UserError(
                f"the model's tokenizer merges {' '.join(pair)[:40]!r}, which are not tokens"
            )
    model = models.BPE(vocab=vocabulary, merges=merges, ignore_merges=pre in _IGNORES_MERGES)
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = rules[pre].build()
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _in_pieces(fields: Mapping[str, Any], named: Sequence[tuple[str, int]]) -> Tokenizer:
    """Build a tokenizer of pieces of words; a file marks those at the beginning of a word."""
    vocabulary = {}
    for index, (token, kind) in enumerate(named):
        goes_on = not token.startswith(BLANK) and kind == NORMAL_TOKEN
        text = f"{_GOES_ON}{token}" if goes_on else token.removeprefix(BLANK)
        vocabulary[text] = index
    unknown, first, last = (
        _special(fields, named, *names)
        for names in (("unknown",), ("bos", "cls"), ("seperator", "eos"))
    )
    if absent := [token for token in (unknown, first, last) if token not in vocabulary]:
        raise UserError(
            "tokenizer.ggml.token_type of the model's file makes "
            f"{absent[0][:40]!r} a part of a word"
        )
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token=unknown))
    # Older files do not say whether words keep their case.
    cased = any(text.isalpha() and text != text.lower() for text in vocabulary)
    lowercase = fields.get("tokenizer.ggml.normalizer.lowercase", not cased)
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=bool(lowercase))
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece(cleanup=False)
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{first} $A {last}",
        special_tokens=[(token, vocabulary[token]) for token in (first, last)],
    )
    return tokenizer


def _special(fields: Mapping[str, Any], named: Sequence[tuple[str, int]], *names: str) -> str:
    """Return the token that the first known of these fields names; files differ in them."""
    for name in names:
        place = fields.get(f"tokenizer.ggml.{name}_token_id")
        if type(place) is int and 0 <= place < len(named):
            return named[place][0].removeprefix(BLANK)
    raise UserError(f"the model's file lacks tokenizer.ggml.{names[0]}_token_id")


def _by_character(fields: Mapping[str, Any], named: Sequence[tuple[str, int]]) -> Tokenizer:
    """Build a tokenizer that merges characters, with bytes for unknown characters (SentencePiece).

    There is no list of merges: two tokens merge if they form a token; higher scores come first.
    """
    vocabulary = {token: index for index, (token, _) in enumerate(named)}
    scores = fields.get("tokenizer.ggml.scores")
    if not isinstance(scores, list) or len(scores) != len(named):
        raise UserError("the model's file has no tokenizer.ggml.scores for each token")
    # The token of characters that are neither in the vocabulary nor spelled by bytes.
    unknown = _special({"tokenizer.ggml.unknown_token_id": 0, **fields}, named, "unknown")
    pairs = [
        (-score, vocabulary[token[:cut]], vocabulary[token[cut:]])
        for (token, kind), score in zip(named, scores, strict=True)
        if kind == NORMAL_TOKEN
        for cut in range(1, len(token))
        if token[:cut] in vocabulary and token[cut:] in vocabulary
    ]
    merges = [(named[left][0], named[right][0]) for _, left, right in sorted(pairs)]
    model = models.BPE(
        vocab=vocabulary, merges=merges, unk_token=unknown, fuse_unk=True, byte_fallback=True
    )
    tokenizer = Tokenizer(model)
    prefix = fields.get("tokenizer.ggml.add_space_prefix", True)
    blanks = [normalizers.Prepend(BLANK)] if prefix else []
    tokenizer.normalizer = normalizers.Sequence([*blanks, normalizers.Replace(" ", BLANK)])
    steps = [decoders.Replace(BLANK, " "), decoders.ByteFallback(), decoders.Fuse()]
    steps += [decoders.Strip(" ", 1, 0)] if prefix else []
    tokenizer.decoder = decoders.Sequence(steps)
    return tokenizer


def _texts(fields: Mapping[str, Any], name: str) -> Sequence[str]:
    values = fields.get(name)
    if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
        raise UserError(f"the model's file lacks {name}, a list of texts")
    return values


def save_tokenizer(tokenizer: Tokenizer, fields: Mapping[str, Any], folder: Path) -> None:
    """Write ``tokenizer.json`` and ``tokenizer_config.json`` (special tokens, chat template).

    Raises:
        UserError: the id of a special token is not that of a token.
    """
    tokenizer.save(str(folder / TOKENIZER_FILE))
    tokens = fields["tokenizer.ggml.tokens"]
    # A file may name one of llama.cpp's own templates instead of holding one (rwkv-world).
    template = fields.get("tokenizer.chat_template")
    begins = (
        fields.get("tokenizer.ggml.model") == "llama"
        or fields.get("tokenizer.ggml.pre") in _BEGINS_WITH_BOS
    )
    settings: dict[str, object] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "add_bos_token": bool(fields.get("tokenizer.ggml.add_bos_token", begins)),
        "model_max_length": fields.get(f"{fields.get('general.architecture')}.context_length"),
        "chat_template": template if "{" in str(template) else None,
    }
    names = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}
    for name, ggml in names.items():
        index = fields.get(f"tokenizer.ggml.{ggml}_token_id")
        if index is None:
            continue
        if type(index) is not int or not 0 <= index < len(tokens):
            raise UserError(f"the model's tokenizer has no token {str(index)[:40]} for {name}")
        settings[name] = tokens[index]
    (folder / SETTINGS_FILE).write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")


_SAVE_AGAIN = (
    'write it with transformers: python -c "from transformers import AutoTokenizer; '
    "AutoTokenizer.from_pretrained('{0}').save_pretrained('{0}')\""
)


def _content(value: Any) -> Any:
    """Return a token's text; a token can be stored as a text or a table of properties."""
    return value["content"] if isinstance(value, dict) and "content" in value else value


def _stops(folder: Path, tokenizer: Tokenizer) -> tuple[int, ...]:
    """Return the stop ids in ``generation_config.json`` and ``config.json`` that are tokens."""
    stops: list[Any] = []
    for name in ("generation_config.json", "config.json"):
        ids = read_json_table(folder / name, optional=True).get("eos_token_id")
        stops += ids if isinstance(ids, list) else [ids]
    # The library reads ids of 32 bits. Ids may have gaps, so that their number is not a bound.
    ids = (n for n in stops if type(n) is int and 0 <= n < 2**32)
    return tuple(dict.fromkeys(n for n in ids if tokenizer.id_to_token(n) is not None))


def _with_channels(tokenizer: Tokenizer) -> Tokenizer:
    """Return a tokenizer that shows the markers of channels in the text of an answer."""
    about = json.loads(tokenizer.to_str())
    for token in about["added_tokens"]:
        token["special"] = token["special"] and token["content"] not in _CHANNEL_MARKERS
    return Tokenizer.from_str(json.dumps(about))


def _raise(message: str) -> None:
    """Raise an error of the chat template, as the template's function ``raise_exception``."""
    raise TemplateError(message)


class _Generation(Extension):
    """Transformers' tags around an answer, ``{% generation %}`` and ``{% endgeneration %}``."""

    tags = {"generation"}  # noqa: RUF012 (as in Jinja's own extensions)

    def parse(self, parser: Parser) -> nodes.Node:
        """Return the content of the tags."""
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)


def _to_json(
    value: object,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Return JSON as transformers' filter `tojson` writes it; Jinja's own filter is for HTML."""
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def _now(form: str) -> str:
    """Return the local time in a format of strftime."""
    return datetime.now().strftime(form)


def _in_parts(message: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a message with its content as a list of parts."""
    if not isinstance(text := message.get("content"), str):
        return message
    return {**message, "content": [{"type": "text", "text": text}]}


@dataclass(frozen=True)
class ChatTokenizer:
    """A tokenizer with its settings: chat template, special tokens and stop ids."""

    tokenizer: Tokenizer
    settings: Mapping[str, Any]
    more_stops: tuple[int, ...] = ()

    @classmethod
    def load(cls, folder: Path) -> ChatTokenizer:
        """Read the tokenizer and the chat template of a Hugging Face folder.

        Raises:
            UserError: a file is missing or malformed.
        """
        path = folder / TOKENIZER_FILE
        if not path.is_file():
            raise UserError(f"no {TOKENIZER_FILE} in {folder}", remedy=_SAVE_AGAIN.format(folder))
        try:
            tokenizer = Tokenizer.from_file(str(path))
            # Settings of the program that wrote the file; transformers ignores them, too.
            tokenizer.no_truncation()
            tokenizer.no_padding()
        except Exception as error:  # the library raises plain exceptions
            raise UserError(
                f"{path} is not a tokenizer that the library reads: {error}",
                remedy=_SAVE_AGAIN.format(folder),
            ) from error
        stored = read_json_table(folder / SETTINGS_FILE, optional=True)
        settings = {k: _content(v) for k, v in stored.items()}
        settings |= read_json_table(folder / OLDER_TEMPLATE_FILE, optional=True)
        template = folder / TEMPLATE_FILE
        try:
            if template.is_file():
                settings["chat_template"] = template.read_text(encoding="utf-8")
            elif isinstance(named := settings.get("chat_template"), list):
                of_name = {entry["name"]: entry["template"] for entry in named}
                settings["chat_template"] = of_name.get("default")
        except (UnicodeDecodeError, KeyError, TypeError) as error:
            raise UserError(
                f"{folder}: its chat template cannot be read: {error!r}", remedy=PUBLISHED
            ) from error
        if _CHANNEL in str(settings.get("chat_template")):
            tokenizer = _with_channels(tokenizer)
        return cls(tokenizer, settings, _stops(folder, tokenizer))

    @property
    def stop_ids(self) -> tuple[int, ...]:
        """Ids of tokens that end an answer."""
        return tuple(dict.fromkeys([*self._named("eos_token"), *self.more_stops]))

    @property
    def has_chat(self) -> bool:
        """True if the model has a chat template."""
        return bool(self.settings.get("chat_template"))

    @property
    def variables(self) -> dict[str, str]:
        """Variables of templates besides the messages, such as ``bos_token``."""
        return {k: v for k, v in self.settings.items() if k.endswith("_token") and v is not None}

    def with_usable_chat(self) -> tuple[ChatTokenizer, str]:
        """Return this tokenizer, without its chat template if the template fails for a message.

        Returns:
            the tokenizer, and the error of the removed template; empty if nothing was removed.
        """
        try:
            if self.has_chat:
                self.chat_text([{"role": "user", "content": "Hello"}])
        except LabError as error:
            plain = {k: v for k, v in self.settings.items() if k != "chat_template"}
            return replace(self, settings=plain), error.what
        return self, ""

    @cached_property
    def reads_parts(self) -> bool:
        """True if the template reads a message's content only as a list of parts, not as text."""
        word = "mlc-rvv"

        def shows(content: Any) -> bool:
            try:
                return word in self._rendered([{"role": "user", "content": content}], ())
            except LabError:
                return False

        return not shows(word) and shows([{"type": "text", "text": word}])

    def chat_text(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] = ()
    ) -> str:
        """Render messages with the model's template, up to the begin of the assistant's answer.

        Raises:
            UserError: the model has no chat template.
            LabError: the template fails.
        """
        if not self.has_chat:
            raise UserError("this model has no chat template")
        if self.reads_parts:
            messages = [_in_parts(message) for message in messages]
        return self._rendered(messages, tools)

    def _rendered(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]]
    ) -> str:
        """Render messages; the template comes from a downloaded file, so it runs in a sandbox."""
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=["jinja2.ext.loopcontrols", _Generation],
        )
        environment.globals |= {"raise_exception": _raise, "strftime_now": _now}
        environment.filters["tojson"] = _to_json
        about: dict[str, Any] = {**self.variables, **({"tools": tools} if tools else {})}
        try:
            template = environment.from_string(self.settings["chat_template"])
            return template.render(messages=messages, add_generation_prompt=True, **about)
        except Exception as error:  # a template is a program, and may raise any error
            raise LabError(f"the model's chat template fails: {error}") from error

    def chat_ids(self, prompt: str, pictures: int = 0) -> list[int]:
        """Return the token ids of a chat with one user message; without a template, of plain text.

        Args:
            prompt: the message.
            pictures: number of pictures that it shows.

        Raises:
            UserError: the message is empty.
            LabError: the template fails, or the tokenizer adds ids that depend on the text.
        """
        if not prompt.strip():
            raise UserError("the prompt is empty", remedy="give one: --prompt TEXT")
        if not self.has_chat:
            first, last = self.outer_ids()
            return [*first, *self.tokenizer.encode(prompt, add_special_tokens=False).ids, *last]
        parts = [{"type": "image"}] * pictures + [{"type": "text", "text": prompt}]
        text = self.chat_text([{"role": "user", "content": parts if pictures else prompt}])
        ids: list[int] = self.tokenizer.encode(text, add_special_tokens=False).ids
        return ids

    def first_ids(self) -> list[int]:
        """Return the ids before every text outside of a chat, such as BOS.

        Raises:
            LabError: the tokenizer adds ids after a text, or ids that depend on the text.
        """
        first, last = self.outer_ids()
        if last:
            raise LabError("the model's tokenizer adds more to a text than first tokens")
        return first

    def outer_ids(self) -> tuple[list[int], list[int]]:
        """Return the ids before and behind every text outside of a chat, such as BOS.

        Raises:
            LabError: the tokenizer adds ids that depend on the text.
        """
        outer: list[int] = self.tokenizer.encode("").ids
        found = []
        for probe in ("a", "Some words"):
            plain = self.tokenizer.encode(probe, add_special_tokens=False).ids
            whole = self.tokenizer.encode(probe).ids
            cuts = [n for n in range(len(outer) + 1) if whole == outer[:n] + plain + outer[n:]]
            found.append(cuts[-1] if cuts else -1)
        if found[0] < 0 or found[0] != found[1]:
            raise LabError("the model's tokenizer adds tokens that depend on the text")
        first, last = outer[: found[0]], outer[found[0] :]
        if not outer and self.settings.get("add_bos_token"):
            return self._named("bos_token"), []
        return first, last

    def _named(self, setting: str) -> list[int]:
        """Return the id of the token that a setting names; none if it is null or unknown."""
        token = self.settings.get(setting)
        index = self.tokenizer.token_to_id(token) if isinstance(token, str) else None
        return [] if index is None else [index]

    def decode(self, ids: Sequence[int]) -> str:
        """Convert token ids to text, without special tokens."""
        text: str = self.tokenizer.decode(list(ids), skip_special_tokens=True)
        return text
