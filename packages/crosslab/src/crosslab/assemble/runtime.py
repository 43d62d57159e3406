# SPDX-License-Identifier: Apache-2.0
"""TVM's runtime, Relax VM and paged KV cache, compiled for the target from a tree's sources."""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from crosslab.assemble.cmake import Configuration, build_objects, project_digest
from crosslab.assemble.libraries import package_folder, source_variables
from crosslab.cached_build import cached_build
from crosslab.errors import UserError
from crosslab.host.toolchain import CompilerKind, Machine, Toolchain
from groundwork.hashing import digest

SHIMS = Path(__file__).parents[1] / "native" / "shims"

# Options of a source that uses the runtime's headers; the project in runner/ has the same.
LANGUAGE_FLAGS = ("-std=c++20", "-fPIC", "-fvisibility=hidden", "-fvisibility-inlines-hidden")
DEFINES = (
    "-DTVM_FFI_EXPORTS",
    "-DTVM_RUNTIME_EXPORTS",
    # libbacktrace is not built: an error's message says enough on a board.
    "-DTVM_FFI_USE_LIBBACKTRACE=0",
    "-DTVM_FFI_BACKTRACE_ON_SEGFAULT=0",
)
TARGET = "tvm_runtime"
INCLUDES = ("include", "ffi/include")


@dataclass(frozen=True)
class Sources:
    """Sources of TVM that are compiled together.

    Attributes:
        name: of their objects in the cache.
        patterns: their paths in the tree, with tvm_ffi's sources below ``ffi``; empty: those of
            runner/cmake/tvm.cmake, which are the runtime.
        shims: folders of files that the tree lacks, in the tree's layout.
    """

    name: str
    patterns: tuple[str, ...] = ()
    shims: tuple[Path, ...] = (SHIMS,)


RUNTIME = Sources("runtime")


@dataclass(frozen=True)
class Runtime:
    """A compiled runtime.

    Attributes:
        folder: the whole of it.
        machine: what it is for.
        objects: every object file, sorted; all must be linked (they register themselves).
        includes: folders with the headers that a program on the runtime needs.
    """

    folder: Path
    machine: Machine
    objects: tuple[Path, ...]
    includes: tuple[Path, ...]

    @property
    def compile_flags(self) -> tuple[str, ...]:
        """Compiler options for a C++ source that uses the runtime's headers."""
        system = [f"-isystem{path}" for path in self.includes]
        return (*LANGUAGE_FLAGS, *DEFINES, *system)


def sanitizer_flags(names: Sequence[str]) -> tuple[str, ...]:
    """Return compiler options for sanitizers, whose first report ends the program; () for none."""
    if not names:
        return ()
    return (f"-fsanitize={','.join(names)}", "-fno-sanitize-recover=all", "-fno-omit-frame-pointer")


def ffi_root() -> Path:
    """Return the folder of the installed tvm_ffi package, which contains its C++ sources.

    Raises:
        UserError: apache-tvm-ffi is not installed.
    """
    return package_folder("tvm_ffi", "apache-tvm-ffi")


def build_runtime(
    tvm_tree: Path,
    toolchain: Toolchain,
    cache: Path,
    *,
    sources: Sources = RUNTIME,
) -> Runtime:
    """Compile the runtime, or return the cached one for the same sources, compiler and options.

    Args:
        tvm_tree: a TVM tree in git's layout: ``src/runtime`` and ``include`` at its top.
        toolchain: the compiler, which decides the machine.
        cache: folder for results that clones share.
        sources: sources to compile.

    Raises:
        UserError: the tree has no runtime sources, or a Python package is not installed.
        LabError: a file does not compile.
    """
    if not (tvm_tree / "src" / "runtime" / "vm" / "vm.cc").is_file():
        raise UserError(
            f"{tvm_tree} has no runtime sources (src/runtime)",
            remedy="make the patched tree with: nox -s apply_patches",
        )
    ffi = ffi_root()
    variables = {
        **source_variables(cache),
        "RUNNER_TVM": str(tvm_tree),
        "RUNNER_TVM_FFI": str(ffi),
        "RUNNER_TVM_SHIMS": ";".join(map(str, sources.shims)),
    }
    if sources.patterns:
        variables["RUNNER_TVM_SOURCES"] = ";".join(sources.patterns)
    key = digest(
        toolchain.digest,
        # Which Python starts zig, and which of its names a native compiler has, changes nothing.
        shlex.join(toolchain.cxx if toolchain.kind is CompilerKind.CLANG else toolchain.cxx[1:]),
        project_digest(),
        shlex.join(sources.patterns),
        tvm_tree / "src" / "runtime",
        tvm_tree / "include",
        ffi / "src",
        ffi / "include",
        *sources.shims,
    )

    def make(out: Path) -> None:
        (out / "objects").mkdir()
        configuration = Configuration(toolchain, variables)
        built = build_objects(sources.name, configuration, [TARGET], cache, out / "objects")
        for name in INCLUDES:
            shutil.copytree(built / "tvm" / name, out / name)

    made = cached_build(cache, f"{sources.name}-{toolchain.machine}", key, make)
    objects = tuple(sorted((made / "objects").glob("*.o")))
    includes = tuple(made / name for name in INCLUDES)
    return Runtime(made, toolchain.machine, objects, includes)
