# SPDX-License-Identifier: Apache-2.0
"""A tiny model, its runners, and programs around the runner's sources on this machine."""

from __future__ import annotations

import json
import subprocess
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from crosslab.assemble.cmake import RUNNER
from crosslab.assemble.kernels import KernelTarget, cached_kernels
from crosslab.assemble.libraries import json_headers
from crosslab.assemble.link import LinkRequest, link_options, objects_of
from crosslab.cached_build import cached_build
from crosslab.compile.driver import CompiledModel, CompileRequest, compile_llama
from crosslab.compile.targets import LabTarget
from crosslab.host.toolchain import require_qemu
from crosslab.models.config import LlamaConfig
from crosslab.models.params import write_params
from crosslab.run.emulator import GuestMachine
from groundwork.hashing import digest
from support import shared_builds

NATIVE = Path(__file__).parent / "native"
CHUNK, VLEN = 32, 256
# Grouped heads, and widths that no vector length divides.
CONFIG = LlamaConfig(
    hidden=40,
    intermediate=72,
    heads=4,
    kv_heads=2,
    head_dim=10,
    layers=2,
    vocab=97,
    rope_theta=10000.0,
    eps=1e-5,
    tied=False,
    context=64,
)
# On this machine: with room for answers that a client can leave.
LONG = replace(CONFIG, context=1024)

# For products in the shapes that there are kernels for: groups of three query heads, head_dim with
# kernels, an odd vocabulary.
GQA = LlamaConfig(96, 160, 6, 2, 64, 2, 131, rope_theta=5e4, tied=True)


def write_random_params(library: Path, folder: Path) -> Path:
    """Random weights in several shards, named as the library names them but in another order."""
    random = np.random.default_rng(7)
    about = json.loads((library.parent / "model.json").read_text())["params"]
    values = [
        (p["name"], (random.standard_normal(p["shape"]) * 0.4).astype(np.float32)) for p in about
    ]
    write_params(reversed(values), folder, shard_bytes=8192)
    return folder


def tensorizing(target: LabTarget) -> CompileRequest:
    """The compilation of the model with kernels; for this machine as a shared library."""
    kind = KernelTarget.HOST if target.name == "host" else KernelTarget.RISCV64
    return CompileRequest(
        shared_builds.tvm_tree(),
        GQA,
        target,
        form="shared" if target.name == "host" else "static",
        prefill_chunk=64,
        # dlight's rule is not made for these widths: LLVM needs minutes for the result.
        gemv=False,
        kernels=cached_kernels(kind, shared_builds.CACHE),
        require_tensorize=True,
    )


def riscv_compilation() -> CompileRequest:
    """The compilation of the tiny model for riscv64."""
    target = LabTarget("riscv64", VLEN)
    return CompileRequest(shared_builds.tvm_tree(), CONFIG, target, prefill_chunk=CHUNK)


def riscv_request() -> LinkRequest:
    """The link of a runner of it for riscv64."""
    library = compile_llama(riscv_compilation(), shared_builds.CACHE).library
    parts = (shared_builds.runtime(), shared_builds.cross())
    return LinkRequest(*parts, library=library, vlens=(VLEN,))


def host_library() -> CompiledModel:
    """The tiny model with a long context, compiled for this machine."""
    tree, host = shared_builds.tvm_tree(), LabTarget("host")
    return compile_llama(
        CompileRequest(tree, LONG, host, prefill_chunk=CHUNK, gemv=False), shared_builds.CACHE
    )


def host_request() -> LinkRequest:
    """The link of a runner of it with sanitizers."""
    return LinkRequest(
        shared_builds.host_runtime(),
        shared_builds.sanitizing(),
        library=host_library().library,
        sanitizers=("address", "undefined"),
    )


def build_engine_probe(request: LinkRequest) -> Path:
    """The program around ``engine_probe.cc``, with the model of a runner in it."""
    main = NATIVE / "engine_probe.cc"
    assert request.library is not None
    tools = request.toolchain
    flags = [*request.runtime.compile_flags, "-O1", "-Wall", "-Wextra", "-Werror"]
    flags += [f"-I{RUNNER}", f"-isystem{json_headers()}"]
    if request.sanitizers:
        flags.append(f"-fsanitize={','.join(request.sanitizers)}")
    else:
        flags.append("-static")
    key = digest(tools.digest, " ".join(flags), RUNNER, request.library, main)

    def make(out: Path) -> None:
        with tempfile.TemporaryDirectory() as scratch:
            objects = [
                str(o)
                for o in objects_of(request, shared_builds.CACHE, Path(scratch)).all
                if o.name != "program-main.o"
            ]
            command = [*tools.cxx, *flags, str(main), *objects, *link_options(request)]
            subprocess.run([*command, "-o", str(out / "probe")], check=True)

    return cached_build(shared_builds.CACHE, "engine-probe", key, make) / "probe"


def host_environment(threads: int = 1) -> dict[str, str]:
    """The environment of programs on the wheel's runtime."""
    folders = ":".join(map(str, shared_builds.library_folders()))
    return {"TVM_NUM_THREADS": str(threads), "LD_LIBRARY_PATH": folders}


def started_plan(
    probe: Path,
    params: Path,
    plan: dict[str, Any],
    *,
    threads: int = 1,
    library: Path | None = None,
    emulated: bool = False,
) -> subprocess.Popen[str]:
    """The process of a plan; see ``engine_probe.cc``."""
    command = [str(probe), str(library or ""), str(params), json.dumps(plan)]
    environment = host_environment(threads)
    if emulated:
        qemu = require_qemu()
        command[:0] = [*qemu.command, "-cpu", GuestMachine(vlen=VLEN).cpu_of(qemu)]
        environment = {"TVM_NUM_THREADS": str(threads)}
    pipe = subprocess.PIPE
    return subprocess.Popen(command, env=environment, stdout=pipe, stderr=pipe, text=True)


def run_plan(
    probe: Path,
    params: Path,
    *,
    threads: int = 1,
    library: Path | None = None,
    emulated: bool = False,
    **plan: Any,
) -> dict[str, Any]:
    """Answers and statistics of the engine."""
    with started_plan(
        probe, params, plan, threads=threads, library=library, emulated=emulated
    ) as process:
        try:
            out, err = process.communicate(timeout=600)
        except subprocess.TimeoutExpired:
            process.kill()
            raise
    assert process.returncode == 0, err[-3000:]
    result: dict[str, Any] = json.loads(out)
    return result
