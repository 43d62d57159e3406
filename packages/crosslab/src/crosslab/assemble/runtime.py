# SPDX-License-Identifier: Apache-2.0
"""TVM's runtime, Relax VM and paged KV cache, compiled for the target from a tree's sources."""

from __future__ import annotations

import importlib.util
import shlex
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from crosslab.cached_build import cached_build
from crosslab.errors import UserError
from crosslab.host.objects import compile_objects
from crosslab.host.toolchain import CompilerKind, Machine, Toolchain
from groundwork.hashing import digest

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


@dataclass(frozen=True)
class Sources:
    """Sources of TVM that are compiled together.

    Attributes:
        name: of their objects in the cache.
        patterns: their paths in the tree, with tvm_ffi's sources below ``ffi``.
        shims: folders of files that the tree lacks, in the tree's layout.
    """

    name: str
    patterns: tuple[str, ...]
    shims: tuple[Path, ...] = (SHIMS,)


RUNTIME = Sources("runtime", (*TVM_SOURCES, *FFI_SOURCES))
# Headers that nearly all sources read: to read them once saves a third of the build.
PRECOMPILED = (
    *("algorithm", "functional", "memory", "string", "unordered_map", "vector"),
    *("tvm/ffi/any.h", "tvm/ffi/error.h", "tvm/ffi/function.h", "tvm/ffi/optional.h"),
    *("tvm/ffi/container/array.h", "tvm/ffi/container/map.h", "tvm/ffi/container/shape.h"),
    *("tvm/ffi/container/tensor.h", "tvm/ffi/extra/module.h", "tvm/ffi/string.h"),
    "tvm/ffi/reflection/registry.h",
)


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
        raise UserError("the Python package apache-tvm-ffi is not installed")
    return Path(spec.origin).parent


def build_runtime(
    tvm_tree: Path,
    toolchain: Toolchain,
    cache: Path,
    *,
    sanitizers: Sequence[str] = (),
    sources: Sources = RUNTIME,
) -> Runtime:
    """Compile the runtime; the same sources, compiler and options are compiled once.

    Args:
        tvm_tree: a TVM tree in git's layout: ``src/runtime`` and ``include`` at its top.
        toolchain: what to compile with, which also says for what.
        cache: folder for results that clones share.
        sanitizers: instrument with these, such as ("address", "undefined").
        sources: compile these.

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
        *sources.shims,
    )
    made = cached_build(
        cache,
        f"{sources.name}-{toolchain.machine}",
        key,
        lambda out: _build(tvm_tree, ffi, toolchain, flags, out, sources),
    )
    return read_runtime(made, toolchain.machine, tuple(sanitizers))


def read_runtime(folder: Path, machine: Machine, sanitizers: tuple[str, ...] = ()) -> Runtime:
    """Read a finished runtime."""
    objects = tuple(sorted((folder / "objects").glob("*.o")))
    includes = (folder / "include", folder / "ffi" / "include")
    return Runtime(folder, machine, objects, includes, sanitizers)


def _build(
    tvm_tree: Path,
    ffi: Path,
    toolchain: Toolchain,
    flags: Sequence[str],
    out: Path,
    chosen: Sources,
) -> None:
    sources, objects = _assemble(tvm_tree, ffi, out, chosen), out / "objects"
    objects.mkdir()
    includes = ("-I.", "-Iinclude", "-I3rdparty/compiler-rt", "-Iffi/include")
    # The scratch folder has a random name, which must not get into an object.
    command = [*toolchain.cxx, *flags, *includes, f"-ffile-prefix-map={out}=."]
    headers = PRECOMPILED if toolchain.is_clang else ()
    compile_objects(chosen.name, command, sources, out, objects, precompiled=headers)
    for name in ("src", "3rdparty", "ffi/src"):
        shutil.rmtree(out / name)


def _assemble(tvm_tree: Path, ffi: Path, out: Path, chosen: Sources) -> list[str]:
    """Lay the sources out as one tree, with our headers for missing ones; return their paths."""
    for name in ("src/runtime", "include"):
        shutil.copytree(tvm_tree / name, out / name)
    for name in ("src/ffi", "include"):
        shutil.copytree(ffi / name, out / "ffi" / name)
    shims = [(folder, path) for folder in chosen.shims for path in folder.rglob("*.[ch]*")]
    for folder, shim in shims:
        target = out / shim.relative_to(folder)
        if not target.exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(shim, target)
    found = [
        path.relative_to(out).as_posix()
        for pattern in chosen.patterns
        for path in out.glob(pattern)
        if path.name not in NOT_FOR_UNIX
    ]
    return sorted(found)
