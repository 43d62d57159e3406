# SPDX-License-Identifier: Apache-2.0
"""The build of a runner with a model in it: kernels, model library, runtime, link."""

from __future__ import annotations

import io
import shutil
import tarfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from crosslab.assemble.kernels import IME_FLAGS, KernelTarget, cached_kernels
from crosslab.assemble.link import LinkRequest, link_runner, read_objects
from crosslab.assemble.recipe import Recipe
from crosslab.assemble.runtime import Runtime, build_runtime
from crosslab.cached_build import cached_build
from crosslab.compile import mlc
from crosslab.compile.driver import (
    LIBRARY,
    CompiledModel,
    CompileRequest,
    compile_llama,
    read_compiled,
)
from crosslab.compile.mlc import (
    MlcCompileRequest,
    compile_model,
    convert_weight,
    device_of,
    environment_of,
)
from crosslab.compile.targets import LabTarget, prefix_of
from crosslab.errors import LabError
from crosslab.host.toolchain import Toolchain, find_cross
from crosslab.models.config import LlamaConfig, read_config, read_family
from crosslab.models.formats import GGUF
from crosslab.models.gguf_params import Layout, tables
from crosslab.models.llama_params import convert_gguf, convert_params, gguf_layout
from crosslab.run.emulator import run_guest
from groundwork.hashing import digest

USAGE = "usage: runner serve"
Parts = Callable[[Runtime, Toolchain], tuple[Path, ...]]


@dataclass(frozen=True)
class Runner:
    """A runner with a model in it.

    Attributes:
        program: the static program; :func:`build_runner`'s has no server.
        library: the model library in it, for all lengths of registers.
        linking: inputs of the link.
    """

    program: Path
    library: CompiledModel
    linking: LinkRequest


class Clock:
    """Wall time of named steps, in seconds."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._start = time.monotonic()

    @property
    def elapsed(self) -> float:
        """Seconds since the clock was made."""
        return round(time.monotonic() - self._start, 2)

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        """Measure the ``with`` block as a step."""
        start = time.monotonic()
        yield
        self.seconds[name] = round(time.monotonic() - start, 2)


def build_runner(
    recipe: Recipe, cache: Path, clock: Clock | None = None, parts: Parts | None = None
) -> Runner:
    """Compile the model, cross-build TVM's runtime, and link both with the runner's own sources.

    The program has no server, which takes as long to compile as all else of the runner:
    :func:`complete` adds it. Each step is made once for the same inputs.

    Args:
        recipe: the inputs.
        cache: folder of finished builds.
        clock: measures the steps.
        parts: builds more objects for the program, from its runtime.

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
            vlens=recipe.vlens,
            zvfh=recipe.zvfh,
            strip=recipe.strip,
            objects=parts(runtime, toolchain) if parts else (),
            server=False,
        )
        return Runner(link_runner(linking, cache), library, linking)


def complete(runner: Runner, cache: Path, clock: Clock | None = None) -> Runner:
    """Compile the server, and link it with the same objects as the program without it.

    Raises:
        LabError: compiling or linking fails, or the program does not start in the emulator.
    """
    with (clock or Clock()).step("server"):
        linking = replace(runner.linking, server=True)
        program = link_runner(linking, cache)
        if USAGE not in run_guest(program, ["serve", "--help"]).stdout:
            raise LabError(f"{program} serve --help does not print its usage")
    return replace(runner, program=program, linking=linking)


def compile_library(recipe: Recipe, cache: Path, clock: Clock | None = None) -> CompiledModel:
    """Compile kernels and model library of a recipe, for each length of vector registers.

    Raises:
        UserError: a tree, a tool or a package is missing.
        LabError: a step fails.
    """
    clock = clock or Clock()
    with clock.step("kernels"):
        values = recipe.kernel_values
        kernels = None
        if recipe.kernels:
            kernels = cached_kernels(
                KernelTarget.RISCV64,
                cache,
                values,
                zvfh=recipe.zvfh,
                core=recipe.cores[0] if len(recipe.cores) == 1 else None,
                tune=recipe.tune,
                flags=IME_FLAGS if recipe.ime else (),
            )
    several = len(recipe.vlens) > 1
    with clock.step("compile"):
        libraries = {
            target.vlen: _compile(
                recipe, target, prefix_of(target.vlen) if several else "", kernels, cache
            )
            for target in recipe.targets
        }
    return join_libraries(libraries, cache) if several else libraries[recipe.vlens[0]]


def _compile(
    recipe: Recipe, target: LabTarget, prefix: str, kernels: Path | None, cache: Path
) -> CompiledModel:
    if recipe.mlc:
        return compile_model(recipe.mlc, _mlc_request(recipe, target, prefix, kernels), cache)
    own = CompileRequest(
        tvm_tree=recipe.tvm_tree,
        config=recipe.imported or _config(recipe),
        target=target,
        prefill_chunk=recipe.prefill_chunk,
        steps=recipe.steps,
        kernels=kernels,
        require_tensorize=recipe.require_tensorize,
        mode=recipe.mode,
        prefix=prefix,
        dump_ir=recipe.dump_ir,
        tuned=recipe.tuned,
        stored=tables(layout_of(recipe)),
    )
    return compile_llama(own, cache)


def join_libraries(libraries: Mapping[int, CompiledModel], cache: Path) -> CompiledModel:
    """Join model libraries for several vector lengths into one.

    Objects that several of them have (the kernels, which fit any length) are in it once. Its
    metadata and reports are those of the library for the longest registers.

    Args:
        libraries: by bits in a vector register; each has symbols of its own.
        cache: folder of finished builds.
    """

    def make(out: Path) -> None:
        objects: dict[str, bytes] = {}
        for vlen, one in libraries.items():
            for name, data in read_objects(one.library):
                if data not in objects.values():
                    objects[f"rvv{vlen}-{name}"] = data
        with tarfile.open(out / LIBRARY, "w") as archive:
            for name, data in objects.items():
                member = tarfile.TarInfo(name)
                member.size = len(data)
                archive.addfile(member, io.BytesIO(data))
        longest = libraries[max(libraries)].folder
        for path in longest.iterdir():
            if path.suffix in (".json", ".py"):
                shutil.copyfile(path, out / path.name)

    key = digest(*(part for v, one in libraries.items() for part in (str(v), one.folder.name)))
    return read_compiled(cached_build(cache, "libraries", key, make))


def _config(recipe: Recipe) -> LlamaConfig:
    read = read_family if recipe.quantization == GGUF else read_config
    return replace(read(recipe.model / "config.json"), context=recipe.longest)


def _mlc_request(
    recipe: Recipe, target: LabTarget, prefix: str, kernels: Path | None
) -> MlcCompileRequest:
    return MlcCompileRequest(
        model=recipe.model,
        quantization=recipe.quantization,
        device=device_of(target),
        environment=environment_of(target),
        context=recipe.longest,
        prefill_chunk=recipe.prefill_chunk,
        kernels=kernels,
        require_tensorize=recipe.require_tensorize,
        steps=recipe.steps,
        sizes=recipe.sizes,
        mode=recipe.mode,
        prefix=prefix,
        tuned=recipe.tuned,
        stored=tables(layout_of(recipe)),
    )


def layout_of(recipe: Recipe) -> Layout:
    """Return the parameters of a recipe that stay in GGUF blocks; empty for other formats."""
    if recipe.quantization != GGUF:
        return {}
    return mlc.gguf_layout(recipe.mlc, recipe.model) if recipe.mlc else gguf_layout(recipe.model)


def store_params(recipe: Recipe, cache: Path) -> Path:
    """Return the cached folder of the parameters for a recipe's model library.

    Raises:
        UserError: a tree or a package is missing.
        LabError: the conversion fails.
    """
    if recipe.mlc and recipe.quantization == GGUF:
        return mlc.convert_gguf(recipe.mlc, recipe.model, cache)
    if recipe.mlc:
        return convert_weight(recipe.mlc, recipe.model, recipe.quantization, cache)
    return (convert_gguf if recipe.quantization == GGUF else convert_params)(recipe.model, cache)
