# SPDX-License-Identifier: Apache-2.0
"""The recipe of a build: everything that a runner with a model in it is made from."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from crosslab.assemble.kernel_values import find_values
from crosslab.compile.driver import DEFAULT_CHUNK, ImportedModule
from crosslab.compile.mlc import MlcTools
from crosslab.compile.modes import TILES, KernelMode
from crosslab.compile.targets import LabTarget
from crosslab.cores.core import Core
from crosslab.models.config import DEFAULT_CONTEXT, longest_of, read_table
from crosslab.models.formats import WeightFormat, weight_formats


@dataclass(frozen=True)
class Recipe:
    """The inputs of a runner with its model.

    Attributes:
        quantization: format of the weights, a name of :mod:`crosslab.models.formats`.
        vlens: bits in a vector register, ascending; of several, the program has a library for
            each, and takes that for the longest registers that its CPU has.
        tvm_tree: TVM tree that the model is compiled with.
        runtime_tree: TVM tree whose runtime is linked.
        model: folder of ``config.json`` and weights, as Hugging Face lays a model out; empty in a
            recipe of options, until the model is imported.
        mlc_tree: MLC-LLM tree that defines the model; None compiles the project's own definition.
        kernels: tensorize with the RVV kernels.
        require_tensorize: a model whose prefill attention calls no kernel is an error.
        steps: steps of the passes that run, or "-name" for all but one; None runs all, () none.
        context: longest sequence, tokens; None: the config's, through MLC-LLM its default at most.
        prefill_chunk: most tokens that one prefill call takes.
        sizes: further sizes that override the config's, with MLC-LLM alone.
        strip: leave symbols out of the program; counting by function needs them.
        mode: what the kernels of linear layers read.
        imported: a module to compile instead of the model; quantization and sizes are not used.
        dump_ir: keep the module after each pass beside the library, without MLC-LLM alone.
        tuned: database of a core, with values of kernels' parameters, and schedules of functions
            without a kernel; None: no database is read.
        cores: the cores whose values of kernels' parameters the list of kernels may have; empty:
            any core.
        halves: the CPUs have vectors of halves (Zvfh).
    """

    quantization: str
    vlens: tuple[int, ...]
    tvm_tree: Path
    runtime_tree: Path
    model: Path = Path()
    mlc_tree: Path | None = None
    kernels: bool = True
    require_tensorize: bool = True
    steps: tuple[str, ...] | None = None
    context: int | None = None
    prefill_chunk: int = DEFAULT_CHUNK
    sizes: tuple[tuple[str, int], ...] = ()
    strip: bool = True
    mode: KernelMode = TILES
    imported: ImportedModule | None = None
    dump_ir: bool = False
    tuned: Path | None = None
    cores: tuple[Core, ...] = ()
    halves: bool = False

    def of(self, model: Path) -> Recipe:
        """Return the recipe with a model's folder."""
        return replace(self, model=model)

    @property
    def longest(self) -> int:
        """Longest sequence of the compiled model, tokens."""
        own = longest_of(read_table(self.model / "config.json")) or DEFAULT_CONTEXT
        return self.context or (min(own, DEFAULT_CONTEXT) if self.mlc_tree else own)

    @property
    def mlc(self) -> MlcTools | None:
        """Return MLC-LLM's commands for the two trees; None without MLC-LLM."""
        if self.mlc_tree is None:
            return None
        return MlcTools(mlc_tree=self.mlc_tree, tvm_tree=self.tvm_tree)

    @property
    def path(self) -> str:
        """The compiler path: "mlc-llm" or "tvm-only"."""
        return "mlc-llm" if self.mlc_tree else "tvm-only"

    @property
    def weights(self) -> WeightFormat:
        """The format of the weights."""
        return weight_formats()[self.quantization]

    @property
    def zvfh(self) -> bool:
        """Return True if the format needs vectors of halves, and all cores have them."""
        return self.halves and self.weights.halves

    @property
    def targets(self) -> tuple[LabTarget, ...]:
        """The CPUs that code is generated for."""
        return tuple(LabTarget("riscv64", vlen, self.zvfh, self.tune) for vlen in self.vlens)

    @property
    def tune(self) -> str:
        """LLVM's name of the CPU that compilers schedule for; empty unless all cores share it."""
        names = {core.llvm for core in self.cores}
        return names.pop() if len(names) == 1 else ""

    @property
    def ime(self) -> bool:
        """True if a core's chip has SpacemiT's matrix unit."""
        return any(core.ime for core in self.cores)

    @property
    def label(self) -> str:
        """Name of the CPUs, like ``riscv64-rvv128-rvv256``."""
        halves = ["zvfh"] * self.zvfh
        return "-".join(["riscv64", *(f"rvv{vlen}" for vlen in self.vlens), *halves])

    @property
    def kernel_values(self) -> dict[str, int]:
        """Return tuned values of kernel parameters that replace the list's defaults.

        Raises:
            UserError: the database's were found for other kernels or vectors.
        """
        return find_values(self.tuned, self.vlens, self.cores)
