# SPDX-License-Identifier: Apache-2.0
"""Recorded figures of other programs; nothing here is measured anew."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from crosslab.bench.rows import Row

LLAMA_CPP = (
    "recorded with llama.cpp 0c1e57098 built for rv64gcv, {}, its best setting for each phase, "
    "every layer computed for every token; counted under QEMU, 2026-11-21"
)


@dataclass(frozen=True)
class Peer:
    """A recorded figure: model S, one thread, VLEN 256, after a prompt of 128 tokens.

    Attributes:
        variant: program and format of the weights.
        quantization: our format that it is comparable to.
        phase: "prefill" or "decode" (a token).
        insns: guest instructions.
        lmul_weighted: likewise by LMUL; None was not recorded.
        source: where the figure is from.
    """

    variant: str
    quantization: str
    phase: str
    insns: int
    lmul_weighted: int | None
    source: str


_F32, _Q4_0 = LLAMA_CPP.format("F32"), LLAMA_CPP.format("Q4_0")
PEERS = (
    Peer("llama.cpp F32", "q0f32", "prefill", 50_000_000, 71_000_000, _F32),
    Peer("llama.cpp F32", "q0f32", "decode", 880_000, 1_660_000, _F32),
    Peer("llama.cpp Q4_0", "q4f32_1", "prefill", 153_700_000, None, _Q4_0),
    Peer("llama.cpp Q4_0", "q4f32_1", "decode", 1_930_000, None, _Q4_0),
)
RECORDED_WITH = {"model": "S", "vlen": 256, "threads": 1, "prompt": 128}


def peers_of(row: Row) -> Iterator[Row]:
    """The recorded rows that stand beside a measured one: same model, phase, prompt, machine."""
    if any(getattr(row, name) != value for name, value in RECORDED_WITH.items()):
        return
    for peer in PEERS:
        if (peer.quantization, peer.phase) == (row.quantization, row.phase):
            yield Row(
                model=row.model,
                variant=peer.variant,
                phase=row.phase,
                tokens=row.tokens,
                quantization=row.quantization,
                vlen=row.vlen,
                threads=row.threads,
                insns=peer.insns,
                vector=None,
                vsetvl=None,
                vmem=None,
                lmul_weighted=peer.lmul_weighted,
                prompt=row.prompt,
                path=None,
                recorded=True,
                source=peer.source,
            )
