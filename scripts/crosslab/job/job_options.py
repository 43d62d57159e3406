# SPDX-License-Identifier: Apache-2.0
"""Options of ``build-and-test``."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from crosslab.build.kernel_values import find_values
from crosslab.build.offload import Offload, find_offload
from crosslab.build.runner import Recipe
from crosslab.cached_build import add_cache_option
from crosslab.compile.modes import ACTIVATIONS, TILES, WEIGHTS, KernelMode
from crosslab.compile.schedules import add_tuned, find_database
from crosslab.compile.targets import VLENS, LabTarget
from crosslab.cores.core import read_core
from crosslab.errors import UserError, supply_mlc
from crosslab.json_table import read_applied
from crosslab.models.formats import (
    DEFAULT_FORMAT,
    FORMATS,
    OWN_FORMATS,
    WeightFormat,
    weight_formats,
)
from crosslab.models.sources.model_folder import name_of

BUILD_AND_TEST, MODEL = "build-and-test", "model"
MODEL_FORMAT = "q4f16_1"
DEFAULT_VLEN = 256
PROMPT = "What is the capital of France?"
PINNED_MODEL = "smollm2-135m"


@dataclass(frozen=True)
class Omission:
    """Something that was left out: what, why, and how to supply it."""

    what: str
    why: str
    remedy: str = ""


def read_omissions(report: Path | None) -> tuple[Omission, ...]:
    """Upstreams that the report of ``forkpatch apply --json`` names as missing.

    Args:
        report: its file; None for trees that were made otherwise, with nothing missing.

    Raises:
        UserError: the file is missing or is no such report.
    """
    if report is None:
        return ()

    def made(upstreams: list[Any]) -> tuple[Omission, ...]:
        return tuple(
            Omission(entry["name"], ", ".join(entry["reason"].splitlines()), entry["remedy"])
            for entry in upstreams
            if entry["state"] == "missing"
        )

    return read_applied(report, "which upstreams are missing", made)


@dataclass(frozen=True)
class Job:
    """One run of the main job.

    Attributes:
        project: the project's root.
        release: name of the release that the trees belong to.
        tvm_tree: the patched TVM tree.
        mlc_tree: the patched MLC-LLM tree; None compiles the project's own definition.
        applied: report of ``forkpatch apply --json`` on the trees, for the manifest; may be None.
        without: upstreams that it names as missing.
        source: the model as its user names it: pinned, a folder, a GGUF file, or of a hub.
        model: what it is called.
        vlens: bits in a vector register, ascending; of several, the artefact has a library each.
        prompt: the user's message.
        quantization: MLC-LLM's name of the parameters' format.
        mode: what the kernels of linear layers read.
        threads: worker threads of the model.
        max_new: most tokens to generate.
        report: where the JSON goes.
        cache: folder of builds that clones share.
        context: longest sequence, tokens; None: the model's own, or MLC-LLM's default.
        unchecked: a model that no reference computes is made all the same.
        offload: computes parts of the model; None: the CPU computes all of it.
        tuned: database of schedules for functions without a kernel; None: none.
        cores: names of the cores that it is for, with commas between them; None: any.
        verb: of the command.
    """

    project: Path
    release: str
    tvm_tree: Path
    mlc_tree: Path | None
    applied: Path | None
    without: tuple[Omission, ...]
    source: str
    model: str
    vlens: tuple[int, ...]
    prompt: str
    quantization: str
    mode: KernelMode
    threads: int
    max_new: int
    report: Path
    cache: Path
    context: int | None = None
    unchecked: bool = False
    offload: Offload | None = None
    tuned: Path | None = None
    cores: str | None = None
    verb: str = BUILD_AND_TEST

    @property
    def supply_mlc(self) -> str:
        """Remedy where MLC-LLM is missing."""
        return supply_mlc(self.verb.replace("-", "_"))

    @cached_property
    def zvfh(self) -> bool:
        """It is for CPUs with vectors of halves: each of its cores has them, and it computes so."""
        return self.weights.halves and have_zvfh(self.project, self.cores)

    @property
    def targets(self) -> tuple[LabTarget, ...]:
        """The CPUs that code is generated for."""
        return tuple(LabTarget("riscv64", vlen, self.zvfh) for vlen in self.vlens)

    @property
    def label(self) -> str:
        """Name of the CPUs, like ``riscv64-rvv128-rvv256``."""
        halves = ["zvfh"] * self.zvfh
        return "-".join(["riscv64", *(f"rvv{vlen}" for vlen in self.vlens), *halves])

    @property
    def kernel_values(self) -> dict[str, int]:
        """Values of kernels' parameters in place of the list's.

        Raises:
            UserError: the database's were found for other kernels or vectors.
        """
        return find_values(self.tuned, self.vlens, self.cores)

    def recipe(self, model: Path) -> Recipe:
        """The inputs of the runner.

        Args:
            model: the imported model's folder.
        """
        return Recipe(
            model=model,
            quantization=self.quantization,
            vlens=self.vlens,
            tvm_tree=self.tvm_tree,
            runtime_tree=self.tvm_tree,
            mlc_tree=self.mlc_tree,
            mode=self.mode,
            context=self.context,
            tuned=self.tuned,
            cores=self.cores,
            zvfh=self.zvfh,
        )

    @property
    def weights(self) -> WeightFormat:
        """The format of the parameters."""
        return weight_formats()[self.quantization]

    @property
    def tolerance(self) -> float:
        """Largest difference of a logit to the reference's, as a part of its largest."""
        return self.offload.tolerance if self.offload else self.weights.bound(self.mode.activations)

    @property
    def int8(self) -> bool:
        """Activations are rounded to int8."""
        return self.mode.activations == "int8"

    @property
    def name(self) -> str:
        """The artefact's name."""
        ending = f"-{self.offload.name}" if self.offload else self.mode.label
        return f"{self.model}-{self.quantization}{ending}"

    @property
    def path(self) -> str:
        """The compiler path: "mlc-llm" or "tvm-only"."""
        return "mlc-llm" if self.mlc_tree else "tvm-only"

    @property
    def dist(self) -> Path:
        """Folder of the finished model."""
        return self.project / "dist" / self.release / self.label / self.name


def parser(verb: str = BUILD_AND_TEST) -> argparse.ArgumentParser:
    """The command's options; ``model`` asks for a model, ``build-and-test`` has one."""
    options = argparse.ArgumentParser(
        prog=f"crosslab {verb}",
        description="Build a model for RVV, run it in the emulator, compare with a reference.",
        allow_abbrev=False,
    )
    add = options.add_argument
    kinds = "a Hugging Face folder, a GGUF file, hf:OWNER/NAME[@REVISION], or a pinned model"
    if verb == MODEL:
        add("source", metavar="MODEL", help=kinds)
        add("--name", help="what it is called in dist/ (the folder's name)")
    else:
        add("--model", dest="source", default=PINNED_MODEL, help=f"{kinds} ({PINNED_MODEL})")
    add("--project", type=Path, default=Path(), help="the project's root (.)")
    add("--release", default="unnamed", help="name of the release, for dist and report")
    add("--tvm-tree", type=Path, required=True, help="patched TVM tree")
    add("--mlc-tree", type=Path, help="patched MLC-LLM tree; without it, the own definition")
    add("--applied", type=Path, metavar="FILE", help="report of forkpatch apply --json")
    several = "several, for one artefact that runs on each: with commas"
    add("--vlen", metavar="N[,N...]", help=f"bits in a vector register (256); {several}")
    cores = "in place of --vlen: a core, a file in PROJECT/cores"
    add("--core", metavar="NAME[,NAME...]", help=f"{cores}; {several}")
    add("--context", type=int, metavar="N", help="longest sequence, tokens")
    add("--prompt", default=PROMPT, help="the user's message")
    add("--quantization", choices=FORMATS, help="format of the weights")
    add("--weights", choices=WEIGHTS, default=TILES.weights, help="order of weights (tiles)")
    add("--activations", choices=ACTIVATIONS, default="float32", help="of products (float32)")
    if verb == BUILD_AND_TEST:
        add("--accelerator", metavar="DEVICE", help="let a companion's device do linear layers")
        add("--attention", choices=("cpu", "device"), default="cpu", help="with it: where (cpu)")
    add("--threads", type=int, default=1, help="threads of the model (1)")
    most = 8 if verb == MODEL else 32
    add("--max-new", type=int, default=most, help=f"most tokens to generate ({most})")
    add_tuned(add)
    add("--unchecked", action="store_true", help="make what no reference computes as well")
    add("--json", type=Path, dest="report", help="report (PROJECT/out/build_and_test.json)")
    add_cache_option(options)
    return options


def parse_job(argv: Sequence[str], verb: str = BUILD_AND_TEST) -> Job:
    """Read the options.

    Raises:
        UserError: values that cannot go together.
    """
    return job_of(vars(parser(verb).parse_args(argv)), verb)


def job_of(args: dict[str, Any], verb: str = BUILD_AND_TEST) -> Job:
    """The job of what :func:`parser` read, which is used up.

    Raises:
        UserError: values that cannot go together.
    """
    args["project"] = args["project"].resolve()
    name = args.pop("name", None)
    args["model"] = name_of(name or args["source"])
    if name and args["model"] != name:
        raise UserError(
            f"--name {name} is no name of a folder in dist/",
            remedy=f"use small letters, digits, -, _ and .: --name {args['model']}",
        )
    stem = "build_and_test" if verb == BUILD_AND_TEST else args["model"]
    args["without"] = read_omissions(args["applied"])
    args["mode"] = KernelMode(args.pop("weights"), args.pop("activations"))
    device, attention = args.pop("accelerator", None), args.pop("attention", None)
    if device:
        args["offload"] = offload = find_offload(device, attention == "device")
        args["mode"] = mode_of(offload, args["mode"], args["quantization"])
        stem += f"-{offload.name}"
    args["report"] = args["report"] or args["project"] / "out" / f"{stem}.json"
    args["cores"] = args.pop("core")
    args["tuned"] = find_database(args["tuned"], args["cores"])
    args["vlens"] = vlens_of(args["project"], args.pop("vlen"), args["cores"])
    default = MODEL_FORMAT if verb == MODEL and args["mlc_tree"] else DEFAULT_FORMAT
    args["quantization"] = args["quantization"] or default
    job = Job(**args, verb=verb)
    numbers = {"threads": job.threads, "max-new": job.max_new, "context": job.context}
    for option, number in numbers.items():
        if number is not None and number < 1:
            raise UserError(f"--{option} {number} is too small", remedy="give 1 or more")
    job.weights.bound(job.mode.activations)
    if job.quantization not in OWN_FORMATS and job.mlc_tree is None:
        raise UserError(
            f"{job.quantization} is MLC-LLM's own quantization, and MLC-LLM is not here: "
            f"the project's own model definition takes {', '.join(OWN_FORMATS)} alone",
            remedy=job.supply_mlc,
        )
    return job


def mode_of(offload: Offload, asked: KernelMode, quantization: str | None) -> KernelMode:
    """The choice of kernels where a device multiplies.

    Raises:
        UserError: the user chose other weights or activations than the device takes.
    """
    if quantization not in (None, DEFAULT_FORMAT) or asked != TILES:
        raise UserError(
            f"{offload.name} rounds float32 weights and activations itself",
            remedy=f"leave out --quantization (it is {DEFAULT_FORMAT}), --weights, --activations",
        )
    return offload.mode


def vlens_of(project: Path, vlens: str | None, cores: str | None) -> tuple[int, ...]:
    """Bits in a vector register, ascending, of the CPUs that one artefact runs on.

    Raises:
        UserError: a length is not built for, or a core has another than the one that is named.
    """
    words = vlens.split(",") if vlens else []
    if unknown := [word for word in words if word not in map(str, VLENS)]:
        raise UserError(
            f"--vlen {vlens}: vector length {unknown[0]!r} is not built for",
            remedy=f"use some of: {','.join(map(str, VLENS))}",
        )
    if cores is None:
        return tuple(sorted({int(word) for word in words})) or (DEFAULT_VLEN,)
    vlen = int(words[0]) if len(words) == 1 else None
    if len(words) > 1:
        raise UserError("--vlen and --core: each names CPUs", remedy="leave out --vlen")
    return tuple(sorted({vlen_of(project, vlen, core) for core in cores.split(",")}))


def have_zvfh(project: Path, cores: str | None) -> bool:
    """True if each of the cores that are named, with commas between them, has vectors of halves."""
    names = cores.split(",") if cores else []
    return bool(names) and all(read_core(project / "cores", name).zvfh for name in names)


def vlen_of(project: Path, vlen: int | None, core: str | None) -> int:
    """Bits in a vector register, of a core where one is named."""
    if core is None:
        return vlen or DEFAULT_VLEN
    of_core = read_core(project / "cores", core).vlen
    if vlen not in (None, of_core):
        raise UserError(f"--vlen {vlen}: {core} has {of_core}", remedy="leave out --vlen")
    return of_core
