# SPDX-License-Identifier: Apache-2.0
"""Start the compiler process on a patched tree, and cache its results."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

from crosslab.cached_build import cached_build
from crosslab.compile import schedules
from crosslab.compile.modes import KernelMode
from crosslab.compile.overlaypass import OPERATORS, PASSES, folders_of, load_pass
from crosslab.compile.targets import LabTarget
from crosslab.errors import LabError, UserError
from crosslab.models.config import LlamaConfig
from groundwork.hashing import digest

DEFAULT_CHUNK = 2048
# Most sequences that one call decodes, and that a board serves at the same time.
MAX_BATCH = 8
LAST_LINES = 15
# Folder in a library's folder with the module after each pass, if requested.
IR_FOLDER = "ir"
# Configuration of the passes, in a library's folder during the compilation.
PASSES_FILE = "passes.json"
# Variables that a compiler process does not inherit: the request has all settings.
OWN_VARIABLES = ("MLC_RVV_", "CROSS_COMPILATION")
# A system library: objects to be linked into a program.
LIBRARY = "model.tar"


@dataclass(frozen=True)
class ImportedModule:
    """A model in the form of TVM's module, instead of a config.

    Attributes:
        folder: ``module.json`` in TVM's JSON format, whose functions, such as ``main``, accept
            inputs and then the parameters as one tuple; ``model.json`` with ``inputs`` by
            function, ``params`` and ``bounds`` (the largest values of symbolic sizes). A language
            model with a paged cache has MLC-LLM's functions except the one that creates the cache,
            and ``language``, the cache's sizes.
    """

    folder: Path

    @property
    def files(self) -> tuple[Path, Path]:
        """The input files of the compiler."""
        return self.folder / "module.json", self.folder / "model.json"


@dataclass(frozen=True, kw_only=True)
class LibraryRequest:
    """Options of a model library that the project's compiler and MLC-LLM's accept.

    Attributes:
        form: "static" (``model.tar``, a system library) or "shared" (``model.so``).
        prefill_chunk: most tokens of one prefill call.
        kernels: folder of the compiled kernels to call; None: no kernels.
        require_tensorize: fail if no block of prefill attention is tensorized.
        mode: formats that linear-layer kernels read; MLC-LLM's runtime loads only "stored".
        steps: names of the pass steps to run, or "-name" for all but one; None: all; (): none, so
            that TVM compiles the loops.
        prefix: prefix of the library's symbols, which distinguishes libraries in one program.
        tuned: folder of a MetaSchedule database, for functions without a kernel; None: no database.
        stored: weights that stay in a file's blocks, in the form of the passes' configuration.
    """

    form: str = "static"
    prefill_chunk: int = DEFAULT_CHUNK
    kernels: Path | None = None
    require_tensorize: bool = False
    mode: KernelMode = field(default_factory=KernelMode)
    steps: tuple[str, ...] | None = None
    prefix: str = ""
    tuned: Path | None = None
    stored: Mapping[str, Any] = field(default_factory=dict)

    def check_kernels(self) -> None:
        """Refuse a kernel folder without kernels.

        Raises:
            UserError: the folder has no kernels.
        """
        if self.kernels and not (self.kernels / "kernels.json").is_file():
            raise UserError(
                f"no kernels in {self.kernels}",
                remedy="build them with: uv run crosslab kernels --target riscv64 --output DIR",
            )

    def configure(self, folder: Path) -> dict[str, str]:
        """Write the passes' configuration to a library's folder, where passes also write reports.

        Returns:
            the environment variable with the path of the file, for the compiler process.
        """
        passes = load_pass("configuration")
        settings = passes.Configuration(
            steps=self.steps,
            kernels=self.kernels and self.kernels.resolve(),
            require_tensorize=self.require_tensorize,
            weights=self.mode.weights,
            activations=self.mode.activations,
            kv_cache=self.mode.kv_cache,
            tuned=schedules.database_in(self.tuned),
            prefix=self.prefix,
            reports=folder,
            extras=tuple(passes.Extra(**vars(extra)) for extra in self.mode.extras),
            stored=self.stored,
        )
        settings.write(folder / PASSES_FILE)
        return {passes.VARIABLE: str(folder / PASSES_FILE)}


@dataclass(frozen=True)
class CompileRequest(LibraryRequest):
    """All inputs of a model library.

    Attributes:
        tvm_tree: a TVM tree in git's layout (``python/tvm`` below it).
        config: sizes of a Llama, or a module.
        target: target of the generated code.
        gemv: schedule matrix-vector products by dlight's rule, as MLC-LLM does. On x86, LLVM then
            compiles widths that are not multiples of 128 for a minute or more.
        linker: compiler command that links "shared" for another machine; empty: the host's
            compiler.
        dump_ir: keep the module after each pass, as :mod:`crosslab.compile.ir_dump` writes it.
    """

    tvm_tree: Path
    config: LlamaConfig | ImportedModule
    target: LabTarget
    gemv: bool = True
    linker: tuple[str, ...] = ()
    dump_ir: bool = False

    @property
    def python(self) -> Path:
        """The tree's Python root."""
        return self.tvm_tree / "python"

    def specification(self) -> dict[str, Any]:
        """Return the request as JSON-ready data for the compiler process."""
        config = asdict(self.config) if isinstance(self.config, LlamaConfig) else None
        return {
            "config": config,
            "target": self.target.table(),
            "vlen": self.target.vlen,
            "zvfh": int(self.target.zvfh),
            "form": self.form,
            "prefill_chunk": self.prefill_chunk,
            "batch": MAX_BATCH,
            "steps": None if self.steps is None else list(self.steps),
            "gemv": self.gemv,
            "linker": list(self.linker),
            "prefix": self.prefix,
            "dump_ir": self.dump_ir,
            "stored": self.stored,
            **self.mode.choices,
        }


@dataclass(frozen=True)
class CompiledModel:
    """A model library and its report.

    Attributes:
        folder: folder of the library.
        library: ``model.tar`` or ``model.so``.
        metadata: table that the library's function ``_metadata()`` returns.
        tensorized: report of the pass: function, block, symbol or reason; empty without the pass.
    """

    folder: Path
    library: Path
    metadata: dict[str, Any]
    tensorized: list[dict[str, Any]]


def compile_llama(request: CompileRequest, cache: Path) -> CompiledModel:
    """Compile a Llama or a module; return the cached result for equal inputs.

    Raises:
        UserError: the tree, the pass or the kernels are missing.
        LabError: the compilation fails; the message has the last lines of its output.
    """
    request.check_kernels()
    if not (request.python / "tvm" / "__init__.py").is_file():
        raise UserError(
            f"{request.tvm_tree} is not a TVM tree: no python/tvm in it",
            remedy="make it with: nox -s apply_patches",
        )
    folder = cached_build(cache, "library", _key(request), lambda out: _run(request, out))
    return read_compiled(folder)


def read_compiled(folder: Path) -> CompiledModel:
    """Read the result of a compilation.

    Raises:
        LabError: the folder has no model library.
    """
    libraries = [folder / name for name in (LIBRARY, "model.so") if (folder / name).is_file()]
    if not libraries:
        raise LabError(f"no model library in {folder}")
    about = json.loads((folder / "model.json").read_text(encoding="utf-8"))
    report = folder / "tensorized.json"
    tensorized = json.loads(report.read_text(encoding="utf-8")) if report.is_file() else []
    return CompiledModel(folder, libraries[0], about, tensorized)


def _key(request: CompileRequest) -> str:
    folder = Path(__file__).parent
    parts: list[str | Path] = [
        json.dumps(request.specification(), sort_keys=True),
        metadata.version("apache-tvm"),
        metadata.version("apache-tvm-ffi"),
        str(request.require_tensorize),
        request.python,
        *(folder / f"{name}.py" for name in ("worker", "llama", "mixture", "pipeline", "ir_dump")),
        PASSES,
        OPERATORS,
        *folders_of(request.mode.extras),
        *((request.kernels,) if request.kernels else ()),
        *((request.tuned,) if request.tuned else ()),
        *(request.config.files if isinstance(request.config, ImportedModule) else ()),
    ]
    return digest(*parts)


def tree_environment(*trees: Path) -> dict[str, str]:
    """Return environment variables for imports from trees, with the wheel's libraries of TVM.

    Args:
        trees: TVM's and others, in git's layout (``python`` below it).
    """
    libraries = Path(str(metadata.distribution("apache-tvm").locate_file("tvm/lib")))
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(OWN_VARIABLES)}
    path = [str(tree.resolve() / "python") for tree in trees]
    # Keep the caller's path: it may have packages with extra passes.
    path += filter(None, [os.environ.get("PYTHONPATH")])
    return {**inherited, "PYTHONPATH": os.pathsep.join(path), "TVM_LIBRARY_PATH": str(libraries)}


def _run(request: CompileRequest, folder: Path) -> None:
    spec = folder / "spec.json"
    spec.write_text(json.dumps(request.specification(), indent=2), encoding="utf-8")
    environment = tree_environment(request.tvm_tree) | request.configure(folder)
    if isinstance(request.config, ImportedModule):
        for file in request.config.files:
            shutil.copyfile(file, folder / file.name)
    command = [sys.executable, "-m", "crosslab.compile.worker", str(spec)]
    result = subprocess.run(
        command,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        check=False,
    )
    (folder / "compile.log").write_text(result.stdout, encoding="utf-8")
    if result.returncode != 0:
        last = "\n  ".join(result.stdout.strip().splitlines()[-LAST_LINES:])
        raise LabError(f"compiling the model for {request.target.label} failed:\n  {last}")
    spec.unlink()
    (folder / PASSES_FILE).unlink()
