# SPDX-License-Identifier: Apache-2.0
"""C++ sources compiled to object files, several at once."""

from __future__ import annotations

import os
import shlex
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from crosslab.errors import LabError

FIRST_LINES = 25

_console = Console(stderr=True, highlight=False)


def object_name(source: Path | str) -> str:
    """Name of a source's object, by its whole path: two rooms may have files of one name."""
    return f"{'-'.join(Path(source).with_suffix('').parts)}.o"


def compile_objects(
    what: str,
    command: Sequence[str],
    sources: Sequence[str],
    folder: Path,
    out: Path,
    *,
    precompiled: Sequence[str] = (),
) -> None:
    """Compile each source to an object, and show the progress.

    Args:
        what: name for the display and for errors.
        command: compiler and options, without the file names.
        sources: paths relative to ``folder``, in which the compilers run.
        folder: where the sources are.
        out: receives the objects, see :func:`object_name`.
        precompiled: headers that most sources read; clang reads them once for all.

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
    with (
        tempfile.TemporaryDirectory(dir=out) as scratch,
        ThreadPoolExecutor(os.cpu_count() or 1) as pool,
        Progress(*columns, console=_console) as progress,
    ):
        task = progress.add_task("", total=len(sources))
        if precompiled:
            command = [*command, *_precompile(what, command, precompiled, folder, Path(scratch))]
        # Slow files first, so that the last seconds are not spent on one of them alone.
        order = sorted(sources, key=lambda s: -(folder / s).stat().st_size)
        running = {
            pool.submit(
                run_compiler,
                f"compiling {what}",
                [*command, "-c", s, "-o", str(out / object_name(s))],
                folder,
            ): s
            for s in order
        }
        try:
            for done in as_completed(running):
                done.result()
                progress.update(task, advance=1, description=running[done])
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _precompile(
    what: str, command: Sequence[str], headers: Sequence[str], folder: Path, scratch: Path
) -> list[str]:
    """Compile the headers in ``scratch``; options that make clang take them from there."""
    header, made = scratch / "precompiled.h", scratch / "precompiled.pch"
    header.write_text("".join(f"#include <{name}>\n" for name in headers), encoding="utf-8")
    options = ["-fpch-instantiate-templates", "-x", "c++-header"]
    run_compiler(f"compiling {what}", [*command, *options, str(header), "-o", str(made)], folder)
    return ["-include-pch", str(made)]


def shared_linker(command: Sequence[str], triple: str) -> Callable[..., None]:
    """Link function for TVM's ``export_library``, which by itself calls g++.

    Args:
        command: compiler command, perhaps of several words.
        triple: target triple of what is linked.
    """

    def link(output: str, objects: Sequence[str], options: Sequence[str] = ()) -> None:
        line = [*command, "-shared", "-fPIC", "-o", output, *objects, *options]
        run_compiler("linking a model", line, Path(output).parent)

    link.get_target_triple = lambda: triple  # type: ignore[attr-defined]
    return link


def run_compiler(doing: str, command: Sequence[str], folder: Path) -> None:
    """Run a compiler, a linker or a build tool in a folder.

    Args:
        doing: what it does, for the error.
        command: with all its options.
        folder: where.

    Raises:
        LabError: it fails; with its first lines.
    """
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, errors="replace", check=False
    )
    if done.returncode != 0:
        said = done.stderr.strip() or done.stdout.strip()
        first = "\n  ".join(said.splitlines()[:FIRST_LINES])
        raise LabError(f"{doing} failed:\n  {shlex.join(command)}\n  {first}")
