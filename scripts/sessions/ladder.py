# SPDX-License-Identifier: Apache-2.0
"""The steps from upstream to ours: patches in TVM's tree, and compiler passes."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

# Attention over a cache of latent vectors needs all other kernels' patches.
LATENT = "kv-cache-latent-attention-cpu.patch"
# A cache in int8 needs all of these patches.
INT8_PAGES = "kv-cache-int8-pages-cpu.patch"
# Kernels of decode: the attention of one token, and the merge of partial results.
DECODE = (
    *("kv-cache-vectorised-decode-cpu.patch", "kv-cache-vectorised-merge-cpu.patch"),
    *(LATENT, INT8_PAGES),
)
TILED = ("kv-cache-tiled-prefill-cpu.patch", "kv-cache-tiled-tree-attention-cpu.patch")
# The loop over keys ends with the sequence, not with the pool of pages.
BOUNDED = ("prefill-cpu-bound-kv-loop.patch", "tree-attn-cpu-bound-kv-loop.patch")
# The first one needs the tiled kernels' patches, the second one the first; TVM from 0.27 on has the
# first change itself.
WINDOWS = ("layer-sliding-window.patch", "layer-sliding-window-across-blocks.patch")
# Patches that some releases lack.
SOME = WINDOWS
# TVM with corrected defects, and no other patch of ours.
MENDED = ("--without", *TILED, *WINDOWS, *DECODE)
# No compiler works without the patches that restore an older release's names in a TVM newer than
# MLC-LLM, so they are in every step. MLC-LLM's tree has all its patches in every step, with its
# passes switched off.
PRISTINE = ("--pristine",)
NAMES = "names-of-"


@dataclass(frozen=True)
class Step:
    """A step from upstream to ours.

    Attributes:
        name: name in the bench.
        tvm: patches of TVM, as options of ``forkpatch tree``; empty for the patched tree.
        switches: part of ``crosslab bench --variant``: kernels, and the passes to run.
    """

    name: str
    tvm: tuple[str, ...] = ()
    switches: str = ""


LADDER = (
    Step("upstream", PRISTINE),
    Step("fixes", ("--without", *BOUNDED, *TILED, *WINDOWS, *DECODE)),
    Step("bounded", MENDED),
    Step("tiling", ("--without", *DECODE)),
    Step("attention", ("--without", *DECODE), ",kernels,steps=attention"),
    Step("linear", ("--without", *DECODE), ",kernels,steps=attention+linear"),
    Step("noalias", ("--without", *DECODE), ",kernels,steps=attention+linear+noalias"),
    Step("vectors", ("--without", *DECODE), ",kernels"),
    Step("ours", (), ",kernels"),
)


def on_release(chosen: tuple[str, ...], series: Collection[str]) -> tuple[str, ...]:
    """Return a step's options of ``forkpatch tree`` for a release with this TVM series.

    Patches that the release lacks are left out. PRISTINE keeps the patches named ``names-of-*``.
    """
    names = tuple(patch for patch in series if patch.startswith(NAMES))
    if chosen == PRISTINE:
        return ("--only", *names) if names else chosen
    return tuple(option for option in chosen if option not in SOME or option in series)
