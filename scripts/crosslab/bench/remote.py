# SPDX-License-Identifier: Apache-2.0
"""The bench on the workers of a Dask scheduler: a cell is a quantization, a VLEN and a prompt."""

from __future__ import annotations

import argparse
from itertools import product

from boardfarm.cells import CodeLabel, MatrixCell, label_of, path_options
from crosslab.bench.options import Bench, Variant
from crosslab.errors import UserError

# The options that every cell shares, by the name of their value.
VALUES = ("model", "path", "against", "decode", "threads", "weights", "activations", "core")
SWITCHES = ("profile", "caches", "no_zvfh")


def check_remote(args: argparse.Namespace) -> None:
    """Refuse what no worker computes.

    Raises:
        UserError: a peer, several sequences together, or a database of this machine.
    """
    if args.peer or args.together > 1 or args.tuned:
        what = f"--peer {args.peer}" if args.peer else f"--together {args.together}"
        what = f"--tuned {args.tuned}" if args.tuned else what
        raise UserError(f"{what}: workers do not count that", remedy="leave out --scheduler")


def cells_of(module: str, args: argparse.Namespace, bench: Bench) -> list[MatrixCell]:
    """The cells, in the order of the table.

    Args:
        module: with ``compute_cell``.
        args: the options.
        bench: what they ask for.
    """
    own = label(module, args)
    shared = [f"--{name.replace('_', '-')}" for name in SWITCHES if getattr(args, name)]
    for name in VALUES:
        if getattr(args, name) is not None:
            shared += [f"--{name}", str(getattr(args, name))]
    return [
        MatrixCell(module, (*_axes(q, v, p), *shared), own)
        for q, v, p in product(bench.quantizations, bench.recipe.vlens, bench.prompts)
    ]


def _axes(quantization: str, vlen: int, prompt: int) -> tuple[str, ...]:
    return ("--quantization", quantization, "--vlen", str(vlen), "--prefill", str(prompt))


def own_options(args: argparse.Namespace) -> list[str]:
    """The options that are a machine's own: trees and folders."""
    own = {"--project": args.project, "--tvm-tree": args.tvm_tree, "--cache": args.cache}
    return [
        *path_options(own),
        *(text for variant in args.variant for text in ("--variant", variant)),
    ]


def label(module: str, args: argparse.Namespace) -> CodeLabel:
    """Label of this code, the variants among it: their trees are each machine's own."""
    variants = (Variant.parse(text) for text in args.variant)
    named = (f"{v.name} {v.mlc_tree is not None} {v.kernels} {v.steps}" for v in variants)
    return label_of(module, args.project, *named)
