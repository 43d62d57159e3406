# SPDX-License-Identifier: Apache-2.0
"""Compiled kernels, and the report of the blocks that call them.

The configuration names the folder of the kernels, which ``crosslab kernels`` makes, and the folder
of reports, which gets ``tensorized.json``: a list of :class:`BlockReport`.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Collection, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import tvm
from tvm import IRModule, tirx
from tvm.target import Target

from .targets import canonical_arch, is_rvv_target, target_arch, vector_bits

REPORT = "tensorized.json"
# Vectors that the kernels' buffers are made for, in bits.
MOST_BITS = 1024


@dataclass(frozen=True)
class TileShape:
    """Product, element type and extents (in elements) of an attention kernel."""

    product: str
    dtype: str
    q_tile: int
    kv_tile: int
    d: int

    def __str__(self) -> str:
        return f"{self.product} {self.dtype} {self.q_tile}x{self.kv_tile}x{self.d}"


@dataclass(frozen=True)
class Packing:
    """Layout of group-quantized weights in 32-bit words, lowest bits first.

    Attributes:
        bits: width of a stored value.
        group: neighbouring inputs that share a scale.
        zero_point: stored value that means 0.
    """

    bits: int
    group: int
    zero_point: float

    def __str__(self) -> str:
        return f"{self.bits}-bit, in groups of {self.group}, zero point {self.zero_point:g}"

    @property
    def per_word(self) -> int:
        """Return the number of values in a word."""
        return 32 // self.bits

    def groups(self, k: int) -> int:
        """Return the number of groups, and so of scales, of k inputs."""
        return -(-k // self.group)

    def words(self, k: int) -> int:
        """Return the number of words of k inputs."""
        return self.groups(k) * self.group // self.per_word

    @property
    def tile_item(self) -> int:
        """Return the bytes of a tile's element: 1 if a byte holds whole values, else a word's 4."""
        return 1 if 8 % self.bits == 0 else 4


@dataclass(frozen=True)
class KernelLibrary:
    """A directory of compiled kernels.

    Attributes:
        index: the kernels.json that it was read from.
        target: "riscv64", or "host" for portable kernels.
        arch: machine that the object is for, as the first part of a target triple.
        features: features beyond the machine's common ones that the kernels need, in LLVM's words.
        object_file: the relocatable object.
        tiles: symbol of each attention kernel.
        routines: symbol of each routine of linear layers, by kind (as "gemm";
            ``crosslab.assemble.kernels.Routine`` lists them) and packing of the weights (None of
            float32).
    """

    index: Path
    target: str
    arch: str
    features: tuple[str, ...]
    object_file: Path
    tiles: dict[TileShape, str]
    routines: dict[tuple[str, Packing | None], str]

    @staticmethod
    def load(directory: Path) -> KernelLibrary:
        """Read ``directory/kernels.json``.

        Raises:
            RuntimeError: the file cannot be read, is malformed, or names a missing object.
        """
        index = directory / "kernels.json"
        remedy = f"Make it with: python -m crosslab kernels --target riscv64 --output {directory}"
        try:
            document = json.loads(index.read_text(encoding="utf-8"))
            if document["schema"] != 1:
                raise RuntimeError(f"{index} has schema {document['schema']!r}, expected 1")
            tiles = {
                TileShape(
                    *(entry[key] for key in ("product", "dtype", "q_tile", "kv_tile", "d"))
                ): entry["symbol"]
                for entry in document["kernels"]
            }
            routines = {
                (entry["kind"], entry["packing"] and Packing(**entry["packing"])): entry["symbol"]
                for entry in document.get("routines", [])
            }
            target, object_file = document["target"], directory / document["object"]
            arch = canonical_arch(document.get("arch", target))
            features = tuple(map(str, document.get("features", ())))
        except (OSError, KeyError, TypeError, ValueError) as error:
            raise RuntimeError(
                f"no usable list of kernels in {index}: {error!r}. {remedy}"
            ) from error
        if not object_file.is_file():
            raise RuntimeError(f"{index} names {object_file}, which is not there. {remedy}")
        return KernelLibrary(index, target, arch, features, object_file, tiles, routines)

    def attach(self, mod: IRModule, symbols: Collection[str]) -> IRModule:
        """Add the kernels' object file to a module's external modules, which the build links.

        Args:
            mod: the module.
            symbols: kernels that the module calls.
        """
        attached = list((mod.attrs or {}).get("external_mods", []))
        kernels = tvm.runtime.load_static_library(str(self.object_file), sorted(symbols))
        return mod.with_attr("external_mods", [*attached, kernels])

    def is_attached(self, mod: IRModule) -> bool:
        """Return True if a module already links kernels of this library."""
        attached = (mod.attrs or {}).get("external_mods", [])
        known = [*self.tiles.values(), *self.routines.values()]
        return any(other.implements_function(symbol) for other in attached for symbol in known)


@dataclass(frozen=True)
class BlockReport:
    """Kernel that a block calls, or the reason that it calls no kernel.

    Attributes:
        function: name of the function in its module.
        block: name of the block.
        symbol: the kernel, or None.
        reason: of a block without a kernel, else None.
    """

    function: str
    block: str
    symbol: str | None = None
    reason: str | None = None

    def __str__(self) -> str:
        return f"{self.function}, {self.block}: {self.symbol or self.reason}"


def library_for(target: Target, directory: Path | None) -> tuple[KernelLibrary | None, str | None]:
    """Return the library in a folder, if given, and the reason if no library fits the target.

    Raises:
        RuntimeError: the folder has no usable library.
    """
    library = KernelLibrary.load(directory) if directory else None
    return library, _misfit(target, library)


def _misfit(target: Target, library: KernelLibrary | None) -> str | None:
    if library is None:
        return "no kernel library: the configuration of the passes names no folder of kernels"
    wanted = "riscv64" if is_rvv_target(target) else target_arch(target)
    if library.arch != wanted or not (library.target == "host" or is_rvv_target(target)):
        return f"the kernels of {library.index} are for {library.arch}, the target is {wanted}"
    if is_rvv_target(target) and vector_bits(target) > MOST_BITS:
        return f"the kernels serve vectors of up to {MOST_BITS} bits, the target's are longer"
    features = list(library.features)
    if features and not tvm.target.codegen.target_has_features(features, target):
        return f"the kernels of {library.index} need {', '.join(features)} of the target"
    return None


def rewrite_with_kernels(
    mod: IRModule,
    rewrite: Callable[[str, tirx.PrimFunc], tuple[tirx.PrimFunc, Sequence[BlockReport]]],
) -> tuple[IRModule, list[BlockReport]]:
    """Rewrite the TIR functions of a module in the order of their names.

    Args:
        mod: the module; comes back itself where no block calls a kernel.
        rewrite: gives the new function for a name and a function, and reports of its blocks; the
            old function stays if no report names a kernel.
    """
    result, reports = mod.clone(), []
    for g_var, func in sorted(mod.functions_items(), key=lambda item: item[0].name_hint):
        if isinstance(func, tirx.PrimFunc):
            new, of_function = rewrite(g_var.name_hint, func)
            reports += of_function
            if any(report.symbol for report in of_function):
                result.update_func(g_var, new)
    return result if any(report.symbol for report in reports) else mod, reports


def write_reports(
    reports: Sequence[BlockReport], folder: Path | None, *, after: bool = False
) -> None:
    """Write the report file in a folder, if a folder is given; ``after``: append to the file."""
    if folder:
        file = folder / REPORT
        before = json.loads(file.read_text(encoding="utf-8")) if after and file.is_file() else []
        entries = [*before, *map(asdict, reports)]
        file.write_text(json.dumps(entries, indent=1) + "\n", encoding="utf-8")


def add_reports(
    reports: Sequence[BlockReport], folder: Path | None, logger: logging.Logger
) -> None:
    """Log reports, and append them to the report file in a folder."""
    write_reports(reports, folder, after=True)
    for report in reports:
        logger.info("%s", report)


def lines_of(reports: Sequence[BlockReport]) -> str:
    """Format reports as indented lines of a message."""
    return "".join(f"\n  {report}" for report in reports)
