# SPDX-License-Identifier: Apache-2.0
"""Provenance of an artefact: lock, trees, kernels, model and tools, with digests and licences."""

from __future__ import annotations

import hashlib
import json
import platform
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from crosslab.artifact.packages import build_packages
from crosslab.artifact.sbom import Part
from crosslab.assemble import libraries, link
from crosslab.assemble.kernels import COMMON_FLAGS, KernelTarget, compiler_for
from crosslab.assemble.pinned_archive import read_archive
from crosslab.assemble.runtime import ffi_root
from crosslab.compile.targets import LabTarget
from crosslab.host.toolchain import CompilerKind, Toolchain, output_of, sysroot_parts
from crosslab.json_table import read_applied
from crosslab.models.sources.model_folder import ModelOrigin
from crosslab.models.sources.pins import LOCK_NAME
from crosslab.project import PROJECT
from groundwork.hashing import sha256_by_path, sha256_of

PYTHON_LOCK = "uv.lock"
GROUPS = ("tvm",)
MLC_GROUPS = ("mlc",)
# Packages with C++ sources that are compiled into the runner.
SHIPPED_PACKAGES = frozenset({"apache-tvm-ffi", "nlohmann-json"})
OURS = "Apache-2.0"
EMULATOR_PACKAGE = "qemu-user"
LIBC_PACKAGE = "libc6-dev-riscv64-cross"
STDCPP_PACKAGE = "libstdc++-{version}-dev-riscv64-cross"
# Folder of the licence texts that Debian's copyright files name.
COMMON_LICENCES = Path("/usr/share/common-licenses")
DOCUMENTATION = Path("/usr/share/doc")
_GCC = "GPL-3.0-or-later WITH GCC-exception-3.1"
_LLVM = "Apache-2.0 WITH LLVM-exception"


@dataclass(frozen=True)
class TreeOrigin:
    """Inputs of a patched tree, from the report of ``forkpatch apply``.

    Attributes:
        name: name of the upstream.
        version: version of the upstream.
        base: git tree id of the upstream's files.
        tree: git tree id of the patched tree.
        patches: name and sha256 of each patch, in order.
        overlays: path and git blob id of each file that was added.
    """

    name: str
    version: str
    base: str
    tree: str
    patches: tuple[tuple[str, str], ...]
    overlays: tuple[tuple[str, str], ...]

    def table(self) -> dict[str, Any]:
        """Return the provenance, without the tree's name, as a table for the manifest."""
        overlays = {path: f"git-blob:{blob}" for path, blob in self.overlays}
        patches = [{"name": name, "sha256": sha256} for name, sha256 in self.patches]
        return {
            "version": self.version,
            "base_tree": self.base,
            "patched_tree": self.tree,
            "patches": patches,
            "overlays": overlays,
        }


def read_origins(path: Path) -> tuple[TreeOrigin, ...]:
    """Read the origins of the trees from a report of ``forkpatch apply --json``.

    Raises:
        UserError: the report is missing or malformed.
    """

    def made(upstreams: list[Any]) -> tuple[TreeOrigin, ...]:
        return tuple(
            TreeOrigin(
                name=str(entry["name"]),
                version=str(entry["version"]),
                base=str(entry["inputs"]["base"]),
                tree=str(entry["tree"]),
                patches=tuple((str(n), str(d)) for n, d in entry["inputs"]["patches"]),
                overlays=tuple((str(p), str(b)) for p, _, b in entry["inputs"]["overlays"]),
            )
            for entry in upstreams
            if entry["inputs"]
        )

    return read_applied(path, "what the trees were made from", made)


@dataclass(frozen=True)
class Provenance:
    """All inputs that determine an artefact.

    Attributes:
        project: the project's root.
        origins: inputs of the patched trees; empty without a report.
        passes: folder of the compiler passes that ran.
        model: origin of the model.
        targets: targets of the generated code.
        linking: inputs of the runner's link.
        with_mlc: True if MLC-LLM compiled the model.
        kernel_flags: compiler options of the kernels only.
        flags: compiler options of the other objects, by their parts.
    """

    project: Path
    origins: tuple[TreeOrigin, ...]
    passes: Path
    model: ModelOrigin
    targets: tuple[LabTarget, ...]
    linking: link.LinkRequest
    with_mlc: bool
    kernel_flags: tuple[str, ...] = ()
    flags: Mapping[str, Sequence[str]] = field(default_factory=dict)

    @property
    def toolchain(self) -> Toolchain:
        """The toolchain that compiled and linked the artefact."""
        return self.linking.toolchain

    @cached_property
    def lock(self) -> dict[str, Any]:
        """Content of VERSIONS.lock."""
        return tomllib.loads((self.project / LOCK_NAME).read_text(encoding="utf-8"))

    @cached_property
    def packages(self) -> list[Part]:
        """Installed Python packages that the build requires, by name; none of the checkout's."""
        groups = (*GROUPS, *(MLC_GROUPS if self.with_mlc else ()))
        also = SHIPPED_PACKAGES | {"apache-tvm"}
        parts = build_packages(self.project, groups, also)
        # TVM's wheel is only the compiler; the runtime in the artefact is from the tree.
        return [replace(part, shipped=part.name in SHIPPED_PACKAGES) for part in parts]

    def inputs(self) -> dict[str, Any]:
        """Return the manifest's inputs: digests of files and trees, and versions of packages."""
        return {
            "lock": sha256_of(self.project / LOCK_NAME),
            "python_lock": sha256_of(self.project / PYTHON_LOCK),
            "upstreams": {origin.name: origin.table() for origin in self.origins},
            "kernels": sha256_by_path(self.project / "kernels", "**/*.*"),
            "runner": sha256_by_path(self.project / "runner", "**/*.*"),
            "passes": sha256_by_path(self.passes, "**/*.py"),
            "lab": _sha256_of_table(
                sha256_by_path(self.project / "packages/crosslab/src", "crosslab/**/*.*")
                | sha256_by_path(self.project / "packages/groundwork/src", "groundwork/*.py")
            ),
            "model": dict(self.model.table),
            "python_packages": {part.name: part.version for part in self.packages},
        }

    def tools(self) -> dict[str, Any]:
        """Return the manifest's table of tools and their options."""
        libc, stdcpp = sysroot_parts()
        linked = [libc, stdcpp] if self.toolchain.kind is CompilerKind.CLANG else []
        return {
            "compiler": self.toolchain.version,
            "python": platform.python_version(),
            "debian_packages": _debian_versions(self._debian_packages()),
            "static_libraries": {path.name: sha256_of(path) for path in linked if path},
            "targets": [target.table() for target in self.targets],
            "flags": {
                **self.flags,
                "kernels": [*_plain(self._kernel_compiler), *COMMON_FLAGS, *self.kernel_flags],
                "link": _plain(link.link_options(self.linking)),
            },
        }

    def _debian_packages(self) -> list[str]:
        """Return the Debian packages of the compiler, linker, emulator and libraries."""
        _, stdcpp = sysroot_parts()
        if self.toolchain.kind is not CompilerKind.CLANG or stdcpp is None:
            return [EMULATOR_PACKAGE]
        suffix = self.toolchain.cc[0].removeprefix("clang")
        of_gcc = STDCPP_PACKAGE.format(version=stdcpp.parent.name)
        compilers = dict.fromkeys([f"clang{suffix}", self._kernel_compiler[0]])
        return [*compilers, f"lld{suffix}", EMULATOR_PACKAGE, LIBC_PACKAGE, of_gcc]

    @property
    def _kernel_compiler(self) -> tuple[str, ...]:
        """Command that compiled the kernels."""
        of = self.targets[0]
        return compiler_for(KernelTarget.RISCV64, zvfh=of.zvfh, tune=of.tune)

    def parts(self) -> list[Part]:
        """Return the components of the bill of materials."""
        sources = [self._own("kernels"), self._own("runner")]
        shipped = [*map(self._upstream, self.origins), *sources, *_libraries(), self._model()]
        return [*shipped, *self._c(), *self.packages]

    def _upstream(self, origin: TreeOrigin) -> Part:
        table = self.lock["upstreams"][origin.name]
        pinned = table["versions"][origin.version]
        commit, wheel = pinned.get("commit", ""), pinned.get("wheel", {})
        path = str(table["url"]).removeprefix("https://").removesuffix(".git")
        host, _, repository = path.partition("/")
        purl = f"pkg:github/{repository}@{commit}" if host == "github.com" and commit else ""
        if not commit and wheel:
            purl = f"pkg:pypi/{wheel['package']}@{wheel['version']}?tree={origin.base}"
        return Part(
            name=origin.name,
            version=origin.version,
            licence=table.get("license", ""),
            # TVM's runtime is compiled in; MLC-LLM only compiles the library.
            shipped=origin.name == "tvm",
            purl=purl,
            patches=tuple((f"patches/{origin.name}/{n}", d) for n, d in origin.patches),
            notes={
                "base-tree": origin.base,
                **{f"overlay:{path}": f"git-blob:{blob}" for path, blob in origin.overlays},
            },
        )

    def _own(self, folder: str) -> Part:
        """Return the component of a folder of this project, which is compiled in."""
        digest = _sha256_of_table(sha256_by_path(self.project / folder, "**/*.*"))
        return Part(f"mlc-rvv-{folder}", digest[:16], OURS, shipped=True, sha256=digest)

    def _model(self) -> Part:
        return Part(
            name=self.model.name,
            version=self.model.version,
            licence=self.model.licence,
            shipped=True,
            kind="machine-learning-model",
            purl=self.model.purl,
            sha256=self.model.sha256,
            notes={"file": self.model.file} if self.model.file else {},
        )

    def _c(self) -> list[Part]:
        """Return the components of the C and C++ libraries in the runner, and of the compiler."""
        compiler = Part(
            "compiler", self.toolchain.version, _LLVM, shipped=False, kind="application"
        )
        if self.toolchain.kind is not CompilerKind.CLANG:
            version = self.toolchain.version
            return [
                compiler,
                Part("musl", version, "MIT", shipped=True),
                Part("libc++", version, _LLVM, shipped=True),
            ]
        libc, stdcpp = sysroot_parts()
        assert libc and stdcpp  # the toolchain was found with both
        gcc = stdcpp.parent.name
        return [
            compiler,
            Part(
                "glibc",
                _libc_version(),
                "LGPL-2.1-or-later",
                shipped=True,
                sha256=sha256_of(libc),
                notes={
                    "debian-package": LIBC_PACKAGE,
                    "link-again": "relink.sh in the tarball of objects",
                },
            ),
            Part("libstdc++", gcc, _GCC, shipped=True, sha256=sha256_of(stdcpp)),
            Part("libgcc", gcc, _GCC, shipped=True),
        ]


def library_licences(toolchain: Toolchain) -> dict[str, Path]:
    """Return licence files of Debian's C and C++ libraries, if linked, by path in the artefact."""
    _, stdcpp = sysroot_parts()
    if toolchain.kind is not CompilerKind.CLANG or stdcpp is None:
        return {}
    of_gcc = STDCPP_PACKAGE.format(version=stdcpp.parent.name)
    return {
        "licenses/glibc/copyright": DOCUMENTATION / LIBC_PACKAGE / "copyright",
        "licenses/glibc/LGPL-2.1": COMMON_LICENCES / "LGPL-2.1",
        "licenses/libstdc++/copyright": DOCUMENTATION / of_gcc / "copyright",
        "licenses/libstdc++/GPL-3": COMMON_LICENCES / "GPL-3",
    }


def _libc_version() -> str:
    """Return Debian's version of the C library; "unknown" without dpkg (the hash identifies it)."""
    return next(iter(_debian_versions([LIBC_PACKAGE]).values()), "unknown")


def _dlpack() -> Part:
    """Return the component of DLPack's headers, which come with TVM's FFI and are compiled in."""
    header = ffi_root() / "include" / "dlpack" / "dlpack.h"
    text = header.read_text(encoding="utf-8")
    version = re.findall(r"^#define DLPACK_(?:MAJOR|MINOR)_VERSION (\d+)$", text, re.MULTILINE)
    return Part("dlpack", ".".join(version), "Apache-2.0", shipped=True, sha256=sha256_of(header))


def _libraries() -> tuple[Part, ...]:
    """Return the components of the compiled-in libraries that are not Python packages."""
    archives = map(_archive, (libraries.XGRAMMAR, libraries.JSONCONS))
    http, jinja, stb = libraries.HTTPLIB, libraries.JINJA, libraries.STB
    carried = (
        (http, http, "yhirose/cpp-httplib", "v", "httplib.cpp"),
        (jinja, "llama.cpp-jinja", "ggml-org/llama.cpp", "", "jinja/runtime.cpp"),
        (stb, "stb_image", "nothings/stb", "", "stb_image.h"),
    )
    return (_dlpack(), *(_carried(*library) for library in carried), *archives)


def _carried(library: str, name: str, repository: str, tag: str, file: str) -> Part:
    """Return the component of a library in llama.cpp's archive, known by one of its files."""
    pin = libraries.read_library(library)
    purl = f"pkg:github/{repository}@{tag}{pin.version}"
    return Part(name, pin.version, pin.license, shipped=True, purl=purl, sha256=pin.files[file])


def _archive(library: str) -> Part:
    """Return the component of a library whose archive is pinned; XGrammar's includes picojson."""
    archive = read_archive(PROJECT, library, "libraries")
    purl = f"pkg:pypi/{archive.package}@{archive.version}"
    return Part(
        library, archive.version, archive.license, shipped=True, purl=purl, sha256=archive.sha256
    )


def _plain(command: Sequence[str]) -> list[str]:
    """Return a command without the folders of its programs."""
    return [word if "/" not in word else _last(word) for word in command]


def _last(word: str) -> str:
    option, equals, value = word.rpartition("=")
    return f"{option}{equals}{value.rpartition('/')[2]}"


def _sha256_of_table(table: Mapping[str, str]) -> str:
    return hashlib.sha256(json.dumps(table, sort_keys=True).encode()).hexdigest()


def _debian_versions(packages: Sequence[str]) -> dict[str, str]:
    """Return dpkg's version of each installed package; empty without dpkg."""
    # The status of a removed package whose configuration is left is "rc".
    ask = ["dpkg-query", "--show", "--showformat=${db:Status-Abbrev} ${Version}"]
    told = {name: (output_of([*ask, name]) or "").split() for name in packages}
    return {name: words[1] for name, words in told.items() if words[:1] == ["ii"]}
