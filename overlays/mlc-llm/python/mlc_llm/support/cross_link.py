# SPDX-License-Identifier: Apache-2.0
"""Exporting a model library for a CPU other than this one."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from tvm.support import tar, utils

from .cross_errors import CrossTargetError

LINKER_VARIABLE = "CROSS_COMPILATION_CXX"
CLANGS = ("clang++-19", "clang++-20", "clang++-21", "clang++-22", "clang++-18", "clang++")

Exporter = Callable[..., None]


def exporter(output: Path, triple: str, environ: Mapping[str, str] | None = None) -> Exporter:
    """Return TVM's ``fcompile`` for an output: a ``.tar`` of objects, or a linked ``.so``.

    Raises:
        CrossTargetError: another suffix, or no command here links for the triple.
    """
    if output.suffix == ".tar":
        return tar.tar
    if output.suffix != ".so":
        raise CrossTargetError(
            f"cannot make {output.name!r} for {triple}: the output is a .so (shared library) or "
            "a .tar (objects to link statically)"
        )
    command = link_command(triple, os.environ if environ is None else environ)

    def link(
        shared: str, objects: Sequence[str] | str, options: Sequence[str] | None = None
    ) -> None:
        files = [objects] if isinstance(objects, str) else list(objects)
        unpacked = utils.tempdir()  # removed with its last reference, after the link
        files = tar.normalize_file_list_by_unpacking_tars(unpacked, files)
        _run([*command, "-shared", "-fPIC", "-o", shared, *(options or ()), *files])

    return link


def link_command(triple: str, environ: Mapping[str, str]) -> list[str]:
    """Return the command that links for a triple, without its inputs.

    It is what CROSS_COMPILATION_CXX says; else clang with lld; else the triple's own g++.

    Raises:
        CrossTargetError: the variable's command is malformed or missing, or all compilers are.
    """
    try:
        named = shlex.split(environ.get(LINKER_VARIABLE, ""))
    except ValueError as error:
        raise CrossTargetError(f"{LINKER_VARIABLE} is not a command: {error}") from error
    path = environ.get("PATH", os.defpath)
    if named:
        if not shutil.which(named[0], path=path):
            raise CrossTargetError(f"{LINKER_VARIABLE}: no command {named[0]!r} on this machine")
        return named
    for clang in CLANGS:
        lld = "ld.lld" + clang.removeprefix("clang++")
        if shutil.which(clang, path=path) and shutil.which(lld, path=path):
            return [clang, f"--target={triple}", f"-fuse-ld={lld.removeprefix('ld.')}"]
    gxx = f"{_gnu_name(triple)}-g++"
    if shutil.which(gxx, path=path):
        return [gxx]
    raise CrossTargetError(
        f"nothing here links for {triple}: install clang-19 and lld-19, or {gxx}, or set "
        f"{LINKER_VARIABLE} to the command that does, as 'python3 -m ziglang c++ -target "
        f"{_gnu_name(triple)}'; or make a .tar, which needs no linker"
    )


def _gnu_name(triple: str) -> str:
    """Return the triple without the vendor, as GNU tools and zig spell it."""
    parts = triple.split("-")
    return "-".join([parts[0], *parts[-2:]])


def _run(command: Sequence[str]) -> None:
    done = subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    if done.returncode:
        raise RuntimeError(f"linking failed: {shlex.join(command)}\n{done.stdout}")
