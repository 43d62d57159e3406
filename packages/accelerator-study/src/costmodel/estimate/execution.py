# SPDX-License-Identifier: Apache-2.0
"""Ways to run a model: causal skipping, pages of the cache, fused operators, several arrays."""

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
TENSOR, SEQUENCES = "tensor", "batch"  # several arrays share every layer, or the sequences
CHAIN_SHARE = 4  # activations stay on chip if they take at most a fourth of the buffer
# Megatron's split: these products read pieces of the previous result, and their sums are added.
_SPLIT_ALONG_K = re.compile(r"(?:^|_)(?:o_proj|out_proj|c_proj|down_proj|fc2)$")


@dataclass(frozen=True)
class Execution:
    """The way to run a phase.

    Attributes:
        causal: queries of a block of the prompt; keys after a block's last query are skipped.
            0: attention in full.
        page: entries of a page of the cache; 0: a cache without pages. A prompt reads no cache.
        chain: activations that fit stay on chip between consecutive operators.
        arrays: accelerators that share the work, each with a separate memory.
        split: ``tensor``: arrays share every layer; ``batch``: the sequences, with all weights.
    """

    causal: int = 0
    page: int = 0
    chain: bool = False
    arrays: int = 1
    split: str = TENSOR

    def bind(
        self, report: Mapping[str, Any], name: str, size: int, given: Mapping[str, int]
    ) -> Phase:
        """Bind a phase of a work file, as `bind_phase` does, and apply this execution.

        With ``split="batch"`` the phase is the share of the arrays with most sequences; ``beside``
        is the share of the other arrays, which have a sequence less. Each array sends only its rows
        of the last product to each other array, so that all have them, as after the tensor split.

        Raises:
            CostError: the phase cannot be bound, or has too few sequences to split.
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
            executed = replace(self, arrays=1)._of(bound)
            last = bound.items[-1]
            link = _link("results", (self.arrays - 1) * last.gemm.m * last.gemm.n, last, bound)
            others = (*executed.others, link)
            return replace(executed, sizes=whole.sizes, others=others, arrays=arrays)

        rest = share(fewest, self.arrays - more)
        return replace(share(fewest + 1, more), beside=rest) if more else rest

    def _of(self, phase: Phase) -> Phase:
        """Return the phase with skipped keys, pages and shares; chains are marked for `chained`."""
        executed = phase
        if self.causal and phase.prompt:
            executed = replace(executed, items=tuple(_causal(executed, self.causal)))
        if self.page and not phase.prompt:  # a prompt's keys and values are not in the cache yet
            executed = _paged(executed, self.page)
        if self.arrays > 1:
            executed = _parallel(executed, self.arrays)
        return _chaining(executed) if self.chain else executed


def _chaining(phase: Phase) -> Phase:
    """Return the phase and its ``beside`` marked to keep activations on chip."""
    return replace(phase, chain=True, beside=phase.beside and _chaining(phase.beside))


def _causal(phase: Phase, block: int) -> Iterator[Item]:
    """Yield items with attention cut into blocks of queries, with keys up to the last query."""
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
    """Return the phase with whole pages of the cache, and reads of the page table."""
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
    """Return the phase with every layer shared between arrays.

    Attention is split by sequences and key-value heads, o_proj and down_proj along K, other layers
    along N. If an extent does not divide, the first arrays get one more: the phase is the share of
    the arrays with most of everything, ``beside`` the share of arrays with less. A ring adds the
    sums of a split along K: every array sends 2 (arrays - 1) / arrays of the sums. Each array sends
    its piece of the last layer to all other arrays. Every array does all work beside products.
    """
    splits = [_split_along(item) for item in phase.items]
    if not any(_SPLIT_ALONG_K.search(i.kind) or i.kind == "lm_head" for i in phase.items):
        raise CostError(f"{phase.name}: has nothing to split between arrays")
    extents = [getattr(i.gemm, side) for i, side in zip(phase.items, splits, strict=True)]
    # Arrays between two consecutive boundaries have the same share.
    boundaries = sorted({0, arrays, *(extent % arrays for extent in extents)})
    shares: Phase | None = None
    for first, end in reversed(list(pairwise(boundaries))):
        items, links = [], []
        for item, side, extent in zip(phase.items, splits, extents, strict=True):
            size = extent // arrays + (first < extent % arrays)
            gemm, sent = item.gemm, 0
            if side == "k":
                sent = 2 * (arrays - 1) * -(-gemm.m * gemm.n // arrays)
            elif item.kind == "lm_head":
                sent = (arrays - 1) * gemm.m * size
            if size:
                items.append(replace(item, gemm=replace(gemm, **{side: size})))
            if sent:
                links.append(_link(item.kind, sent, item, phase))
        others = (*phase.others, *links)
        shared = replace(phase, items=tuple(items), others=others, arrays=end - first)
        shares = replace(shared, beside=shares)
    assert shares is not None  # there is an array
    return shares


def _split_along(item: Item) -> str:
    """Return the extent of a product that several arrays share: ``batch``, ``n`` or ``k``."""
    if item.gemm.role is not Role.PRODUCT or item.gemm.batch > 1:
        return "batch"
    return "k" if _SPLIT_ALONG_K.search(item.kind) else "n"


def _link(name: str, sent: int, item: Item, phase: Phase) -> OtherWork:
    """Return the work of sending ``sent`` elements after each execution of a product."""
    bits = sent * phase.compiled_output
    return OtherWork(f"link {name}", sent, bits, 0, item.count, link=True)


def chained(phase: Phase, level: Level, scheme: Scheme | None) -> Phase:
    """Keep activations between consecutive operators in the first memory, if they fit.

    A product's result, and the next product's operand that other work computes from the result,
    take room beside the tiles. Work beside products then moves only its weights, such as those of
    norms and biases, if its operands fit, too. The inputs of attention leave the chip, since keys
    and values go to the cache.

    Args:
        phase: returned unchanged if its ``chain`` is False.
        level: the first memory.
        scheme: None for each product's compiled scheme.

    Raises:
        CostError: the work file does not distinguish weights from activations.
    """
    if not phase.chain or level.size is None or level.split is not None:
        return phase
    most = level.size // CHAIN_SHARE
    items = list(phase.items)
    for index, item in enumerate(phase.items):
        later = [*range(index + 1, len(items)), *range(index + 1)]
        follower = next((n for n in later if items[n].count == item.count), index)
        after = phase.items[follower]
        if item.gemm.role is Role.SCORES or after.gemm.role is not Role.PRODUCT:
            continue
        if follower <= index and item.count == 1:
            continue
        scheme_of_item = effective_scheme(item.gemm, scheme or item.compiled)
        scheme_of_next = effective_scheme(after.gemm, scheme or after.compiled)
        result = item.gemm.batch * item.gemm.m * item.gemm.n * scheme_of_item.output
        operand_bits = after.gemm.batch * scheme_of_next.activation_bits(after.gemm.m, after.gemm.k)
        whole = item.gemm.batch * item.gemm.m * item.gemm.n >= after.gemm.m * after.gemm.k
        if not whole or result + operand_bits > most:
            continue
        for n, operand in ((index, "C"), (follower, "A")):
            gemm = items[n].gemm
            reserved = max(gemm.reserved, result + operand_bits)
            kept = gemm.kept | {operand}
            items[n] = replace(items[n], gemm=replace(gemm, kept=kept, reserved=reserved))
    others = tuple(_on_chip(o, most, phase) for o in phase.others)
    return replace(phase, items=tuple(items), others=others)


def _on_chip(work: OtherWork, most: int, phase: Phase) -> OtherWork:
    """Return work beside products, marked to move only weights if its operands fit.

    Raises:
        CostError: the work file does not say how many of the work's bits are weights.
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
