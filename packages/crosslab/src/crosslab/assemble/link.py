# SPDX-License-Identifier: Apache-2.0
"""The runner: its own sources compiled on a runtime, and a model library linked into it."""

from __future__ import annotations

import json
import shlex
import tarfile
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path

from crosslab.assemble.cmake import FLAGS, RUNNER, build_objects, project_digest
from crosslab.assemble.libraries import (
    OF_SERVER,
    TEMPLATES,
    configuration_of,
    library_objects,
    source_variables,
)
from crosslab.assemble.runtime import Runtime, sanitizer_flags
from crosslab.cached_build import cached_build
from crosslab.compile.targets import prefix_of
from crosslab.errors import LabError, UserError
from crosslab.host.objects import run_compiler
from crosslab.host.toolchain import CompilerKind, Machine, Toolchain
from groundwork.hashing import digest

# Sources that only the server needs. No other source refers to what they define, except for the
# weak reference to Serve in program/serve.h.
SERVER = ("api/", "grammar/", "server/", "program/serve.cc")
# Object libraries of the project in runner/: without TVM's headers, and with them.
CORE_TARGETS, SERVER_TARGETS = ("text", "engine"), ("server", "serve")
LINKING = "linking the runner"


@dataclass(frozen=True)
class LinkRequest:
    """Inputs of a runner's link.

    Attributes:
        runtime: the compiled runtime.
        toolchain: what the runtime was compiled with.
        library: ``model.tar`` with the objects of a system library; None makes a runner that
            loads a ``.so`` named by ``--lib``.
        vlens: widths of vector registers in bits, ascending, that the library has code for. It
            computes wrong numbers on shorter ones. Of several, each has its own prefix
            (:func:`crosslab.compile.targets.prefix_of`). Empty: any CPU will do.
        zvfh: the library needs a CPU with vectors of halves (Zvfh).
        sanitizers: instrument the runner's own sources with these.
        objects: more objects of the program, such as what drives a device.
        strip: leave symbols out. They cost nothing at run time, and counting by function
            needs them.
        server: with ``runner serve``. Without it, the program has the same other objects, and
            neither XGrammar nor cpp-httplib is compiled.
    """

    runtime: Runtime
    toolchain: Toolchain
    library: Path | None = None
    vlens: tuple[int, ...] = ()
    zvfh: bool = False
    sanitizers: tuple[str, ...] = ()
    strip: bool = True
    objects: tuple[Path, ...] = ()
    server: bool = True


def link_runner(request: LinkRequest, cache: Path) -> Path:
    """Link a runner; the same inputs are linked once.

    Returns:
        The program. With a library in it, it is static, except on the host.

    Raises:
        UserError: a library is missing, or cannot be combined.
        LabError: compiling or linking fails.
    """
    _check(request)
    key = digest(
        *(folder.name for folder in _own_objects(request, cache)),
        request.runtime.folder.name,
        request.toolchain.digest,
        shlex.join(link_options(request)),
        _about_library(request),
        *((request.library,) if request.library else ()),
        *request.objects,
    )
    made = cached_build(
        cache, f"runner-{request.toolchain.machine}", key, lambda o: _link(request, cache, o)
    )
    return made / "runner"


def _check(request: LinkRequest) -> None:
    if request.library and not request.library.is_file():
        raise UserError(f"there is no model library {request.library}")
    if request.library is None and request.toolchain.kind is CompilerKind.ZIG:
        raise UserError(
            "a runner made by zig is static and cannot load a shared library",
            remedy="link the model in (a .tar library), or install clang",
        )


def _own_objects(request: LinkRequest, cache: Path) -> list[Path]:
    """Return the folders of the runner's own object files; the server's is the second."""
    return [
        _runner_objects(request, cache, server=part) for part in (False, True)[: 1 + request.server]
    ]


def _runner_objects(request: LinkRequest, cache: Path, *, server: bool) -> Path:
    """Return the cached object files of the server's sources, or of the other sources."""

    def key() -> str:
        return digest(
            request.runtime.folder.name,
            request.toolchain.digest,
            shlex.join(request.sanitizers),
            project_digest(),
            *(part for path in _sources(server) for part in (str(path), RUNNER / path)),
            *(Path(folder).name for folder in source_variables(cache).values()),
        )

    before = key()

    def make(out: Path) -> None:
        plain = configuration_of(request.toolchain, cache, request.sanitizers)
        includes = {"RUNNER_TVM_INCLUDES": ";".join(map(str, request.runtime.includes))}
        with_tvm = replace(plain, variables={**plain.variables, **includes})
        targets = SERVER_TARGETS if server else CORE_TARGETS
        for configuration, target in zip((plain, with_tvm), targets, strict=True):
            build_objects(f"runner: {target}", configuration, [target], cache, out)
        if key() != before:
            # The objects would be taken later for those of the sources from before.
            raise LabError(f"{RUNNER} changed while it was compiled", remedy="run it again")

    name = "server" if server else "runner"
    return cached_build(cache, f"{name}-objects-{request.toolchain.machine}", before, make)


def flags_of(request: LinkRequest, cache: Path) -> dict[str, list[str]]:
    """Return the compiler's options by CMake target: the runtime, and the runner's objects."""
    folders = (request.runtime.folder / "objects", *_own_objects(request, cache))
    paths = [path for folder in folders for path in sorted(folder.glob(f"*{FLAGS}"))]
    return {
        path.name.removesuffix(FLAGS): json.loads(path.read_text(encoding="utf-8"))
        for path in paths
    }


def _sources(server: bool) -> list[Path]:
    """List the files in ``runner/`` that the server's objects, or the others, depend on."""
    files = (path.relative_to(RUNNER) for path in RUNNER.rglob("*") if path.is_file())
    return sorted(
        path
        for path in files
        if path.suffix == ".h"
        or (path.suffix == ".cc" and path.as_posix().startswith(SERVER) == server)
        or (server and path.is_relative_to("server/page"))
    )


def link_options(request: LinkRequest) -> list[str]:
    """Return the linker's options, without object files."""
    options = [*request.toolchain.link, *sanitizer_flags(request.sanitizers)]
    if request.library is None:
        options.append("-rdynamic")
    elif request.toolchain.machine is Machine.RISCV64:
        options.append("-static")
    return [*options, "-s"] if request.strip else options


def _about_library(request: LinkRequest) -> str:
    """Return C source with a library's vector lengths, Zvfh and prefixes; empty without library."""
    if request.library is None:
        return ""
    several = len(request.vlens) > 1
    rows = [
        f'{{{vlen}, {int(request.zvfh)}, "{prefix_of(vlen) if several else ""}"}}'
        for vlen in request.vlens or (0,)
    ]
    return (
        "struct mlc_rvv_library { int vlen; int zvfh; const char* prefix; };\n"
        f"const struct mlc_rvv_library mlc_rvv_libraries[] = {{{', '.join(rows)}, {{0, 0, 0}}}};\n"
    )


@dataclass(frozen=True)
class Objects:
    """The object files of a runner, in the linker's order.

    Attributes:
        first: the runner's own objects.
        model: those of the model library.
        last: those of the runtime.
    """

    first: tuple[Path, ...]
    model: tuple[Path, ...]
    last: tuple[Path, ...]

    @property
    def all(self) -> tuple[Path, ...]:
        """Return all object files, in the linker's order."""
        return (*self.first, *self.model, *self.last)


def compile_parts(request: LinkRequest, cache: Path) -> list[Path]:
    """Return the object files of the runner and of its libraries, which all models share.

    Raises:
        LabError: compiling fails.
    """
    own, *server = (sorted(path.glob("*.o")) for path in _own_objects(request, cache))
    templates = library_objects(request.toolchain, cache, TEMPLATES, request.sanitizers)
    if server:
        parts = (request.toolchain, cache, OF_SERVER, request.sanitizers)
        server.append(library_objects(*parts))
    return [*own, *templates, *chain(*server)]


def objects_of(request: LinkRequest, cache: Path, scratch: Path) -> Objects:
    """Return the object files of a runner; make those of the model in ``scratch``.

    Raises:
        UserError: the file is not a model library.
        LabError: compiling fails.
    """
    parts = compile_parts(request, cache)
    about = scratch / "about.c"
    about.write_text(_about_library(request), encoding="utf-8")
    run_compiler(
        LINKING, [*request.toolchain.cc, "-O2", "-fPIC", "-c", about.name, "-o", "about.o"], scratch
    )
    model = _unpack(request.library, scratch / "model") if request.library else []
    return Objects(
        first=(*parts, scratch / "about.o", *request.objects),
        model=tuple(model),
        last=request.runtime.objects,
    )


def _link(request: LinkRequest, cache: Path, out: Path) -> None:
    with tempfile.TemporaryDirectory(dir=out) as at:
        objects = objects_of(request, cache, Path(at)).all
        # Object names go through a file: there are many, and their paths may be long.
        names = Path(at) / "objects.txt"
        names.write_text("\n".join(shlex.quote(str(o)) for o in objects), encoding="utf-8")
        options = link_options(request)
        run_compiler(LINKING, [*request.toolchain.cxx, f"@{names}", *options, "-o", "runner"], out)


def _unpack(library: Path, folder: Path) -> list[Path]:
    """Write the objects of a model library to a new folder; return their paths in order."""
    folder.mkdir()
    objects: list[Path] = []
    for name, data in read_objects(library):
        objects.append(folder / f"{len(objects)}-{Path(name).name}")
        objects[-1].write_bytes(data)
    if not objects:
        raise UserError(f"{library} holds no object files")
    return objects


def read_objects(library: Path) -> Iterator[tuple[str, bytes]]:
    """Yield names and contents of the objects in a model library.

    Raises:
        UserError: the file is not a model library.
    """
    try:
        with tarfile.open(library) as archive:
            for member in archive:
                stream = archive.extractfile(member) if member.name.endswith(".o") else None
                if stream is not None:
                    yield member.name, stream.read()
    except tarfile.TarError as error:
        raise UserError(f"{library} is not a model library: {error}") from error
