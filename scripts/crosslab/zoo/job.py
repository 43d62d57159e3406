# SPDX-License-Identifier: Apache-2.0
"""One family in one quantization, from its config to its outcome.

``python -m crosslab.zoo.job SPEC.json OUTCOME.json`` does one in a process of its own, so that
one that hangs or takes all memory can be ended.
"""

from __future__ import annotations

import json
import shutil
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from crosslab.build.kernels import KernelTarget, cached_kernels
from crosslab.build.runner import Recipe, build_runner, compile_library, store_params
from crosslab.build.runtime import build_runtime
from crosslab.cached_build import cached_build
from crosslab.compile.modes import ESTIMATE, TILES, WORK_FILE
from crosslab.compile.schedules import Schedules
from crosslab.errors import LabError
from crosslab.host.toolchain import find_cross
from crosslab.models.compare import compare
from crosslab.models.families import chosen
from crosslab.models.formats import weight_formats
from crosslab.run.emulator import GuestMachine, run_guest
from crosslab.zoo.outcome import (
    FamilyOutcome,
    FamilyStatus,
    Fault,
    MatrixKey,
    count_products,
    first_reason,
)
from crosslab.zoo.reference import NEW, PROMPT, FamilyQuestion, ask
from crosslab.zoo.weights import USUAL
from groundwork.files import atomic_write_json
from groundwork.hashing import digest

# The prompt is read in two calls: the second attends to what the first left in the cache.
CHUNK = PROMPT // 2
ANSWER_TOKENS = "answer.json"
ANSWER_LOGITS = "logits.bin"
RUN_SECONDS = 1200.0
# How far a model gets, from the beginning to the end.
HOW_FAR = (
    FamilyStatus.NO_REFERENCE,
    FamilyStatus.NOT_COMPILED,
    FamilyStatus.NOT_RUN,
    FamilyStatus.WRONG,
    FamilyStatus.RIGHT,
)


@dataclass(frozen=True)
class Spec:
    """Task of one process.

    Attributes:
        family: a family's name.
        quantization: MLC-LLM's name of the parameters' format.
        mlc_tree: the patched MLC-LLM tree.
        tvm_tree: the patched TVM tree.
        plain_tree: TVM without the project's kernels, to tell whose a failure is; None leaves
            that open.
        vlen: bits in a vector register.
        cache: folder of finished builds.
        release: name of the release that the trees are of.
        work: folder that gets the work of the compiled model, for the cost estimate, or None.
        tuned: database of the core's schedules for functions without a kernel; None: none.
        core: that it is compiled for; None: any.
        zvfh: for CPUs with vectors of halves.
    """

    family: str
    quantization: str
    mlc_tree: Path
    tvm_tree: Path
    plain_tree: Path | None
    vlen: int
    cache: Path
    release: str
    work: Path | None = None
    tuned: Path | None = None
    core: str | None = None
    zvfh: bool = False

    @property
    def own(self) -> Mapping[str, Any]:
        """Place in the matrix, as an outcome has it."""
        return MatrixKey(self.family, self.quantization, self.vlen, self.release)._asdict()

    def table(self) -> dict[str, Any]:
        """As plain data."""
        return {k: str(v) if isinstance(v, Path) else v for k, v in vars(self).items()}

    @classmethod
    def read(cls, table: Mapping[str, Any]) -> Spec:
        """From what :meth:`table` gave."""
        trees = {n: Path(table[n]) for n in ("mlc_tree", "tvm_tree", "cache")}
        free = {n: Path(table[n]) if table[n] else None for n in ("plain_tree", "work", "tuned")}
        return cls(**{**table, **trees, **free})


def judge(spec: Spec) -> FamilyOutcome:
    """Make, compile, run and compare; failures are outcomes.

    Raises:
        UserError: a tool, a tree or a package is missing.
        LabError: kernels or runtime cannot be built.
    """
    start = time.monotonic()
    # What all families share is made first: failing at it is no family's outcome.
    cached_kernels(KernelTarget.RISCV64, spec.cache)
    build_runtime(spec.tvm_tree, find_cross(), spec.cache)
    outcome = _attempt(spec, ours=True)
    if outcome.outcome not in (FamilyStatus.RIGHT, FamilyStatus.NO_REFERENCE):
        outcome = replace(outcome, fault=_fault(spec, outcome.outcome))
    return replace(outcome, seconds=round(time.monotonic() - start, 1))


def _fault(spec: Spec, ours: FamilyStatus) -> Fault:
    """Whose it is: upstream's when it gets no further without anything of ours."""
    if spec.plain_tree is None:
        return Fault.UNKNOWN
    plain = _attempt(spec, ours=False).outcome
    return Fault.OURS if HOW_FAR.index(plain) > HOW_FAR.index(ours) else Fault.UPSTREAM


def _attempt(spec: Spec, *, ours: bool) -> FamilyOutcome:
    own = spec.own
    try:
        packing = weight_formats()[spec.quantization].packing or USUAL
        question = ask(chosen([spec.family])[0], spec.cache, packing)
    except LabError as error:
        if error.exit_code == 2:
            raise
        return FamilyOutcome(
            **own, outcome=FamilyStatus.NO_REFERENCE, reason=first_reason(error.what)
        )
    try:
        recipe = recipe_of(spec, question.model, ours=ours)
        library = compile_library(recipe, spec.cache)
        params = store_params(recipe, spec.cache)
    except LabError as error:
        return FamilyOutcome(
            **own, outcome=FamilyStatus.NOT_COMPILED, reason=first_reason(error.what)
        )
    if ours and spec.work:
        name = f"{spec.family}-{spec.quantization}.{WORK_FILE}"
        shutil.copyfile(library.folder / WORK_FILE, spec.work / name)
    tensorized, total, plain = count_products(library.tensorized)
    right = FamilyOutcome(
        **own,
        outcome=FamilyStatus.RIGHT,
        tensorized=tensorized,
        total=total,
        plain=plain,
        schedules=Schedules.read(library.folder).told if recipe.tuned else "",
    )
    try:
        tokens, logits = answer(spec, question, recipe, params)
    except LabError as error:
        return replace(right, outcome=FamilyStatus.NOT_RUN, reason=first_reason(error.what))
    bound = weight_formats()[spec.quantization].tolerance
    verdict = compare(tokens, logits, question.answer, bound)
    right = replace(right, max_logit_error=verdict.logit_error)
    # A token that differs is not held against a model: its logit was within the bound.
    if verdict.within:
        return right
    reason = f"logits differ by {verdict.logit_error:.2g} of the largest, more than {bound:g}"
    return replace(right, outcome=FamilyStatus.WRONG, reason=reason)


def recipe_of(spec: Spec, model: Path, *, ours: bool = True) -> Recipe:
    """The inputs of a family's runner.

    Args:
        spec: the family, its format and the trees.
        model: folder of its config, and of its weights where more than a library is made.
        ours: with the project's kernels and passes; without, as upstream does.
    """
    family = chosen([spec.family])[0]
    return Recipe(
        model=model,
        quantization=spec.quantization,
        vlens=(spec.vlen,),
        tvm_tree=spec.tvm_tree if ours or spec.plain_tree is None else spec.plain_tree,
        runtime_tree=spec.tvm_tree,
        mlc_tree=spec.mlc_tree,
        kernels=ours,
        require_tensorize=False,
        steps=None if ours else (),
        context=family.context,
        prefill_chunk=min(family.context, 4 * PROMPT),
        sizes=tuple(sorted(family.sizes.items())),
        mode=replace(TILES, extras=(ESTIMATE,)) if ours and spec.work else TILES,
        tuned=spec.tuned if ours else None,
        cores=spec.core,
        zvfh=spec.zvfh,
    )


def library_recipe(spec: Spec) -> Recipe:
    """The inputs of a family's library, for which its config alone is needed: no weights.

    Raises:
        UserError: there is no such family.
    """
    family = chosen([spec.family])[0]
    key = digest(repr(family))
    folder = cached_build(spec.cache, f"zoo-config-{family.name}", key, family.write_config)
    return recipe_of(spec, folder)


def answer(
    spec: Spec, question: FamilyQuestion, recipe: Recipe, params: Path
) -> tuple[tuple[int, ...], Any]:
    """Let a compiled model answer in the emulator; the same model is asked once.

    Returns:
        tokens, and logits [tokens, vocab] float32.
    """
    program = build_runner(recipe, spec.cache).program
    prompt = ",".join(map(str, question.prompt))

    def make(folder: Path) -> None:
        arguments = ["--params", str(params), "--tokens", prompt, "--json", "--roi", "none"]
        arguments += ["--prefill-chunk", str(CHUNK), "--max-new", str(NEW)]
        arguments += ["--vocab", str(question.answer.logits.shape[1])]
        arguments += ["--logits", str(folder / ANSWER_LOGITS)]
        machine = GuestMachine(vlen=spec.vlen, timeout=RUN_SECONDS, zvfh=spec.zvfh)
        result = run_guest(program, arguments, machine)
        (folder / ANSWER_TOKENS).write_text(result.stdout, encoding="utf-8")

    key = digest(program.parent.name, params.name, prompt, str(CHUNK), str(spec.vlen))
    folder = cached_build(spec.cache, "zoo-answer", key, make)
    tokens = tuple(json.loads((folder / ANSWER_TOKENS).read_text(encoding="utf-8"))["tokens"])
    rows = np.fromfile(folder / ANSWER_LOGITS, np.float32).reshape(len(tokens), -1)
    return tokens, rows


def main(arguments: list[str]) -> int:
    """Judge one family; 2 when something of the machine is missing."""
    spec = Spec.read(json.loads(Path(arguments[0]).read_text(encoding="utf-8")))
    try:
        outcome = judge(spec)
    except LabError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    atomic_write_json(Path(arguments[1]), outcome.table())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
