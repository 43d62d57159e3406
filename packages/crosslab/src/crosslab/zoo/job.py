# SPDX-License-Identifier: Apache-2.0
"""Check of a family in a quantization: from its config to the outcome.

``python -m crosslab.zoo.job SPEC.pickle OUTCOME.json`` checks a family in a separate process. The
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

from crosslab.assemble.kernels import KernelTarget, cached_kernels
from crosslab.assemble.recipe import Recipe
from crosslab.assemble.runner import build_runner, compile_library, store_params
from crosslab.assemble.runtime import build_runtime
from crosslab.cached_build import cached_build
from crosslab.compile.modes import ESTIMATE, WORK_FILE
from crosslab.compile.schedules import Schedules
from crosslab.errors import LabError
from crosslab.host.cost import cost_of, kept_cost
from crosslab.host.toolchain import find_cross
from crosslab.models.compare import compare
from crosslab.models.encoder import ENCODERS
from crosslab.models.families import Family, chosen
from crosslab.models.params import read_index
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
from crosslab.zoo.reference import NEW, PICTURE, PROMPT, FamilyQuestion, as_answer, ask
from crosslab.zoo.weights import USUAL
from groundwork.errors import USER_MISTAKE
from groundwork.files import atomic_write_json
from groundwork.hashing import digest

# Tokens of the prompt and of the answer at real size: the emulator takes many seconds for each.
REAL_PROMPT, REAL_NEW = 12, 2
ANSWER_TOKENS = "answer.json"
ANSWER_LOGITS = "logits.bin"
RUN_SECONDS = 3600.0
# Statuses by the number of steps that succeeded, from the first failure to success.
HOW_FAR = (
    FamilyStatus.NO_REFERENCE,
    FamilyStatus.NOT_COMPILED,
    FamilyStatus.NOT_RUN,
    FamilyStatus.WRONG,
    FamilyStatus.RIGHT,
)


@dataclass(frozen=True)
class Spec:
    """Input of a process that checks a family.

    Attributes:
        family: name of the family.
        recipe: inputs of the builds that all families share, with one VLEN.
        cache: folder of finished builds.
        release: name of the trees' release.
        plain_tree: TVM tree without the project's kernels, to find the origin of a failure; None:
            unknown.
        work: folder for the compiled model's operations, for the cost estimate; None: not written.
        layers: number of layers of a model of real size; 0: the small model.
        models: folder of the reference's models; None: the cache.
    """

    family: str
    recipe: Recipe
    cache: Path
    release: str
    plain_tree: Path | None = None
    work: Path | None = None
    layers: int = 0
    models: Path | None = None

    @property
    def key(self) -> MatrixKey:
        """Position of the family in the matrix."""
        vlen = self.recipe.vlens[0]
        return MatrixKey(self.family, self.recipe.quantization, vlen, self.release, self.layers)

    @property
    def definition(self) -> Family:
        """The family, in the requested size.

        Raises:
            UserError: the family does not exist, or its real sizes are unknown.
        """
        family = chosen([self.family])[0]
        return family.of_real_size(self.layers) if self.layers else family


def judge(spec: Spec) -> FamilyOutcome:
    """Create, compile, run and compare a family's model; a failure becomes an outcome.

    Raises:
        UserError: a tool, a tree or a package is missing.
        LabError: kernels or runtime cannot be built.
    """
    start = time.monotonic()
    # Build the shared parts first: their failure is not an outcome of a family.
    cached_kernels(KernelTarget.RISCV64, spec.cache)
    build_runtime(spec.recipe.runtime_tree, find_cross(), spec.cache)
    outcome = _attempt(spec, ours=True)
    if outcome.outcome not in (FamilyStatus.RIGHT, FamilyStatus.NO_REFERENCE):
        outcome = replace(outcome, fault=_fault(spec, outcome.outcome))
    return replace(outcome, seconds=round(time.monotonic() - start, 1))


def _fault(spec: Spec, ours: FamilyStatus) -> Fault:
    """Return a failure's origin: upstream if the plain tree gets no further; unknown without it."""
    if spec.plain_tree is None:
        return Fault.UNKNOWN
    plain = _attempt(spec, ours=False).outcome
    return Fault.OURS if HOW_FAR.index(plain) > HOW_FAR.index(ours) else Fault.UPSTREAM


def _attempt(spec: Spec, *, ours: bool) -> FamilyOutcome:
    weights = spec.recipe.weights
    outcome = FamilyOutcome(**spec.key._asdict(), outcome=FamilyStatus.NO_REFERENCE)
    try:
        packing = weights.packing or USUAL
        new, length = (REAL_NEW, REAL_PROMPT) if spec.layers else (NEW, PROMPT)
        question = ask(spec.definition, spec.models or spec.cache, packing, new, length)
        outcome = replace(outcome, outcome=FamilyStatus.NOT_COMPILED)
        recipe = recipe_of(spec, question.model, ours=ours)
        library, compiled = cost_of(lambda: compile_library(recipe, spec.cache))
        params, converted = cost_of(lambda: store_params(recipe, spec.cache))
        if ours and spec.work:
            name = f"{spec.family}-{weights.name}.{WORK_FILE}"
            shutil.copyfile(library.folder / WORK_FILE, spec.work / name)
        tensorized, total, plain = count_products(library.tensorized)
        outcome = replace(
            outcome,
            outcome=FamilyStatus.NOT_RUN,
            tensorized=tensorized,
            total=total,
            plain=plain,
            schedules=Schedules.read(library.folder).told if recipe.tuned else "",
        )
        if spec.layers:
            outcome = replace(
                outcome,
                largest=max(stored.nbytes for stored in read_index(params).values()),
                converted=kept_cost(params, converted),
                compiled=kept_cost(library.folder, compiled),
            )
        tokens, logits = answer(spec, question, recipe, params)
    except LabError as error:
        if outcome.outcome is FamilyStatus.NO_REFERENCE and error.exit_code == USER_MISTAKE:
            raise
        return replace(outcome, reason=first_reason(error.what))
    bound = error_bound(weights.name)
    verdict = compare(tokens, logits, question.answer, bound)
    outcome = replace(outcome, max_logit_error=verdict.logit_error)
    # Tokens may differ: their logits are within the bound.
    if verdict.within:
        return replace(outcome, outcome=FamilyStatus.RIGHT)
    reason = f"logits differ by {verdict.logit_error:.2g} of the largest, more than {bound:g}"
    return replace(outcome, outcome=FamilyStatus.WRONG, reason=reason)


def recipe_of(spec: Spec, model: Path, *, ours: bool = True) -> Recipe:
    """Return the inputs of a family's runner.

    Args:
        spec: the family, and inputs that all families share.
        model: folder of the config; it needs weights only for more than a library.
        ours: True: with the project's kernels and passes; False: as upstream.
    """
    family, shared = spec.definition, spec.recipe
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
    """Return the inputs of a family's library, from its config without weights.

    Raises:
        UserError: the family does not exist.
    """
    family = spec.definition
    key = digest(repr(family))
    folder = cached_build(spec.cache, f"zoo-config-{family.name}", key, family.write_config)
    return recipe_of(spec, folder)


def answer(
    spec: Spec, question: FamilyQuestion, recipe: Recipe, params: Path
) -> tuple[tuple[int, ...], Any]:
    """Run a compiled model in the emulator; return the cached answer for an equal run.

    Returns:
        tokens, and logits [tokens, vocab] float32; see :func:`as_answer`.
    """
    program, vlen = build_runner(recipe, spec.cache).program, recipe.vlens[0]
    family = spec.definition
    encodes = family.kind in ENCODERS
    prompt = ",".join(map(str, question.prompt))
    new, words = question.answer.logits.shape
    # The second of two calls attends to the first one's cached tokens.
    chunk = str(len(question.prompt) // 2)

    def make(folder: Path) -> None:
        arguments = ["--params", str(params), "--tokens", prompt, "--json", "--roi", "none"]
        if not encodes:
            arguments += ["--prefill-chunk", chunk, "--max-new", str(new)]
            arguments += ["--vocab", str(words), "--logits", str(folder / ANSWER_LOGITS)]
        if family.sees:
            arguments += ["--picture", str(question.model / PICTURE)]
        machine = GuestMachine(vlen=vlen, timeout=RUN_SECONDS, zvfh=recipe.zvfh)
        result = run_guest(program, arguments, machine)
        (folder / ANSWER_TOKENS).write_text(result.stdout, encoding="utf-8")

    key = digest(program.parent.name, params.name, prompt, chunk, str(vlen), str(new))
    folder = cached_build(spec.cache, "zoo-answer", key, make)
    told = json.loads((folder / ANSWER_TOKENS).read_text(encoding="utf-8"))
    if encodes:
        return as_answer(np.asarray(told["vectors"][0], np.float32))
    tokens = tuple(told["tokens"])
    rows = np.fromfile(folder / ANSWER_LOGITS, np.float32).reshape(len(tokens), -1)
    return tokens, rows


def main(arguments: list[str]) -> int:
    """Check a family; write the outcome; return the exit code, 2 if a tool is missing."""
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
