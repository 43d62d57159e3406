# SPDX-License-Identifier: Apache-2.0
"""``check --together BRANCH``: two pending changes of a series, each good, applied together.

Each patch that the branch adds or changes is merged as a commit after the patches that are here,
with its own series as ancestor, and has to land where it lands in that series, as in a rebase. Then
the patch files are applied as they are, for that is what a merge of the two branches has.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from forkpatch.errors import ForkError, PatchError
from forkpatch.git.objects import list_tree
from forkpatch.model.lock import Upstream
from forkpatch.model.overlays import check_collisions
from forkpatch.model.patchfile import SERIES, Patch
from forkpatch.model.weave import Weave
from forkpatch.series.submit import MergeTarget
from forkpatch.sources.obtain import SourceOptions, obtain
from forkpatch.tree.fork import Fork, PatchStep, TreePlan, plan_tree
from forkpatch.tree.revision import fork_at, merge_base

Order = tuple[str, ...]


@dataclass(frozen=True)
class Clash:
    """A reason for which the changes do not go together.

    Attributes:
        what: the patch or the overlay.
        conflict: False if the patch merges, and only its file has to be written again.
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
        base: the commit at which the branch parted.
        orders: for each upstream version whose series or overlays both sides changed, an order
            in which the patches of both apply; empty if there is none.
        clashes: the reasons for which they do not go together.
        notes: the versions that were not compared, and why.
    """

    branch: str
    base: str
    orders: dict[str, Order]
    clashes: tuple[Clash, ...]
    notes: tuple[str, ...]


@dataclass(frozen=True)
class _Side:
    """One state of a series: whose it is, its plan, and its patches by name."""

    whose: str
    plan: TreePlan
    steps: Mapping[str, PatchStep]

    def content(self, name: str) -> object:
        """The patch, to compare; None without it."""
        patch = self.steps[name].patch if name in self.steps else None
        return patch and (patch.sha256, patch.positions if patch.home else {})

    @property
    def state(self) -> object:
        """All that may differ between two sides."""
        return [(name, self.content(name)) for name in self.steps], self.plan.overlays


def check_together(fork: Fork, branch: str, options: SourceOptions) -> Together:
    """Compare the changes of a branch with those that are here.

    Raises:
        UserError: there is no such branch, or one of the two is not good by itself.
    """
    base = merge_base(fork, branch)
    orders: dict[str, Order] = {}
    clashes: list[Clash] = []
    notes: list[str] = []
    with ExitStack() as stack:
        before, there = (stack.enter_context(fork_at(fork, one)) for one in (base, branch))
        for upstream in (one for many in fork.lock.upstreams.values() for one in many.values()):
            versions = there.lock.upstreams.get(upstream.name, {})
            if upstream.version not in versions:
                notes.append(f"{upstream}: {branch} does not have it")
                continue
            if versions[upstream.version].tree != upstream.tree:
                notes.append(f"{upstream}: {branch} pins another tree")
                continue
            old = _side(before, base, upstream, options)
            mine = _side(fork, "the branch here", upstream, options)
            theirs = _side(there, branch, upstream, options)
            if mine.state != old.state != theirs.state != mine.state:
                orders[str(upstream)], found = _compare(old, mine, theirs)
                clashes += found
    return Together(branch, base, orders, tuple(clashes), tuple(notes))


def _side(fork: Fork, whose: str, upstream: Upstream, options: SourceOptions) -> _Side:
    plan = plan_tree(fork, upstream, obtain(upstream, fork.cache, options).pristine)
    return _Side(whose, plan, {step.patch.name: step for step in plan.steps()})


def _compare(old: _Side, mine: _Side, theirs: _Side) -> tuple[Order, list[Clash]]:
    """An order of the patches of both sides that applies; or the reasons why there is none.

    A merge has to give the same files whichever side comes first.
    """
    upstream = str(mine.plan.upstream)
    reasons = dict.fromkeys(_overlay_clashes(old, mine, theirs), f"{theirs.whose} has another")
    chosen: dict[str, _Side] = {}
    for name in {**mine.steps, **theirs.steps}:
        side, reason = _choose(name, old, mine, theirs)
        chosen |= {name: side} if side else {}
        reasons |= {name: reason} if reason else {}
    orders = [
        tuple(name for name in _order(*map(list, steps)) if name in chosen)
        for steps in (
            (old.steps, mine.steps, theirs.steps),
            (old.steps, theirs.steps, mine.steps),
        )
    ]
    results = []
    for order in orders:
        if not reasons:
            target = MergeTarget(mine.plan.pristine.git, mine.plan.pristine.tree)
            reasons = dict(_conflicts(target, order, chosen, old, (mine, theirs)))
            results.append(target.files)
    if not reasons and results[0] != results[1]:
        reasons[SERIES] = "the files depend on the order"
    if reasons:
        return (), [Clash(upstream, what, why, conflict=True) for what, why in reasons.items()]
    found = [_not_exact(mine, theirs, [(name, chosen[name]) for name in one]) for one in orders]
    fits = [order for order, clash in zip(orders, found, strict=True) if clash is None]
    return (fits[0], []) if fits else ((), [clash for clash in found[:1] if clash])


def _choose(name: str, old: _Side, mine: _Side, theirs: _Side) -> tuple[_Side | None, str]:
    """The side whose patch of this name a merge has; None for neither; or why it is not clear."""
    was, here, there = (side.content(name) for side in (old, mine, theirs))
    if there in (here, was):
        return (mine if here else None), ""
    if here == was:
        return (theirs if there else None), ""
    if here and there:
        return None, f"{theirs.whose} {'changes it as well' if was else 'has another of that name'}"
    by = f"by {theirs.whose}" if here else "here"
    return None, f"it is removed {by} and changed on the other side"


def _order(old: Sequence[str], first: Sequence[str], second: Sequence[str]) -> list[str]:
    """The patches of both sides in one order: at the same place, those of the first come first."""
    common = [name for name in old if name in first and name in second]
    found = list(first)
    if [name for name in second if name in common] != common:  # the second has a new order
        found, second = list(second), first
    for at, name in enumerate(second):
        if name not in found:
            place = max((found.index(one) + 1 for one in second[:at] if one in found), default=0)
            while place < len(found) and found[place] not in old:
                place += 1
            found.insert(place, name)
    return found


def _conflicts(
    target: MergeTarget,
    order: Sequence[str],
    chosen: Mapping[str, _Side],
    old: _Side,
    sides: tuple[_Side, _Side],
) -> Iterator[tuple[str, str]]:
    """Merge patches in an order; yields each that does not go, with the reason."""
    for name in order:
        step = chosen[name].steps[name]
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
    """The patches of the other side that are new or changed and touch the same files."""
    names = [
        name
        for name, step in other.steps.items()
        if other.content(name) != old.content(name) and set(step.patch.paths) & set(patch.paths)
    ]
    return f", which {' and '.join(names)} changes too" if names else ""


def _overlay_clashes(old: _Side, mine: _Side, theirs: _Side) -> Iterator[str]:
    was, here, there = (side.plan.overlays for side in (old, mine, theirs))
    for path in sorted({*was, *here, *there}):
        states = [overlays.get(path) for overlays in (was, here, there)]
        if all(states.count(one) == 1 for one in states):
            yield path


def _not_exact(mine: _Side, theirs: _Side, patches: Sequence[tuple[str, _Side]]) -> Clash | None:
    """The first patch whose file does not apply as it is, beside the other change."""
    upstream, pristine = str(mine.plan.upstream), mine.plan.pristine
    listed = list_tree(pristine.git, pristine.tree)
    modes = {path: mode for path, (mode, _) in listed.items()}
    base = {**mine.plan.base, **theirs.plan.base}
    weave = Weave(modes, base.__getitem__)
    found = [side.steps[name].patch for name, side in patches]
    overlays = {**mine.plan.overlays, **theirs.plan.overlays}
    try:
        check_collisions(overlays, modes, found, Path("overlays"), upstream)
    except ForkError as error:
        return Clash(upstream, "overlays", error.what, conflict=True)
    for name, side in patches:
        try:
            weave.apply(side.steps[name].patch)
        except ForkError as error:
            reason = f"the file of {side.whose} has other lines than it needs: {error.what}"
            return Clash(upstream, name, reason, conflict=False)
    return None
