# SPDX-License-Identifier: Apache-2.0
"""The one road from a model to a runner: kernels, model library, runtime, link."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from crosslab.build.kernels import KernelTarget, cached_kernels
from crosslab.build.link import LinkRequest, link_runner
from crosslab.build.runtime import Runtime, build_runtime
from crosslab.compile.driver import CompiledModel, CompileRequest, ImportedModule, compile_llama
from crosslab.compile.mlc import (
    DEFAULT_CHUNK,
    DEFAULT_CONTEXT,
    MlcCompileRequest,
    MlcTools,
    compile_model,
    convert_weight,
    device_of,
)
from crosslab.compile.modes import TILES, KernelMode
from crosslab.compile.targets import LabTarget
from crosslab.host.toolchain import Toolchain, find_cross
from crosslab.models.config import LlamaConfig, read_config
from crosslab.models.llama_params import convert_params

Parts = Callable[[Runtime, Toolchain], tuple[Path, ...]]
STEPS_VARIABLE = "MLC_RVV_STEPS"


@dataclass(frozen=True)
class Recipe:
    """Everything that a runner with a model in it is made from.

    Attributes:
        model: folder of ``config.json`` and weights, as Hugging Face lays a model out.
        quantization: format of the weights, a name of :mod:`crosslab.models.formats`.
        vlen: bits in a vector register.
        tvm_tree: TVM tree that the model is compiled with.
        runtime_tree: TVM tree whose runtime is linked.
        mlc_tree: MLC-LLM tree that defines the model; None compiles the project's own definition.
        kernels: tensorize with the RVV kernels.
        require_tensorize: it is an error when no product calls a kernel.
        steps: the project's passes that run, as in MLC_RVV_STEPS; None runs all, () none.
        context: longest sequence, tokens; None: MLC-LLM's default, and of the project's own
            definition the config's.
        prefill_chunk: most tokens that one prefill call takes.
        sizes: further sizes that override the config's, with MLC-LLM alone.
        strip: leave symbols out of the program; counting by function needs them.
        mode: what the kernels of linear layers read.
        imported: a module in place of the model; quantization and sizes say nothing then.
    """

    model: Path
    quantization: str
    vlen: int
    tvm_tree: Path
    runtime_tree: Path
    mlc_tree: Path | None = None
    kernels: bool = True
    require_tensorize: bool = True
    steps: tuple[str, ...] | None = None
    context: int | None = None
    prefill_chunk: int = DEFAULT_CHUNK
    sizes: tuple[tuple[str, int], ...] = ()
    strip: bool = True
    mode: KernelMode = TILES
    imported: ImportedModule | None = None

    @property
    def target(self) -> LabTarget:
        """The CPU that code is generated for."""
        return LabTarget("riscv64", self.vlen)

    @property
    def mlc(self) -> MlcTools | None:
        """MLC-LLM's commands on the two trees; None without MLC-LLM."""
        if self.mlc_tree is None:
            return None
        return MlcTools(mlc_tree=self.mlc_tree, tvm_tree=self.tvm_tree)


@dataclass(frozen=True)
class Runner:
    """A runner with a model in it.

    Attributes:
        program: the static program.
        library: the model library in it.
        linking: inputs of the link.
    """

    program: Path
    library: CompiledModel
    linking: LinkRequest


class Clock:
    """Wall time of named steps, in seconds."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        """Measure one step."""
        start = time.monotonic()
        yield
        self.seconds[name] = round(time.monotonic() - start, 2)


def build_runner(
    recipe: Recipe, cache: Path, clock: Clock | None = None, parts: Parts | None = None
) -> Runner:
    """Compile the model, cross-build TVM's runtime, and link both with the runner's own sources.

    Each step is made once for the same inputs.

    Args:
        recipe: the inputs.
        cache: folder of finished builds.
        clock: gets the steps' times.
        parts: makes more objects of the program, on its runtime.

    Raises:
        UserError: a tree, a tool or a package is missing.
        LabError: a step fails.
    """
    clock = clock or Clock()
    library = compile_library(recipe, cache, clock)
    toolchain = find_cross()
    with clock.step("runtime"):
        runtime = build_runtime(recipe.runtime_tree, toolchain, cache)
    with clock.step("link"):
        linking = LinkRequest(
            runtime=runtime,
            toolchain=toolchain,
            library=library.library,
            required_vlen=recipe.vlen,
            strip=recipe.strip,
            objects=parts(runtime, toolchain) if parts else (),
        )
        return Runner(link_runner(linking, cache), library, linking)


def compile_library(recipe: Recipe, cache: Path, clock: Clock | None = None) -> CompiledModel:
    """Compile kernels and model library of a recipe.

    Raises:
        UserError: a tree, a tool or a package is missing.
        LabError: a step fails.
    """
    clock = clock or Clock()
    with clock.step("kernels"):
        kernels = cached_kernels(KernelTarget.RISCV64, cache) if recipe.kernels else None
    with clock.step("compile"):
        if recipe.mlc:
            request = _mlc_request(recipe, kernels)
            return compile_model(recipe.mlc, request, cache)
        own = CompileRequest(
            tvm_tree=recipe.tvm_tree,
            config=recipe.imported or _config(recipe),
            target=recipe.target,
            prefill_chunk=recipe.prefill_chunk,
            steps=recipe.steps,
            kernels=kernels,
            require_tensorize=recipe.require_tensorize,
            mode=recipe.mode,
        )
        return compile_llama(own, cache)


def _config(recipe: Recipe) -> LlamaConfig:
    config = read_config(recipe.model / "config.json")
    return replace(config, context=recipe.context or config.context)


def _mlc_request(recipe: Recipe, kernels: Path | None) -> MlcCompileRequest:
    steps = recipe.steps
    return MlcCompileRequest(
        model=recipe.model,
        quantization=recipe.quantization,
        device=device_of(recipe.target),
        context=recipe.context or DEFAULT_CONTEXT,
        prefill_chunk=recipe.prefill_chunk,
        kernels=kernels,
        require_tensorize=recipe.require_tensorize,
        environment=() if steps is None else ((STEPS_VARIABLE, ",".join(steps)),),
        sizes=recipe.sizes,
        mode=recipe.mode,
    )


def store_params(recipe: Recipe, cache: Path) -> Path:
    """Folder of the parameters that a recipe's model library takes, made once.

    Raises:
        UserError: a tree or a package is missing.
        LabError: the conversion fails.
    """
    if recipe.mlc:
        return convert_weight(recipe.mlc, recipe.model, recipe.quantization, cache)
    return convert_params(recipe.model, cache)
