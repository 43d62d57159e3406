# SPDX-License-Identifier: Apache-2.0
"""The steps from upstream to ours: patches in TVM's tree, and passes."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

# Attention over a cache of latent vectors stands on all the other kernels.
LATENT = "kv-cache-latent-attention-cpu.patch"
# And a cache in int8 on all of them.
INT8_PAGES = "kv-cache-int8-pages-cpu.patch"
# Kernels of decode: one token's attention, and the merge of its parts.
DECODE = (
    *("kv-cache-vectorised-decode-cpu.patch", "kv-cache-vectorised-merge-cpu.patch"),
    *(LATENT, INT8_PAGES),
)
TILED = ("kv-cache-tiled-prefill-cpu.patch", "kv-cache-tiled-tree-attention-cpu.patch")
# The loop over keys ends with the sequence, not with the pool of pages.
BOUNDED = ("prefill-cpu-bound-kv-loop.patch", "tree-attn-cpu-bound-kv-loop.patch")
# It stands on the tiled kernels; TVM has it from 0.27 on, where there is no such patch.
WINDOW = "layer-sliding-window.patch"
# Patches that not every release has.
SOME = (WINDOW,)
# TVM with its defects mended, and nothing of ours beside.
MENDED = ("--without", *TILED, WINDOW, *DECODE)
# Not a step, as no compiler works without: in the series of a TVM newer than MLC-LLM the patches
# that give an older release's names back. MLC-LLM's tree has all its patches in every step; its
# passes are switched off.
PRISTINE = ("--pristine",)
NAMES = "names-of-"


@dataclass(frozen=True)
class Step:
    """One step.

    Attributes:
        name: as the bench shows it.
        tvm: patches of TVM, as options of ``forkpatch tree``; none is the patched tree.
        switches: of ``crosslab bench --variant``: kernels, and the passes that run.
    """

    name: str
    tvm: tuple[str, ...] = ()
    switches: str = ""


LADDER = (
    Step("upstream", PRISTINE),
    Step("fixes", ("--without", *BOUNDED, *TILED, WINDOW, *DECODE)),
    Step("bounded", MENDED),
    Step("tiling", ("--without", *DECODE)),
    Step("attention", ("--without", *DECODE), ",kernels,steps=attention"),
    Step("linear", ("--without", *DECODE), ",kernels,steps=attention+linear"),
    Step("noalias", ("--without", *DECODE), ",kernels,steps=attention+linear+noalias"),
    Step("vectors", ("--without", *DECODE), ",kernels"),
    Step("ours", (), ",kernels"),
)


def on_release(chosen: tuple[str, ...], series: Collection[str]) -> tuple[str, ...]:
    """A step's options of ``forkpatch tree`` for the release whose TVM series this is."""
    names = tuple(patch for patch in series if patch.startswith(NAMES))
    if chosen == PRISTINE:
        return ("--only", *names) if names else chosen
    return tuple(option for option in chosen if option not in SOME or option in series)
