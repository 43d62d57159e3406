# SPDX-License-Identifier: Apache-2.0
"""The options of ``costmodel``, and the options that each kind of run accepts."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from costmodel.accelerator.scheme import AS_COMPILED, SCHEMES
from costmodel.accelerator.settings import DATAFLOWS, HARDWARE, shipped_names
from costmodel.errors import CostError
from costmodel.estimate.execution import SEQUENCES, TENSOR
from costmodel.estimate.workload import DEFAULT_PHASES
from costmodel.search.explore import SMALLEST
from groundwork.command_line import Parser, output_file, output_folder

DEFAULT_HARDWARE, SEARCHED_HARDWARE = "systolic8x8", "systolic32x32"


def _parser() -> Parser:
    """Return the parser of the command line of ``costmodel``."""
    command_line = Parser(
        prog="costmodel",
        description="Estimate time, memory traffic and energy of matrix products.",
    )
    kind = command_line.add_mutually_exclusive_group(required=True).add_argument
    kind(
        "--model",
        metavar="FILE",
        type=Path,
        help="a work file; `accelerator workload` writes one. `accelerator --model` takes smollm2, "
        "gpt2, a Hugging Face config.json or a saved IRModule, too",
    )
    kind("--gemm", metavar="M,N,K", help="one matrix product")
    kind("--tenet", metavar="FILE", type=Path, help="a TENET experiment file")
    kind("--trace", metavar="FILE", type=Path, help="estimate the shapes that a recorded run used")
    kind(
        "--accuracy",
        metavar="GGUF",
        type=Path,
        help="measure perplexity under each --scheme (default: all; of one: --scheme int8-token)",
    )
    choice = command_line.add_argument_group("accelerator").add_argument
    choice(
        "--hardware",
        nargs="+",
        metavar="FILE",
        help=f"{', '.join(shipped_names(HARDWARE))}, or TOML or TENET .p files "
        f"(default: {DEFAULT_HARDWARE}; of a search: {SEARCHED_HARDWARE})",
    )
    choice(
        "--dataflow",
        nargs="+",
        default=["output-stationary"],
        metavar="FILE",
        help=f"{', '.join(shipped_names(DATAFLOWS))}, or TOML or TENET .m files",
    )
    choice(
        "--macs-per-pe",
        type=int,
        metavar="N",
        help="multiply-accumulates of a PE in a cycle (default: the hardware's)",
    )
    choice(
        "--factor",
        action="append",
        default=[],
        metavar="NAME=N",
        help="value of a name in the maps",
    )
    choice(
        "--tile",
        metavar="M,N,K",
        help="tile in the buffer, reduced for smaller products (default: the tile with the least "
        "sum of bus time and array time, which is not the least latency: use --search for that)",
    )
    work = command_line.add_argument_group("work").add_argument
    work(
        "--scheme",
        nargs="+",
        metavar="NAME",
        help=f"all, {AS_COMPILED}, {', '.join(SCHEMES)}, or TOML files "
        f"(default: {AS_COMPILED} for a trace, all for a search, else float16)",
    )
    work(
        "--phase",
        metavar="NAME:TOKENS,...",
        help=f"phases and their tokens (default: {DEFAULT_PHASES})",
    )
    work("--batch", type=int, default=1, metavar="N", help="number of products of --gemm")
    work(
        "--bind", action="append", default=[], metavar="NAME=N", help="value of a model's open size"
    )
    work(
        "--causal",
        type=int,
        default=0,
        metavar="N",
        help="skip the keys that no query of a block of N sees",
    )
    work("--page", type=int, default=0, metavar="N", help="read the KV cache in pages of N entries")
    work(
        "--chain",
        action="store_true",
        help="keep activations that fit on chip between consecutive operators",
    )
    work("--arrays", type=int, default=1, metavar="N", help="number of arrays that share the work")
    work(
        "--split",
        choices=(TENSOR, SEQUENCES),
        default=TENSOR,
        help="split every layer, or the sequences of a batch, between --arrays (default: tensor)",
    )
    find = command_line.add_argument_group("search, with --model").add_argument
    find("--search", action="store_true", help="find the best arrays, dataflows and mappings")
    find(
        "--cache",
        nargs="+",
        type=int,
        choices=(16, 8, 4),
        default=[],
        help="bits of the KV cache, for each --scheme that does not set them (default: 16)",
    )
    find(
        "--pes",
        type=int,
        metavar="N",
        help="search arrays of N PEs, N/2, N/4 ... down to 4x4, with sides of at most 16:1 "
        "(default: as many PEs as the hardware has)",
    )
    find(
        "--max-perplexity",
        type=float,
        default=1.1,
        metavar="FACTOR",
        help="most perplexity of the best designs that are printed, in multiples of float32's; a "
        "model without measured accuracy has no bound (default: 1.1)",
    )
    find("--mapping", type=Path, metavar="FILE", help="estimate the rows of a search's JSON again")
    output = command_line.add_argument_group("output").add_argument
    output("--json", type=output_file, metavar="FILE", help="write all figures")
    output(
        "--csv",
        type=output_file,
        metavar="FILE",
        help="write a table by kind of layer, or of all designs of a search",
    )
    output("--plots", type=output_folder, metavar="DIR", help="write plots as PNG")
    output(
        "--compare",
        action="store_true",
        help="print only the table of ms, tokens/s, mJ and bytes a token",
    )
    output("--quiet", action="store_true", help="print no tables")
    return command_line


def parsed(argv: Sequence[str] | None) -> tuple[argparse.Namespace, list[str]]:
    """Return the parsed options, and the names of the options that the user typed."""
    args = _parser().parse_args(argv)
    # A parser without defaults also reports options that were typed with their default.
    bare = _parser()
    bare.set_defaults(**dict.fromkeys(vars(args)))
    return args, [name for name, value in vars(bare.parse_args(argv)).items() if value is not None]


_ESTIMATE = ("hardware", "dataflow", "macs_per_pe", "factor", "tile", "scheme")
_SHOWN = ("json", "csv", "plots", "quiet", "compare")
_RUN = ("phase", "bind", "causal", "page", "chain", "arrays", "split")
_FOUND = (*_RUN, "hardware", "scheme", "csv", "json", "quiet", "max_perplexity")
LEAST = {"batch": 1, "macs_per_pe": 1, "pes": SMALLEST**2, "causal": 0, "page": 0, "arrays": 1}
LEAST |= {"max_perplexity": 1}
TAKEN = {
    "gemm": (*_ESTIMATE, *_SHOWN, "batch"),
    "model": (*_ESTIMATE, *_SHOWN, *_RUN),
    "trace": (*_ESTIMATE, *_SHOWN),
    "tenet": ("macs_per_pe", "json", "quiet"),
    "accuracy": ("scheme", "json", "quiet"),
    "search": ("model", *_FOUND, "pes", "cache", "macs_per_pe"),
    "mapping": ("model", *_FOUND, "macs_per_pe"),
}


def refuse_ignored(args: argparse.Namespace, typed: Sequence[str]) -> None:
    """Refuse options without effect in the chosen kind of run, and too small numbers.

    Raises:
        CostError: an option has no effect or is too small; the message names it.
    """
    narrower = [name for name in reversed(TAKEN) if name in typed]
    kind = narrower[0] if narrower else "gemm"
    for name in typed:
        if name != kind and name not in TAKEN[kind]:
            option = name.replace("_", "-")
            accepted = ", ".join(f"--{n.replace('_', '-')}" for n in TAKEN[kind])
            raise CostError(
                f"--{option} does nothing with --{kind}", remedy=f"options of --{kind}: {accepted}"
            )
    for name, least in LEAST.items():
        number = getattr(args, name)
        if number is not None and not number >= least:
            option = f"--{name.replace('_', '-')}"
            raise CostError(
                f"{option} {number}: must be at least {least}", remedy=f"{option} {least}"
            )
    if args.compare and args.quiet:
        raise CostError("--compare does nothing with --quiet", remedy="give one of the two")
    if "split" in typed and args.arrays == 1:
        raise CostError(
            f"--split {args.split} does nothing with one array", remedy="--arrays 2 or more"
        )
