# SPDX-License-Identifier: Apache-2.0
"""Damaged streams: refused alike by decoder, checker and simulator, the latter with sanitizers."""

from __future__ import annotations

import os
import random
import shlex
import struct
import subprocess
from pathlib import Path

from support import shared_builds

from accelerator import functional
from accelerator.checker import check
from accelerator.device import NATIVE, load_device
from accelerator.errors import AcceleratorError
from accelerator.isa.encoding import decode
from accelerator.isa.instructions import Opcode
from accelerator.layer import LinearLayer, Requantisation
from accelerator.lowering import lower
from accelerator.program import Mapping
from crosslab.assemble.runtime import sanitizer_flags
from crosslab.cached_build import cached_build
from groundwork.hashing import digest

DEVICE = load_device("vta-1x16x16")
CASES = int(os.environ.get("ACCELERATOR_FUZZ_CASES", "300"))
SECONDS = 600
# High bits of a loop's iterations and of its last micro-op: without them no case takes minutes.
LONG = ((1 << 49) - (1 << 39)) | ((1 << 63) - (1 << 53)) | ((1 << 35) - (1 << 27))


def damaged(stream: bytes, chance: random.Random) -> bytes:
    """The stream with a few bits turned, instructions swapped, repeated or left out."""
    words = [int.from_bytes(stream[n : n + 16], "little") for n in range(0, len(stream), 16)]
    for _ in range(chance.choice((1, 1, 1, 2, 8))):
        at, other = chance.randrange(len(words)), chance.randrange(len(words))
        match chance.randrange(8):
            case 0:
                words[at], words[other] = words[other], words[at]
            case 1:
                words.insert(at, words[other])
            case 2 if len(words) > 1:
                del words[at]
            case _:
                words[at] ^= 1 << chance.choice((chance.randrange(8), chance.randrange(128)))
    cores = (Opcode.GEMM, Opcode.ALU)
    words = [word & ~LONG if word & 7 in cores else word for word in words]
    return b"".join(word.to_bytes(16, "little") for word in words)


def simulator() -> Path:
    """The simulator with sanitizers, around which a program reads cases."""
    tools, main = shared_builds.sanitizing(), Path(__file__).with_name("simulator_fuzz.cc")
    flags = ["-std=c++20", "-O1", *sanitizer_flags(("address", "undefined"))]
    key = digest(
        tools.digest, shlex.join(flags), main, NATIVE / "vta", NATIVE / "runtime/simulation.h"
    )

    def make(out: Path) -> None:
        sources = [str(main), str(NATIVE / "vta/functional.cc"), f"-I{NATIVE}"]
        command = [*tools.cxx, *flags, *sources, "-o", str(out / "fuzz")]
        subprocess.run(command, check=True, timeout=SECONDS)

    return cached_build(shared_builds.CACHE, "accelerator-fuzz", key, make) / "fuzz"


def test_damaged_streams(tmp_path: Path) -> None:
    layer = LinearLayer("small", 3, 40, 50, Requantisation(2, 3))
    program = lower(layer, Mapping(2, 2, 2), DEVICE)
    memory = program.image()
    chance = random.Random(7)
    whole = program.stream
    streams = [damaged(whole, chance) for _ in range(CASES)]
    with (tmp_path / "cases").open("wb") as cases:
        cases.write(struct.pack("<7I", *functional.spec_of(DEVICE)))
        for stream in streams:
            cases.write(struct.pack("<2I", len(memory), len(stream)) + memory + stream)
    command = [str(simulator()), str(tmp_path / "cases")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    messages = done.stdout.splitlines()
    assert len(messages) == CASES
    outcomes = {"encoding": 0, "checker": 0, "sound": 0}
    for stream, message in zip(streams, messages, strict=True):
        try:
            check(stream, DEVICE, memory)
        except AcceleratorError as error:
            kind = "checker"
            try:
                decode(stream, DEVICE)
            except AcceleratorError:
                # An encoding that the decoder refuses, the simulator refuses as well.
                kind = "encoding"
                assert message, error
            outcomes[kind] += 1
        else:
            # What is proved runs to its end.
            assert not message
            outcomes["sound"] += 1
    assert min(outcomes.values()) > 0, outcomes
