# SPDX-License-Identifier: Apache-2.0
"""Options of ``crosslab bench``."""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from crosslab.assemble.pinned_archive import LLAMA_CPP
from crosslab.assemble.recipe import Recipe
from crosslab.assemble.recipe_options import (
    activations_of,
    check_int8,
    kv_cache_of,
    read_recipe,
    recipe_options,
)
from crosslab.compile.driver import MAX_BATCH
from crosslab.compile.modes import KernelMode
from crosslab.cores.core import Core
from crosslab.errors import UserError, supply_mlc
from crosslab.models.config import DEFAULT_CONTEXT, FAMILIES, LlamaConfig, read_config
from crosslab.models.encoder import ENCODERS
from crosslab.models.formats import DEFAULT_FORMAT, FORMATS, GGUF, OWN_FORMATS
from crosslab.models.shapes import shapes
from crosslab.models.sources.gguf_import import kind_of_file
from crosslab.peers import openblas
from crosslab.peers.gguf_export import IN_BLOCKS
from crosslab.remote import add_options
from groundwork.command_line import Parser, at_first_look, meant, output_file

T = TypeVar("T")
OWN, MLC = "own", "mlc-llm"
SWITCHES = ("kernels",)
PEERS = (LLAMA_CPP, openblas.NAME)
ABOUT = (
    "Compile the model on every variant, count guest instructions in the emulator, and compare. A "
    "variant is a TVM tree, perhaps an MLC-LLM tree, and the switches that are set on them."
)
FORM = "NAME=TREE[,mlc=TREE][,kernels][,steps=A+B]"

# The small Llama of the documentation's figures, unless a figure names another model.
MODEL_S = LlamaConfig(
    hidden=256,
    intermediate=688,
    heads=4,
    kv_heads=4,
    head_dim=64,
    layers=2,
    vocab=512,
    context=32768,
)
# Assets of VERSIONS.lock by names of models with pinned weights.
PINNED = {"smollm2": "smollm2-135m", "smollm2-135m": "smollm2-135m"}


@dataclass(frozen=True)
class Variant:
    """A way to compile the model.

    Attributes:
        name: name in the table.
        tree: the TVM tree.
        mlc_tree: the corresponding MLC-LLM tree; None: no tree.
        kernels: call the RVV kernels.
        steps: names of the pass steps to run, or "-name" for all but one; None: all steps with
            kernels, no step without.
    """

    name: str
    tree: Path
    mlc_tree: Path | None = None
    kernels: bool = False
    steps: tuple[str, ...] | None = None

    @property
    def passes(self) -> tuple[str, ...] | None:
        """Names of the steps to run; None: all. Without ``steps``: all with kernels, else none."""
        return () if self.steps is None and not self.kernels else self.steps

    @classmethod
    def parse(cls, text: str) -> Variant:
        """Read ``NAME=TREE[,mlc=TREE][,kernels][,steps=A+B]``.

        Raises:
            UserError: the text does not have this form.
        """
        name, equals, rest = text.partition("=")
        tree, *switches = rest.split(",")
        values = dict(s.split("=", 1) for s in switches if s.startswith(("mlc=", "steps=")))
        flags = [s for s in switches if not s.startswith(("mlc=", "steps="))]
        unknown = [flag for flag in flags if flag not in SWITCHES]
        if not (name and equals and tree) or unknown or values.get("mlc") == "":
            raise UserError(f"--variant {text!r} is malformed", remedy=f"use the form {FORM}")
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
    """Measurements of a bench: all variants for each quantization, VLEN and prompt.

    Attributes:
        recipe: inputs of the builds that all variants share, with the tree of the runtime.
        project: the project's root.
        variants: variants in the order of the table; the first is the base of comparisons.
        model: name in the report.
        asset: name of the pinned model; empty: random weights.
        config: sizes of the model; None for a pinned model or a file, which has them.
        path: definition of the model to compile, "own" or "mlc-llm"; None: "own" if it supports the
            quantization.
        quantizations: formats of the weights.
        prompts: number of tokens of each prompt.
        decode: tokens to generate after each prompt, including the prefill's token.
        depth: tokens in the cache before each prompt.
        threads: worker threads of the guest.
        profile: also count by function.
        core: core whose cycles are estimated; None: count instructions only.
        peer: other program to measure; empty: none.
        peer_builds: builds of the peer to count; empty: all.
        each_build: report each build of the peer, not only the best.
        caches: simulate the core's caches.
        gguf: format of weights in blocks.
        together: number of sequences to decode in one batch, besides one alone; 1: no batch.
        report: path of the JSON report.
        cache: folder of builds, which clones can share.
        file: GGUF file of the model, whose weights stay in its blocks; None: another model.
    """

    recipe: Recipe
    project: Path
    variants: tuple[Variant, ...]
    model: str
    asset: str
    config: LlamaConfig | None
    path: str | None
    quantizations: tuple[str, ...]
    prompts: tuple[int, ...]
    decode: int
    threads: int
    profile: bool
    report: Path
    cache: Path
    core: Core | None = None
    peer: str = ""
    peer_builds: tuple[str, ...] = ()
    each_build: bool = False
    caches: bool = False
    together: int = 1
    depth: int = 0
    gguf: str = IN_BLOCKS[0]
    file: Path | None = None

    @property
    def cache_option(self) -> str:
        """The counter's option with the caches to simulate; empty: no caches."""
        memory = self.core.memory if self.core and self.caches else None
        return memory.counter_option if memory else ""

    @property
    def kernels_fit(self) -> bool:
        """True if prefill attention without a kernel is an error: a pinned model, or model S."""
        return bool(self.asset) or self.config == MODEL_S

    def path_of(self, quantization: str) -> str:
        """Return the definition that is compiled for a quantization: "own" or "mlc-llm"."""
        return self.path or (OWN if quantization in (*OWN_FORMATS, GGUF) else MLC)

    def mode_of(self, quantization: str) -> KernelMode:
        """Return the formats that kernels read; weights in blocks are multiplied with int8."""
        mode = self.recipe.mode
        return replace(mode, activations="int8") if quantization == GGUF else mode

    def variants_of(self, quantization: str) -> list[Variant]:
        """Return the variants that can compile a quantization.

        Weights in blocks need the kernels and all passes; MLC-LLM's definition needs its tree.
        """
        through_mlc = self.path_of(quantization) == MLC
        able = [v for v in self.variants if v.mlc_tree or not through_mlc]
        if quantization == GGUF:
            able = [v for v in able if v.kernels and v.steps is None]
        return able

    def context(self, longest: int) -> int:
        """Return the KV cache's tokens: enough for depth, longest prompt and answer, rounded up.

        Args:
            longest: longest sequence of the model, tokens.

        Raises:
            UserError: the model's context is too short.
        """
        needed = self.depth + max(self.prompts) + self.decode
        if needed > longest:
            before = f", after {self.depth} of --depth," if self.depth else ""
            raise UserError(
                f"a prompt of {max(self.prompts)} tokens and {self.decode} generated ones{before} "
                f"do not fit a context of {longest}",
                remedy=f"give less to --prefill{', --depth' * bool(before)} or --decode",
            )
        return min(longest, math.ceil(needed / DEFAULT_CONTEXT) * DEFAULT_CONTEXT)


def parser() -> Parser:
    """Return the parser of the command's options."""
    several: dict[str, Any] = {"nargs": "+"}
    shared = recipe_options(
        *("project", "tvm-tree", "core", "vlen", "quantization", "weights", "activations"),
        *("kv-cache", "tuned", "cache"),
        tvm_tree={"help": "tree that the runtime is built from"},
        core={"help": "count cycles of this core as well, by the name of its file in cores/"},
        quantization={
            **several,
            "choices": FORMATS,
            "help": f"formats of the weights ({DEFAULT_FORMAT})",
        },
        activations={"default": None},
    )
    options = Parser(prog="crosslab bench", description=ABOUT, parents=[shared])
    add = options.add_argument
    add(
        "--variant",
        action="append",
        required=True,
        metavar=FORM,
        help="a way to compile the model; the table shows them in this order",
    )
    add("--against", metavar="NAME", help="compare only this variant (upstream) with the last one")
    models = "S, smollm2, a name in shapes.toml, a config.json, or a GGUF file (S)"
    add("--model", default="S", help=models)
    add(
        "--path",
        choices=(OWN, MLC),
        help="definition of the model (own, if it supports the format)",
    )
    add("--prefill", type=int, **several, metavar="N", help="tokens of each prompt (128)")
    add("--decode", type=int, default=8, metavar="N", help="tokens to generate (8)")
    add(
        "--depth",
        type=int,
        default=0,
        metavar="N",
        help="tokens in the cache before each prompt, whose own cost is not counted (0)",
    )
    add("--threads", type=int, default=1, metavar="N", help="threads of the model (1)")
    add(
        "--profile",
        action="store_true",
        help="list the functions that execute most as well",
    )
    add("--no-zvfh", action="store_true", help="compile without half-precision vectors (Zvfh)")
    add("--caches", action="store_true", help="simulate the core's caches as well; much slower")
    add("--together", type=int, default=1, metavar="N", help="decode N sequences in a batch, too")
    add("--gguf", choices=IN_BLOCKS, help=f"format in --quantization {GGUF} ({IN_BLOCKS[0]})")
    add("--predict", action="store_true", help="predict tokens a second of boards with --core")
    add("--peer", choices=PEERS, help="count another program beside ours; openblas: its sgemm")
    add("--json", type=output_file, dest="report", help="report (PROJECT/out/bench.json)")
    add_options(add)
    return options


def bench_of(args: argparse.Namespace) -> Bench:
    """Build the bench that the options describe.

    Args:
        args: the parsed options; on a worker ``config``, too, the sizes that the client read.

    Raises:
        UserError: a value is out of range, or two options exclude each other.
    """
    prompts = _unique(args.prefill or [128])
    if min(prompts) < 1 or args.decode < 3 or args.threads < 1 or args.depth < 0:
        raise UserError(
            f"--prefill {' '.join(map(str, prompts))} --decode {args.decode} "
            f"--depth {args.depth} --threads {args.threads}",
            remedy="give prompts of 1 token or more, 3 generated tokens or more, a depth of 0 or "
            "more, 1 thread or more",
        )
    asset = PINNED.get(args.model, "")
    file = Path(args.model) if args.model.endswith(".gguf") else None
    quantizations = _unique(args.quantization or [GGUF if file else DEFAULT_FORMAT])
    path = _path_of_file(file, args) if file else args.path
    if args.gguf and GGUF not in quantizations:
        raise UserError(
            f"--gguf {args.gguf} is the format of --quantization {GGUF}",
            remedy=f"add --quantization {GGUF}",
        )
    for quantization in quantizations:
        check_int8(activations_of(args.activations, quantization), quantization)
    # A format in blocks has an own type of activations: see Bench.mode_of.
    recipe = read_recipe(args, next((q for q in quantizations if q != GGUF), GGUF))
    if args.no_zvfh and not recipe.halves:
        raise UserError(
            "--no-zvfh: only the build for a core with Zvfh uses Zvfh",
            remedy="leave out --no-zvfh, or name such a core: --core spacemit-x60",
        )
    bench = Bench(
        # The same kernel values for all cores, so that rows differ only in cycles.
        recipe=replace(recipe, cores=(), halves=recipe.halves and not args.no_zvfh),
        project=args.project,
        variants=_chosen(tuple(map(Variant.parse, args.variant)), args.against),
        model="smollm2" if asset else file.name if file else args.model,
        asset=asset,
        config=None if asset or file else vars(args).get("config") or _config(args.model),
        path=path,
        quantizations=quantizations,
        prompts=prompts,
        decode=args.decode,
        threads=args.threads,
        profile=args.profile,
        report=args.report or args.project / "out" / "bench.json",
        cache=args.cache,
        core=args.core,
        peer=args.peer or "",
        caches=args.caches,
        together=args.together,
        depth=args.depth,
        gguf=args.gguf or IN_BLOCKS[0],
        file=file,
    )
    for variant in bench.variants:
        if variant.kernels:
            kv_cache_of(args.kv_cache, variant.tree)
    _check_paths(bench)
    _check_caches(bench)
    _check_together(bench)
    if bench.config:
        bench.context(bench.config.context)
    return bench


def _path_of_file(file: Path, args: argparse.Namespace) -> str:
    """Return the definition that compiles a GGUF file's model: the user's choice, or as ``model``.

    Raises:
        UserError: the file's model has no decode, or an option does not fit a file.
    """
    # A first look has no package that reads a file.
    kind = FAMILIES[0] if at_first_look() else kind_of_file(file)[0]
    if kind in ENCODERS:
        raise UserError(
            f"--model {file}: {kind} reads texts and generates no tokens",
            remedy="give the file of a model that answers",
        )
    needless = {"--gguf": args.gguf, "--scheduler": args.scheduler, "--predict": args.predict}
    needless["--quantization"] = set(args.quantization or ()) - {GGUF}
    for option in (name for name, value in needless.items() if value):
        raise UserError(
            f"{option} does not fit --model {file.name}: weights stay in its blocks, and this "
            "machine counts them",
            remedy=f"leave out {option}",
        )
    return args.path or (OWN if kind in FAMILIES else MLC)


def _unique(values: Sequence[T]) -> tuple[T, ...]:
    return tuple(dict.fromkeys(values))


def _config(model: str) -> LlamaConfig:
    if model == "S":
        return MODEL_S
    if model in shapes():
        return shapes()[model]
    if not Path(model).is_file():
        raise UserError(
            f"--model {model} is neither the name of a model nor a file",
            remedy=f"give S, smollm2, {', '.join(shapes())}, or the path of a Llama-like model's "
            "config.json or of a GGUF file",
        )
    return read_config(Path(model))


def _chosen(variants: tuple[Variant, ...], against: str | None) -> tuple[Variant, ...]:
    if against is None:
        return variants
    matches = [v for v in variants[:-1] if v.name == against]
    if not matches:
        names = [v.name for v in variants[:-1]]
        remedy = meant(against, names, "there are", "--against ")
        raise UserError(f"--against {against}: no such variant", remedy=remedy)
    return (matches[0], variants[-1])


def _check_caches(bench: Bench) -> None:
    if not bench.caches:
        return
    if bench.core is None or bench.core.memory is None:
        has = f": the file of --core {bench.core} has no [memory]"
        raise UserError(
            f"--caches{has if bench.core else ' without --core'}",
            remedy="give --core spacemit-x60",
        )
    if bench.threads > 1:
        raise UserError("--caches simulates one core", remedy="leave out --threads")


def _check_together(bench: Bench) -> None:
    if not 1 <= bench.together <= MAX_BATCH:
        raise UserError(
            f"--together {bench.together}: a compiled model decodes 1 to {MAX_BATCH} sequences",
            remedy="give --together 4",
        )
    if bench.together > 1 and bench.depth:
        raise UserError(
            f"--together {bench.together} --depth {bench.depth}: sequences in a batch start with "
            "an empty cache",
            remedy="leave out --depth or --together",
        )
    if bench.together > 1 and bench.decode < bench.together + 2:
        raise UserError(
            f"--together {bench.together} --decode {bench.decode}: the first answer ends before "
            "the last one is two tokens long",
            remedy=f"give --decode {bench.together + 4}",
        )


def _check_paths(bench: Bench) -> None:
    for quantization in bench.quantizations:
        bench.mode_of(quantization)
        path = bench.path_of(quantization)
        if path == OWN and quantization not in (*OWN_FORMATS, GGUF):
            raise UserError(
                f"the project's own model definition supports {', '.join(OWN_FORMATS)} only, "
                f"not {quantization}",
                remedy=f"leave out --path {OWN}",
            )
        if not bench.variants_of(quantization):
            why = "--path mlc-llm" if bench.path else f"quantization {quantization}"
            raise UserError(
                f"{why} needs MLC-LLM, which is missing",
                remedy=f"{supply_mlc('bench')}; or use --quantization {DEFAULT_FORMAT}",
            )
