# SPDX-License-Identifier: Apache-2.0
"""MLC-LLM's commands on the patched trees: convert weights to parameters, compile a library."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape

from crosslab.cached_build import cached_build
from crosslab.compile.driver import (
    LAST_LINES,
    LIBRARY,
    MAX_BATCH,
    PASSES_FILE,
    CompiledModel,
    LibraryRequest,
    read_compiled,
    tree_environment,
)
from crosslab.compile.overlaypass import folders_of
from crosslab.compile.targets import LabTarget
from crosslab.errors import LabError, UserError
from crosslab.models import gguf_formats, gguf_params, params
from crosslab.models.config import DEFAULT_CONTEXT, kind_of
from crosslab.models.encoder import ENCODERS
from crosslab.models.formats import DEFAULT_FORMAT, GGUF
from crosslab.models.gguf_params import GgufWeights, Layout
from crosslab.models.params import JOURNAL, resumed_shards
from crosslab.models.weights_file import (
    INDEX_FILE,
    WEIGHTS_FILE,
    StoredWeights,
    weight_files,
    write_index,
)
from groundwork.hashing import digest

REQUIREMENTS = ("apache-tvm", "apache-tvm-ffi", "ml-dtypes", "numpy", "requests", "tqdm")
"""Packages that MLC-LLM's converter and compiler import."""

_CONVERTER = Path(__file__).with_name("resumable_convert.py")
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_console = Console(stderr=True, highlight=False)


@dataclass(frozen=True)
class MlcTools:
    """MLC-LLM's command line on patched trees.

    Attributes:
        mlc_tree: the MLC-LLM tree in git's layout (``python/mlc_llm`` below it).
        tvm_tree: the TVM tree in git's layout, which uses the native libraries of TVM's wheel.
    """

    mlc_tree: Path
    tvm_tree: Path

    def check(self) -> None:
        """Check that the commands can start.

        Raises:
            UserError: a tree or a Python package is missing.
        """
        for tree, package in ((self.mlc_tree, "mlc_llm"), (self.tvm_tree, "tvm")):
            if not (tree / "python" / package / "__init__.py").is_file():
                raise UserError(
                    f"no python/{package} in {tree}",
                    remedy="make the patched trees: nox -s apply_patches "
                    "(MLC-LLM from a clone of yours: -- --mirror mlc-llm=PATH)",
                )
        if missing := [name for name in REQUIREMENTS if name not in self.versions]:
            raise UserError(
                f"{sys.executable} lacks {', '.join(missing)}, which MLC-LLM needs",
                remedy=f"install: {sys.executable} -m pip install {' '.join(missing)}",
            )

    @property
    def versions(self) -> dict[str, str]:
        """Version of each required package that is installed."""
        found = {name: [*metadata.distributions(name=name)] for name in REQUIREMENTS}
        return {name: installed[0].version for name, installed in found.items() if installed}

    def environment(self, extra: Mapping[str, str]) -> dict[str, str]:
        """Return environment variables for ``mlc_llm`` and ``tvm`` from the patched trees."""
        return {
            **tree_environment(self.mlc_tree, self.tvm_tree),
            "PYTHONNOUSERSITE": "1",
            "PYTHONUNBUFFERED": "1",
            **extra,
        }

    def key(self) -> str:
        """Return the hash of the packages' versions and of both trees."""
        versions = json.dumps(self.versions, sort_keys=True)
        return digest(versions, self.mlc_tree / "python", self.tvm_tree / "python")


@dataclass(frozen=True)
class MlcCompileRequest(LibraryRequest):
    """Inputs of a model library that MLC-LLM compiles.

    Attributes:
        model: folder with the model's ``config.json`` in Hugging Face's format.
        quantization: a name of :mod:`crosslab.models.formats`.
        device: MLC-LLM's ``--device``: ``riscv64:rvv256``, ``riscv64:rvv256-zvfh``, or ``cpu``.
        context: longest sequence in tokens.
        environment: further environment variables, such as ``CROSS_COMPILATION`` for the device
            ``cpu``.
        sizes: further sizes that override the config's, such as ``sliding_window_size``.
    """

    model: Path
    quantization: str
    device: str
    context: int = DEFAULT_CONTEXT
    environment: tuple[tuple[str, str], ...] = ()
    sizes: tuple[tuple[str, int], ...] = ()

    def about(self) -> dict[str, Any]:
        """Return the request's options as a table, for the cache's key and ``model.json``."""
        return {
            "compiler": "mlc-llm",
            "quantization": self.quantization,
            "device": self.device,
            "context_window_size": self.context,
            "prefill_chunk_size": min(self.prefill_chunk, self.context),
            "max_batch_size": MAX_BATCH,
            "environment": dict(self.environment),
            **self.mode.choices,
            **({"sizes": dict(self.sizes)} if self.sizes else {}),
            **({"prefix": self.prefix} if self.prefix else {}),
            **({"steps": list(self.steps)} if self.steps is not None else {}),
            **({"tuned": digest(self.tuned)} if self.tuned else {}),
            **({"stored": self.stored} if self.stored else {}),
        }


def device_of(target: LabTarget) -> str:
    """Return MLC-LLM's ``--device``: a preset, or "cpu", see also :func:`environment_of`."""
    if not target.vlen or target.tune:
        return "cpu"
    return target.label.replace("-", ":", 1)


def environment_of(target: LabTarget) -> tuple[tuple[str, str], ...]:
    """Return (name, value) of variables for a target without a preset in MLC-LLM, else nothing."""
    if not target.tune:
        return ()
    table, prefix = target.table(), "CROSS_COMPILATION"
    return (
        (prefix, table["mtriple"]),
        (f"{prefix}_MCPU", table["mcpu"]),
        (f"{prefix}_MATTR", ",".join(table["mattr"])),
        (f"{prefix}_MABI", table["mabi"]),
        (f"{prefix}_VECTOR_WIDTH", str(table["vector-width"])),
    )


def convert_weight(tools: MlcTools, model: Path, quantization: str, cache: Path) -> Path:
    """Run ``mlc_llm convert_weight``; return the cached result for equal inputs.

    Args:
        tools: MLC-LLM's trees and interpreter.
        model: folder with ``config.json`` and safetensors files in Hugging Face's layout.
        quantization: a name of :mod:`crosslab.models.formats`.
        cache: folder of finished builds.

    Returns:
        folder with ``tensor-cache.json`` and its shards.

    Raises:
        UserError: the model, a tree or a package is missing.
        LabError: the conversion fails; the message has the last lines of its output.
    """
    tools.check()
    files = weight_files(model)
    about = [_config(model), *sorted(model.glob("*.safetensors.index.json"))]
    contents = json.dumps({file.name: file.sha256 for file in files})
    # Vectors are compared with those of other programs, so that no weight is rounded.
    exact = kind_of(model) in ENCODERS
    inputs: list[str | Path] = [_CONVERTER, *about, contents, *(["exact"] if exact else [])]
    key = digest(quantization, tools.key(), *inputs)

    def make(folder: Path) -> None:
        resumed_shards(folder)
        # MLC-LLM writes an index beside the weights: give it a folder of links.
        with tempfile.TemporaryDirectory(prefix="mlc-weights-") as view:
            named = {path.name: path for path in about} | {file.name: file.path for file in files}
            for name, path in named.items():
                (Path(view) / name).symlink_to(path.resolve())
            if INDEX_FILE not in named and WEIGHTS_FILE not in named:
                # Without an index, MLC-LLM finds only a single file with the default name.
                places = StoredWeights({file.name: Path(view) / file.name for file in files}).places
                write_index({name: path.name for name, path in places.items()}, Path(view))
            arguments = [view, "--quantization", quantization, "--device", "cpu"]
            journal = {"MLC_RVV_JOURNAL": str(folder / JOURNAL), "MLC_RVV_EXACT": "1" * exact}
            _run(tools, "convert_weight", [*arguments, "--output", str(folder)], journal, log)
        if not (folder / "tensor-cache.json").is_file():
            raise LabError("mlc_llm convert_weight wrote no tensor-cache.json", remedy=_see(log))
        (folder / JOURNAL).unlink()

    log = _log(cache, f"mlc-params-{key}")
    return cached_build(cache, f"mlc-params-{quantization}", key, make, resumable=True)


def wanted_weights(tools: MlcTools, model: Path, quantization: str) -> set[str]:
    """Return the names of the weights that MLC-LLM reads for a model's config.

    Raises:
        UserError: a tree or a package is missing, or MLC-LLM rejects the config.
    """
    return set(_loaded(tools, _config(model).parent, quantization)[0])


@cache
def gguf_layout(tools: MlcTools, model: Path) -> Layout:
    """Return the segments of MLC-LLM's parameters that stay in an imported model's GGUF blocks.

    Raises:
        UserError: see :func:`wanted_weights`.
    """
    return GgufWeights(model).layout(_loaded(tools, model, GGUF)[1])


def convert_gguf(tools: MlcTools, model: Path, cache: Path) -> Path:
    """Store an imported model's weights in GGUF blocks and float32 once; return the folder.

    Raises:
        UserError: see :func:`wanted_weights`.
    """
    tools.check()
    sources = [Path(str(module.__file__)) for module in (gguf_formats, gguf_params, params)]
    key = digest(model.name, tools.key(), Path(__file__).with_name("loader.py"), *sources)

    def make(folder: Path) -> None:
        _load(tools, model, GGUF, folder)

    return cached_build(cache, "mlc-params-gguf", key, make)


def _loaded(tools: MlcTools, model: Path, quantization: str) -> list[Any]:
    """Return the two tables that :mod:`.loader` prints for a model."""
    tools.check()
    loaded: list[Any] = json.loads(_load(tools, model, quantization).splitlines()[-1])
    return loaded


def _load(tools: MlcTools, model: Path, quantization: str, *folder: Path) -> str:
    program = ["-m", "crosslab.compile.loader", str(model), _mlc_name(quantization)]
    line = [sys.executable, *program, *map(str, folder)]
    variables = tools.environment({})
    done = subprocess.run(line, env=variables, capture_output=True, text=True, check=False)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["it says nothing"])[-1]
        raise UserError(
            f"MLC-LLM rejects {model / 'config.json'}: {last}",
            remedy="give the config.json that was published with the model",
        )
    return done.stdout


def compile_model(tools: MlcTools, request: MlcCompileRequest, cache: Path) -> CompiledModel:
    """Run ``mlc_llm compile``; return the cached result for equal inputs.

    Returns:
        the library, and the tensorized blocks or the reasons. Its metadata is the request.

    Raises:
        UserError: the model, a tree, a package or the kernels are missing, or the device is not
            supported.
        LabError: the compilation fails; the message has the last lines of its output.
    """
    tools.check()
    request.check_kernels()
    config = _config(request.model)
    about = json.dumps(request.about(), indent=2)
    parts: list[str | Path] = [about, request.form, str(request.require_tensorize), tools.key()]
    parts += [config, *folders_of(request.mode.extras)]
    key = digest(*parts, *([request.kernels] if request.kernels else []))
    log = _log(cache, f"mlc-library-{key}")

    def make(folder: Path) -> None:
        library = folder / ("model.so" if request.form == "shared" else LIBRARY)
        arguments = [str(config), "--quantization", _mlc_name(request.quantization)]
        arguments += ["--device", request.device, "--output", str(library)]
        arguments += ["--overrides", _overrides(request)]
        variables = request.configure(folder) | dict(request.environment)
        _run(tools, "compile", arguments, variables, log)
        if not library.is_file():
            raise LabError(f"mlc_llm compile wrote no {library.name}", remedy=_see(log))
        (folder / PASSES_FILE).unlink()
        (folder / "model.json").write_text(about + "\n", encoding="utf-8")

    return read_compiled(cached_build(cache, f"mlc-library-{request.quantization}", key, make))


def _overrides(request: MlcCompileRequest) -> str:
    about = request.about()
    names = ("context_window_size", "prefill_chunk_size", "max_batch_size")
    sizes = {name: about[name] for name in names} | dict(request.sizes)
    return ";".join(f"{name}={size}" for name, size in sizes.items())


def _mlc_name(quantization: str) -> str:
    """Return MLC-LLM's name of a format: float32's for GGUF, else the same name.

    In GGUF, weights that are not in blocks are float32.
    """
    return DEFAULT_FORMAT if quantization == GGUF else quantization


def _config(model: Path) -> Path:
    if (path := model / "config.json").is_file():
        return path
    raise UserError(f"no config.json in {model}", remedy="import the model first")


def _log(cache: Path, name: str) -> Path:
    """Return the path of a log in the cache, outside the folders of builds; make its folder."""
    folder = cache / "logs"
    folder.mkdir(parents=True, exist_ok=True)
    return folder / f"{name}.log"


def _see(log: Path) -> str:
    return f"the whole output is in {log}"


def _run(
    tools: MlcTools, command: str, arguments: Sequence[str], extra: Mapping[str, str], log: Path
) -> None:
    """Run a command of MLC-LLM; show its progress, and write its output to the log."""
    start = ["-P", str(_CONVERTER)] if command == "convert_weight" else ["-m", "mlc_llm"]
    line = [sys.executable, *start, command, *arguments]
    with (
        tempfile.TemporaryDirectory(prefix="mlc-home-") as home,
        log.open("w", encoding="utf-8", buffering=1) as sink,
        _console.status(f"mlc_llm {command}") as status,
        subprocess.Popen(
            line,
            # A temporary home, so that MLC-LLM's own cache of models is not used.
            env=tools.environment({"MLC_LLM_HOME": home, **extra}),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        ) as process,
    ):
        last = _follow(
            process, sink.write, lambda text: status.update(f"mlc_llm {command}: {text}")
        )
    if process.returncode == 0:
        return
    shown = "\n  ".join(last)
    message = f"mlc_llm {command} failed (exit code {process.returncode}):\n  {shown}"
    # Exit code 2 means wrong input: an unknown device or a malformed option.
    raise LabError(message, remedy=_see(log), exit_code=2 if process.returncode == 2 else 1)


def _follow(
    process: subprocess.Popen[str], write: Callable[[str], object], show: Callable[[str], None]
) -> list[str]:
    lines: list[str] = []
    assert process.stdout is not None  # asked for with PIPE
    for line in process.stdout:
        text = _COLOUR.sub("", line).strip()
        if not text:
            continue
        write(f"{text}\n")
        lines = [*lines[1 - LAST_LINES :], text]
        if " INFO " in text:
            show(escape(text.split(" INFO ", maxsplit=1)[1].partition(": ")[2][:80]))
    return lines
