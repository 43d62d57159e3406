# SPDX-License-Identifier: Apache-2.0
"""One family in one quantization, from its config to its outcome.

``python -m crosslab.zoo.job SPEC.pickle OUTCOME.json`` runs one family in a process of its own. The
zoo ends a process that hangs or takes all memory.
"""

from __future__ import annotations

import json
import pickle
import shutil
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from crosslab.build.kernels import KernelTarget, cached_kernels
from crosslab.build.recipe import Recipe
from crosslab.build.runner import build_runner, compile_library, store_params
from crosslab.build.runtime import build_runtime
from crosslab.cached_build import cached_build
from crosslab.compile.modes import ESTIMATE, WORK_FILE
from crosslab.compile.schedules import Schedules
from crosslab.errors import LabError
from crosslab.host.toolchain import find_cross
from crosslab.models.compare import compare
from crosslab.models.families import chosen
from crosslab.run.emulator import GuestMachine, run_guest
from crosslab.zoo.outcome import (
    FamilyOutcome,
    FamilyStatus,
    Fault,
    MatrixKey,
    count_products,
    error_bound,
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
        recipe: inputs of the build that all families share, for one VLEN.
        cache: folder of finished builds.
        release: name of the release that the trees are of.
        plain_tree: TVM without the project's kernels, which shows whose fault a failure is; None
            leaves that open.
        work: folder that gets the work of the compiled model, for the cost estimate, or None.
    """

    family: str
    recipe: Recipe
    cache: Path
    release: str
    plain_tree: Path | None = None
    work: Path | None = None

    @property
    def key(self) -> MatrixKey:
        """The family's place in the matrix."""
        recipe = self.recipe
        return MatrixKey(self.family, recipe.quantization, recipe.vlens[0], self.release)


def judge(spec: Spec) -> FamilyOutcome:
    """Make, compile, run and compare a family's model; a failure is an outcome, too.

    Raises:
        UserError: a tool, a tree or a package is missing.
        LabError: kernels or runtime cannot be built.
    """
    start = time.monotonic()
    # What all families share is made first: failing at it is no family's outcome.
    cached_kernels(KernelTarget.RISCV64, spec.cache)
    build_runtime(spec.recipe.runtime_tree, find_cross(), spec.cache)
    outcome = _attempt(spec, ours=True)
    if outcome.outcome not in (FamilyStatus.RIGHT, FamilyStatus.NO_REFERENCE):
        outcome = replace(outcome, fault=_fault(spec, outcome.outcome))
    return replace(outcome, seconds=round(time.monotonic() - start, 1))


def _fault(spec: Spec, ours: FamilyStatus) -> Fault:
    """Origin of a failure: upstream if the plain tree gets no further than ours."""
    if spec.plain_tree is None:
        return Fault.UNKNOWN
    plain = _attempt(spec, ours=False).outcome
    return Fault.OURS if HOW_FAR.index(plain) > HOW_FAR.index(ours) else Fault.UPSTREAM


def _attempt(spec: Spec, *, ours: bool) -> FamilyOutcome:
    own, weights = spec.key._asdict(), spec.recipe.weights
    try:
        packing = weights.packing or USUAL
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
        name = f"{spec.family}-{weights.name}.{WORK_FILE}"
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
    bound = error_bound(weights.name)
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
        spec: the family, and what all families share.
        model: folder of its config, and of its weights where more than a library is made.
        ours: with the project's kernels and passes; without, as upstream does.
    """
    family, shared = chosen([spec.family])[0], spec.recipe
    return replace(
        shared,
        model=model,
        tvm_tree=shared.tvm_tree if ours or spec.plain_tree is None else spec.plain_tree,
        kernels=ours,
        require_tensorize=False,
        steps=None if ours else (),
        context=family.context,
        prefill_chunk=min(family.context, 4 * PROMPT),
        sizes=tuple(sorted(family.sizes.items())),
        mode=replace(shared.mode, extras=(ESTIMATE,)) if ours and spec.work else shared.mode,
        tuned=shared.tuned if ours else None,
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
    """Run a compiled model in the emulator; the answer of the same model is cached.

    Returns:
        tokens, and logits [tokens, vocab] float32.
    """
    program, vlen = build_runner(recipe, spec.cache).program, recipe.vlens[0]
    prompt = ",".join(map(str, question.prompt))

    def make(folder: Path) -> None:
        arguments = ["--params", str(params), "--tokens", prompt, "--json", "--roi", "none"]
        arguments += ["--prefill-chunk", str(CHUNK), "--max-new", str(NEW)]
        arguments += ["--vocab", str(question.answer.logits.shape[1])]
        arguments += ["--logits", str(folder / ANSWER_LOGITS)]
        machine = GuestMachine(vlen=vlen, timeout=RUN_SECONDS, zvfh=recipe.zvfh)
        result = run_guest(program, arguments, machine)
        (folder / ANSWER_TOKENS).write_text(result.stdout, encoding="utf-8")

    key = digest(program.parent.name, params.name, prompt, str(CHUNK), str(vlen))
    folder = cached_build(spec.cache, "zoo-answer", key, make)
    tokens = tuple(json.loads((folder / ANSWER_TOKENS).read_text(encoding="utf-8"))["tokens"])
    rows = np.fromfile(folder / ANSWER_LOGITS, np.float32).reshape(len(tokens), -1)
    return tokens, rows


def main(arguments: list[str]) -> int:
    """Judge one family; return 2 if a tool of the machine is missing."""
    spec = pickle.loads(Path(arguments[0]).read_bytes())
    try:
        outcome = judge(spec)
    except LabError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    atomic_write_json(Path(arguments[1]), outcome.table())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
