# SPDX-License-Identifier: Apache-2.0
"""The verb ``range-diff``: the series of two versions compared, patch by patch.

``git range-diff`` pairs the patches of both series by their changes. A patch without a pair, whose
name is in both series, is compared with the patch of the same name.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from enum import StrEnum

from forkpatch.git.calls import Git
from forkpatch.git.objects import write_commits
from forkpatch.series.mailbox import neutral_repository
from forkpatch.tree.fork import TreePlan

_COMMAND = ("range-diff", "--no-color", "--no-ext-diff", "--no-textconv")
_PAIR = re.compile(rb" *(-|\d+): +[-0-9a-f]+ ([=!<>]) +(-|\d+): +[-0-9a-f]+(?: |$)")
_ANY = "--creation-factor=1000"  # git's limit of difference: high enough for any pair


class Fate(StrEnum):
    """State of a patch in the new series, compared with the old series."""

    SAME = "unchanged"
    CHANGED = "changed"
    GONE = "only in the old series"
    NEW = "only in the new series"


_FATES = {b"=": Fate.SAME, b"!": Fate.CHANGED, b"<": Fate.GONE, b">": Fate.NEW}


@dataclass(frozen=True)
class PatchPair:
    """A patch of the old series and its pair in the new series.

    Attributes:
        old: name in the old series; empty for a new patch.
        new: name in the new series; empty for a removed patch.
        diff: git's diff of the two patches, messages included.
    """

    old: str
    new: str
    fate: Fate
    diff: str = ""


def compare_series(old: TreePlan, new: TreePlan) -> tuple[PatchPair, ...]:
    """Return the pairs of patches of two series, in the order of the new series."""
    with neutral_repository(old.pristine.git.objects, new.pristine.git.objects) as git:
        old_side, new_side = _written(git, old), _written(git, new)
        pairs = _compared(git, old_side, new_side)
        gone = {pair.old for pair in pairs if pair.fate is Fate.GONE}
        alike = gone & {pair.new for pair in pairs if pair.fate is Fate.NEW}
        matched: list[PatchPair] = []
        for pair in pairs:
            if pair.fate is Fate.NEW and pair.new in alike:
                matched += _compared(git, old_side.only(pair.new), new_side.only(pair.new), _ANY)
            elif not (pair.fate is Fate.GONE and pair.old in alike):
                matched.append(pair)
    return tuple(matched)


@dataclass(frozen=True)
class _Side:
    """A side of the comparison: a range of commits as git names it, and its patches in order."""

    span: str
    patches: dict[str, str]

    def name(self, number: bytes) -> str:
        """Return the patch of a number, from 1; empty for ``-``."""
        return "" if number == b"-" else [*self.patches][int(number) - 1]

    def only(self, patch: str) -> _Side:
        """Return the side with one patch alone."""
        return _Side(f"{self.patches[patch]}^!", {patch: self.patches[patch]})


def _written(git: Git, plan: TreePlan) -> _Side:
    """Write the commits of a series; return their range."""
    ref = f"refs/heads/{plan.upstream.version}"
    ids = write_commits(git, ref, [plan.commits[0], *plan.patch_commits])
    names = (patch.name for patch in plan.patches)
    return _Side(f"{ids[0]}..{ids[-1]}", dict(zip(names, ids[1:], strict=True)))


def _compared(git: Git, old: _Side, new: _Side, *options: str) -> list[PatchPair]:
    """Return the pairs that git prints, each with its diff."""
    if not (old.patches and new.patches):  # git refuses an empty range
        gone = [PatchPair(name, "", Fate.GONE) for name in old.patches]
        return gone + [PatchPair("", name, Fate.NEW) for name in new.patches]
    pairs: list[PatchPair] = []
    out = git.run(*_COMMAND, *options, old.span, new.span).stdout
    for line in out.splitlines(keepends=True):
        head = _PAIR.match(line)
        if head:
            names = old.name(head[1]), new.name(head[3])
            pairs.append(PatchPair(*names, fate=_FATES[head[2]]))
        else:
            text = line.decode("utf-8", "replace").removeprefix("    ")
            pairs[-1] = replace(pairs[-1], diff=pairs[-1].diff + text)
    return pairs
