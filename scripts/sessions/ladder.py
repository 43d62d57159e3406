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
# What lets the compilers be used at all is no step: MLC-LLM's patches up to RVV as a target, and on
# a TVM newer than MLC-LLM the names that it still uses.
PRISTINE = ("--pristine",)
NAMES = "names-of-0-26.patch"
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
    return ("--only", NAMES) if chosen == PRISTINE and NAMES in series else chosen
