# SPDX-License-Identifier: Apache-2.0
"""``crosslab bench``: what each step from upstream to ours costs, in guest instructions.

Every variant is a TVM tree and what is switched on when a model is compiled on it. All of them are
compiled, run under the counter and compared in one run; instruction counts repeat exactly.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from crosslab.compile.driver import CompiledModel, CompileRequest, compile_llama
from crosslab.compile.targets import VLENS, LabTarget
from crosslab.counter import Counts, Measurement, count_guest
from crosslab.emulator import GuestMachine
from crosslab.errors import UserError
from crosslab.job_options import PASS_FILE
from crosslab.kernels import KernelTarget, cached_kernels
from crosslab.link import LinkRequest, link_runner
from crosslab.models.config import LlamaConfig, read_config
from crosslab.models.llama_params import random_params
from crosslab.runtime import build_runtime
from crosslab.stage import default_cache
from crosslab.toolchain import find_cross, require_qemu

PHASES = ("prefill", "decode")
SWITCHES = ("kernels", "noalias")
SEED = 0
TOP = 20

# The small Llama that every figure in the documentation is measured on unless it says otherwise.
MODEL_S = LlamaConfig(
    hidden=256, intermediate=688, heads=4, kv_heads=4, head_dim=64, layers=2, vocab=512
)

_progress = Console(stderr=True, highlight=False)
_results = Console(highlight=False)


@dataclass(frozen=True)
class Variant:
    """One way to compile the model.

    Attributes:
        name: as the table shows it.
        tree: the TVM tree.
        kernels: tensorize with the RVV kernels.
        noalias: promise the code generator that outputs overlap no inputs.
        steps: which of the passes for RVV are taken; None takes all.
    """

    name: str
    tree: Path
    kernels: bool
    noalias: bool
    steps: tuple[str, ...] | None = None

    @classmethod
    def parse(cls, text: str) -> Variant:
        """Read ``NAME=TREE[,kernels][,noalias][,steps=A+B]``.

        Raises:
            UserError: it is not of this form.
        """
        name, equals, rest = text.partition("=")
        tree, *switches = rest.split(",")
        steps = None
        if switches and switches[-1].startswith("steps="):
            steps = tuple(filter(None, switches.pop().removeprefix("steps=").split("+")))
        unknown = [switch for switch in switches if switch not in SWITCHES]
        if not (name and equals and tree) or unknown:
            form = "".join(f"[,{switch}]" for switch in SWITCHES)
            raise UserError(
                f"--variant {text!r}", remedy=f"its form is NAME=TREE{form}[,steps=A+B]"
            )
        return cls(name, Path(tree), "kernels" in switches, "noalias" in switches, steps)


@dataclass(frozen=True)
class Row:
    """One measurement; decode is per token, the mean of the steps after the first."""

    model: str
    variant: str
    phase: str
    tokens: int
    quantization: str
    vlen: int
    threads: int
    insns: int
    vector: int
    vsetvl: int
    vmem: int
    lmul_weighted: int


@dataclass(frozen=True)
class Bench:
    """What is measured.

    Attributes:
        variants: in the order of the table; the first is what the others are compared with.
        model: its name in the report.
        config: its sizes; the weights are random.
        prefill: tokens of the prompt.
        decode: generated tokens, the first of them the prefill's.
        vlen: bits in a vector register.
        profile: count by function too.
        tvm_tree: the tree the runtime is built from.
        cache: folder of builds that clones share.
    """

    variants: tuple[Variant, ...]
    model: str
    config: LlamaConfig
    prefill: int
    decode: int
    vlen: int
    profile: bool
    tvm_tree: Path
    cache: Path


def main(argv: Sequence[str]) -> int:
    """Measure every variant, print the table, write the JSON."""
    args = parser().parse_args(argv)
    bench = _bench(args)
    require_qemu()
    rows: list[Row] = []
    profiles: list[dict[str, Any]] = []
    for variant in bench.variants:
        runner, library = build_variant(bench, variant, args.project)
        for phase in PHASES:
            _progress.print(f"counting: {variant.name}, {phase}")
            measured = measure(bench, runner, phase)
            rows.append(row_of(bench, variant, phase, measured))
            if bench.profile:
                profiles.append(_profile(variant, phase, measured))
        _say_tensorized(variant, library)
    _show(bench, rows)
    for profile in profiles:
        _show_profile(profile)
    report = args.report or args.project / "out" / "bench.json"
    report.parent.mkdir(parents=True, exist_ok=True)
    report.write_text(json.dumps([asdict(row) for row in rows], indent=2) + "\n", encoding="utf-8")
    if profiles:
        report.with_suffix(".profile.json").write_text(json.dumps(profiles, indent=2) + "\n")
    return 0


def parser() -> argparse.ArgumentParser:
    """The command's options."""
    options = argparse.ArgumentParser(
        prog="crosslab bench", description=__doc__, allow_abbrev=False
    )
    add = options.add_argument
    add("--project", type=Path, default=Path(), help="the project's root (.)")
    add("--tvm-tree", type=Path, required=True, help="tree the runtime is built from")
    add("--variant", action="append", required=True, metavar="NAME=TREE[,kernels][,noalias]")
    add("--model", default="S", help="S, or a config.json; the weights are random (S)")
    add("--prefill", type=int, default=128, help="tokens of the prompt (128)")
    add("--decode", type=int, default=8, help="tokens to generate (8)")
    add("--vlen", type=int, choices=VLENS, default=256, help="bits in a vector register (256)")
    add("--profile", action="store_true", help=f"the {TOP} functions that execute most")
    add("--json", type=Path, dest="report", help="report (PROJECT/out/bench.json)")
    add("--cache", type=Path, default=default_cache())
    return options


def _bench(args: argparse.Namespace) -> Bench:
    if args.prefill < 1 or args.decode < 3:
        raise UserError(
            f"--prefill {args.prefill} --decode {args.decode}",
            remedy="give a prompt of 1 token or more, and 3 generated tokens or more",
        )
    config = MODEL_S if args.model == "S" else read_config(Path(args.model))
    if args.prefill + args.decode > config.context:
        raise UserError(f"{args.prefill} + {args.decode} tokens exceed {config.context}")
    return Bench(
        variants=tuple(map(Variant.parse, args.variant)),
        model=args.model,
        config=config,
        prefill=args.prefill,
        decode=args.decode,
        vlen=args.vlen,
        profile=args.profile,
        tvm_tree=args.tvm_tree,
        cache=args.cache,
    )


def build_variant(bench: Bench, variant: Variant, project: Path) -> tuple[Path, CompiledModel]:
    """Compile and link one variant.

    Returns:
        The runner, with its symbols, and the model library in it.
    """
    request = CompileRequest(
        tvm_tree=variant.tree,
        config=bench.config,
        target=LabTarget("riscv64", bench.vlen),
        pass_file=project / PASS_FILE if variant.kernels else None,
        steps=variant.steps,
        kernels=cached_kernels(KernelTarget.RISCV64, bench.cache) if variant.kernels else None,
        require_tensorize=variant.kernels,
        noalias=variant.noalias,
    )
    library = compile_llama(request, bench.cache)
    toolchain = find_cross()
    runner = link_runner(
        LinkRequest(
            runtime=build_runtime(bench.tvm_tree, toolchain, bench.cache),
            toolchain=toolchain,
            library=library.library,
            required_vlen=bench.vlen,
            strip=False,
        ),
        bench.cache,
    )
    return runner, library


def measure(bench: Bench, runner: Path, phase: str) -> Measurement:
    """Run one prompt and count the calls of one phase."""
    params = random_params(bench.config, SEED, bench.cache)
    prompt = [(7 * i + 3) % bench.config.vocab for i in range(bench.prefill)]
    # The guest runs in the parameters' folder, so that no path's length is in its stack.
    arguments = ["--params", ".", "--tokens", ",".join(map(str, prompt)), "--roi", phase, "--json"]
    arguments += ["--max-new", "1" if phase == "prefill" else str(bench.decode)]
    machine = GuestMachine(vlen=bench.vlen, threads=1)
    _, measured = count_guest(
        runner, arguments, machine, bench.cache, cwd=params, functions=bench.profile
    )
    return measured


def row_of(bench: Bench, variant: Variant, phase: str, measured: Measurement) -> Row:
    """Sum up a measurement."""
    counted, tokens = measured.region, bench.prefill
    if phase == "decode":
        steps = measured.regions[1:]
        total = sum(steps, Counts())
        counted = Counts(**{name: value // len(steps) for name, value in asdict(total).items()})
        tokens = len(steps)
    return Row(
        model=bench.model,
        variant=variant.name,
        phase=phase,
        tokens=tokens,
        quantization="q0f32",
        vlen=bench.vlen,
        threads=1,
        insns=counted.insns,
        vector=counted.vector,
        vsetvl=counted.vsetvl,
        vmem=counted.vmem,
        lmul_weighted=counted.lmul_weighted,
    )


def _profile(variant: Variant, phase: str, measured: Measurement) -> dict[str, Any]:
    functions = [
        {"symbol": f.symbol, "insns": f.region.insns, "lmul_weighted": f.region.lmul_weighted}
        for f in measured.functions[:TOP]
        if f.region.insns
    ]
    return {"variant": variant.name, "phase": phase, "functions": functions}


def _say_tensorized(variant: Variant, library: CompiledModel) -> None:
    for entry in library.tensorized:
        said = entry["symbol"] or f"not tensorized: {entry['reason']}"
        _progress.print(f"  {variant.name}: {entry['function']}, {entry['block']}: {said}")


def _show(bench: Bench, rows: Sequence[Row]) -> None:
    table = Table(
        title=f"model {bench.model}, VLEN {bench.vlen}: guest instructions, millions",
        box=None,
    )
    for heading in (
        "variant",
        "phase",
        "all",
        "vector",
        "vset",
        "vmem",
        "LMUL-weighted",
        "of first",
    ):
        table.add_column(heading, justify="left" if heading in ("variant", "phase") else "right")
    for phase in PHASES:
        chosen = [row for row in rows if row.phase == phase]
        for row in chosen:
            label = f"prefill {row.tokens}" if phase == "prefill" else "decode 1"
            counts = (row.insns, row.vector, row.vsetvl, row.vmem, row.lmul_weighted)
            cells = [f"{count / 1e6:.3f}" for count in counts]
            table.add_row(row.variant, label, *cells, f"{row.insns / chosen[0].insns:.1%}")
    _results.print(table)


def _show_profile(profile: dict[str, Any]) -> None:
    table = Table(title=f"{profile['variant']}, {profile['phase']}: by function", box=None)
    for heading in ("function", "instructions", "LMUL-weighted"):
        table.add_column(heading, justify="left" if heading == "function" else "right")
    for entry in profile["functions"]:
        table.add_row(entry["symbol"], f"{entry['insns']:,}", f"{entry['lmul_weighted']:,}")
    _results.print(table)
