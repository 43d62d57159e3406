# SPDX-License-Identifier: Apache-2.0
"""The CMake project of the runner, its libraries and TVM's runtime, built in the cache.

A configuration has one build folder for each checkout, so that a changed line compiles only what
depends on it. Finished objects are copied from there to folders named by the hash of their inputs.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from crosslab.errors import LabError, UserError
from crosslab.host.toolchain import CompilerKind, Machine, Toolchain
from crosslab.project import PROJECT
from groundwork.hashing import digest
from groundwork.locks import locked

RUNNER = PROJECT / "runner"
FLAGS = ".flags.json"  # after the name of a target
FIRST_LINES = 25
ROOM = 256 << 20  # of a build folder, bytes: most of it are precompiled headers
# Words of a compiler's command that name files of this machine.
_PLACES = ("-I", "-ffile-prefix-map", "-M", "-Winvalid-pch")
_PLACES_AND_NEXT = ("-isystem", "-MT", "-MF", "-o", "-c", "-Xclang", "-include")
_STATUS = "%f %t "  # of Ninja's lines

_console = Console(stderr=True, highlight=False)


@dataclass(frozen=True)
class Configuration:
    """A configuration of the project.

    Attributes:
        toolchain: the compiler.
        variables: CMake's cache variables.
    """

    toolchain: Toolchain
    variables: Mapping[str, str] = field(default_factory=dict)


def project_digest() -> str:
    """Return a hash of the build's own files: ``CMakeLists.txt`` and the folder ``cmake``."""
    files = [RUNNER / "CMakeLists.txt", *sorted((RUNNER / "cmake").rglob("*.*"))]
    return digest(*files)


@contextmanager
def built(
    what: str, configuration: Configuration, targets: Sequence[str], cache: Path
) -> Iterator[Path]:
    """Build targets; yield the build folder, which no other process changes during the block.

    Arguments and errors are those of :func:`build_objects`.
    """
    cmake, ninja = (find_tool(name) for name in ("cmake", "ninja"))
    options = _of_toolchain(configuration.toolchain)
    options += [f"-D{name}={value}" for name, value in configuration.variables.items()]
    machine = configuration.toolchain.machine
    key = digest(str(RUNNER), configuration.toolchain.digest, shlex.join(options))
    # CMake refuses a folder that it is given by another path, such as a link's.
    folder = (cache / f"cmake-{machine}-{key}").resolve()
    folder.parent.mkdir(parents=True, exist_ok=True)
    with locked(folder.with_name(f".{folder.name}.lock"), f"cmake-{machine} ({key})"):
        _check_room(folder)
        # Each time: the programs of an environment that is gone are not asked for.
        options += [f"-DCMAKE_MAKE_PROGRAM={ninja}"]
        configure = [cmake, "-G", "Ninja", "-S", str(RUNNER), "-B", str(folder), *options]
        try:
            _run(what, configure, progress=False)
        except LabError:
            # Half a configuration, such as one on a full disk, must not stay for the next run.
            shutil.rmtree(folder, ignore_errors=True)
            raise
        _run(what, [ninja, "-C", str(folder), *targets], progress=True)
        yield folder


def build_objects(
    what: str, configuration: Configuration, targets: Sequence[str], cache: Path, out: Path
) -> Path:
    """Build the objects of targets, and copy them to a folder.

    Args:
        what: name for the display and for errors.
        configuration: of the project.
        targets: object libraries of the project.
        cache: folder of finished builds, in which the build folder is.
        out: receives the objects, and a file with the options of the compiler for each target.

    Returns:
        the build folder.

    Raises:
        UserError: CMake or Ninja is not installed.
        LabError: a source does not compile.
    """
    with built(what, configuration, targets, cache) as folder:
        for target in targets:
            for name, path in _artefacts(folder, target):
                shutil.copyfile(path, out / name)
            flags = json.dumps(_flags(folder, target), indent=2)
            (out / f"{target}{FLAGS}").write_text(flags + "\n", encoding="utf-8")
    return folder


def _check_room(folder: Path) -> None:
    """Raise an error if the disk has no room for a build folder; CMake would blame the compiler."""
    if not folder.exists() and shutil.disk_usage(folder.parent).free < ROOM:
        raise UserError(
            f"no space left in {folder.parent} for compiling: {ROOM >> 20} MiB are needed",
            remedy="free some space, or use another folder: --cache DIR",
        )


def find_tool(name: str) -> str:
    """Find a program in the Python environment, else in the system.

    Raises:
        UserError: the program is missing.
    """
    path = shutil.which(name, path=str(Path(sys.executable).parent)) or shutil.which(name)
    if path is None:
        raise UserError(
            f"{name}, which builds C++, is missing",
            remedy="it is a dependency in pyproject.toml, which nox and uv install; or: "
            f"pip install {name}",
        )
    return path


def _of_toolchain(toolchain: Toolchain) -> list[str]:
    """Return CMake's options for a toolchain."""
    # The compiler was tried when it was found; a trial for another machine would need its linker.
    options = ["-DCMAKE_C_COMPILER_WORKS=1", "-DCMAKE_CXX_COMPILER_WORKS=1"]
    if toolchain.machine is Machine.RISCV64:
        options += ["-DCMAKE_SYSTEM_NAME=Linux", "-DCMAKE_SYSTEM_PROCESSOR=riscv64"]
    for language, command in (("C", toolchain.cc), ("CXX", toolchain.cxx)):
        count = 4 if toolchain.kind is CompilerKind.ZIG else 1  # python -m ziglang c++
        options += [f"-DCMAKE_{language}_COMPILER={';'.join(command[:count])}"]
        options += [f"-DCMAKE_{language}_FLAGS={shlex.join(command[count:])}"]
    return [*options, f"-DCMAKE_EXE_LINKER_FLAGS={shlex.join(toolchain.link)}"]


def _run(what: str, command: Sequence[str], *, progress: bool) -> None:
    """Run CMake or Ninja.

    Raises:
        LabError: the tool fails; the error has its first lines from the failure on.
    """
    columns = (TextColumn(f"  {what}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    environment = {**os.environ, "NINJA_STATUS": _STATUS}
    lines: list[str] = []
    with (
        subprocess.Popen(
            command,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        ) as process,
        Progress(*columns, console=_console, disable=not progress) as bar,
    ):
        task = bar.add_task("", total=None)
        assert process.stdout
        for line in process.stdout:
            lines.append(line.rstrip())
            done, total, *_ = (*line.split(" ", 2), "", "")
            if done.isdecimal() and total.isdecimal():
                bar.update(task, completed=int(done), total=int(total))
    if process.returncode != 0:
        last = max(0, len(lines) - FIRST_LINES)
        first = next((n for n, line in enumerate(lines) if line.startswith("FAILED")), last)
        said = "\n  ".join(lines[first : first + FIRST_LINES])
        raise LabError(f"compiling {what} failed:\n  {shlex.join(command)}\n  {said}")


def _artefacts(folder: Path, target: str) -> Iterator[tuple[str, Path]]:
    """Yield name and path of each object of a target."""
    names, paths = (
        (folder / "artefacts" / f"{target}.{kind}").read_text(encoding="utf-8").splitlines()
        for kind in ("names", "txt")
    )
    yield from zip(names, (folder / path for path in paths), strict=True)


def _flags(folder: Path, target: str) -> list[str]:
    """Return the compiler's options of a target, without paths."""
    table = json.loads((folder / "compile_commands.json").read_text(encoding="utf-8"))
    part = f"CMakeFiles/{target}.dir/"
    command = next(entry["command"] for entry in table if part in entry["command"])
    words = iter(shlex.split(command))
    flags: list[str] = []
    for word in words:
        if word in _PLACES_AND_NEXT:
            next(words)
        elif word == "-target":  # of zig
            flags += [word, next(words)]
        elif word.startswith("-") and word != "-m" and not word.startswith(_PLACES):
            flags.append(word)
    return flags
