# SPDX-License-Identifier: Apache-2.0
"""Arguments that TVM's paged KV cache gives to attention kernels, layer by layer."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support import shared_builds
from support.tiny_runner import NATIVE

from crosslab.assemble.link import LinkRequest, link_options
from crosslab.cached_build import cached_build
from crosslab.errors import LabError
from crosslab.run.emulator import GuestMachine, run_guest
from groundwork.hashing import digest

pytestmark = [pytest.mark.usefixtures("emulator"), pytest.mark.slow]

PAGE = 16
SLIDING, GLOBAL = (1.0, 10000.0), (0.5, 1e6)


@pytest.fixture(scope="module")
def probe() -> Path:
    runtime, tools = shared_builds.runtime(), shared_builds.cross()
    source = NATIVE / "paged_kv_cache_probe.cc"
    link = [*map(str, runtime.objects), *link_options(LinkRequest(runtime, tools)), "-static"]
    command = [*tools.cxx, *runtime.compile_flags, "-O1", "-w", str(source), *link]
    key = digest(tools.digest, " ".join(command), source)

    def make(out: Path) -> None:
        subprocess.run([*command, "-o", str(out / "probe")], check=True)

    return cached_build(shared_builds.CACHE, "kv-cache-probe", key, make) / "probe"


def calls(probe: Path, window: int, *passes: str) -> list[dict[str, Any]]:
    told = run_guest(probe, [str(window), *passes], GuestMachine(vlen=256, timeout=60.0)).stdout
    return [json.loads(line) for line in told.splitlines()]


def rotary(call: dict[str, Any]) -> tuple[float, float]:
    return call["scale"], call["base"]


@pytest.mark.release
def test_self_attention_rotates_by_the_base_of_its_layer(probe: Path) -> None:
    first, sliding, past, glob, glob_past = calls(probe, 0, "3,2", "3,2")[1:6]
    told = [c["kernel"] for c in (first, sliding, past, glob, glob_past)]
    assert told == ["ragged", "ragged", "sliding prefill", "ragged", "prefill"]
    assert [rotary(c) for c in (sliding, past)] == [SLIDING] * 2
    assert [rotary(c) for c in (first, glob, glob_past)] == [GLOBAL] * 3


@pytest.mark.release
def test_decoding_rotates_by_the_base_of_its_layer(probe: Path) -> None:
    assert [(c["kernel"], rotary(c)) for c in calls(probe, 0, "3,2", "1,1")[2:]] == [
        ("sliding decode", SLIDING),
        ("decode", GLOBAL),
    ]


def windows(call: dict[str, Any]) -> list[tuple[int, int]]:
    """For each sequence the position of the first key that is seen, and the number of keys."""
    last, offsets, sinks = (call["lengths"][i : i + 2] for i in (0, 2, 4))
    pages = [end - begin for begin, end in zip(call["indptr"], call["indptr"][1:], strict=False)]
    assert sum(pages) == len(call["pages"])
    assert sinks == [0, 0]
    keys = [
        (n - 1) * PAGE + length - offset if n else 0
        for n, length, offset in zip(pages, last, offsets, strict=True)
    ]
    return list(zip(call["positions"], keys, strict=True))


@pytest.mark.release
def test_sliding_layers_see_their_window(probe: Path) -> None:
    """Two sequences of 40 and 7 tokens, a window of 20: of pages that have been left, none."""
    told = calls(probe, 20, "20,5", "20,2", "3,4", "1,1")
    prefill = [c for c in told if c["kernel"] == "sliding prefill"][-1]
    # Of what is cached; the kernel masks what single queries do not see.
    assert windows(prefill) == [(20, 20), (0, 7)]
    assert prefill["causal"] == 1
    decode = next(c for c in told if c["kernel"] == "sliding decode")
    # The token that is read is in the cache already: 44 and 12.
    assert windows(decode) == [(24, 20), (0, 12)]
    beside = next(c for c in told if c["kernel"] == "decode")
    assert beside["pages"][:2] != decode["pages"][:2]
    assert len(beside["pages"]) == 3 + 1
    assert decode["pages"] == beside["pages"][1:]


@pytest.mark.release
def test_a_window_spans_the_blocks_of_a_forked_sequence(probe: Path) -> None:
    """The first sequence has two blocks then, and its second one ends within the window."""
    steps, later = ("20,5", "20,2"), ("3,4", "1,1")
    plain, forked = (
        [c for c in calls(probe, 20, *steps, *fork, *later) if c["kernel"].startswith("sliding")]
        for fork in ((), ("fork 0 2 32",))
    )
    assert forked == plain
    assert [c["kernel"] for c in plain[-2:]] == ["sliding prefill", "sliding decode"]


@pytest.mark.release
def test_rows_of_a_sequence_are_read_and_put_back(probe: Path) -> None:
    """Rows of 2 layers, each with a key and a value of 2 float32: 16 bytes a token."""
    written = [
        np.resize((n + 1) * np.arange(2 * 40 * 16) % 251, (2, (40, 20)[n], 16)) for n in range(2)
    ]
    steps = ("20,5", "20,15", "fill 0 40", "fill 1 20", "fork 0 2 32")
    asked = ((0, 0, 40), (1, 3, 18), (0, 17, 17), (2, 0, 32), (1, 0, 20))
    told = calls(probe, 0, *steps, *(" ".join(["show", *map(str, each)]) for each in asked))
    for (sequence, begin, end), shown in zip(asked, told[-len(asked) :], strict=True):
        expected = written[sequence % 2][:, begin:end]
        assert tuple(shown["shape"]) == expected.shape
        assert bytes.fromhex(shown["bytes"]) == expected.astype(np.uint8).tobytes()


def test_rows_that_a_sequence_does_not_have_are_refused(probe: Path) -> None:
    with pytest.raises(LabError, match="A sequence of 5 tokens has no tokens 2 to 6"):
        calls(probe, 0, "20,5", "show 1 2 6")


def test_more_tokens_at_once_than_a_window_holds_are_refused(probe: Path) -> None:
    with pytest.raises(LabError, match="read at most that many tokens"):
        calls(probe, 4, "5,2")
