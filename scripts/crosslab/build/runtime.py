# SPDX-License-Identifier: Apache-2.0
"""TVM's runtime, Relax VM and paged KV cache, compiled for the target from a tree's sources."""

from __future__ import annotations

import importlib.util
import os
import shlex
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from common.hashing import digest
from crosslab.cached_build import cached_build
from crosslab.errors import LabError, UserError
from crosslab.host.toolchain import CompilerKind, Machine, Toolchain

SHIMS = Path(__file__).parents[1] / "native" / "shims"

LANGUAGE_FLAGS = ("-std=c++20", "-fPIC", "-fvisibility=hidden", "-fvisibility-inlines-hidden")
DEFINES = (
    "-DTVM_FFI_EXPORTS",
    "-DTVM_RUNTIME_EXPORTS",
    # libbacktrace is not built: an error's message says enough on a board.
    "-DTVM_FFI_USE_LIBBACKTRACE=0",
    "-DTVM_FFI_BACKTRACE_ON_SEGFAULT=0",
)
BUILD_FLAGS = ("-O2", "-g0", "-ffunction-sections", "-fdata-sections", "-w")

# What of the tree is compiled. random and sort are what sampling calls.
TVM_SOURCES = (
    "src/runtime/*.cc",
    "src/runtime/vm/*.cc",
    "src/runtime/memory/*.cc",
    "src/runtime/extra/contrib/random/random.cc",
    "src/runtime/extra/contrib/sort/sort.cc",
)
FFI_SOURCES = ("ffi/src/ffi/*.cc", "ffi/src/ffi/extra/*.cc")
NOT_FOR_UNIX = ("backtrace_win.cc",)
FIRST_LINES = 25
# Headers that nearly all sources read: to read them once saves a third of the build.
PRECOMPILED = (
    *("algorithm", "functional", "memory", "string", "unordered_map", "vector"),
    *("tvm/ffi/any.h", "tvm/ffi/error.h", "tvm/ffi/function.h", "tvm/ffi/optional.h"),
    *("tvm/ffi/container/array.h", "tvm/ffi/container/map.h", "tvm/ffi/container/shape.h"),
    *("tvm/ffi/container/tensor.h", "tvm/ffi/extra/module.h", "tvm/ffi/string.h"),
    "tvm/ffi/reflection/registry.h",
)

_console = Console(stderr=True, highlight=False)


@dataclass(frozen=True)
class Runtime:
    """A compiled runtime.

    Attributes:
        folder: the whole of it.
        machine: what it is for.
        objects: every object file, sorted; all must be linked (they register themselves).
        includes: folders with the headers that a program on the runtime needs.
        sanitizers: what it is instrumented with, "address" or "undefined"; empty: nothing.
    """

    folder: Path
    machine: Machine
    objects: tuple[Path, ...]
    includes: tuple[Path, ...]
    sanitizers: tuple[str, ...]

    @property
    def compile_flags(self) -> tuple[str, ...]:
        """Compiler options for a C++ source that uses the runtime's headers."""
        system = [f"-isystem{path}" for path in self.includes]
        return (*LANGUAGE_FLAGS, *DEFINES, *system, *sanitizer_flags(self.sanitizers))


def sanitizer_flags(names: Sequence[str]) -> tuple[str, ...]:
    """Compiler options for these sanitizers; the first report ends the program."""
    if not names:
        return ()
    return (f"-fsanitize={','.join(names)}", "-fno-sanitize-recover=all", "-fno-omit-frame-pointer")


def ffi_root() -> Path:
    """Folder of the installed tvm_ffi package, which carries its own C++ sources.

    Raises:
        UserError: it is not installed.
    """
    spec = importlib.util.find_spec("tvm_ffi")
    if spec is None or spec.origin is None:
        raise UserError("the Python package apache-tvm-ffi is not installed here")
    return Path(spec.origin).parent


def build_runtime(
    tvm_tree: Path,
    toolchain: Toolchain,
    cache: Path,
    *,
    sanitizers: Sequence[str] = (),
) -> Runtime:
    """Compile the runtime; the same sources, compiler and options are compiled once.

    Args:
        tvm_tree: a TVM tree in git's layout: ``src/runtime`` and ``include`` at its top.
        toolchain: what to compile with, which also says for what.
        cache: folder for results that clones share.
        sanitizers: instrument with these, such as ("address", "undefined").

    Raises:
        UserError: the tree or tvm_ffi is not what is asked for.
        LabError: a file does not compile.
    """
    if not (tvm_tree / "src" / "runtime" / "vm" / "vm.cc").is_file():
        raise UserError(
            f"{tvm_tree} has no runtime sources (src/runtime)",
            remedy="make the patched tree with: nox -s apply_patches",
        )
    ffi = ffi_root()
    flags = (*LANGUAGE_FLAGS, *BUILD_FLAGS, *DEFINES, *sanitizer_flags(sanitizers))
    key = digest(
        toolchain.digest,
        # Which Python starts zig, and which of its names a native compiler has, changes nothing.
        shlex.join(toolchain.cxx if toolchain.kind is CompilerKind.CLANG else toolchain.cxx[1:]),
        shlex.join((*flags, *PRECOMPILED)),
        tvm_tree / "src" / "runtime",
        tvm_tree / "include",
        ffi / "src",
        ffi / "include",
        SHIMS,
    )
    made = cached_build(
        cache,
        f"runtime-{toolchain.machine}",
        key,
        lambda out: _build(tvm_tree, ffi, toolchain, flags, out),
    )
    return read_runtime(made, toolchain.machine, tuple(sanitizers))


def read_runtime(folder: Path, machine: Machine, sanitizers: tuple[str, ...] = ()) -> Runtime:
    """A runtime that was built before."""
    objects = tuple(sorted((folder / "objects").glob("*.o")))
    includes = (folder / "include", folder / "ffi" / "include")
    return Runtime(folder, machine, objects, includes, sanitizers)


def _build(
    tvm_tree: Path,
    ffi: Path,
    toolchain: Toolchain,
    flags: Sequence[str],
    out: Path,
) -> None:
    sources = _assemble(tvm_tree, ffi, out)
    (out / "objects").mkdir()
    includes = ("-I.", "-Iinclude", "-I3rdparty/compiler-rt", "-Iffi/include")
    # The scratch folder has a random name, which must not get into an object.
    command = [*toolchain.cxx, *flags, *includes, f"-ffile-prefix-map={out}=."]
    if toolchain.is_clang:
        command += _precompile(command, out)
    objects = {s: f"objects/{s.replace('/', '-').removesuffix('.cc')}.o" for s in sources}
    compile_all("runtime", command, objects, out, os.cpu_count() or 1)
    for name in ("src", "3rdparty", "ffi/src"):
        shutil.rmtree(out / name)
    for made in out.glob("precompiled.*"):
        made.unlink()


def _precompile(command: Sequence[str], out: Path) -> list[str]:
    """Compile the common headers in ``out``; options that make clang take them from there."""
    header = out / "precompiled.h"
    header.write_text("".join(f"#include <{name}>\n" for name in PRECOMPILED), encoding="utf-8")
    options = ["-fpch-instantiate-templates", "-x", "c++-header"]
    made = "precompiled.pch"
    _compile("runtime", [*command, *options, header.name, "-o", made], out)
    return ["-include-pch", made]


def _assemble(tvm_tree: Path, ffi: Path, out: Path) -> list[str]:
    """Lay the sources out as one tree, our headers where it lacks some; their relative paths."""
    for name in ("src/runtime", "include"):
        shutil.copytree(tvm_tree / name, out / name)
    for name in ("src/ffi", "include"):
        shutil.copytree(ffi / name, out / "ffi" / name)
    for shim in (p for p in SHIMS.rglob("*.h")):
        target = out / shim.relative_to(SHIMS)
        if not target.exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(shim, target)
    found = [
        path.relative_to(out).as_posix()
        for pattern in (*TVM_SOURCES, *FFI_SOURCES)
        for path in out.glob(pattern)
        if path.name not in NOT_FOR_UNIX
    ]
    return sorted(found)


def compile_all(
    what: str, command: Sequence[str], objects: Mapping[str, str], folder: Path, jobs: int
) -> None:
    """Compile sources, several at once, showing how far it is.

    Args:
        what: name for the display and for errors.
        command: compiler and options, without the file names.
        objects: source to object, relative to ``folder``, in which the compilers run.
        folder: where the sources are.
        jobs: how many compilers run at once.

    Raises:
        LabError: the first file that does not compile; the others are left undone.
    """
    columns = (
        TextColumn(f"  {what}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("[dim]{task.description}"),
    )
    with ThreadPoolExecutor(jobs) as pool, Progress(*columns, console=_console) as progress:
        task = progress.add_task("", total=len(objects))
        # Slow files first, so that the last seconds are not spent on one of them alone.
        order = sorted(objects, key=lambda s: -(folder / s).stat().st_size)
        running = {
            pool.submit(_compile, what, [*command, "-c", s, "-o", objects[s]], folder): s
            for s in order
        }
        try:
            for done in as_completed(running):
                done.result()
                progress.update(task, advance=1, description=running[done])
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _compile(what: str, command: Sequence[str], folder: Path) -> None:
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, errors="replace", check=False
    )
    if done.returncode != 0:
        first = "\n  ".join(done.stderr.strip().splitlines()[:FIRST_LINES])
        raise LabError(f"compiling {what} failed:\n  {shlex.join(command)}\n  {first}")
