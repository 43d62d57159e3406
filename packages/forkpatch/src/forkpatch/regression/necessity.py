# SPDX-License-Identifier: Apache-2.0
"""The verb ``necessity``: run each patch's test without the patch.

A patch names the test that fails without it. The patch is left out, together with the patches that
need it, and the test runs in trees with and without the patch. If the test passes without the
patch, the place that the patch changes is made to fail on purpose. A test that passes even then
does not test that place, and proves nothing about the patch.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from functools import cache, cached_property
from pathlib import Path

import forkpatch
from forkpatch.git.calls import user_environment
from forkpatch.model.patchfile import Patch
from forkpatch.model.record import SymbolPlace
from forkpatch.processes import run_session
from forkpatch.runtest import NOT_RUN, PASSED
from forkpatch.symbols.grammars import grammar_of
from forkpatch.symbols.outline import Symbol, outline
from forkpatch.tree.drift import record_of
from forkpatch.tree.fork import Fork, TreePlan
from forkpatch.tree.variants import write_variant

TIMEOUT = 1800.0  # seconds for one run of a test
_TAIL = 4000  # characters of a test's output kept as the reason


class Verdict(StrEnum):
    """Verdict on a patch."""

    NEEDED = "needed"
    NOT_NEEDED = "not needed"
    UNSEEN = "test does not see it"
    UNKNOWN = "cannot tell"


class RunOutcome(StrEnum):
    """Outcome of a test's run."""

    PASSED = "passed"
    FAILED = "failed"
    NOT_RUN = "did not run"


@dataclass(frozen=True)
class Judgement:
    """The verdict on a patch, with the reason.

    Attributes:
        along: patches that were left out, too, because they need this patch.
        reason: the reason in words.
    """

    upstream: str
    patch: str
    test: str
    verdict: Verdict
    along: tuple[str, ...]
    reason: str


class NecessityTrees:
    """Complete and reduced trees for tests of ``timeout`` seconds, in the folder ``scratch``."""

    def __init__(
        self, fork: Fork, plans: Mapping[str, TreePlan], scratch: Path, timeout: float
    ) -> None:
        self.fork, self.plans, self.scratch, self.timeout = fork, plans, scratch, timeout
        #: Returns a test's outcome and end of output on the complete trees.
        self.with_all = cache(lambda test: self.run(test, self.whole))

    @cached_property
    def whole(self) -> Path:
        """Folder with the complete tree of every upstream."""
        folder = self.scratch / "whole"
        for name, plan in self.plans.items():
            write_variant(plan, plan.weave.patches, folder / name)
        return folder

    def run(self, test: str, trees: Path) -> tuple[RunOutcome, str]:
        """Run a test on ``trees``; return its outcome and the end of its output."""
        package_root = str(Path(forkpatch.__file__).parent.parent)
        path = os.pathsep.join(filter(None, (package_root, os.environ.get("PYTHONPATH", ""))))
        environment = {**user_environment(), "FORKPATCH_TREES": str(trees), "PYTHONPATH": path}
        try:
            done = run_session(
                [*self.fork.settings.test, test],
                cwd=self.fork.settings.root,
                env=environment,
                stderr=subprocess.STDOUT,
                timeout=self.timeout,
            )
        except subprocess.TimeoutExpired:
            return RunOutcome.NOT_RUN, f"no end within {self.timeout:.0f} s"
        output = done.stdout.decode("utf-8", "replace").strip()[-_TAIL:]
        if done.returncode == PASSED:
            return RunOutcome.PASSED, output
        return (RunOutcome.NOT_RUN if done.returncode == NOT_RUN else RunOutcome.FAILED), output

    @contextmanager
    def without(self, upstream: str, gone: Sequence[str]) -> Iterator[Path]:
        """Yield trees of all upstreams, without the patches ``gone`` of an upstream."""
        folder = Path(tempfile.mkdtemp(prefix="without-", dir=self.scratch))
        try:
            for name in self.plans:
                if name != upstream:
                    (folder / name).symlink_to(self.whole / name)
            plan = self.plans[upstream]
            kept = [name for name in plan.weave.patches if name not in gone]
            write_variant(plan, kept, folder / upstream)
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def judge(trees: NecessityTrees, upstream: str, patch: Patch) -> Judgement:
    """Run a patch's test with all patches, then without this one; return the verdict on it."""
    along = trees.plans[upstream].weave.dependents([patch.name])
    test = patch.trailer("Test") or ""
    if not test:
        verdict, reason = Verdict.UNKNOWN, "it has no Test trailer"
    else:
        outcome, text = trees.with_all(test)
        if outcome is RunOutcome.PASSED:
            verdict, reason = _without(trees, upstream, patch.name, along, test)
        else:
            verdict, reason = Verdict.UNKNOWN, f"with every patch the test {outcome}: {_last(text)}"
    return Judgement(upstream, patch.name, test, verdict, along, reason)


def _without(
    trees: NecessityTrees, upstream: str, name: str, along: Sequence[str], test: str
) -> tuple[Verdict, str]:
    """Return verdict and reason for a patch whose test passes with the patch."""
    with trees.without(upstream, [name, *along]) as variant:
        outcome, output = trees.run(test, variant)
        if outcome is RunOutcome.FAILED:
            return Verdict.NEEDED, _last(output)
        if outcome is RunOutcome.NOT_RUN:
            return Verdict.UNKNOWN, f"without it the test {outcome}: {_last(output)}"
        places = record_of(trees.fork, trees.plans[upstream]).patches[name].places
        spoiled = spoil(variant / upstream, places)
        if not spoiled:
            return Verdict.UNSEEN, "it passes without the file that the patch makes"
        outcome, output = trees.run(test, variant)
    if outcome is RunOutcome.PASSED:
        return Verdict.UNSEEN, f"it passes even with {', '.join(spoiled)} broken"
    return Verdict.NOT_NEEDED, "the test reaches the place and passes without it: drop it"


def spoil(tree: Path, places: Sequence[SymbolPlace]) -> tuple[str, ...]:
    """Make the functions of ``places`` fail when they run; return ``path: symbol`` of each."""
    done = []
    for place in places:
        path = tree / place.path
        if not path.is_file():
            continue
        path.write_bytes(_spoiled(place, path.read_bytes()))
        done.append(f"{place.path}: {place.symbol}")
    return tuple(done)


def _spoiled(place: SymbolPlace, data: bytes) -> bytes:
    """Return a file that fails where a symbol is used: a ``raise``, ``#error``, or without it."""
    symbol = outline(place.path, data).symbols.get(place.symbol)
    if place.path.endswith(".py") and symbol:
        return _raising(symbol, data)
    lines, grammar = data.splitlines(True), grammar_of(place.path)
    if grammar and grammar.preprocessed:
        lines.insert(symbol.last if symbol else 0, b"#error forkpatch: this place was reached\n")
    elif symbol:
        del lines[symbol.first - 1 : symbol.last]
    else:
        lines.clear()
    return b"".join(lines)


def _raising(symbol: Symbol, data: bytes) -> bytes:
    """Return a Python file that raises where a function begins to run, or a table is made."""
    node = symbol.node and (symbol.node.child_by_field_name("body") or symbol.node)
    at = node.start_byte if node else 0
    before = data[data.rfind(b"\n", 0, at) + 1 : at]
    # A body behind its head has no statements that begin a block.
    end = b"; " if before.strip() else b"\n" + before
    bomb = b"raise RuntimeError('forkpatch: this place was reached')"
    return data[:at] + bomb + end + data[at:]


def _last(output: str) -> str:
    """Return the line of a test's output that shows its error."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    errors = [line[2:].strip() for line in lines if line.startswith("E ") and line[2:].strip()]
    if len(errors) > 1 and errors[0].endswith(":"):
        return " ".join(errors[:2])
    # pytest's own errors come before this line.
    messages = [line for line in lines if not line.startswith("no tests ran in ")]
    return (errors or messages[-1:] or lines[-1:] or ["it said nothing"])[0]
