# SPDX-License-Identifier: Apache-2.0
"""The plan of a rebase: one step per patch, kept in a JSON file.

The plan is made once, when a rebase starts. Each executed step gets its outcome. The file is
written after each step, so that a killed rebase can continue.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from pathlib import Path

from forkpatch.command import typed
from forkpatch.errors import ForkError
from forkpatch.model.stored import read_stored
from groundwork.files import atomic_write_json

REBASES = "rebase"
_FILE = "plan.json"


class RebaseOutcome(StrEnum):
    """Outcome of a patch in a rebase; the last three are for the new version's own patches."""

    CLEAN = "clean"
    ADAPTED = "adapted"
    DROPPED = "dropped"
    KEPT = "kept"
    REPLACED = "replaced"
    REMOVED = "removed"


class Existing(StrEnum):
    """Choice for the patches that the new version has already."""

    KEEP = "keep"
    REPLACE = "replace"


class ConflictKind(StrEnum):
    """Classes of conflicts."""

    LINES = "conflict"
    FILE_GONE = "file gone"
    FILE_RENAMED = "file renamed"
    SYMBOL_MOVED = "symbol moved"
    MISPLACED = "misplaced"


@dataclass(frozen=True)
class Conflict:
    """A file's reason why a patch cannot be moved without a person.

    Attributes:
        lines: first and last line of each conflict in the working tree's file, from 1.
        detail: the new place of the file or symbol, or the symbol that git changed instead.
        breaking_commit: the upstream commit that changed these lines; empty without history.
        symbol: for a misplacement: the symbol that is changed.
        blob: for a misplacement: the blob id of the file after git's merge; empty with conflicts.
    """

    patch: str
    path: str
    kind: ConflictKind
    lines: tuple[tuple[int, int], ...] = ()
    detail: str = ""
    breaking_commit: str = ""
    symbol: str = ""
    blob: str = ""

    def __str__(self) -> str:
        spans = ", ".join(f"{first}-{last}" for first, last in self.lines)
        text = f"{self.patch}: {self.path}{f':{spans}' if spans else ''}: {self.kind}"
        text += f" ({self.detail})" if self.detail else ""
        commit = self.breaking_commit
        return text + (f"\n    upstream commit: {commit}" if commit else "")


@dataclass(frozen=True)
class RebaseStep:
    """The step of a patch.

    Attributes:
        original: commit of the patch on the old base.
        sha256: hash of the patch's file in the old series; empty for a patch not in that series.
        outcome: None until the step is done.
        commit: commit of the patch on the new base; empty for a dropped patch.
        reason: reason why the patch was dropped or adapted.
        by_hand: number of lines that a person added or removed, compared with git's merge that
            takes upstream's side at each conflict.
    """

    patch: str
    original: str
    outcome: RebaseOutcome | None = None
    commit: str = ""
    reason: str = ""
    by_hand: int = 0
    sha256: str = ""


@dataclass(frozen=True)
class RebasePlan:
    """All steps of a rebase, with the outcomes of finished steps.

    Attributes:
        base: commit of the new base in the rebase's repository.
        conflicts: conflicts of the first pending step; empty unless the rebase has stopped.
        steps: kept patches of the new version first, then the patches of the old version.
        existing: choice for the new version's patches; None when it had no series.
        state: hash of the new version's series when the rebase began; empty without a series.
    """

    upstream: str
    old: str
    new: str
    base: str
    steps: tuple[RebaseStep, ...]
    conflicts: tuple[Conflict, ...] = ()
    existing: Existing | None = None
    state: str = ""

    @property
    def done(self) -> tuple[RebaseStep, ...]:
        """The steps with an outcome."""
        return tuple(step for step in self.steps if step.outcome is not None)

    @property
    def pending(self) -> tuple[RebaseStep, ...]:
        """The steps without an outcome."""
        return self.steps[len(self.done) :]

    @property
    def head(self) -> str:
        """The commit that the first pending step is merged onto."""
        return next((step.commit for step in reversed(self.done) if step.commit), self.base)

    def completed(
        self, outcome: RebaseOutcome, *, commit: str = "", reason: str = "", by_hand: int = 0
    ) -> RebasePlan:
        """Return the plan with an outcome for its first pending step; see :class:`RebaseStep`."""
        done, (current, *rest) = self.done, self.pending
        step = replace(current, outcome=outcome, commit=commit, reason=reason, by_hand=by_hand)
        return replace(self, steps=(*done, step, *rest), conflicts=())


def write_plan(folder: Path, plan: RebasePlan) -> None:
    """Write the plan to the folder of the rebase."""
    atomic_write_json(folder / _FILE, asdict(plan))


def read_plan(folder: Path, name: str) -> RebasePlan | None:
    """Return the plan of the rebase of upstream ``name`` in ``folder``; None without a plan.

    Raises:
        ForkError: the plan cannot be read.
    """
    path = folder / _FILE
    try:
        return read_stored(RebasePlan, path)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise ForkError(
            f"{path}: {error}", remedy=f"abandon it: {typed(f'rebase {name} --abort')}"
        ) from error


def under_way(work: Path) -> Iterator[RebasePlan]:
    """Yield the plans of the rebases in a work folder.

    Raises:
        ForkError: a plan cannot be read.
    """
    for folder in sorted((work / REBASES).glob("*/")):
        if plan := read_plan(folder, folder.name):
            yield plan
