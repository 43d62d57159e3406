# SPDX-License-Identifier: Apache-2.0
"""The steps from upstream to ours: what of each series is in the trees, and what is switched on."""

from __future__ import annotations

from dataclasses import dataclass

# Kernels of decode: one token's attention, and the merge of its parts.
DECODE = ("kv-cache-vectorised-decode-cpu.patch", "kv-cache-vectorised-merge-cpu.patch")
TILED = ("kv-cache-tiled-prefill-cpu.patch", "kv-cache-tiled-tree-attention-cpu.patch")
# What lets MLC-LLM compile for RVV at all is no step.
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
    Step("upstream", ("--pristine",), ADAPTED),
    Step("fixes", ("--without", *TILED, *DECODE), ADAPTED),
    Step("tiling", ("--without", *DECODE), ADAPTED),
    Step("attention", ("--without", *DECODE), TENSORIZED, ",kernels,steps=attention"),
    Step("linear", ("--without", *DECODE), None, ",kernels,steps=attention+linear"),
    Step("noalias", ("--without", *DECODE), (), ",kernels,noalias,steps=attention+linear"),
    Step("vectors", ("--without", *DECODE), (), ",kernels,noalias"),
    Step("ours", (), (), ",kernels,noalias"),
)
