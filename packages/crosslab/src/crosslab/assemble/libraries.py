# SPDX-License-Identifier: Apache-2.0
"""C++ libraries of the runner: cpp-httplib, XGrammar, jsoncons, nlohmann-json, stb, Jinja.

Debian's libcpp-httplib-dev has declarations alone, and its code in a shared library for the
machine that builds: of no use to a static program for another one. The header of nlohmann-json is
a Python package; the others come out of source distributions that carry them. ``runner/cmake``
compiles them.
"""

from __future__ import annotations

import importlib.util
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from crosslab.assemble.cmake import Configuration, build_objects, project_digest
from crosslab.assemble.pinned_archive import LLAMA_CPP, PinnedArchive, read_archive, unpack
from crosslab.cached_build import cached_build
from crosslab.errors import UserError
from crosslab.host.toolchain import Toolchain
from crosslab.models.sources.pins import read_pinned
from crosslab.project import PROJECT
from groundwork.hashing import digest

HTTPLIB = "cpp-httplib"
JINJA = "jinja"
STB = "stb"
XGRAMMAR = "xgrammar"
JSONCONS = "jsoncons"
_CARRIED = "vendor/llama.cpp"  # llama.cpp's own tree in its archive
# Their objects are needed by any runner, and by the server alone.
TEMPLATES, OF_SERVER = (JINJA,), ("httplib", XGRAMMAR)
# Parts of the source distributions that carry a library whole.
_HEADERS = "src/include"
_PARTS = {
    XGRAMMAR: ("cpp/", "include", "3rdparty/picojson", "3rdparty/dlpack/include", "LICENSE"),
    JSONCONS: (f"{_HEADERS}/jsoncons/", f"{_HEADERS}/jsoncons_ext/"),
}


@dataclass(frozen=True)
class PinnedLibrary:
    """A pinned library, and the archive that contains it.

    Attributes:
        version: its version.
        license: SPDX expression.
        folder: its path in the archive.
        files: name of each file that is used to its sha256.
    """

    version: str
    license: str
    folder: str
    files: Mapping[str, str]


def read_library(name: str) -> PinnedLibrary:
    """Read the pin of a library inside llama.cpp's archive from ``VERSIONS.lock``.

    Raises:
        UserError: the lock has no such pin.
    """
    return read_pinned(PROJECT, "libraries", name, lambda entry: PinnedLibrary(**entry))


def _unpacked(
    source: PinnedArchive,
    parts: Sequence[str],
    cache: Path,
    name: str,
    key: str,
    known: Mapping[str, str] | None = None,
) -> Path:
    """Return the cached folder with parts of an archive's tree; see :func:`cached_build`."""

    def make(out: Path) -> None:
        with tempfile.TemporaryDirectory(prefix="source-") as at:
            tree = unpack(source, parts, Path(at))
            for part in parts:
                (out / part).parent.mkdir(parents=True, exist_ok=True)
                shutil.move(tree / part, out / part)

    return cached_build(cache, f"source-{name}", key, make, known=known)


def llama_cpp_sources(cache: Path) -> Path:
    """Return the folder with the files of llama.cpp's archive that the runner needs.

    Raises:
        UserError: a library is not pinned.
        LabError: the archive cannot be had, or does not hold the pinned files.
    """
    source = read_archive(PROJECT)
    known = {
        f"{_CARRIED}/{library.folder}/{file}": sha256
        for library in map(read_library, (HTTPLIB, JINJA, STB))
        for file, sha256 in library.files.items()
    }
    parts, key = (*known, f"{_CARRIED}/LICENSE"), digest(source.sha256, *known.values())
    return _unpacked(source, parts, cache, LLAMA_CPP, key, known=known)


def package_folder(module: str, package: str) -> Path:
    """Return the folder of an installed Python module.

    Raises:
        UserError: its package is not installed.
    """
    spec = importlib.util.find_spec(module)
    if spec is None or spec.origin is None:
        raise UserError(f"the Python package {package} is not installed")
    return Path(spec.origin).parent


def json_headers() -> Path:
    """Return the folder with nlohmann-json's headers in its Python package.

    Raises:
        UserError: the package is not installed.
    """
    return package_folder("nlohmann_json", "nlohmann-json") / "include"


def licences(cache: Path) -> dict[str, Path]:
    """Return the libraries' licence texts, by their paths in an artefact.

    Raises:
        UserError: a library is not pinned.
        LabError: an archive cannot be had.
    """
    of_json = (f for f in metadata.files("nlohmann-json") or () if f.name == "LICENSE")
    llama_cpp = llama_cpp_sources(cache) / _CARRIED
    httplib, stb = (llama_cpp / read_library(name).folder for name in (HTTPLIB, STB))
    xgrammar, jsoncons = (archive_sources(name, cache) for name in (XGRAMMAR, JSONCONS))
    return {
        "licenses/cpp-httplib/LICENSE": httplib / "LICENSE",
        "licenses/nlohmann-json/LICENSE": Path(str(next(of_json).locate())),
        "licenses/llama.cpp/LICENSE": llama_cpp / "LICENSE",
        "licenses/xgrammar/LICENSE": xgrammar / "LICENSE",
        # Their licences are comments in them.
        "licenses/stb/stb_image.h": stb / "stb_image.h",
        "licenses/picojson/picojson.h": xgrammar / "3rdparty" / "picojson" / "picojson.h",
        "licenses/jsoncons/json.hpp": jsoncons / _HEADERS / "jsoncons" / "json.hpp",
    }


def archive_sources(library: str, cache: Path) -> Path:
    """Return the cached folder with the sources of XGrammar or jsoncons.

    Raises:
        UserError: the library is not pinned.
        LabError: the archive cannot be had.
    """
    source, parts = read_archive(PROJECT, library, "libraries"), _PARTS[library]
    return _unpacked(source, parts, cache, library, digest(source.sha256, *parts))


def json_sources(cache: Path) -> Path:
    """Return a cached copy of nlohmann-json's headers, at the same path for all environments.

    Raises:
        UserError: the package is not installed.
    """
    headers = json_headers()

    def make(out: Path) -> None:
        shutil.copytree(headers, out / "nlohmann_json" / "include")

    return cached_build(cache, "source-nlohmann-json", digest(headers), make)


def source_folders(cache: Path) -> dict[str, Path]:
    """Return the unpacked archives, by their names in ``runner/cmake/libraries.cmake``."""
    return {
        "LLAMA_CPP": llama_cpp_sources(cache),
        **{name.upper(): archive_sources(name, cache) for name in _PARTS},
        "NLOHMANN_JSON": json_sources(cache),
    }


def source_variables(cache: Path) -> dict[str, str]:
    """Return CMake variables that name unpacked sources, so that CMake downloads nothing."""
    folders = source_folders(cache).items()
    variables = {f"FETCHCONTENT_SOURCE_DIR_{name}": str(folder) for name, folder in folders}
    return {**variables, "RUNNER_TABLES": str(unicode_tables(cache))}


def unicode_tables(cache: Path) -> Path:
    """Return the cached folder of the runner's generated Unicode tables."""

    def make(out: Path) -> None:
        from crosslab.tokenizer.unicode_tables import write_tables  # noqa: PLC0415 - slow to load

        write_tables(out)

    versions = (metadata.version(name) for name in ("tokenizers", "wcwidth"))
    generator = Path(__file__).parents[1] / "tokenizer"
    names = (
        "unicode_tables.py",
        "nfc_tables.py",
        "code_points.py",
        "word_rules.py",
        "word_rules.toml",
    )
    sources = (generator / name for name in names)
    return cached_build(cache, "unicode-tables", digest(*versions, *sources), make)


def configuration_of(
    toolchain: Toolchain, cache: Path, sanitizers: Sequence[str] = ()
) -> Configuration:
    """Return the CMake configuration of all targets that do not need TVM."""
    variables = {**source_variables(cache), "RUNNER_SANITIZERS": ",".join(sanitizers)}
    return Configuration(toolchain, variables)


def library_objects(
    toolchain: Toolchain, cache: Path, libraries: Sequence[str], sanitizers: Sequence[str]
) -> list[Path]:
    """Return the cached object files of libraries for a toolchain.

    Args:
        toolchain: the compiler.
        cache: folder of finished builds.
        libraries: names of the project's targets.
        sanitizers: of the program. Libraries have none, but share its build folder.

    Raises:
        UserError: CMake or Ninja is not installed.
        LabError: a library cannot be had, or does not compile.
    """
    configuration = configuration_of(toolchain, cache, sanitizers)
    return [path for name in libraries for path in _objects(name, configuration, cache)]


def _objects(name: str, configuration: Configuration, cache: Path) -> list[Path]:
    toolchain = configuration.toolchain
    source = archive_sources(name, cache) if name == XGRAMMAR else llama_cpp_sources(cache)
    key = digest(toolchain.digest, project_digest(), name, source.name, json_headers())

    def make(out: Path) -> None:
        build_objects(name, configuration, [name], cache, out)

    made = cached_build(cache, f"{name}-{toolchain.machine}", key, make)
    return sorted(made.glob("*.o"))
