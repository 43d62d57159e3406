# SPDX-License-Identifier: Apache-2.0
"""Runs of llama.cpp under the instruction counter."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from crosslab.cached_build import cached_build
from crosslab.errors import LabError
from crosslab.peers.llama_cpp_build import NAME
from crosslab.run.counter import count_guest
from crosslab.run.emulator import DAY, GuestMachine
from crosslab.run.measurement import Measurement, PhaseRegions
from groundwork.hashing import digest

CACHE = "cache.bin"  # keys and values, as llama_cpp_cache.cpp writes them


@dataclass(frozen=True)
class PeerRun:
    """A run of llama.cpp: a prompt through every layer, the prompt as shipped, and decode steps.

    Attributes:
        tokens: tokens generated greedily after the prompt.
        measured: counts with regions in the program's order.
    """

    tokens: tuple[int, ...]
    measured: Measurement

    @property
    def every_layer(self) -> PhaseRegions:
        """Regions of the prefill with every layer for every token, and lm_head for the last."""
        return PhaseRegions((0, 3), 1)

    @property
    def as_shipped(self) -> PhaseRegions:
        """Prefill regions: the last feed-forward layer and lm_head read only the last token."""
        return PhaseRegions((2, 3), 1)

    @property
    def decode(self) -> PhaseRegions:
        """Regions of the decode steps after the first."""
        regions = range(5, len(self.measured.regions))
        return PhaseRegions(tuple(regions), len(regions))


def fill_cache(program: Path, model: Path, depth: int, cache: Path) -> Path:
    """Let llama.cpp read tokens on this machine, and save its KV cache.

    Args:
        program: program :data:`crosslab.peers.llama_cpp_programs.FILLER`.
        model: the GGUF file.
        depth: number of tokens to read.
        cache: folder of builds that clones share.

    Returns:
        path of a copy of the model, with :data:`CACHE` in the same folder.

    Raises:
        LabError: the program fails.
    """

    def make(out: Path) -> None:
        copy = Path(shutil.copy(model, out))
        command = [str(program), str(copy), str(depth), str(out / CACHE)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise LabError(f"{NAME} cannot read {depth} tokens with {model}: {done.stderr.strip()}")

    key = digest(program, model, str(depth))
    return cached_build(cache, "peer-cache", key, make) / model.name


def run_llama_cpp(
    program: Path,
    model: Path,
    prompt: Sequence[int],
    steps: int,
    *,
    depth: int = 0,
    vlen: int,
    cache: Path,
    caches: str = "",
) -> PeerRun:
    """Run a build under the counter, or reuse the counts of an equal run.

    Args:
        program: program of :func:`build_llama_cpp`.
        model: the GGUF file.
        prompt: token ids.
        steps: tokens to generate, including the prefill's token; 3 or more.
        depth: tokens in the cache before the prompt, from the file :data:`CACHE` beside the model
            (:func:`fill_cache`).
        vlen: bits in a vector register.
        cache: folder of the compiled plugin and the counts.
        caches: caches for the counter to simulate; empty: none.

    Raises:
        LabError: the program fails, or the emulator lacks an instruction.
    """
    words = [model.name, ",".join(map(str, prompt)), str(steps)]
    words += [str(depth), CACHE] if depth else []
    inputs = model.parent if depth else model
    machine = GuestMachine(vlen=vlen, timeout=DAY, zvfh=True)
    answer, measured = count_guest(
        program, words, machine, cache, inputs=inputs, cwd=model.parent, caches=caches
    )
    try:
        tokens = tuple(json.loads(answer)["tokens"])
    except (ValueError, KeyError) as error:
        raise LabError(f"the answer of {NAME} cannot be read: {answer[:200]!r}") from error
    return PeerRun(tokens, measured)
