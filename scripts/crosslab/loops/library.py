# SPDX-License-Identifier: Apache-2.0
"""The loops of kernels/loops, and the C header that is generated from them."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from crosslab.cores.core import Core
from crosslab.errors import LabError
from crosslab.loops.code import Loop
from crosslab.loops.emit import function
from crosslab.loops.machine import Machine
from crosslab.loops.registers import allocate, available, pinned
from crosslab.loops.schedule import Scheduler

# The sources of the scheduler.
LOOPS = Path(__file__).parent

Describe = Callable[[Loop], None]
# What the scheduler tries: cycles of an iteration that run ahead, and of reordering.
HEADS = (0, 8, 24)
WINDOWS = ((0, 0), (0, 24), (8, 32), (16, 40))


@dataclass(frozen=True)
class Described:
    """A loop and the groups of registers that it is wanted for.

    Attributes:
        name: of the C functions, each with ``_m8`` and the like.
        lmuls: registers of a group of 32-bit elements, the most first.
        describe: writes the description.
        needs: the C compiler's name of an extension; without it the functions are left out.
    """

    name: str
    lmuls: tuple[int, ...]
    describe: Describe
    needs: str = ""


@dataclass
class Library:
    """The loops of one file."""

    loops: list[Described] = field(default_factory=list)

    def add(self, name: str, *lmuls: int, needs: str = "") -> Callable[[Describe], Describe]:
        """Decorate a description."""

        def added(describe: Describe) -> Describe:
            self.loops.append(Described(name, lmuls, describe, needs))
            return describe

        return added


def read_loops(folder: Path) -> Iterator[Described]:
    """The loops of a folder's files.

    Raises:
        LabError: a file has no ``loops``.
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
    """The C functions of a loop, in the order that suits a core best.

    Raises:
        LabError: no order needs at most the registers that there are.
    """
    loop = Loop(described.lmuls[0])
    described.describe(loop)
    registers = {bank: len(names) for bank, names in available(loop).items()}
    scheduler = Scheduler(loop.body, Machine(core), pinned(loop), registers)
    for order in scheduler.orders(HEADS, WINDOWS):
        if placed := allocate(loop, order):
            text = "".join(
                function(f"{described.name}_m{m}", loop, order, placed, described.lmuls[0] // m)
                for m in described.lmuls
            )
            needs = described.needs
            return f"#if defined({needs})\n{text}#endif\n" if needs else text
    raise LabError(f"the loop {described.name} needs more registers than there are")


_MADE: dict[tuple[Path, str], str] = {}


def loops_header(folder: Path, core: Core) -> str:
    """The C header with the functions of all loops of a folder; made once for a core."""
    key = folder, core.key
    if key not in _MADE:
        text = "".join(functions(described, core) for described in read_loops(folder))
        made = f"// Generated from {folder.name}/*.py for {core.name}.\n#pragma once\n{text}"
        _MADE[key] = made
    return _MADE[key]
