# SPDX-License-Identifier: Apache-2.0
"""The verb ``bisect``: find the patch of a series since which a command fails.

The command runs in a separate tree, in which patches are applied and removed in the order of the
series. Unchanged files keep their times and build outputs stay, so that a build continues
incrementally. The maintainer's own tree is not used.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from forkpatch.errors import UserError
from forkpatch.git.calls import user_environment
from forkpatch.tree.fork import Fork, TreePlan
from forkpatch.tree.swap import scratch_folder
from forkpatch.tree.variants import write_variant
from forkpatch.tree.worktree import build_repository

SKIP = 125  # exit code as for git bisect run


class Outcome(StrEnum):
    """Outcome of the command on a tree with the first patches of a series."""

    PASSES = "passes"
    FAILS = "fails"
    SKIPPED = "cannot tell"


@dataclass(frozen=True)
class Trial:
    """A run of the command with the first ``count`` patches."""

    count: int
    outcome: Outcome


@dataclass(frozen=True)
class Bisection:
    """Result of a bisection.

    Attributes:
        suspects: the patch since which the command fails; several patches after skipped runs; empty
            if the command passes with all patches or fails without any.
        trials: the runs, in order.
    """

    upstream: str
    suspects: tuple[str, ...]
    trials: tuple[Trial, ...]


def bisect(
    fork: Fork,
    plans: Mapping[str, TreePlan],
    name: str,
    command: Sequence[str],
    each: Callable[[Trial], None],
) -> Bisection:
    """Find the patch of the upstream ``name`` since which ``command`` fails.

    Exit code 0 of the command passes, 125 cannot tell, any other fails; ``each`` is called after
    each run.

    Raises:
        UserError: the command cannot be run.
    """
    patches, plan = plans[name].weave.patches, plans[name]
    trials: dict[int, Trial] = {}
    # After a kill, the next verb removes the folder.
    with scratch_folder(fork.settings.work / "bisect") as scratch:
        for other in plans.keys() - {name}:
            write_variant(plans[other], plans[other].weave.patches, scratch / other)
        (scratch / name).mkdir()
        tree, commits = build_repository(scratch / name, plan.pristine, plan.commits)
        commits = commits[len(commits) - len(patches) - 1 :]  # from no patch to all patches

        def run(count: int) -> Outcome:
            if count not in trials:
                tree.run("reset", "-q", "--hard", commits[count])
                trials[count] = Trial(count, _run(command, scratch / name))
                each(trials[count])
            return trials[count].outcome

        good, bad = 0, len(patches)
        if run(bad) is Outcome.FAILS and run(good) is Outcome.PASSES:
            while untried := [count for count in range(good + 1, bad) if count not in trials]:
                middle = min(untried, key=lambda count: abs(2 * count - good - bad))
                outcome = run(middle)
                good = middle if outcome is Outcome.PASSES else good
                bad = middle if outcome is Outcome.FAILS else bad
        else:
            bad = good
    return Bisection(name, patches[good:bad], tuple(trials.values()))


def _run(command: Sequence[str], tree: Path) -> Outcome:
    """Run the command in a tree, with its output on standard error; return the outcome."""
    environment = {**user_environment(), "FORKPATCH_TREES": str(tree.parent)}
    try:
        done = subprocess.run(
            command, cwd=tree, env=environment, stdin=subprocess.DEVNULL, stdout=2, check=False
        )
    except OSError as error:
        raise UserError(
            f"{command[0]} cannot be run in the tree: {os.strerror(error.errno or 0)}",
            remedy="name a program on PATH, or a file by its path in the tree",
        ) from error
    skipped = Outcome.SKIPPED if done.returncode == SKIP else Outcome.FAILS
    return skipped if done.returncode else Outcome.PASSES
