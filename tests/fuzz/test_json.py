# SPDX-License-Identifier: Apache-2.0
"""The runner's JSON reader accepts JSON alone; TVM's own reader, the alternative, does not.

Both are compared with Python's, made strict, on changes of small documents. This is why the runner
reads with nlohmann-json: ``tvm::ffi::json`` accepts text that is not a number, and a deep text ends
the process.
"""

from __future__ import annotations

import json
import math
import random
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, NoReturn

import pytest
from support import shared_builds

from crosslab.assemble.libraries import json_headers

RUNNER = shared_builds.PROJECT / "runner"
MAIN = Path(__file__).parent / "native" / "json_verdicts.cc"
DOCUMENTS = (
    '{"records":[{"dataPath":"a.bin","nbytes":8192,"shape":[97,40]}]}',
    '[1,-2.5e10,0,true,false,null,"\\u00e9\\ud83d\\ude00\\n"]',
    '{"a":{"b":[[]]},"c":""}',
    "-0.1E+2",
)
PIECES = (
    *'{}[],:"\\0123456789+-.eE \t\n\x01\x7f',
    *("true", "null", "NaN", "-Infinity", "01", "\\u", "\\ud800", "\\x", "\u00e9", "1e999", "//"),
)
CHANGES = 4000
DEEP = 200_000


def changed(count: int) -> list[str]:
    """Documents with up to four changes each; the same ones each time."""
    chance = random.Random(12)
    texts = []
    for _ in range(count):
        text = chance.choice(DOCUMENTS)
        for _ in range(chance.randint(1, 4)):
            at, cut = chance.randrange(len(text) + 1), chance.choice((0, 1, 3))
            text = text[:at] + chance.choice(("", *PIECES)) + text[at + cut :]
        texts.append(text)
    return texts


def refuse(constant: str) -> NoReturn:
    raise ValueError(constant)


def encodable(value: Any) -> bool:
    """No half of a surrogate pair, and no number beyond what a double holds, anywhere in it."""
    match value:
        case str():
            return not any(0xD800 <= ord(c) < 0xE000 for c in value)
        case float():
            return math.isfinite(value)
        case list():
            return all(map(encodable, value))
        case dict():
            return all(encodable(k) and encodable(v) for k, v in value.items())
    return True


def is_json(text: str) -> bool:
    """RFC 8259's verdict on a text, whose strings are Unicode and numbers doubles."""
    try:
        return encodable(json.loads(text, parse_constant=refuse))
    except ValueError:
        return False


@pytest.mark.slow
def test_the_runner_takes_json_alone(tmp_path: Path) -> None:
    tools, program = shared_builds.find_native(), tmp_path / "program"
    sources = [MAIN, RUNNER / "input" / "json.cc", RUNNER / "input" / "utf8.cc"]
    folders = [f"-I{RUNNER}", f"-isystem{json_headers()}"]
    command = [*tools.cxx, "-std=c++20", *folders, *map(str, sources), "-o", str(program)]
    subprocess.run(command, check=True)
    texts = changed(CHANGES)
    stream = "".join(f"{text}\0" for text in texts).encode()
    said = subprocess.run([program], input=stream, capture_output=True, check=True).stdout.decode()
    assert len(said) == len(texts)
    assert said.count("1") > CHANGES / 20
    wrong = [t for t, one in zip(texts, said, strict=True) if (one == "1") != is_json(t)]
    assert not wrong, wrong[:20]
    deep = subprocess.run([program], input=b"[" * DEEP, capture_output=True, check=True)
    assert deep.stdout == b"0"


def test_tvm_takes_more_than_json() -> None:
    ffi = pytest.importorskip("tvm_ffi")
    parse = ffi.get_global_func("ffi.json.Parse")
    taken = []
    for text in ("NaN", "-Infinity", "01", "+3", ".1", "1."):
        assert not is_json(text)
        parse(text)
        taken.append(text)
    assert len(taken) == 6
    program = f"import tvm_ffi; tvm_ffi.get_global_func('ffi.json.Parse')('[' * {DEEP})"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=False)
    assert done.returncode == -signal.SIGSEGV
