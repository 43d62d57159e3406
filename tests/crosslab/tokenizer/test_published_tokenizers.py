# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: RUF001 (texts of many scripts)
"""The runner's tokenizer with those of published models against the library: no difference.

The suite asks a sample of two of them. All six, 100,000 random texts and as many random answers
each, with a table at the end:

    nox -s tests -- -n0 -s -m long tests/crosslab/tokenizer/test_published_tokenizers.py
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from support import shared_builds, text_probe
from support.models.published_tokenizers import NAMES, published
from tokenizers import Tokenizer

from crosslab.host.toolchain import Toolchain
from crosslab.tokenizer.chat_tokenizer import ChatTokenizer
from crosslab.tokenizer.device_tokenizer import pack

SEED = 20261122
BATCH = 5000
# The first article of the Universal Declaration of Human Rights.
LANGUAGES = [
    "All human beings are born free and equal in dignity and rights. They're endowed with reason.",
    "Alle Menschen sind frei und gleich an Würde und Rechten geboren.",
    "Tous les êtres humains naissent libres et égaux en dignité et en droits.",
    "Todos los seres humanos nacen libres e iguales en dignidad y derechos, ¿no?",
    "Все люди рождаются свободными и равными в своем достоинстве и правах.",
    "Všichni lidé rodí se svobodní a sobě rovní co do důstojnosti a práv.",
    "Όλοι οι άνθρωποι γεννιούνται ελεύθεροι και ίσοι στην αξιοπρέπεια και τα δικαιώματα.",
    "يولد جميع الناس أحرارًا متساوين في الكرامة والحقوق.",
    "כל בני האדם נולדו בני חורין ושווים בערכם ובזכויותיהם.",
    "सभी मनुष्यों को गौरव और अधिकारों के मामले में जन्मजात स्वतन्त्रता और समानता प्राप्त है।",
    "人人生而自由,在尊严和权利上一律平等。他们赋有理性和良心，并应以兄弟关系的精神相对待。",
    "すべての人間は、生れながらにして自由であり、かつ、尊厳と権利とについて平等である。",
    "모든 인간은 태어날 때부터 자유로우며 그 존엄과 권리에 있어 동등하다.",
    "มนุษย์ทั้งหลายเกิดมามีอิสระและเสมอภาคกันในเกียรติศักดิ์และสิทธิ",
    "Tất cả mọi người sinh ra đều được tự do và bình đẳng về nhân phẩm và quyền lợi.",
    "Bütün insanlar hür, haysiyet ve haklar bakımından eşit doğarlar. İIıi",
    "ყველა ადამიანი იბადება თავისუფალი და თანასწორი თავისი ღირსებითა და უფლებებით.",
    "Բոլոր մարդիկ ծնվում են ազատ ու հավասար իրենց արժանապատվությամբ ու իրավունքներով։",
    "மனிதப் பிறவியினர் சகலரும் சுதந்திரமாகவே பிறக்கின்றனர்.",
    "የሰው ልጅ ሁሉ ሲወለድ ነጻና በክብርና በመብትም እኩልነት ያለው ነው።",
]
EMOJI = [
    "😀👍🏽👨‍👩‍👧🇫🇷🏴󠁧󠁢󠁥󠁮󠁧󠁿 1️⃣ ❤️ ☺ 🧑🏿‍🚀",
    "a😀b 😀😀😀\n😀 \U0001faf7 \U000e0041",
]
ODD = [
    "",
    " ",
    "  two  blanks ",
    "\n\n\n \t\r\n x \r",
    "\u00a0\u2003\u3000x\u0085y\u2028",
    "\x00\x01\x1c\x7f\ufeff\ufffd\uffff\U0010ffff\u00ad\u200b\u202e",
    "'S 'll 'RE I'm WE'VE \u017f'\u017f",
    "camelCaseXYZ HTTPServer \u01c4\u01c5\u01c6 a\u0301B\u0301 e\u0323\u0302",
    "12345678 1,000.50 x2y3 \u0663\u0664\u0665 \u00bd\u00b2 \u2167 \U0001d7d8 \u3007",
    "\u2581 \u2581\u2581 <0x41> <0x> <unk> <pad>",
    "a" * 3000 + " " * 300 + "\u00e9" * 500 + "xy " * 500,
]
# Classes of code points that random texts are drawn from.
ALPHABETS = [
    "abcdefghijklmnopqrstuvwxyz ABCDEFGHIJKLMNOPQRSTUVWXYZ'.,!?",
    " \t\n\r\u00a0\u3000\u2003\u0085",
    '0123456789.,-+/%$#@&*()[]{}<>|=_~^`"\\:;',
    "'sStTdDmMlLrReEvV \u017f",
    "äöüßéèçñøåłžđþ\u0301\u0308\u0323\u0327\u0345",
    "абвгдежзИЙКЛМНαβγδεζΗΘΙΚ",
    "一二三人生而自由平等。，！？あいうアイウー゛・한국어",
    "ابتثجحخ\u064b\u0650\u0651אבגדה\u05b8\u05bcकखगघ\u093c\u094d\u0e01\u0e34\u0e19",
    "😀👍🏽👩\u200d🚀🇫🇷\ufe0f\u20e3",
    "\u2581<>0x4A1unks|\uff5c",
]


def random_texts(tokenizer: Tokenizer, count: int) -> Iterator[str]:
    """Texts of every kind mixed, markers of the tokenizer's own among them."""
    draw = random.Random(SEED)
    added = [token.content for token in tokenizer.get_added_tokens_decoder().values()]
    markers = [*added[:40], *draw.sample(added, min(len(added), 40))]
    for _ in range(count):
        parts = []
        for _ in range(draw.randint(1, 6)):
            kind = draw.random()
            if kind < 0.7:
                alphabet = draw.choice(ALPHABETS)
                parts.append("".join(draw.choices(alphabet, k=draw.randint(1, 12))))
            elif kind < 0.8:
                marker = draw.choice(markers)
                parts.append(marker if draw.random() < 0.8 else marker[: draw.randint(1, 9)])
            elif kind < 0.9:
                text = draw.choice(LANGUAGES)
                start = draw.randrange(len(text))
                parts.append(text[start : start + draw.randint(1, 30)])
            else:
                codes = (draw.randrange(0x110000) for _ in range(draw.randint(1, 5)))
                parts.append("".join(chr(c) for c in codes if not 0xD800 <= c < 0xE000))
        yield "".join(parts)


def code() -> list[str]:
    """This project's own sources."""
    files = [
        *sorted((shared_builds.PROJECT / "runner").glob("*/*.cc")),
        *sorted((shared_builds.PROJECT / "packages/crosslab/src/crosslab").glob("*/*.py")),
    ]
    return [file.read_text(encoding="utf-8") for file in files]


@dataclass
class Difference:
    """Texts and answers that were compared, and those that differ.

    Attributes:
        texts: number of texts.
        tokens: ids that the library makes of them.
        answers: number of lists of ids that were turned to text.
        found: the first differences.
    """

    texts: int = 0
    tokens: int = 0
    answers: int = 0
    found: list[str] = field(default_factory=list)


class Both:
    """A published tokenizer as the library runs it and as the runner does."""

    def __init__(self, name: str, probe: list[str], folder: Path) -> None:
        # The chat's frame is tested by itself.
        loaded = ChatTokenizer.load(published(name))
        self.library = loaded.tokenizer
        self.probe, self.table = probe, folder / f"{name}.bin"
        self.table.write_bytes(pack(ChatTokenizer(self.library, {})))
        self.difference = Difference()

    def encode(self, texts: list[str]) -> None:
        """Compare ids and the text that they become again."""
        answers = text_probe.ask(self.probe, self.table, "raw", [t.encode() for t in texts])
        expected = self.library.encode_batch(texts)
        decoded = self.library.decode_batch([e.ids for e in expected])
        for text, answer, wanted, words in zip(texts, answers, expected, decoded, strict=True):
            self.difference.texts += 1
            self.difference.tokens += len(wanted.ids)
            if not wanted.ids:
                same = "the text has no tokens in this model" in answer.get("error", "")
            else:
                same = (answer.get("ids"), answer.get("text")) == (wanted.ids, words)
            if not same:
                self.difference.found.append(f"{text!r}: {answer}, library {wanted.ids} {words!r}")

    def decode(self, answers: list[list[int]]) -> None:
        """Compare the texts of ids that need not be UTF-8."""
        asked = [" ".join(map(str, ids)).encode() for ids in answers]
        told = text_probe.ask(self.probe, self.table, "decode", asked)
        decoded = self.library.decode_batch(answers)
        for ids, answer, words in zip(answers, told, decoded, strict=True):
            self.difference.answers += 1
            if answer["text"] != words:
                self.difference.found.append(f"{ids}: {answer['text']!r}, library {words!r}")

    def random_answers(self, count: int) -> Iterator[list[int]]:
        """Ids at random, those of bytes and markers more often: most break UTF-8."""
        draw = random.Random(SEED + 1)
        size = self.library.get_vocab_size()
        names = [f"<0x{byte:02X}>" for byte in range(256)]
        names += [char for char, byte in text_probe.byte_alphabet().items() if byte > 127]
        broken = map(self.library.token_to_id, names)
        often = [n for n in broken if n is not None]
        often += list(self.library.get_added_tokens_decoder())[:20]
        for _ in range(count):
            yield [
                draw.choice(often) if draw.random() < 0.5 else draw.randrange(size)
                for _ in range(draw.randint(1, 12))
            ]

    def compare(self, count: int, sources: int) -> Difference:
        """Compare all texts, ``count`` random ones and as many random answers."""
        self.encode([*LANGUAGES, *EMOJI, *ODD, *code()[:sources]])
        texts = list(random_texts(self.library, count))
        answers = list(self.random_answers(count))
        for at in range(0, count, BATCH):
            self.encode(texts[at : at + BATCH])
            self.decode(answers[at : at + BATCH])
        return self.difference


@pytest.fixture(scope="module")
def probe(sanitizers: Toolchain) -> list[str]:
    return [str(text_probe.build_probe(sanitizers, shared_builds.CACHE))]


@pytest.mark.parametrize("name", ["llama2", "qwen3"])
def test_a_sample_is_the_librarys(name: str, probe: list[str], tmp_path: Path) -> None:
    difference = Both(name, probe, tmp_path).compare(1000, 3)
    assert difference.texts > 1000 and difference.answers == 1000
    assert difference.found == []


@pytest.mark.long
@pytest.mark.parametrize("name", NAMES)
def test_many_texts_are_the_librarys(name: str, probe: list[str], tmp_path: Path) -> None:
    difference = Both(name, probe, tmp_path).compare(100_000, 1000)
    print(
        f"\n{name}: {difference.texts} texts, {difference.tokens} tokens, "
        f"{difference.answers} answers: {len(difference.found)} differ"
    )
    assert difference.found[:3] == []
