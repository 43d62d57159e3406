# SPDX-License-Identifier: Apache-2.0
"""Libraries of loop descriptions in kernels/loops, and the C header generated from them."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from crosslab.cores.core import CORES, Core, read_core
from crosslab.errors import LabError
from crosslab.loops.code import Loop
from crosslab.loops.emit import function
from crosslab.loops.machine import USUAL, Machine
from crosslab.loops.registers import allocate, available, pinned
from crosslab.loops.schedule import Scheduler

# The sources of the scheduler.
LOOPS = Path(__file__).parent

Describe = Callable[[Loop], None]
# Variants of the scheduler: cycles of an iteration that run ahead, and cycles of reordering.
HEADS = (0, 8, 24)
WINDOWS = ((0, 0), (0, 24), (8, 32), (16, 40))


@dataclass(frozen=True)
class Described:
    """A loop description, and the sizes of register groups to generate.

    Attributes:
        name: name of the C functions, without the suffix ``_m8`` and the like.
        lmuls: registers of a group of 32-bit elements, largest first.
        describe: function that writes the description.
        needs: condition of the C preprocessor for the functions; may be empty.
    """

    name: str
    lmuls: tuple[int, ...]
    describe: Describe
    needs: str = ""


@dataclass
class Library:
    """The loop descriptions of a file."""

    loops: list[Described] = field(default_factory=list)

    def add(self, name: str, *lmuls: int, needs: str = "") -> Callable[[Describe], Describe]:
        """Return a decorator that adds a describing function; see :class:`Described`."""

        def decorate(describe: Describe) -> Describe:
            self.loops.append(Described(name, lmuls, describe, needs))
            return describe

        return decorate


def read_loops(folder: Path) -> Iterator[Described]:
    """Yield the loop descriptions in a folder's files.

    Raises:
        LabError: a file has no library named ``loops``.
    """
    for file in sorted(folder.glob("*.py")):
        spec = importlib.util.spec_from_file_location(f"mlc_rvv_loops_{file.stem}", file)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        if not isinstance(library := getattr(module, "loops", None), Library):
            raise LabError(f"{file} has no Library named loops")
        yield from library.loops


def functions(described: Described, core: Core) -> str:
    """Return the C functions of a loop, in the best order for a core.

    If all orders for the core need too many registers, they are in the best order for the usual
    core, and a comment says so.

    Raises:
        LabError: every order needs more registers than available.
    """
    loop = Loop(described.lmuls[0])
    described.describe(loop)
    registers = {bank: len(names) for bank, names in available(loop).items()}
    for of in (core, read_core(CORES, USUAL)):
        scheduler = Scheduler(loop.body, Machine(of), pinned(loop), registers)
        for order in scheduler.orders(HEADS, WINDOWS):
            if placed := allocate(loop, order):
                text = "".join(
                    function(f"{described.name}_m{m}", loop, order, placed, described.lmuls[0] // m)
                    for m in described.lmuls
                )
                if of is not core:
                    text = f"// No order for {core.name} fits: this is one for {of.name}.\n{text}"
                needs = described.needs
                return f"#if {needs}\n{text}#endif\n" if needs else text
    raise LabError(f"the loop {described.name} needs more registers than there are")


_MADE: dict[tuple[Path, str], str] = {}


def loops_header(folder: Path, core: Core) -> str:
    """Return the C header with all loops of a folder; generated once per core."""
    key = folder, core.key
    if key not in _MADE:
        text = "".join(functions(described, core) for described in read_loops(folder))
        header = f"// Generated from {folder.name}/*.py for {core.name}.\n#pragma once\n{text}"
        _MADE[key] = header
    return _MADE[key]
