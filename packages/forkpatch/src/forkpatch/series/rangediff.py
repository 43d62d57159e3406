# SPDX-License-Identifier: Apache-2.0
"""The verb ``range-diff``: the series of two versions compared, patch by patch.

``git range-diff`` pairs the patches of both series by what they change. A patch that it could not
pair, and that both series have by name, is compared with its namesake.
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
_ANY = "--creation-factor=1000"  # git's measure of likeness: each pair is alike enough


class Fate(StrEnum):
    """What became of a patch from one series to the other."""

    SAME = "unchanged"
    CHANGED = "changed"
    GONE = "only in the old series"
    NEW = "only in the new series"


_FATES = {b"=": Fate.SAME, b"!": Fate.CHANGED, b"<": Fate.GONE, b">": Fate.NEW}


@dataclass(frozen=True)
class PatchPair:
    """A patch in both series.

    Attributes:
        old: its name in the old series; empty if it is new.
        new: its name in the new series; empty if it is gone.
        diff: git's diff of the two patches, messages included.
    """

    old: str
    new: str
    fate: Fate
    diff: str = ""


def compare_series(old: TreePlan, new: TreePlan) -> tuple[PatchPair, ...]:
    """The patches of two series, paired, in the order of the new series."""
    folders = [plan.pristine.git.git_dir for plan in (old, new)]
    with neutral_repository(*(folder / "objects" for folder in folders if folder)) as git:
        one, other = _written(git, old), _written(git, new)
        pairs = _compared(git, one, other)
        gone = {pair.old for pair in pairs if pair.fate is Fate.GONE}
        alike = gone & {pair.new for pair in pairs if pair.fate is Fate.NEW}
        found: list[PatchPair] = []
        for pair in pairs:
            if pair.fate is Fate.NEW and pair.new in alike:
                found += _compared(git, one.only(pair.new), other.only(pair.new), _ANY)
            elif not (pair.fate is Fate.GONE and pair.old in alike):
                found.append(pair)
    return tuple(found)


@dataclass(frozen=True)
class _Side:
    """A range of commits as git names it, and the patches of it in order."""

    span: str
    patches: dict[str, str]

    def name(self, number: bytes) -> str:
        """The patch of a number, from 1; empty for ``-``."""
        return "" if number == b"-" else [*self.patches][int(number) - 1]

    def only(self, patch: str) -> _Side:
        """The range of one patch."""
        return _Side(f"{self.patches[patch]}^!", {patch: self.patches[patch]})


def _written(git: Git, plan: TreePlan) -> _Side:
    """Write the commits of a series."""
    ref = f"refs/heads/{plan.upstream.version}"
    ids = write_commits(git, ref, [plan.commits[0], *plan.patch_commits])
    names = (patch.name for patch in plan.patches)
    return _Side(f"{ids[0]}..{ids[-1]}", dict(zip(names, ids[1:], strict=True)))


def _compared(git: Git, old: _Side, new: _Side, *options: str) -> list[PatchPair]:
    """The pairs that git prints, each with its diff."""
    if not (old.patches and new.patches):  # git refuses an empty range
        gone = [PatchPair(name, "", Fate.GONE) for name in old.patches]
        return gone + [PatchPair("", name, Fate.NEW) for name in new.patches]
    found: list[PatchPair] = []
    out = git.run(*_COMMAND, *options, old.span, new.span).stdout
    for line in out.splitlines(keepends=True):
        head = _PAIR.match(line)
        if head:
            names = old.name(head[1]), new.name(head[3])
            found.append(PatchPair(*names, fate=_FATES[head[2]]))
        else:
            text = line.decode("utf-8", "replace").removeprefix("    ")
            found[-1] = replace(found[-1], diff=found[-1].diff + text)
    return found
