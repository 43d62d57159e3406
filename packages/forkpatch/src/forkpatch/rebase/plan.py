# SPDX-License-Identifier: Apache-2.0
"""Plan of a rebase: one step a patch, kept in a JSON file and completed step by step.

The plan is made once, when a rebase starts. Each step gets its outcome as it is executed, and
the file is written after each, so that a rebase that was killed continues where it was.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

from forkpatch.command import typed
from forkpatch.errors import ForkError
from groundwork.files import atomic_write_json

REBASES = "rebase"
_FILE = "plan.json"


class RebaseOutcome(StrEnum):
    """Outcome of one patch in a rebase; the last three are of the new version's own patches."""

    CLEAN = "clean"
    ADAPTED = "adapted"
    DROPPED = "dropped"
    KEPT = "kept"
    REPLACED = "replaced"
    REMOVED = "removed"


class Existing(StrEnum):
    """Choice of what becomes of the patches that the new version has already."""

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
    """Reason in one file for which a patch cannot be moved without a person.

    Attributes:
        lines: first and last line of each conflict in the working tree's file, from 1.
        detail: the new place of the file or symbol, or the symbol that was hit.
        breaking_commit: the upstream commit that changed these lines; empty without history.
        symbol: of a misplacement: the symbol that is changed.
        blob: of a misplacement: the id of the file as git left it; empty when it has conflicts.
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
    """One patch of the series.

    Attributes:
        original: its commit on the old base.
        sha256: hash of its file in the old series; empty for one that this series lacks.
        outcome: None until the step is done.
        commit: its commit on the new base; empty when it was dropped.
        reason: why it was dropped or adapted.
        by_hand: lines that a person added or removed, against git's merge with upstream's side
            taken at each conflict.
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
    """All steps of a rebase, those that are done with their outcomes.

    Attributes:
        base: commit of the new base in the rebase's repository.
        conflicts: conflicts of the first pending step; empty unless the rebase has stopped.
        steps: first those of the new version's patches that are kept, then those of the old one's.
        existing: what becomes of the new version's patches; None when it had no series.
        state: hash of the new version's series when the rebase began; empty without one.
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
        """The steps that have an outcome."""
        return tuple(step for step in self.steps if step.outcome is not None)

    @property
    def pending(self) -> tuple[RebaseStep, ...]:
        """The steps that have none yet."""
        return self.steps[len(self.done) :]

    @property
    def head(self) -> str:
        """The commit on which the first pending step is put."""
        return next((step.commit for step in reversed(self.done) if step.commit), self.base)

    def completed(self, outcome: RebaseOutcome, **details: Any) -> RebasePlan:
        """The plan with an outcome for its first pending step."""
        done, (current, *rest) = self.done, self.pending
        step = replace(current, outcome=outcome, **details)
        return replace(self, steps=(*done, step, *rest), conflicts=())


def write_plan(folder: Path, plan: RebasePlan) -> None:
    """Write the plan to the folder of the rebase."""
    atomic_write_json(folder / _FILE, asdict(plan))


def read_plan(folder: Path, name: str) -> RebasePlan | None:
    """The plan of the rebase of upstream ``name`` in ``folder``; None without one.

    Raises:
        ForkError: it cannot be read.
    """
    path = folder / _FILE
    try:
        raw = json.loads(path.read_text("utf-8"))
        steps = tuple(_step(**one) for one in raw.pop("steps"))
        conflicts = tuple(_conflict(**one) for one in raw.pop("conflicts"))
        existing = raw.pop("existing", None)
        chosen = Existing(existing) if existing else None
        return RebasePlan(**raw, steps=steps, conflicts=conflicts, existing=chosen)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ForkError(
            f"{path}: {error}", remedy=f"abandon it: {typed(f'rebase {name} --abort')}"
        ) from error


def under_way(work: Path) -> Iterator[RebasePlan]:
    """The plans of the rebases in a work folder.

    Raises:
        ForkError: one cannot be read.
    """
    for folder in sorted((work / REBASES).glob("*/")):
        if plan := read_plan(folder, folder.name):
            yield plan


def _step(outcome: str | None, **rest: Any) -> RebaseStep:
    return RebaseStep(outcome=RebaseOutcome(outcome) if outcome else None, **rest)


def _conflict(kind: str, lines: list[list[int]], **rest: Any) -> Conflict:
    spans = tuple((first, last) for first, last in lines)
    return Conflict(kind=ConflictKind(kind), lines=spans, **rest)
