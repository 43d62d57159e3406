# SPDX-License-Identifier: Apache-2.0
"""Ways to run a model: causal skipping, pages of the cache, fused neighbours, many arrays."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from costmodel.accelerator.hardware import Level
from costmodel.accelerator.scheme import Scheme
from costmodel.errors import CostError
from costmodel.estimate.product import Role, effective_scheme
from costmodel.estimate.workload import BATCH, CONTEXT, Item, OtherWork, Phase, bind_phase, symbols

PAGE_ENTRY = 32  # bits of an entry of a page table
TENSOR, SEQUENCES = "tensor", "batch"  # that several arrays share: every layer, or the sequences
CHAIN_SHARE = 4  # activations stay on chip where they take at most this part of the buffer
# Megatron's split: these take what the one before left in pieces, and leave sums to be added.
_SPLIT_ALONG_K = re.compile(r"(?:^|_)(?:o_proj|out_proj|c_proj|down_proj|fc2)$")


@dataclass(frozen=True)
class Execution:
    """The way in which a phase is run.

    Attributes:
        causal: queries of a block of the prompt; keys after a block's last query are skipped.
            0: attention in full.
        page: entries of a page of the cache; 0: the cache is in one piece. A prompt reads none.
        chain: activations that fit stay on chip between consecutive operators.
        arrays: accelerators that share the work, each with a memory of its own.
        split: ``tensor``: they share every layer; ``batch``: the sequences, each with all weights.
    """

    causal: int = 0
    page: int = 0
    chain: bool = False
    arrays: int = 1
    split: str = TENSOR

    def bind(
        self, report: Mapping[str, Any], name: str, size: int, given: Mapping[str, int]
    ) -> Phase:
        """Bind a phase of a work file, as `bind_phase` does, and run it this way.

        With ``split="batch"`` it is the share of the arrays that have most sequences; ``beside`` is
        that of the others, which have one fewer. Each array sends its rows of the last product to
        each of the others, so that all have them, as after the tensor split; nothing else is sent.

        Raises:
            CostError: the phase cannot be bound, or there is nothing to split.
        """
        whole = bind_phase(report, name, size, given)
        if self.arrays == 1 or self.split == TENSOR:
            return self._of(whole)
        if whole.prompt or BATCH not in symbols(report["entries"][whole.entry]):
            raise CostError(
                f"{whole.name}: has no batch to split between arrays",
                remedy=f"--split {TENSOR}, or --phase batch_decode:{size} --bind {BATCH}=N",
            )
        fewest, more = divmod(given[BATCH], self.arrays)
        if not fewest:
            raise CostError(
                f"{whole.name}: {given[BATCH]} sequences are too few for {self.arrays} arrays",
                remedy=f"--arrays {given[BATCH]}",
            )

        def share(sequences: int, arrays: int) -> Phase:
            bound = bind_phase(report, name, size, {**given, BATCH: sequences})
            found = replace(self, arrays=1)._of(bound)
            last = bound.items[-1]
            link = _link("results", (self.arrays - 1) * last.gemm.m * last.gemm.n, last, bound)
            others = (*found.others, link)
            return replace(found, sizes=whole.sizes, others=others, arrays=arrays)

        rest = share(fewest, self.arrays - more)
        return replace(share(fewest + 1, more), beside=rest) if more else rest

    def _of(self, phase: Phase) -> Phase:
        """The phase run this way; chains depend on the accelerator and are made by `chained`."""
        found = phase
        if self.causal and phase.prompt:
            found = replace(found, items=tuple(_causal(found, self.causal)))
        if self.page and not phase.prompt:  # whose keys and values are not in the cache yet
            found = _paged(found, self.page)
        if self.arrays > 1:
            found = _parallel(found, self.arrays)
        return _chaining(found) if self.chain else found


def _chaining(phase: Phase) -> Phase:
    """The phase and its ``beside`` with activations that stay on chip."""
    return replace(phase, chain=True, beside=phase.beside and _chaining(phase.beside))


def _causal(phase: Phase, block: int) -> Iterator[Item]:
    """Cut attention into blocks of queries, each with the keys up to its last query."""
    tokens, context = phase.tokens, dict(phase.sizes)[CONTEXT]
    pair: list[Item] = []
    for item in phase.items:
        if item.gemm.role is Role.PRODUCT or item.gemm.m % tokens:
            yield item
            continue
        pair.append(item)
        if item.gemm.role is Role.SCORES:
            continue
        for start in range(0, tokens, block):
            rows = min(block, tokens - start)
            yield from (
                _with_keys(i, i.gemm.m // tokens * rows, context - tokens + start + rows)
                for i in pair
            )
        pair = []


def _with_keys(item: Item, rows: int, keys: int) -> Item:
    gemm = item.gemm
    n, k = (keys, gemm.k) if gemm.role is Role.SCORES else (gemm.n, keys)
    return replace(item, gemm=replace(gemm, m=rows, n=n, k=k))


def _paged(phase: Phase, page: int) -> Phase:
    """Read whole pages of the cache, and an entry of the page table for each."""
    items, tables = [], []
    for item in phase.items:
        gemm = item.gemm
        if gemm.role is Role.PRODUCT:
            items.append(item)
            continue
        pages = -(-(gemm.n if gemm.role is Role.SCORES else gemm.k) // page)
        items.append(_with_keys(item, gemm.m, pages * page))
        if gemm.role is Role.SCORES:
            entries = gemm.batch * pages
            tables.append(
                OtherWork("page table", entries, entries * PAGE_ENTRY, 0, item.count, exact=True)
            )
    return replace(phase, items=tuple(items), others=(*phase.others, *tables))


def _parallel(phase: Phase, arrays: int) -> Phase:
    """Share every layer between some arrays.

    Attention is split by sequences and key-value heads, o_proj and down_proj along K, all else
    along N. What does not divide leaves one more to the first arrays: the phase is the share of
    those that have most of everything, ``beside`` that of those with less. Sums of what is split
    along K are added by a ring: every array sends 2 (arrays - 1) / arrays of them. The last layer's
    pieces are gathered: each array sends its own to all others. Other work is done by every array.
    """
    splits = [_split_along(item) for item in phase.items]
    if not any(_SPLIT_ALONG_K.search(i.kind) or i.kind == "lm_head" for i in phase.items):
        raise CostError(f"{phase.name}: has nothing to split between arrays")
    extents = [getattr(i.gemm, side) for i, side in zip(phase.items, splits, strict=True)]
    # Arrays between two of these places have the same share.
    places = sorted({0, arrays, *(extent % arrays for extent in extents)})
    found: Phase | None = None
    for first, end in reversed(list(pairwise(places))):
        items, links = [], []
        for item, side, extent in zip(phase.items, splits, extents, strict=True):
            own = extent // arrays + (first < extent % arrays)
            gemm, sent = item.gemm, 0
            if side == "k":
                sent = 2 * (arrays - 1) * -(-gemm.m * gemm.n // arrays)
            elif item.kind == "lm_head":
                sent = (arrays - 1) * gemm.m * own
            if own:
                items.append(replace(item, gemm=replace(gemm, **{side: own})))
            if sent:
                links.append(_link(item.kind, sent, item, phase))
        others = (*phase.others, *links)
        shared = replace(phase, items=tuple(items), others=others, arrays=end - first)
        found = replace(shared, beside=found)
    assert found is not None  # there is an array
    return found


def _split_along(item: Item) -> str:
    """The extent of a product that several arrays share."""
    if item.gemm.role is not Role.PRODUCT or item.gemm.batch > 1:
        return "batch"
    return "k" if _SPLIT_ALONG_K.search(item.kind) else "n"


def _link(name: str, sent: int, item: Item, phase: Phase) -> OtherWork:
    """Elements that an array sends after each execution of a product."""
    bits = sent * phase.compiled_output
    return OtherWork(f"link {name}", sent, bits, 0, item.count, link=True)


def chained(phase: Phase, level: Level, scheme: Scheme | None) -> Phase:
    """Keep the activations between consecutive operators in the first memory, where they fit.

    A product's result and the operand that the next product makes of it, after the work between
    them, take room beside the tiles. Other work than products then moves only its weights, those of
    norms and biases, where its own operands fit too. What goes into attention leaves the chip,
    since keys and values go to the cache.

    Args:
        phase: whose ``chain`` says whether to do so.
        level: the first memory.
        scheme: None for the products' own as compiled.

    Raises:
        CostError: the work file does not distinguish weights from activations.
    """
    if not phase.chain or level.size is None or level.split is not None:
        return phase
    most = level.size // CHAIN_SHARE
    items = list(phase.items)
    for place, item in enumerate(phase.items):
        later = [*range(place + 1, len(items)), *range(place + 1)]
        follower = next((n for n in later if items[n].count == item.count), place)
        after = phase.items[follower]
        if item.gemm.role is Role.SCORES or after.gemm.role is not Role.PRODUCT:
            continue
        if follower <= place and item.count == 1:
            continue
        own = effective_scheme(item.gemm, scheme or item.compiled)
        theirs = effective_scheme(after.gemm, scheme or after.compiled)
        made = item.gemm.batch * item.gemm.m * item.gemm.n * own.output
        taken = after.gemm.batch * theirs.activation_bits(after.gemm.m, after.gemm.k)
        whole = item.gemm.batch * item.gemm.m * item.gemm.n >= after.gemm.m * after.gemm.k
        if not whole or made + taken > most:
            continue
        for n, operand in ((place, "C"), (follower, "A")):
            gemm = items[n].gemm
            reserved = max(gemm.reserved, made + taken)
            kept = gemm.kept | {operand}
            items[n] = replace(items[n], gemm=replace(gemm, kept=kept, reserved=reserved))
    others = tuple(_on_chip(o, most, phase) for o in phase.others)
    return replace(phase, items=tuple(items), others=others)


def _on_chip(work: OtherWork, most: int, phase: Phase) -> OtherWork:
    """Work other than products, of which only weights move where its operands fit.

    Raises:
        CostError: the work file does not say how many of its bits are weights.
    """
    moved = work.bits_read + work.bits_written
    if work.link or work.exact or work.view or moved > most:
        return work
    if work.bits_weights is None:
        raise CostError(
            f"{phase.name}: the work file does not list the weights of {work.name}",
            remedy="write it again, or leave out --chain",
        )
    return replace(work, on_chip=True)
