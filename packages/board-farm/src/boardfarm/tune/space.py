# SPDX-License-Identifier: Apache-2.0
"""The schedules that a search draws from: MetaSchedule's rules, and choices of vector loops."""

from __future__ import annotations

import math
from typing import Any

import tvm
from tvm.ir.utils import derived_object
from tvm.s_tir import meta_schedule as ms
from tvm.s_tir.meta_schedule.schedule_rule import PyScheduleRule

from crosslab.compile.overlaypass import load_pass

# Most elements of a vectorized loop: float32 in 256 bits with LMUL 8.
MOST_LANES = 64
FEWEST_LANES = 4
# A block with a smaller share of a function's iterations gets no choice: the number of candidates
# is the product over all blocks.
LEAST_SHARE = 0.25

# Operators that are not inlined, since inlining repeats them for each reader.
COSTLY = [f"tirx.{name}" for name in ("exp", "log", "pow", "rsqrt", "sigmoid", "sqrt", "tanh")]


@derived_object
class VectorizeOneLoop(PyScheduleRule):  # type: ignore[misc]
    """A rule that chooses a block's loop to vectorize, and the length of the vectors.

    Upstream's rules vectorize only the innermost loop, and only if all accesses are contiguous;
    a transposition, a window's patches or a sum over rows are faster with strided accesses.
    """

    def _initialize_with_tune_context(self, context: Any) -> None:
        pass

    def apply(self, sch: Any, block: Any) -> list[Any]:
        """Return the unchanged schedule, and two for each loop that can become vectors."""
        result = [sch]
        if not _is_choice(sch, block):
            return result
        for number, loop in enumerate(sch.get_loops(block)):
            if sch.get(loop).extent < FEWEST_LANES or _sums_over(sch, block, number):
                continue
            for vectors in (True, False):
                copy = sch.copy()
                try:
                    _put_innermost(copy, block, number, vectors=vectors)
                except tvm.s_tir.ScheduleError:
                    break
                result.append(copy)
        return result

    def clone(self) -> Any:
        """Return a new rule of this class."""
        return VectorizeOneLoop()


def _is_choice(sch: Any, block: Any) -> bool:
    """Return True for a block of LEAST_SHARE or more: serial loops, the last not contiguous."""
    loops = [sch.get(loop) for loop in sch.get_loops(block)]
    plain = loops and all(loop.kind == tvm.tirx.ForKind.SERIAL for loop in loops)
    if not plain or len(loops) != len(sch.get(block).iter_vars) or _is_contiguous(loops[-1]):
        return False
    blocks = sch.get_child_blocks(sch.get_sblock("root"))
    return _iterations(sch, block) >= LEAST_SHARE * sum(_iterations(sch, other) for other in blocks)


def _iterations(sch: Any, block: Any) -> int:
    return math.prod(int(sch.get(loop).extent) for loop in sch.get_loops(block))


def _is_contiguous(loop: Any) -> bool:
    return bool(load_pass("vectors.vectorize_loops").is_contiguous(loop))


def _sums_over(sch: Any, block: Any, number: int) -> bool:
    return bool(sch.get(block).iter_vars[number].iter_type != tvm.tirx.IterVar.DataPar)


def _put_innermost(sch: Any, block: Any, number: int, *, vectors: bool) -> None:
    """Split a loop, and move its inner part innermost, as vectors or as a loop.

    LLVM vectorizes a loop with strided accesses; TVM's vectors become single accesses instead.
    """
    loop = sch.get_loops(block)[number]
    factors = sch.sample_perfect_tile(loop, n=2, max_innermost_factor=MOST_LANES)
    _, inner = sch.split(loop, factors)
    others = [other for other in sch.get_loops(block) if not sch.get(other).same_as(sch.get(inner))]
    sch.reorder(*others, inner)
    if vectors:
        sch.vectorize(inner)


def design_space() -> Any:
    """Return the space of schedules that the search draws from.

    The schedules compute intermediate results where they are read, or as in the function:
    computing them in a branch, or again for each reader, is slower. The schedules have no threads,
    since a board measures a single thread.
    """
    return ms.space_generator.SpaceGeneratorUnion(
        [_space([_inline(), *_rules()]), _space(_rules())]
    )


def _space(rules: list[Any]) -> Any:
    post, mutate = ms.postproc, ms.mutator
    return ms.space_generator.PostOrderApply(
        sch_rules=rules,
        postprocs=[
            post.DisallowDynamicLoop(),
            post.RewriteParallelVectorizeUnroll(),
            post.RewriteReductionBlock(),
        ],
        mutator_probs={
            mutate.MutateTileSize(): 0.9,
            mutate.MutateComputeLocation(): 0.05,
            mutate.MutateUnroll(): 0.05,
        },
    )


def _inline() -> Any:
    return ms.schedule_rule.AutoInline(
        into_producer=False,
        into_consumer=True,
        inline_const_tensor=True,
        disallow_if_then_else=True,
        require_injective=True,
        require_ordered=True,
        disallow_op=COSTLY,
    )


def _rules() -> list[Any]:
    rule = ms.schedule_rule
    return [
        # First, since the other rules split loops, and this rule skips blocks with split loops.
        VectorizeOneLoop(),
        rule.AddRFactor(max_jobs_per_core=16, max_innermost_factor=MOST_LANES),
        rule.MultiLevelTiling(
            structure="SSRSRS",
            max_innermost_factor=MOST_LANES,
            reuse_write=rule.ReuseType(req="may", levels=[1, 2], scope="global"),
        ),
        rule.ParallelizeVectorizeUnroll(
            max_jobs_per_core=-1,
            max_vectorize_extent=MOST_LANES,
            unroll_max_steps=[0, 16, 64, 512],
            unroll_explicit=True,
        ),
        rule.RandomComputeLocation(),
    ]
