# SPDX-License-Identifier: Apache-2.0
"""C++ libraries of the runner: cpp-httplib, XGrammar, nlohmann-json, and llama.cpp's Jinja.

Debian's libcpp-httplib-dev has declarations alone, and its code in a shared library for the
machine that builds: of no use to a static program for another one. The header of nlohmann-json is
a Python package; the others come out of source distributions that carry them.
"""

from __future__ import annotations

import base64
import hashlib
import importlib.util
import re
import shlex
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from crosslab.assemble.pinned_archive import PinnedArchive, read_archive, unpack, unpack_source
from crosslab.assemble.runtime import LANGUAGE_FLAGS
from crosslab.cached_build import cached_build
from crosslab.errors import LabError, UserError
from crosslab.host.objects import compile_objects
from crosslab.host.toolchain import Machine, Toolchain
from crosslab.models.sources.pins import read_pinned
from crosslab.project import PROJECT
from groundwork.hashing import digest

PAGE = PROJECT / "runner" / "server" / "page"
GGML = Path(__file__).parents[1] / "native" / "ggml" / "ggml.h"
HTTPLIB = "cpp-httplib"
JINJA = "jinja"
XGRAMMAR = "xgrammar"
_FLAGS = ("-g0", "-ffunction-sections", "-fdata-sections", "-w")
_VERSION = re.compile(r'^#define CPPHTTPLIB_VERSION "([^"]+)"$', re.MULTILINE)
# A file of the page's style or code, by its name in the element that it fills.
_INLINED = re.compile(r"<(style|script)>(\w+\.(?:css|js))</")
_LITERAL = 4000  # bytes of one string literal; compilers bound them


@dataclass(frozen=True)
class PinnedLibrary:
    """A library by the archive that carries it.

    Attributes:
        version: its version.
        licence: SPDX expression.
        folder: its path in the archive.
        files: name of each file that is used to its sha256.
    """

    version: str
    licence: str
    folder: str
    files: Mapping[str, str]


def read_library(name: str, project: Path = PROJECT) -> PinnedLibrary:
    """The pin of a library that llama.cpp carries, in a project's ``VERSIONS.lock``.

    Raises:
        UserError: the lock has no such pin.
    """

    def made(entry: dict[str, Any]) -> PinnedLibrary:
        fields = {name: entry[name] for name in ("version", "folder", "files")}
        return PinnedLibrary(licence=entry["license"], **fields)

    return read_pinned(project, "libraries", name, made)


def _carried(name: str, cache: Path, check: Callable[[Path], object] = lambda _: None) -> Path:
    """Folder of the files of a library that llama.cpp carries, made once."""
    library, source = read_library(name), read_archive(PROJECT)

    def make(out: Path) -> None:
        with tempfile.TemporaryDirectory(prefix="source-") as at:
            tree = unpack_source(source, [f"{library.folder}/"], Path(at))
            for file in library.files:
                (out / file).parent.mkdir(exist_ok=True)
                shutil.copyfile(tree / library.folder / file, out / file)
        check(out)

    key = digest(source.sha256, *library.files.values())
    return cached_build(cache, f"source-{name}", key, make, known=library.files)


def httplib_sources(cache: Path) -> Path:
    """Folder of httplib's header, code and licence, made once.

    Raises:
        UserError: it is not pinned.
        LabError: the archive cannot be had, or does not hold the pinned files.
    """

    def check(out: Path) -> None:
        found = _VERSION.findall((out / "httplib.h").read_text(encoding="utf-8"))
        if found != [read_library(HTTPLIB).version]:
            raise LabError(f"{read_archive(PROJECT).file} carries {HTTPLIB} {found}")

    return _carried(HTTPLIB, cache, check)


def jinja_sources(cache: Path) -> Path:
    """Folder of the code of llama.cpp's Jinja, made once; it raises as httplib_sources does."""
    return _carried(JINJA, cache, lambda out: (out / "ggml.h").write_bytes(GGML.read_bytes()))


def llama_cpp_licence(cache: Path) -> Path:
    """The licence of llama.cpp, which is that of its Jinja; it raises as httplib_sources does."""
    source = read_archive(PROJECT)

    def make(out: Path) -> None:
        with tempfile.TemporaryDirectory(prefix="source-") as at:
            shutil.copyfile(
                unpack_source(source, ["LICENSE"], Path(at)) / "LICENSE", out / "LICENSE"
            )

    return cached_build(cache, "licence-llama.cpp", digest(source.sha256), make) / "LICENSE"


def json_headers() -> Path:
    """The folder with nlohmann-json's headers.

    Raises:
        UserError: the package is not installed.
    """
    spec = importlib.util.find_spec("nlohmann_json")
    if spec is None or spec.origin is None:
        raise UserError("the Python package nlohmann-json is not installed")
    return Path(spec.origin).parent / "include"


def json_licence() -> Path:
    """The licence of nlohmann-json, as its package brings it.

    Raises:
        UserError: the package is not installed, or brings none.
    """
    try:
        files = metadata.files("nlohmann-json") or []
    except metadata.PackageNotFoundError:
        files = []
    found = next((file for file in files if file.name == "LICENSE"), None)
    if found is None:
        raise UserError("the Python package nlohmann-json, with its licence, is not installed")
    return Path(str(found.locate()))


def page_header(cache: Path) -> Path:
    """A folder for the compiler's ``-I`` with ``chat_page.h``: page and policy as C++ texts."""

    def make(out: Path) -> None:
        page, policy = chat_page()
        texts = _as_text("kChatPage", page.encode()) + _as_text("kChatPolicy", policy.encode())
        (out / "chat_page.h").write_text(f"#pragma once\n\n{texts}", "utf-8")

    return cached_build(cache, "chat-page", digest(PAGE, Path(__file__)), make)


def chat_page() -> tuple[str, str]:
    """The chat page as one file, and its Content-Security-Policy: only its own code runs."""
    hashes: dict[str, list[str]] = {"style": [], "script": []}

    def inlined(found: re.Match[str]) -> str:
        text = (PAGE / found[2]).read_text("utf-8")
        hashed = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        hashes[found[1]].append(f"'sha256-{hashed}'")
        return f"<{found[1]}>{text}</"

    page = _INLINED.sub(inlined, (PAGE / "chat.html").read_text("utf-8"))
    sources = [f"{name}-src {' '.join(given)}" for name, given in hashes.items()]
    fixed = ("connect-src 'self'", "img-src data:", "base-uri 'none'", "form-action 'none'")
    return page, "; ".join(("default-src 'none'", *sources, *fixed, "frame-ancestors 'none'"))


def _as_text(name: str, data: bytes) -> str:
    """C++ that defines a text of these bytes."""
    pieces = [data[at : at + _LITERAL] for at in range(0, len(data), _LITERAL)]
    # Octal escapes: they end after three digits, whatever follows.
    plain = {byte: chr(byte) for byte in range(0x20, 0x7F) if chr(byte) not in '"\\?'}
    lines = ("".join(plain.get(byte, f"\\{byte:03o}") for byte in piece) for piece in pieces)
    text = "\n".join(f'    "{line}"' for line in lines)
    return f"constexpr char {name}[] =\n{text};\n"


def include_folders(cache: Path) -> dict[str, Path]:
    """Folders in which the runner's sources find the libraries and the page, by their names."""
    return {
        **template_folders(cache),
        "httplib": httplib_sources(cache),
        "page": page_header(cache),
        **grammar_folders(cache),
    }


def template_folders(cache: Path) -> dict[str, Path]:
    """Folders of the libraries of a runner without its server, by their names."""
    return {"json": json_headers(), "jinja": jinja_sources(cache)}


def grammar_folders(cache: Path) -> dict[str, Path]:
    """Folders in which the runner's sources find XGrammar's headers, by their names."""
    xgrammar = xgrammar_sources(cache)
    return {"xgrammar": xgrammar / "include", "dlpack": xgrammar / "3rdparty/dlpack/include"}


def xgrammar_archive(project: Path = PROJECT) -> tuple[PinnedArchive, str]:
    """The pin of XGrammar in a project's ``VERSIONS.lock``, and its licence.

    Raises:
        UserError: the lock has no such pin.
    """

    def made(entry: dict[str, Any]) -> tuple[PinnedArchive, str]:
        return PinnedArchive(**{k: v for k, v in entry.items() if k != "license"}), entry["license"]

    return read_pinned(project, "libraries", XGRAMMAR, made)


def xgrammar_sources(cache: Path) -> Path:
    """Folder of XGrammar's code, with the headers of picojson and DLPack, made once.

    Raises:
        UserError: it is not pinned.
        LabError: the archive cannot be had.
    """
    source, _ = xgrammar_archive()

    def make(out: Path) -> None:
        with tempfile.TemporaryDirectory(prefix="source-") as at:
            tree = unpack(source, _XGRAMMAR_PARTS, Path(at))
            for part in _XGRAMMAR_PARTS:
                shutil.move(tree / part, out / part)
        shutil.rmtree(out / "cpp" / "tvm_ffi")  # Python's binding

    return cached_build(cache, f"source-{XGRAMMAR}", digest(source.sha256, *_XGRAMMAR_PARTS), make)


_XGRAMMAR_PARTS = ("cpp", "include", "3rdparty/picojson", "3rdparty/dlpack/include", "LICENSE")


@dataclass(frozen=True)
class Compilation:
    """How a library is compiled; never with sanitizers, which take minutes more.

    Attributes:
        name: of the library.
        folder: its sources.
        sources: their paths in the folder.
        flags: further options of the compiler.
        optimisation: by the machine; on this one only tests run it.
        precompiled: headers that most sources read.
        includes: folders of other libraries' headers.
    """

    name: str
    folder: Path
    sources: tuple[str, ...]
    flags: tuple[str, ...]
    optimisation: Mapping[Machine, str]
    precompiled: tuple[str, ...] = ()
    includes: tuple[Path, ...] = ()

    def objects(self, toolchain: Toolchain, cache: Path) -> list[Path]:
        """The objects for a machine, made once."""
        options = (*LANGUAGE_FLAGS, self.optimisation[toolchain.machine], *_FLAGS, *self.flags)
        headers = self.precompiled if toolchain.is_clang else ()
        # Headers name themselves in their errors' messages: not by where they lie here.
        places = {self.folder: self.name} | {path: path.parent.name for path in self.includes}
        words = shlex.join((*options, *headers, *places.values()))
        key = digest(toolchain.digest, words, self.folder.name, *self.includes)

        def make(out: Path) -> None:
            others = (f"-isystem{folder}" for folder in self.includes)
            maps = (f"-ffile-prefix-map={place}={name}" for place, name in places.items())
            command = [*toolchain.cxx, *options, *others, *maps]
            compile_objects(self.name, command, self.sources, self.folder, out, precompiled=headers)

        made = cached_build(cache, f"{self.name}-{toolchain.machine}", key, make)
        return sorted(made.glob("*.o"))


def _httplib(cache: Path) -> Compilation:
    # HTTP's cost is the network's: what matters is how long it takes to compile.
    levels = {Machine.RISCV64: "-O1", Machine.HOST: "-O0"}
    return Compilation(HTTPLIB, httplib_sources(cache), ("httplib.cpp",), ("-I.",), levels)


def _jinja(cache: Path) -> Compilation:
    folder = jinja_sources(cache)
    sources = sorted(path.relative_to(folder).as_posix() for path in folder.glob("**/*.cpp"))
    levels = {Machine.RISCV64: "-O1", Machine.HOST: "-O0"}
    flags = ("-std=c++17", "-I.")
    return Compilation(JINJA, folder, tuple(sources), flags, levels, includes=(json_headers(),))


def _xgrammar(cache: Path) -> Compilation:
    folder = xgrammar_sources(cache)
    sources = sorted(path.relative_to(folder).as_posix() for path in folder.glob("cpp/**/*.cc"))
    includes = ("-Iinclude", "-I3rdparty/picojson", "-I3rdparty/dlpack/include")
    # The runner decides what becomes of a warning.
    settings = {"LOG_CUSTOMIZE": 1, "ENABLE_CPPTRACE": 0, "ENABLE_INTERNAL_CHECK": 0}
    defines = (f"-DXGRAMMAR_{name}={value}" for name, value in settings.items())
    headers = ("algorithm", "functional", "memory", "optional", "string", "unordered_map")
    return Compilation(
        XGRAMMAR,
        folder,
        tuple(sources),
        ("-std=c++17", *includes, *defines),  # it is not C++20
        {Machine.RISCV64: "-O2", Machine.HOST: "-O1"},
        (*headers, "variant", "vector", "picojson.h"),
    )


def library_objects(toolchain: Toolchain, cache: Path) -> Sequence[Path]:
    """The objects of all compiled libraries for a machine.

    Raises:
        LabError: a library cannot be had, or does not compile.
    """
    return [*template_objects(toolchain, cache), *server_objects(toolchain, cache)]


def server_objects(toolchain: Toolchain, cache: Path) -> Sequence[Path]:
    """The objects of libraries that only the server needs; it raises as library_objects does."""
    libraries = (_httplib(cache), _xgrammar(cache))
    return [path for library in libraries for path in library.objects(toolchain, cache)]


def template_objects(toolchain: Toolchain, cache: Path) -> Sequence[Path]:
    """The objects of the engine of chat templates alone; it raises as library_objects does."""
    return _jinja(cache).objects(toolchain, cache)
