# SPDX-License-Identifier: Apache-2.0
"""A CPU's matrix unit: its encodings, its programs against integer numpy, what it refuses."""

from __future__ import annotations

import json
import random
import struct
import subprocess
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from accelerator import functional
from accelerator.cli import main
from accelerator.errors import AcceleratorError
from accelerator.extension import encoding
from accelerator.extension.encoding import VectorType
from accelerator.extension.lowering import lower_extension
from accelerator.extension.unit import REGISTERS, MatrixUnit, load_target
from accelerator.layer import LinearLayer, Requantisation
from accelerator.study import prove
from costmodel.errors import CostError
from crosslab.host.toolchain import find_clang

IME = "spacemit-ime"
UNITS = [MatrixUnit("unit", "", vlen) for vlen in (256, 1024, 4096)]
DAMAGED = 400


def unit() -> MatrixUnit:
    found = load_target(IME)
    assert isinstance(found, MatrixUnit)
    return found


def test_the_product_is_the_word_that_others_published() -> None:
    # A disassembly of a library for SpacemiT's cores: e225382b  vmadot v16,v10,v2.
    assert encoding.multiply(16, 10, 2) == 0xE225382B


@pytest.mark.skipif(find_clang() is None, reason="no clang, which assembles for riscv64")
def test_other_instructions_are_the_assemblers(tmp_path: Path) -> None:
    listed = [
        ("lui t0, 0x12345", encoding.lui(5, 0x12345)),
        ("addi t1, t6, -2048", encoding.addi(6, 31, -2048)),
        ("li t0, 0x7ff", *encoding.load_immediate(5, 0x7FF)),
        ("bnez t4, -4092", encoding.branch_unless_zero(29, -4092)),
        ("bnez t4, 2046", encoding.branch_unless_zero(29, 2046)),
        ("ret", encoding.ret()),
        ("vsetvli a0, zero, e8, m1, ta, ma", encoding.set_vector_type(10, VectorType.E8_M1)),
        ("vsetvli a0, zero, e32, m2, ta, ma", encoding.set_vector_type(10, VectorType.E32_M2)),
        ("vmv.v.i v30, 0", encoding.clear(30)),
        ("vle8.v v3, (t1)", encoding.load_bytes(3, 6)),
        ("vse32.v v8, (t2)", encoding.store_words(8, 7)),
    ]
    source, built = tmp_path / "words.s", tmp_path / "words.o"
    source.write_text("".join(f"{text}\n" for text, *_ in listed))
    found = find_clang()
    assert found is not None
    machine = ["--target=riscv64", "-march=rv64iv", "-mno-relax", "-c"]
    subprocess.run([f"clang{found[0]}", *machine, str(source), "-o", str(built)], check=True)
    words = [word for _, *words in listed for word in words]
    assert struct.pack(f"<{len(words)}I", *words) in built.read_bytes()


def test_immediates_are_what_they_say() -> None:
    for value in (0, 1, 0x7FF, 0x800, 0xFFF, 0x1000, 123456789, 1 << 30):
        total = 0
        for word in encoding.load_immediate(5, value):
            if word & 0x7F == 0x37:
                total = word >> 12 << 12
            else:
                total += (word >> 20) - (word >> 31 << 12)
        assert total == value


@pytest.mark.parametrize("one", UNITS, ids=lambda u: str(u.vlen))
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_random_layers_are_bit_equal(one: MatrixUnit, data: st.DataObject) -> None:
    extents = st.tuples(st.integers(1, 90), st.integers(1, 120), st.integers(1, 150))
    layer = LinearLayer("random", *data.draw(extents))
    counts = prove(lower_extension(layer, one), data.draw(st.integers(0, 99)))
    rows, outputs = (-(-extent // one.rows) for extent in (layer.rows, layer.outputs))
    assert counts.gemm_steps == rows * outputs * -(-layer.inputs // one.inputs)
    assert counts.written_bytes == 4 * rows * outputs * one.rows**2


def test_the_largest_sums_are_exact() -> None:
    layer = LinearLayer("extreme", 5, 9, 1536)
    values, weights = (np.full((n, 1536), -128, dtype=np.int8) for n in (5, 9))
    program = lower_extension(layer, unit())
    memory = program.image(values, weights)
    functional.run(unit(), program.stream, memory)
    assert (program.result(memory) == 1536 << 14).all()


def test_a_tile_fills_the_registers() -> None:
    assert unit().tile(100) == (4, 3)
    for blocks in range(1, 40):
        values, weights = unit().tile(blocks)
        assert values <= blocks
        assert 2 * values * weights + values + weights <= REGISTERS


def test_damaged_programs_end_or_are_refused() -> None:
    program = lower_extension(LinearLayer("small", 5, 9, 20), unit())
    chance, refused = random.Random(1), set()
    ended = 0
    for _ in range(DAMAGED):
        words = list(program.words)
        for _ in range(chance.choice((1, 1, 3))):
            words[chance.randrange(len(words))] ^= 1 << chance.randrange(32)
        memory = bytearray(program.results_at + 1000)
        try:
            functional.run(unit(), struct.pack(f"<{len(words)}I", *words), memory, most=100_000)
            ended += 1
        except AcceleratorError as error:
            assert error.what.startswith("instruction ")
            refused.add(error.what.split(": ", 1)[1].split(" 0x")[0].strip("-0123456789 "))
    assert 0 < ended < DAMAGED
    assert any("unknown word" in what for what in refused)
    assert any("is outside of memory" in what for what in refused)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([encoding.load_bytes(1, 5)], "instruction 0: the type of vectors is another one"),
        ([encoding.multiply(2, 0, 1)], "instruction 0: the type of vectors is another one"),
        (
            [encoding.set_vector_type(10, VectorType.E8_M1), encoding.multiply(3, 0, 1)],
            "instruction 1: sums of vmadot begin at an odd register",
        ),
        ([0xFFFFFFFF], "instruction 0: unknown word 0xffffffff"),
        ([encoding.addi(5, 0, 1)], "instruction 1: it is behind the last instruction"),
        (
            [encoding.addi(5, 0, 1), encoding.branch_unless_zero(5, -4)],
            "no end is in sight",
        ),
    ],
)
def test_a_fault_names_the_instruction(words: list[int], message: str) -> None:
    stream = struct.pack(f"<{len(words)}I", *words)
    with pytest.raises(AcceleratorError, match=message):
        functional.run(unit(), stream, bytearray(64), most=1000)


def test_mistakes_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(AcceleratorError, match="a stream of 3 bytes: instructions have 4"):
        functional.run(unit(), b"abc", bytearray())
    with pytest.raises(AcceleratorError, match="the CPU narrows them"):
        lower_extension(LinearLayer("a", 1, 1, 1, Requantisation(1, 8)), unit())
    wrong = tmp_path / "wrong.toml"
    wrong.write_text('schema = 1\nname = "w"\n[extension]\nvlen = "512 bit"\n')
    with pytest.raises(CostError, match=r"wrong\.toml:4: .*hold two blocks"):
        load_target(str(wrong))
    assert main(["disassemble", IME, __file__]) == 2
    assert "a CPU's matrix unit, not a device" in capsys.readouterr().err
    traces = ["--traces", str(tmp_path)]
    assert main(["layers", IME, "--gemm", "1,1,1", *traces]) == 2
    assert "has no queues" in capsys.readouterr().err


def test_layers_writes_what_it_says(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = ["--streams", str(tmp_path / "streams"), "--json", str(tmp_path / "out.json")]
    assert main(["layers", IME, "--gemm", "37,50,60", *files]) == 0
    assert "equal to numpy's bit for bit" in capsys.readouterr().out
    (layer,) = json.loads((tmp_path / "out.json").read_text(encoding="utf-8"))["layers"]
    assert layer["products"] == 10 * 13 * 8
    (stream,) = (tmp_path / "streams").iterdir()
    assert stream.read_bytes()[-4:] == struct.pack("<I", encoding.ret())
