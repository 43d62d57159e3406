# SPDX-License-Identifier: Apache-2.0
"""A variant becomes a runner with the model in it, and parameters for it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from crosslab.bench.options import MLC, Bench, Variant
from crosslab.build.kernels import KernelTarget, cached_kernels
from crosslab.build.link import LinkRequest, link_runner
from crosslab.build.runtime import build_runtime
from crosslab.compile.driver import CompiledModel, CompileRequest, compile_llama
from crosslab.compile.mlc import (
    DEFAULT_CONTEXT,
    MlcCompileRequest,
    MlcTools,
    compile_model,
    convert_weight,
    device_of,
)
from crosslab.compile.targets import LabTarget
from crosslab.host.toolchain import find_cross
from crosslab.job.job_options import PASS_FILE
from crosslab.models.asset import fetch_asset
from crosslab.models.config import LlamaConfig, read_config
from crosslab.models.gguf_import import import_gguf
from crosslab.models.llama_params import convert_params, random_model, random_params
from crosslab.models.pins import read_pins

SEED = 0
STEPS_VARIABLE = "MLC_RVV_STEPS"


@dataclass(frozen=True)
class Built:
    """A variant, ready to run.

    Attributes:
        runner: static, with symbols.
        library: the model library in it.
        params: folder of the parameters.
    """

    runner: Path
    library: CompiledModel
    params: Path


@dataclass(frozen=True)
class Subject:
    """The model of a bench."""

    bench: Bench

    @cached_property
    def folder(self) -> Path:
        """The model in Hugging Face's layout: the pinned one, or random weights of its sizes."""
        bench = self.bench
        if bench.config:
            return random_model(bench.config, SEED, bench.cache)
        asset = read_pins(bench.project).asset(bench.asset)
        return import_gguf(fetch_asset(asset, bench.cache), bench.cache)

    @cached_property
    def config(self) -> LlamaConfig:
        """Its sizes."""
        return self.bench.config or read_config(self.folder / "config.json")

    def own_params(self) -> Path:
        """Parameters for the project's own definition."""
        bench = self.bench
        if bench.config:
            return random_params(bench.config, SEED, bench.cache)
        return convert_params(self.folder, bench.cache)


def build_variant(subject: Subject, variant: Variant, quantization: str, vlen: int) -> Built:
    """Compile and link one variant.

    Raises:
        UserError: a tree, a tool or a package is not there.
        LabError: a step fails.
    """
    bench = subject.bench
    target = LabTarget("riscv64", vlen)
    through_mlc = bench.path_of(quantization) == MLC
    library, params = (_through_mlc if through_mlc else _own)(
        subject, variant, quantization, target
    )
    toolchain = find_cross()
    request = LinkRequest(
        runtime=build_runtime(bench.tvm_tree, toolchain, bench.cache),
        toolchain=toolchain,
        library=library.library,
        required_vlen=vlen,
        strip=False,
    )
    return Built(link_runner(request, bench.cache), library, params)


def _own(
    subject: Subject, variant: Variant, _: str, target: LabTarget
) -> tuple[CompiledModel, Path]:
    bench = subject.bench
    request = CompileRequest(
        tvm_tree=variant.tree,
        config=subject.config,
        target=target,
        pass_file=bench.project / PASS_FILE if variant.kernels else None,
        steps=variant.steps,
        kernels=cached_kernels(KernelTarget.RISCV64, bench.cache) if variant.kernels else None,
        require_tensorize=variant.kernels and bench.kernels_fit,
        noalias=variant.noalias,
    )
    return compile_llama(request, bench.cache), subject.own_params()


def _through_mlc(
    subject: Subject, variant: Variant, quantization: str, target: LabTarget
) -> tuple[CompiledModel, Path]:
    bench, cache = subject.bench, subject.bench.cache
    assert variant.mlc_tree is not None  # only such variants are taken on this path
    tools = MlcTools(mlc_tree=variant.mlc_tree, tvm_tree=variant.tree)
    steps = () if variant.steps is None else ((STEPS_VARIABLE, ",".join(variant.steps)),)
    context = min(subject.config.context, DEFAULT_CONTEXT)
    request = MlcCompileRequest(
        model=subject.folder,
        quantization=quantization,
        device=device_of(target),
        context=context,
        prefill_chunk=context,
        kernels=cached_kernels(KernelTarget.RISCV64, cache) if variant.kernels else None,
        require_tensorize=variant.kernels and bench.kernels_fit,
        environment=steps,
    )
    library = compile_model(tools, request, cache)
    # Weights are converted by one tree for all variants: they run on the same numbers.
    own = bench.variants[-1]
    converter = MlcTools(mlc_tree=own.mlc_tree or variant.mlc_tree, tvm_tree=own.tree)
    return library, convert_weight(converter, subject.folder, quantization, cache)
