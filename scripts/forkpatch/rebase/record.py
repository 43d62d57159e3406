# SPDX-License-Identifier: Apache-2.0
"""What a rebase took: kept beside the series that it made, and told as Markdown."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from common.files import atomic_write_json
from forkpatch.errors import UserError
from forkpatch.model.fork import Fork
from forkpatch.model.lock import Upstream
from forkpatch.output import counted
from forkpatch.rebase.start import Outcome, Step

FILE = "rebased.json"


@dataclass(frozen=True)
class Taken:
    """What became of one patch; see Step."""

    patch: str
    outcome: Outcome
    reason: str = ""
    by_hand: int = 0


@dataclass(frozen=True)
class RebaseRecord:
    """What a rebase took.

    Attributes:
        old: the version that the series came from.
        patches: the patches of that series, in its order.
    """

    old: str
    patches: tuple[Taken, ...]


def write_record(folder: Path, old: str, steps: Sequence[Step], merged: set[str]) -> None:
    """Keep what a rebase took in the folder of the series that it made.

    Args:
        folder: of the new series.
        old: the version that it came from.
        steps: every patch.
        merged: names of patches that are clean steps, and whose lines git changed.
    """
    taken = tuple(
        Taken(step.patch, Outcome.ADAPTED, "merged by git")
        if step.patch in merged
        else Taken(step.patch, step.outcome, step.reason, step.by_hand)
        for step in steps
    )
    atomic_write_json(folder / FILE, asdict(RebaseRecord(old, taken)))


def read_record_of(fork: Fork, upstream: Upstream) -> RebaseRecord:
    """What the rebase to this version took.

    Raises:
        UserError: its series was not made by a rebase.
        UserError: what is kept of it cannot be read.
    """
    path = fork.patch_folder(upstream) / FILE
    try:
        raw = json.loads(path.read_text("utf-8"))
        patches = tuple(
            Taken(**{**one, "outcome": Outcome(one["outcome"])}) for one in raw["patches"]
        )
        return RebaseRecord(raw["old"], patches)
    except FileNotFoundError as error:
        raise UserError(
            f"the series for {upstream} was not made by a rebase: there is no {path}",
            remedy=f"make one: forkpatch rebase {upstream.name} {upstream.version}",
        ) from error
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(f"{path}: {error}", remedy="restore it from version control") from error


def as_markdown(upstream: Upstream, record: RebaseRecord, series: Sequence[str]) -> str:
    """The record as a page, with the patches that the series got since."""
    counts = Counter(one.outcome for one in record.patches)
    hand = sum(one.by_hand for one in record.patches)
    added = [name for name in series if name not in {one.patch for one in record.patches}]
    what = f"{upstream.name} {upstream.version}"
    lines = [
        "<!-- SPDX-License-Identifier: Apache-2.0 -->",
        f"# What the rebase to {what} took",
        "",
        f"Made by `forkpatch rebase {upstream.name} {upstream.version} --report FILE`; do not edit",
        f"it. The series came from {record.old}. Lines by hand are those that a person added or",
        "removed, against what git's merge gives when upstream's side is taken at each conflict.",
        "",
        "| patch | outcome | lines by hand | why |",
        "|---|---|---|---|",
        *(
            f"| {one.patch} | {one.outcome} | {one.by_hand} | {one.reason} |"
            for one in record.patches
        ),
        *(f"| {name} | added | | for this version |" for name in added),
        "",
        f"{counted(len(record.patches), 'patch')}: {counts[Outcome.CLEAN]} clean,"
        f" {counts[Outcome.ADAPTED]} adapted, {counts[Outcome.DROPPED]} dropped;"
        f" {counted(hand, 'line')} by hand; {len(added)} added.",
    ]
    return "\n".join(lines) + "\n"
