# SPDX-License-Identifier: Apache-2.0
"""Variants of a patched tree, with some of its patches."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from pathlib import Path

from forkpatch.errors import UserError
from forkpatch.git.objects import Commit
from forkpatch.tree.fork import TreePlan
from forkpatch.tree.swap import new_folder
from forkpatch.tree.worktree import build_repository


def write_variant(
    plan: TreePlan,
    kept: Collection[str],
    output: Path,
    *,
    with_overlays: bool = True,
    durable: bool = False,
) -> None:
    """Write the tree with only the patches ``kept`` to the new folder ``output``.

    If ``durable``, the tree is on the disk on return, which may take long.

    Raises:
        UserError: ``output`` exists and is not empty.
        PatchError: a kept patch needs a patch that is left out.
    """
    changes = dict(plan.weave.changes(kept))
    if with_overlays:
        changes |= plan.overlays
    chosen = [name for name in plan.weave.patches if name in kept]
    message = f"Variant with {', '.join(chosen) or 'no patch'}\n".encode()
    with new_folder(output, durable=durable) as scratch:
        build_repository(
            scratch, plan.pristine, [plan.commits[0], Commit(message, changes=changes)]
        )


def choose_patches(
    plan: TreePlan,
    *,
    without: Iterable[str] = (),
    only: Iterable[str] = (),
    upto: str | None = None,
) -> tuple[str, ...]:
    """Return the names of the patches that a variant keeps, in order.

    ``upto`` keeps the patches up to that one. Names may be given without ``.patch``.

    Raises:
        UserError: the series has no patch of that name, or a kept patch needs one that is left out.
    """
    every = plan.weave.patches
    if upto is not None:
        return every[: every.index(patch_name(every, upto)) + 1]
    only_names = {patch_name(every, name) for name in only}
    gone = {patch_name(every, name) for name in without}
    kept = tuple(name for name in every if (name in only_names or not only_names))
    kept = tuple(name for name in kept if name not in gone)
    lost = [name for name in plan.weave.dependents(set(every) - set(kept)) if name in kept]
    if not lost:
        return kept
    remedy = f"leave out as well: --without {' '.join(lost)}"
    if only_names:
        needed = set(kept)
        for name in reversed(every):  # a patch needs only earlier patches
            needed |= plan.weave.needs(name) if name in needed else set()
        remedy = f"take as well: --only {' '.join(name for name in every if name in needed)}"
    raise UserError(f"{', '.join(lost)} cannot be without a patch that is left out", remedy=remedy)


def patch_name(names: Collection[str], wanted: str) -> str:
    """Return the full name of the patch ``wanted``, given with or without ``.patch``.

    Raises:
        UserError: the series has no patch of that name.
    """
    for name in (wanted, f"{wanted}.patch"):
        if name in names:
            return name
    raise UserError(
        f"the series has no patch {wanted!r}", remedy=f"patches: {', '.join(names) or 'none'}"
    )
