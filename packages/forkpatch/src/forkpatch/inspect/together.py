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
    """One state of a series: its plan, its patches and its overlays."""

    plan: TreePlan
    steps: Mapping[str, PatchStep]

    @property
    def names(self) -> list[str]:
        return list(self.steps)

    def content(self, name: str) -> object:
        """The patch, to compare; None without it."""
        patch = self.steps[name].patch if name in self.steps else None
        return patch and (patch.sha256, patch.positions if patch.home else {})


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
        forks = [stack.enter_context(fork_at(fork, one)) for one in (base, branch)]
        for versions in fork.lock.upstreams.values():
            for upstream in versions.values():
                found = [_at(one, upstream) for one in forks]
                if found[1] is None or found[1].tree != upstream.tree:
                    reason = "does not have it" if found[1] is None else "pins another tree"
                    notes.append(f"{upstream}: {branch} {reason}")
                    continue
                before, there = found[0] or upstream, found[1]
                states = zip((*forks, fork), (before, there, upstream), strict=True)
                old, theirs, mine = (_side(one, version, options) for one, version in states)
                if _state(mine) != _state(old) != _state(theirs) != _state(mine):
                    orders[str(upstream)], found_here = _compare(old, mine, theirs, branch)
                    clashes += found_here
    return Together(branch, base, orders, tuple(clashes), tuple(notes))


def _at(fork: Fork, upstream: Upstream) -> Upstream | None:
    return fork.lock.upstreams.get(upstream.name, {}).get(upstream.version)


def _side(fork: Fork, upstream: Upstream, options: SourceOptions) -> _Side:
    plan = plan_tree(fork, upstream, obtain(upstream, fork.cache, options).pristine)
    return _Side(plan, {step.patch.name: step for step in plan.steps()})


def _state(side: _Side) -> object:
    return [(name, side.content(name)) for name in side.names], side.plan.overlays


def _compare(old: _Side, mine: _Side, theirs: _Side, branch: str) -> tuple[Order, list[Clash]]:
    """An order of the patches of both sides that applies; or the reasons why there is none.

    A merge has to give the same files whichever side comes first.
    """
    upstream = str(mine.plan.upstream)
    clashes = [
        Clash(upstream, path, f"{branch} has another", conflict=True)
        for path in _overlay_clashes(old, mine, theirs)
    ]
    chosen: dict[str, tuple[_Side, str]] = {}
    for name in {**mine.steps, **theirs.steps}:
        side, reason = _choose(name, old, mine, theirs, branch)
        if reason:
            clashes.append(Clash(upstream, name, reason, conflict=True))
        elif side is not None:
            chosen[name] = side, branch if side is theirs else "the branch here"
    orders = [
        [name for name in _order(old.names, *names) if name in chosen]
        for names in ((mine.names, theirs.names), (theirs.names, mine.names))
    ]
    results = []
    for order in orders if not clashes else ():
        target = MergeTarget(mine.plan.pristine.git, mine.plan.pristine.tree)
        for name in order:
            step = chosen[name][0].steps[name]
            if reason := _not_merged(target, step):
                other = mine if chosen[name][0] is theirs else theirs
                reason += _rivals(step.patch, old, other)
                clashes.append(Clash(upstream, name, reason, conflict=True))
        results.append(target.files)
        if clashes:
            return (), clashes
    if len(results) == len(orders) and results[0] != results[1]:
        clashes.append(Clash(upstream, SERIES, "the files depend on the order", conflict=True))
    if clashes:
        return (), clashes
    found = [_not_exact(mine, theirs, [chosen[name] for name in order], order) for order in orders]
    for order, clash in zip(orders, found, strict=True):
        if clash is None:
            return tuple(order), []
    return (), [found[0]] if found[0] else []


def _order(old: Sequence[str], first: Sequence[str], second: Sequence[str]) -> list[str]:
    """The patches of both sides in one order: at the same place, those of the first come first."""
    gone = {name for name in old if name not in first or name not in second}
    common = [name for name in old if name not in gone]
    moved = [name for name in second if name in common] != common
    found = list(first)
    if moved:  # the new order, with what is new on the other side after its neighbour
        found, second = list(second), first
    for at, name in enumerate(second):
        if name not in found:
            place = max((found.index(one) + 1 for one in second[:at] if one in found), default=0)
            while place < len(found) and found[place] not in old:
                place += 1
            found.insert(place, name)
    return found


def _not_merged(target: MergeTarget, step: PatchStep) -> str:
    """Merge a patch; the reason for which it does not go, empty if it does."""
    try:
        changes = target.merged(step)
    except PatchError as error:
        return error.what
    target.files |= changes
    return "" if changes else "it changes nothing any more after the other change"


def _choose(
    name: str, old: _Side, mine: _Side, theirs: _Side, branch: str
) -> tuple[_Side | None, str]:
    """The side whose patch of this name a merge has; None for neither; or why it is not clear."""
    was, here, there = (side.content(name) for side in (old, mine, theirs))
    if there in (here, was):
        return (mine if here else None), ""
    if here == was:
        return (theirs if there else None), ""
    if here and there:
        return None, f"{branch} changes it as well" if was else f"{branch} has another of that name"
    return None, f"it is removed {f'by {branch}' if here else 'here'} and changed on the other side"


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


def _not_exact(
    mine: _Side, theirs: _Side, chosen: Sequence[tuple[_Side, str]], order: Sequence[str]
) -> Clash | None:
    """The first patch whose file does not apply as it is, beside the other change."""
    upstream, pristine = str(mine.plan.upstream), mine.plan.pristine
    listed = list_tree(pristine.git, pristine.tree)
    modes = {path: mode for path, (mode, _) in listed.items()}
    base = {**mine.plan.base, **theirs.plan.base}
    weave = Weave(modes, base.__getitem__)
    patches = [side.steps[name].patch for (side, _), name in zip(chosen, order, strict=True)]
    overlays = {**mine.plan.overlays, **theirs.plan.overlays}
    try:
        check_collisions(overlays, modes, patches, Path("overlays"), upstream)
    except ForkError as error:
        return Clash(upstream, "overlays", error.what, conflict=True)
    for patch, (_, whose) in zip(patches, chosen, strict=True):
        try:
            weave.apply(patch)
        except ForkError as error:
            reason = f"the file of {whose} has other lines than it needs: {error.what}"
            return Clash(upstream, patch.name, reason, conflict=False)
    return None
