# SPDX-License-Identifier: Apache-2.0
"""``check --together BRANCH``: two pending changes of a series, applied together.

Each patch that the branch adds or changes is merged as a commit after the patches of this branch,
with its own series as ancestor. It must land where it lands in its own series, as in a rebase. Then
the patch files are applied unchanged, because a git merge of both branches has these files.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from forkpatch.command import typed
from forkpatch.errors import ForkError, PatchError, SourceError
from forkpatch.git.objects import TreeFile
from forkpatch.model.lock import Upstream
from forkpatch.model.overlays import check_collisions
from forkpatch.model.patchfile import SERIES, Condition, Patch
from forkpatch.model.weave import Weave
from forkpatch.series.merge import MergeTarget
from forkpatch.sources.obtain import SourceOptions
from forkpatch.tree.apply import chosen_patches, combinations
from forkpatch.tree.fork import Fork, TreePlan, fork_at, merge_base

Order = tuple[str, ...]
_State = TypeVar("_State", Condition, TreeFile)


@dataclass(frozen=True)
class Clash:
    """A reason why the two changes do not fit together.

    Attributes:
        what: the patch or the overlay.
        conflict: False if the patch merges, and only its file must be written again.
    """

    upstream: str
    what: str
    reason: str
    conflict: bool

    def __str__(self) -> str:
        return f"{self.upstream}: {self.what}: {self.reason}"


@dataclass(frozen=True)
class Together:
    """Result of the comparison with a branch.

    Attributes:
        base: the merge base of both branches.
        orders: for each upstream version changed on both sides, an order in which the patches of
            both apply; empty without an order.
        clashes: the reasons why the changes do not fit together.
        notes: the versions that need not be compared, with reasons.
        missing: the versions that both sides may change and that no source gives, with reasons.
    """

    branch: str
    base: str
    orders: dict[str, Order]
    clashes: tuple[Clash, ...]
    notes: tuple[str, ...]
    missing: tuple[str, ...]


@dataclass(frozen=True)
class _Side:
    """The state of a series on a side: the side's name, and its plan."""

    whose: str
    plan: TreePlan

    def content(self, name: str) -> object:
        """Return a patch's home and sha256, to compare; None without that patch."""
        patch = self.plan.steps[name].patch if name in self.plan.steps else None
        return patch and (patch.home, patch.sha256)

    @property
    def conditions(self) -> dict[str, Condition]:
        """The condition of each patch."""
        return {name: step.patch.condition for name, step in self.plan.steps.items()}

    @property
    def state(self) -> object:
        """The patches, in order, their conditions, and the overlays, to compare with ``==``."""
        patches = [(name, self.content(name)) for name in self.plan.steps]
        return patches, self.conditions, self.plan.overlays


def check_together(fork: Fork, branch: str, options: SourceOptions) -> Together:
    """Return how the changes of each series on a branch, and those here, fit together.

    The changes are those since the merge base of both.

    Raises:
        UserError: the branch is missing, or one side is invalid by itself.
    """
    base = merge_base(fork, branch)
    orders: dict[str, Order] = {}
    clashes: list[Clash] = []
    notes, missing = list[str](), list[str]()
    with ExitStack() as stack:
        before, other_fork = (stack.enter_context(fork_at(fork, item)) for item in (base, branch))
        for upstream in (item for many in fork.lock.upstreams.values() for item in many.values()):
            versions = other_fork.lock.upstreams.get(upstream.name, {})
            if upstream.version not in versions:
                notes.append(f"{upstream}: {branch} does not have it")
                continue
            if versions[upstream.version].tree != upstream.tree:
                notes.append(f"{upstream}: {branch} pins another tree")
                continue
            first, *others = (_files(each, upstream) for each in (before, fork, other_fork))
            if first in others:
                continue  # at most one side changed it; so its source is not needed
            try:
                old = _Side(base, before.plan(upstream, options))
            except SourceError as error:
                clone = typed(f"apply --mirror {upstream.name}=CLONE")
                missing.append(f"{upstream}: {error.what}; name a clone of it once: {clone}")
                continue
            local = _Side("the branch here", fork.plan(upstream, options))
            remote = _Side(branch, other_fork.plan(upstream, options))
            if local.state != old.state != remote.state != local.state:
                named = fork.settings.combinations
                orders[str(upstream)], new_clashes = _compare(old, local, remote, named)
                clashes += new_clashes
    return Together(branch, base, orders, tuple(clashes), tuple(notes), tuple(missing))


def _files(fork: Fork, upstream: Upstream) -> object:
    """Return a series' patches and overlays as they are stored, to compare with ``==``."""
    series = fork.series(upstream)
    patches = [(patch.name, patch.home, patch.sha256, patch.condition) for patch in series]
    return patches, fork.overlays(upstream)


def _compare(
    old: _Side, local: _Side, remote: _Side, named: Sequence[str]
) -> tuple[Order, list[Clash]]:
    """Return an order in which the patches of both sides apply; or the reasons against it.

    A merge must give the same files whichever side comes first. ``named`` are the combinations of
    options to check.
    """
    upstream, sides = str(local.plan.upstream), (old, local, remote)
    overlays, other = _merged(*(side.plan.overlays for side in sides))
    reasons = dict.fromkeys(other, f"{remote.whose} has another")
    conditions, other = _merged(*(side.conditions for side in sides))
    reasons |= dict.fromkeys(other, f"{remote.whose} has another condition of it")
    chosen: dict[str, _Side] = {}
    for name in {**local.plan.steps, **remote.plan.steps}:
        side, reason = _choose(name, old, local, remote)
        chosen |= {name: side} if side else {}
        reasons |= {name: reason} if reason else {}
    orders = [
        tuple(name for name in _order(*map(list, steps)) if name in chosen)
        for steps in (
            (old.plan.steps, local.plan.steps, remote.plan.steps),
            (old.plan.steps, remote.plan.steps, local.plan.steps),
        )
    ]
    results = []
    for order in orders:
        if not reasons:
            target = MergeTarget(local.plan.pristine.git, local.plan.pristine.tree)
            reasons = dict(_conflicts(target, order, chosen, old, (local, remote)))
            results.append(target.files)
    if not reasons and results[0] != results[1]:
        reasons[SERIES] = "the files depend on the order"
    if reasons:
        return (), [Clash(upstream, what, why, conflict=True) for what, why in reasons.items()]
    patches = {
        name: (side.whose, replace(_placed(name, side, sides), condition=conditions[name]))
        for name, side in chosen.items()
    }
    clashes = [
        _not_exact(local, remote, overlays, [patches[name] for name in order], named)
        for order in orders
    ]
    fits = [order for order, clash in zip(orders, clashes, strict=True) if clash is None]
    return (fits[0], []) if fits else ((), [clash for clash in clashes[:1] if clash])


def _choose(name: str, old: _Side, local: _Side, remote: _Side) -> tuple[_Side | None, str]:
    """Return the side whose patch a merge has, None if removed; or None and why both clash."""
    was, current, new = (side.content(name) for side in (old, local, remote))
    if new in (current, was):
        return (local if current else None), ""
    if current == was:
        return (remote if new else None), ""
    if current and new:
        return None, f"{remote.whose} {'changes it as well' if was else 'has another of that name'}"
    by = f"by {remote.whose}" if current else "here"
    return None, f"it is removed {by} and changed on the other side"


def _order(old: Sequence[str], first: Sequence[str], second: Sequence[str]) -> list[str]:
    """Return the patches of both sides in one order; at the same place, the first side leads.

    If the second side changes the order of the old patches, it is taken first.
    """
    common = [name for name in old if name in first and name in second]
    order = list(first)
    if [name for name in second if name in common] != common:  # the second has a new order
        order, second = list(second), first
    for row, name in enumerate(second):
        if name not in order:
            place = max(
                (order.index(item) + 1 for item in second[:row] if item in order), default=0
            )
            while place < len(order) and order[place] not in old:
                place += 1
            order.insert(place, name)
    return order


def _conflicts(
    target: MergeTarget,
    order: Sequence[str],
    chosen: Mapping[str, _Side],
    old: _Side,
    sides: tuple[_Side, _Side],
) -> Iterator[tuple[str, str]]:
    """Merge patches in an order; yield each patch that does not merge, with the reason."""
    for name in order:
        step = chosen[name].plan.steps[name]
        try:
            changes = target.merged(step)
        except PatchError as error:
            other = next(side for side in sides if side is not chosen[name])
            yield name, error.what + _rivals(step.patch, old, other)
            continue
        target.files |= changes
        if not changes:
            yield name, "it changes nothing any more after the other change"


def _rivals(patch: Patch, old: _Side, other: _Side) -> str:
    """Return in words the other side's new or changed patches that touch the same files."""
    names = [
        name
        for name, step in other.plan.steps.items()
        if other.content(name) != old.content(name) and set(step.patch.paths) & set(patch.paths)
    ]
    return f", which {' and '.join(names)} changes too" if names else ""


def _merged(
    was: Mapping[str, _State], local: Mapping[str, _State], remote: Mapping[str, _State]
) -> tuple[dict[str, _State], list[str]]:
    """Return what a merge of both sides has, by name; and the names that both changed differently.

    A name that both changed differently has its local state.
    """
    merged, clashes = dict[str, _State](), list[str]()
    for name in sorted({*was, *local, *remote}):
        before, ours, theirs = (side.get(name) for side in (was, local, remote))
        clashes += [name] if before != ours != theirs != before else []
        state = theirs if ours == before else ours
        if state is not None:
            merged[name] = state
    return merged, clashes


def _placed(name: str, side: _Side, sides: Sequence[_Side]) -> Patch:
    """Return the patch that a merge takes from a side; a shared one at its lines after the merge.

    ``sides``: old, local and remote. The patches before a shared patch move its lines on both.
    """
    patch = side.plan.steps[name].patch
    if not patch.home or len({one.content(name) for one in sides}) > 1:
        return patch
    starts = [one.plan.steps[name].patch.positions for one in sides]
    return patch.at(
        {
            path: tuple(
                ours + theirs - before
                for before, ours, theirs in zip(*(one[path] for one in starts), strict=True)
            )
            for path in patch.positions
        }
    )


def _not_exact(
    local: _Side,
    remote: _Side,
    overlays: Mapping[str, TreeFile],
    patches: Sequence[tuple[str, Patch]],
    named: Sequence[str],
) -> Clash | None:
    """Return the clash of overlays, or of the first patch file that does not apply; or None.

    ``patches`` have the name of the side that each is from. At last, each combination of options is
    checked: ``named``, or each option by itself.
    """
    upstream, pristine = str(local.plan.upstream), local.plan.pristine
    base, modes = {**local.plan.base, **remote.plan.base}, pristine.modes
    weave = Weave(modes, base.__getitem__)
    series = [patch for _, patch in patches]
    try:
        check_collisions(overlays, modes, series, Path("overlays"), upstream)
    except ForkError as error:
        return Clash(upstream, "overlays", error.what, conflict=True)
    for whose, patch in patches:
        try:
            weave.apply(patch)
        except ForkError as error:
            reason = f"the file of {whose} has other lines than it needs: {error.what}"
            return Clash(upstream, patch.name, reason, conflict=False)
    try:
        for chosen in combinations(series, named):
            chosen_patches(weave, series, chosen)
    except PatchError as error:
        return Clash(upstream, SERIES, error.what, conflict=True)
    return None
