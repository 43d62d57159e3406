# SPDX-License-Identifier: Apache-2.0
"""The verb ``necessity``: is each patch still needed, and would anybody notice without it?

A patch names the test that fails without it. It is left out, together with the patches that
cannot be without it, and that test is run in trees with it and without it. When the test
passes without it, the place that the patch changes is made to fail on purpose: a test that
passes even then does not look there, and says nothing about the patch.
"""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

import forkpatch
from forkpatch.inspect.symbols import MODULE, outline
from forkpatch.model.fork import Fork, Plan
from forkpatch.model.patchfile import Patch
from forkpatch.runtest import NOT_RUN, PASSED
from forkpatch.series.record import Place, record_of
from forkpatch.tree.variants import write_variant

_Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
_TAIL = 4000  # characters of a test's output that are kept as the reason


class Verdict(StrEnum):
    """What a patch is."""

    NEEDED = "needed"
    NOT_NEEDED = "not needed"
    UNSEEN = "test does not see it"
    UNKNOWN = "cannot tell"


class Outcome(StrEnum):
    """What a test did."""

    PASSED = "passed"
    FAILED = "failed"
    NOT_RUN = "did not run"


@dataclass(frozen=True)
class Judgement:
    """The verdict on one patch.

    Attributes:
        along: the patches that were left out with it, since they cannot be without it.
        reason: why, in words.
    """

    upstream: str
    patch: str
    test: str
    verdict: Verdict
    along: tuple[str, ...]
    reason: str


@dataclass
class Bench:
    """Trees to run tests on.

    Attributes:
        whole: the folder that holds the complete tree of every upstream.
    """

    fork: Fork
    plans: Mapping[str, Plan]
    scratch: Path
    timeout: float
    _whole: dict[str, tuple[Outcome, str]] = field(default_factory=dict)

    @property
    def whole(self) -> Path:
        """The complete trees, written when they are first asked for."""
        folder = self.scratch / "whole"
        for name, plan in self.plans.items():
            if not (folder / name).exists():
                write_variant(plan, plan.weave.patches, folder / name)
        return folder

    def with_all(self, test: str) -> tuple[Outcome, str]:
        """What ``test`` does on the complete trees; it is run once."""
        if test not in self._whole:
            self._whole[test] = self.run(test, self.whole)
        return self._whole[test]

    def run(self, test: str, trees: Path) -> tuple[Outcome, str]:
        """Run one test on ``trees``: what it did, and the end of what it said."""
        ours = str(Path(forkpatch.__file__).parent.parent)
        path = os.pathsep.join(filter(None, (ours, os.environ.get("PYTHONPATH", ""))))
        environment = {**os.environ, "FORKPATCH_TREES": str(trees), "PYTHONPATH": path}
        try:
            done = subprocess.run(
                [*self.fork.settings.test, test],
                cwd=self.fork.settings.root,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                timeout=self.timeout,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return Outcome.NOT_RUN, f"no end within {self.timeout:.0f} s"
        said = done.stdout.decode("utf-8", "replace").strip()[-_TAIL:]
        if done.returncode == PASSED:
            return Outcome.PASSED, said
        return (Outcome.NOT_RUN if done.returncode == NOT_RUN else Outcome.FAILED), said

    @contextmanager
    def without(self, upstream: str, gone: Sequence[str]) -> Iterator[Path]:
        """Trees of all upstreams, without the patches ``gone`` of one of them."""
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


@contextmanager
def open_bench(fork: Fork, plans: Mapping[str, Plan], timeout: float) -> Iterator[Bench]:
    """A bench whose trees are gone afterwards."""
    fork.settings.work.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix="necessity-", dir=fork.settings.work))
    try:
        yield Bench(fork, plans, scratch, timeout)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def judge(bench: Bench, upstream: str, patch: Patch) -> Judgement:
    """Tell whether a patch is needed."""
    along = bench.plans[upstream].weave.dependents([patch.name])
    test = patch.trailer("Test") or ""
    if not test:
        verdict, reason = Verdict.UNKNOWN, "it has no Test trailer"
    else:
        outcome, said = bench.with_all(test)
        if outcome is Outcome.PASSED:
            verdict, reason = _without(bench, upstream, patch.name, along, test)
        else:
            verdict, reason = Verdict.UNKNOWN, f"with every patch the test {outcome}: {_last(said)}"
    return Judgement(upstream, patch.name, test, verdict, along, reason)


def _without(
    bench: Bench, upstream: str, name: str, along: Sequence[str], test: str
) -> tuple[Verdict, str]:
    """The verdict on a patch with which its test passes."""
    with bench.without(upstream, [name, *along]) as trees:
        outcome, said = bench.run(test, trees)
        if outcome is Outcome.FAILED:
            return Verdict.NEEDED, _last(said)
        if outcome is Outcome.NOT_RUN:
            return Verdict.UNKNOWN, f"without it the test {outcome}: {_last(said)}"
        places = record_of(bench.fork, bench.plans[upstream]).patches[name]
        spoiled = spoil(trees / upstream, places)
        if not spoiled:
            return Verdict.UNSEEN, "it passes without the file that the patch makes"
        outcome, said = bench.run(test, trees)
    if outcome is Outcome.PASSED:
        return Verdict.UNSEEN, f"it passes even with {', '.join(spoiled)} broken"
    return Verdict.NOT_NEEDED, "the test reaches the place and passes without it: drop it"


def spoil(tree: Path, places: Sequence[Place]) -> tuple[str, ...]:
    """Make the functions of ``places`` fail when they are reached; returns which."""
    done = []
    for place in places:
        path = tree / place.path
        if not path.is_file():
            continue
        data = path.read_bytes()
        spoiled = _spoiled_python(place, data) if path.suffix == ".py" else None
        path.write_bytes(spoiled or _spoiled_text(place, data))
        done.append(f"{place.path}: {place.symbol}")
    return tuple(done)


def _spoiled_python(place: Place, data: bytes) -> bytes | None:
    """The file with a ``raise`` as first statement of the symbol; None when it has none."""
    bomb = b"raise RuntimeError('forkpatch: this place was reached')\n"
    if place.symbol == MODULE:
        futures = [line for line in data.splitlines(True) if line.startswith(b"from __future__")]
        return b"".join(futures) + bomb + data
    try:
        tree = ast.parse(data)
    except SyntaxError:
        return None
    node: ast.Module | _Definition = tree
    for name in place.symbol.split("#")[0].split("."):
        inner = _child(node, name)
        if inner is None:
            return None
        node = inner
    first = node.body[0]
    lines = data.splitlines(True)
    at = first.lineno - 1
    lines.insert(at, b" " * first.col_offset + bomb)
    return b"".join(lines)


def _child(node: ast.AST, name: str) -> _Definition | None:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, _Definition):
            if child.name == name:
                return child
        elif found := _child(child, name):
            return found
    return None


def _spoiled_text(place: Place, data: bytes) -> bytes:
    """The file with a line that no compiler takes, at the place."""
    symbol = outline(place.path, data).symbols.get(place.symbol)
    at = symbol.last if symbol else 0
    lines = data.splitlines(True)
    lines.insert(at, b"#error forkpatch: this place was reached\n")
    return b"".join(lines)


def _last(said: str) -> str:
    """The line of a test's output that says most."""
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    errors = [line[2:].strip() for line in lines if line.startswith("E ") and line[2:].strip()]
    if len(errors) > 1 and errors[0].endswith(":"):
        return " ".join(errors[:2])
    return (errors or lines[-1:] or ["it said nothing"])[0]
