# SPDX-License-Identifier: Apache-2.0
"""Options of ``bench``."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from crosslab import bench
from crosslab.build.pinned_archive import LLAMA_CPP
from crosslab.cached_build import add_cache_option
from crosslab.compile.driver import MAX_BATCH
from crosslab.compile.mlc import DEFAULT_CONTEXT
from crosslab.compile.modes import ACTIVATIONS, TILES, WEIGHTS, KernelMode
from crosslab.compile.schedules import add_tuned, find_database
from crosslab.compile.targets import VLENS
from crosslab.cores.core import Core, read_core
from crosslab.errors import UserError, supply_mlc
from crosslab.models.config import LlamaConfig, read_config
from crosslab.models.formats import DEFAULT_FORMAT, FORMATS, OWN_FORMATS, weight_formats
from crosslab.peers import openblas
from crosslab.remote import add_options

T = TypeVar("T")
OWN, MLC = "own", "mlc-llm"
SWITCHES = ("kernels",)
PEERS = (LLAMA_CPP, openblas.NAME)
FORM = "NAME=TREE[,mlc=TREE][,kernels][,steps=A+B]"

# The small Llama that every figure in the documentation is measured on unless it says otherwise.
MODEL_S = LlamaConfig(
    hidden=256, intermediate=688, heads=4, kv_heads=4, head_dim=64, layers=2, vocab=512
)
# Names of models whose weights are pinned, and which asset of VERSIONS.lock each is.
PINNED = {"smollm2": "smollm2-135m", "smollm2-135m": "smollm2-135m"}


@dataclass(frozen=True)
class Variant:
    """One way to compile the model.

    Attributes:
        name: as the table shows it.
        tree: the TVM tree.
        mlc_tree: the MLC-LLM tree that goes with it; None where this step has none.
        kernels: tensorize with the RVV kernels.
        steps: steps of the passes that run, or "-name" for all but one; None takes all with
            kernels, and none without.
    """

    name: str
    tree: Path
    mlc_tree: Path | None = None
    kernels: bool = False
    steps: tuple[str, ...] | None = None

    @property
    def passes(self) -> tuple[str, ...] | None:
        """The project's passes that run; None for all."""
        return () if self.steps is None and not self.kernels else self.steps

    @classmethod
    def parse(cls, text: str) -> Variant:
        """Read ``NAME=TREE[,mlc=TREE][,kernels][,steps=A+B]``.

        Raises:
            UserError: it is not of this form.
        """
        name, equals, rest = text.partition("=")
        tree, *switches = rest.split(",")
        values = dict(s.split("=", 1) for s in switches if s.startswith(("mlc=", "steps=")))
        flags = [s for s in switches if not s.startswith(("mlc=", "steps="))]
        unknown = [flag for flag in flags if flag not in SWITCHES]
        if not (name and equals and tree) or unknown or values.get("mlc") == "":
            raise UserError(f"--variant {text!r}", remedy=f"its form is {FORM}")
        steps = values.get("steps")
        return cls(
            name,
            Path(tree),
            Path(values["mlc"]) if "mlc" in values else None,
            "kernels" in flags,
            None if steps is None else tuple(filter(None, steps.split("+"))),
        )


@dataclass(frozen=True)
class Bench:
    """The measurements: every variant of every quantization, VLEN and prompt.

    Attributes:
        project: the project's root.
        tvm_tree: the tree the runtime is built from.
        variants: in the order of the table; the first is what the others are compared with.
        model: its name in the report.
        asset: the pinned model; empty: random weights.
        config: its sizes; None for a pinned model, whose file says them.
        path: "own" or "mlc-llm", the definition that is compiled; None takes the own one where
            it knows the quantization.
        quantizations: of the weights.
        vlens: bits in a vector register.
        prompts: tokens of each prompt.
        decode: tokens generated after each prompt, the first of them the prefill's.
        threads: worker threads of the guest.
        profile: count by function too.
        core: the one whose cycles are told; None: instructions alone.
        peer: another program that is measured as well; empty: none.
        mode: what the kernels of linear layers read, in variants with kernels.
        caches: simulate the core's caches.
        together: sequences that are decoded in one batch, beside one alone; 1: no batch.
        tuned: database of a core, which variants with kernels are compiled with; None: none.
        no_zvfh: compile as for a core without vectors of halves.
        report: where the JSON goes.
        cache: folder of builds that clones share.
    """

    project: Path
    tvm_tree: Path
    variants: tuple[Variant, ...]
    model: str
    asset: str
    config: LlamaConfig | None
    path: str | None
    quantizations: tuple[str, ...]
    vlens: tuple[int, ...]
    prompts: tuple[int, ...]
    decode: int
    threads: int
    profile: bool
    report: Path
    cache: Path
    core: Core | None = None
    peer: str = ""
    mode: KernelMode = TILES
    caches: bool = False
    together: int = 1
    tuned: Path | None = None
    no_zvfh: bool = False

    def zvfh(self, quantization: str) -> bool:
        """Models are compiled for vectors of halves: they compute so, and the core has them."""
        halves = weight_formats()[quantization].halves and not self.no_zvfh
        return halves and self.core is not None and self.core.zvfh

    @property
    def cache_option(self) -> str:
        """The caches that the counter simulates; empty: none."""
        memory = self.core.memory if self.core and self.caches else None
        return memory.counter_option if memory else ""

    @property
    def kernels_fit(self) -> bool:
        """It is an error when no kernel fits; a model of the user's may have any shape."""
        return bool(self.asset) or self.config == MODEL_S

    def path_of(self, quantization: str) -> str:
        """The definition of the model that is compiled for a quantization."""
        return self.path or (OWN if quantization in OWN_FORMATS else MLC)

    def variants_of(self, quantization: str) -> list[Variant]:
        """The variants that there are on its path."""
        through_mlc = self.path_of(quantization) == MLC
        return [v for v in self.variants if v.mlc_tree or not through_mlc]

    def check_context(self, config: LlamaConfig) -> None:
        """Make sure that the longest prompt and its answer fit.

        Raises:
            UserError: they do not.
        """
        wanted, room = max(self.prompts) + self.decode, min(config.context, DEFAULT_CONTEXT)
        if wanted > room:
            raise UserError(
                f"a prompt of {max(self.prompts)} tokens and {self.decode} generated ones do not "
                f"fit a context of {room}",
                remedy="give less to --prefill or --decode",
            )


def parser() -> argparse.ArgumentParser:
    """The command's options."""
    options = argparse.ArgumentParser(
        prog="crosslab bench", description=bench.__doc__, allow_abbrev=False
    )
    add = options.add_argument
    several: dict[str, Any] = {"nargs": "+", "action": "extend"}
    add("--project", type=Path, default=Path(), help="the project's root (.)")
    add("--tvm-tree", type=Path, required=True, help="tree the runtime is built from")
    add("--variant", action="append", required=True, metavar=FORM, help="in the table's order")
    add("--against", metavar="NAME", help="this variant (upstream) and the last one, no others")
    add("--model", default="S", help="S, smollm2, or a config.json with random weights (S)")
    add(
        "--quantization",
        choices=FORMATS,
        **several,
        help=f"one or more ({DEFAULT_FORMAT})",
    )
    add("--path", choices=(OWN, MLC), help="whose definition of the model (own, where it can)")
    add("--prefill", type=int, **several, metavar="N", help="tokens of each prompt (128)")
    add("--decode", type=int, default=8, metavar="N", help="tokens to generate (8)")
    add("--vlen", type=int, choices=VLENS, **several, help="bits in a vector register (256)")
    add("--threads", type=int, default=1, metavar="N", help="the guest's TVM_NUM_THREADS (1)")
    add("--profile", action="store_true", help="the functions that execute most, too")
    add("--weights", choices=WEIGHTS, default=TILES.weights, help="order of weights (tiles)")
    add("--activations", choices=ACTIVATIONS, default="float32", help="of products (float32)")
    add("--core", metavar="NAME", help="cycles on this core, a file in PROJECT/cores, as well")
    add("--no-zvfh", action="store_true", help="as for a core without vectors of halves")
    add_tuned(add)
    add("--caches", action="store_true", help="simulate the core's caches, too; much slower")
    add("--together", type=int, default=1, metavar="N", help="decode N sequences in a batch, too")
    add("--peer", choices=PEERS, help="count another program beside ours; openblas: its sgemm")
    add("--json", type=Path, dest="report", help="report (PROJECT/out/bench.json)")
    add_cache_option(options)
    add_options(add)
    return options


def parse_bench(argv: Sequence[str]) -> Bench:
    """Read the options; errors as :func:`bench_of`."""
    return bench_of(parser().parse_args(argv))


def bench_of(args: argparse.Namespace) -> Bench:
    """The measurements that options ask for.

    Raises:
        UserError: values that cannot be, or cannot go together.
    """
    prompts = _unique(args.prefill or [128])
    if min(prompts) < 1 or args.decode < 3 or args.threads < 1:
        raise UserError(
            f"--prefill {' '.join(map(str, prompts))} --decode {args.decode} "
            f"--threads {args.threads}",
            remedy="give prompts of 1 token or more, 3 generated tokens or more, 1 thread or more",
        )
    asset = PINNED.get(args.model, "")
    core = read_core(args.project / "cores", args.core) if args.core else None
    made = Bench(
        project=args.project,
        tvm_tree=args.tvm_tree,
        variants=_chosen(tuple(map(Variant.parse, args.variant)), args.against),
        model="smollm2" if asset else args.model,
        asset=asset,
        config=None if asset else _config(args.model),
        path=args.path,
        quantizations=_unique(args.quantization or [DEFAULT_FORMAT]),
        vlens=_vlens(args.vlen, core),
        prompts=prompts,
        decode=args.decode,
        threads=args.threads,
        profile=args.profile,
        report=args.report or args.project / "out" / "bench.json",
        cache=args.cache,
        core=core,
        peer=args.peer or "",
        mode=KernelMode(args.weights, args.activations),
        caches=args.caches,
        together=args.together,
        tuned=find_database(args.tuned, args.core),
        no_zvfh=args.no_zvfh,
    )
    _check_paths(made)
    _check_caches(made)
    _check_together(made)
    if made.config:
        made.check_context(made.config)
    return made


def _unique(values: Sequence[T]) -> tuple[T, ...]:
    return tuple(dict.fromkeys(values))


def _vlens(wanted: Sequence[int] | None, core: Core | None) -> tuple[int, ...]:
    vlens = _unique(wanted or [core.vlen if core else 256])
    if core and vlens != (core.vlen,):
        raise UserError(
            f"--core {core.key}: its cycles were measured with a VLEN of {core.vlen} alone",
            remedy=f"leave out --vlen, or give --vlen {core.vlen}",
        )
    return vlens


def _config(model: str) -> LlamaConfig:
    if model == "S":
        return MODEL_S
    if not Path(model).is_file():
        raise UserError(
            f"--model {model}: neither a model's name nor a file",
            remedy="give S, smollm2, or the path of a Llama-like model's config.json",
        )
    return read_config(Path(model))


def _chosen(variants: tuple[Variant, ...], against: str | None) -> tuple[Variant, ...]:
    if against is None:
        return variants
    found = [v for v in variants[:-1] if v.name == against]
    if not found:
        names = ", ".join(v.name for v in variants[:-1])
        raise UserError(f"--against {against}: no such variant", remedy=f"there are: {names}")
    return (found[0], variants[-1])


def _check_caches(bench: Bench) -> None:
    if not bench.caches:
        return
    if bench.core is None or bench.core.memory is None:
        whose = f"--core {bench.core.key}: its file has no [memory]" if bench.core else "no --core"
        raise UserError(f"--caches: {whose}", remedy="give --core spacemit-x60")
    if bench.threads > 1:
        raise UserError("--caches simulates one core", remedy="leave out --threads")


def _check_together(bench: Bench) -> None:
    if not 1 <= bench.together <= MAX_BATCH:
        raise UserError(
            f"--together {bench.together}: a compiled model decodes 1 to {MAX_BATCH} sequences",
            remedy="give --together 4",
        )
    if bench.together > 1 and bench.decode < bench.together + 2:
        raise UserError(
            f"--together {bench.together} --decode {bench.decode}: the first answer ends before "
            "the last one is two tokens long",
            remedy=f"give --decode {bench.together + 4}",
        )


def _check_paths(bench: Bench) -> None:
    for quantization in bench.quantizations:
        path = bench.path_of(quantization)
        if path == OWN and quantization not in OWN_FORMATS:
            raise UserError(
                f"the project's own definition of the model takes {', '.join(OWN_FORMATS)} alone, "
                f"not {quantization}",
                remedy=f"leave out --path {OWN}",
            )
        if not bench.variants_of(quantization):
            why = "--path mlc-llm" if bench.path else f"{quantization}, its own quantization,"
            raise UserError(
                f"{why} goes through MLC-LLM, which is not here",
                remedy=f"{supply_mlc('bench')}; or leave it at --quantization {DEFAULT_FORMAT}",
            )
