# SPDX-License-Identifier: Apache-2.0
"""The steps from upstream to ours: what of each series is in the trees, and what is switched on."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

# Kernels of decode: one token's attention, and the merge of its parts.
DECODE = ("kv-cache-vectorised-decode-cpu.patch", "kv-cache-vectorised-merge-cpu.patch")
TILED = ("kv-cache-tiled-prefill-cpu.patch", "kv-cache-tiled-tree-attention-cpu.patch")
# The loop over keys ends with the sequence, not with the pool of pages.
BOUNDED = ("prefill-cpu-bound-kv-loop.patch", "tree-attn-cpu-bound-kv-loop.patch")
# TVM with its defects mended, and nothing of ours beside.
MENDED = ("--without", *TILED, *DECODE)
# Patches that let the compilers be used at all are no step: MLC-LLM's up to RVV as a target, and in
# the series of a TVM newer than MLC-LLM those that give an older release's names back.
PRISTINE = ("--pristine",)
NAMES = "names-of-"
ADAPTED = ("--upto", "cross-compile-for-cpus.patch")
TENSORIZED = ("--upto", "tensorize-prefill.patch")


@dataclass(frozen=True)
class Step:
    """One step.

    Attributes:
        name: as the bench shows it.
        tvm: which patches, as options of ``forkpatch tree``; none is the patched tree.
        mlc: likewise for MLC-LLM; None where its patches cannot be parted like this.
        switches: what ``crosslab bench --variant`` switches on.
    """

    name: str
    tvm: tuple[str, ...] = ()
    mlc: tuple[str, ...] | None = ()
    switches: str = ""


LADDER = (
    Step("upstream", PRISTINE, ADAPTED),
    Step("fixes", ("--without", *BOUNDED, *TILED, *DECODE), ADAPTED),
    Step("bounded", MENDED, ADAPTED),
    Step("tiling", ("--without", *DECODE), ADAPTED),
    Step("attention", ("--without", *DECODE), TENSORIZED, ",kernels,steps=attention"),
    Step("linear", ("--without", *DECODE), None, ",kernels,steps=attention+linear"),
    Step("noalias", ("--without", *DECODE), (), ",kernels,noalias,steps=attention+linear"),
    Step("vectors", ("--without", *DECODE), (), ",kernels,noalias"),
    Step("ours", (), (), ",kernels,noalias"),
)


def on_release(chosen: tuple[str, ...], series: Collection[str]) -> tuple[str, ...]:
    """A step's options of ``forkpatch tree`` for the release whose TVM series this is."""
    names = tuple(patch for patch in series if patch.startswith(NAMES))
    return ("--only", *names) if chosen == PRISTINE and names else chosen
