# SPDX-License-Identifier: Apache-2.0
"""Cells of the bench (format, VLEN and prompt) for the workers of a Dask scheduler."""

from __future__ import annotations

import argparse
from itertools import product

from crosslab.bench.options import Bench, Variant
from crosslab.errors import UserError
from crosslab.models.formats import GGUF
from crosslab.remote import Cell, CodeLabel, label_of

# Options that are not the same for all cells and workers: trees and folders, those of the command
# itself, those of a cell, and those that workers do not support.
OWN = frozenset(
    (
        *("project", "tvm_tree", "cache", "variant"),
        *("report", "scheduler", "worker", "worker_port", "force"),
        *("quantization", "vlen", "prefill"),
        *("peer", "together", "tuned", "predict"),
    )
)


def check_remote(args: argparse.Namespace) -> None:
    """Refuse options that workers do not support.

    Raises:
        UserError: an option asks for a peer, several sequences together, a local database, or a
            prediction.
    """
    for option, is_set in (
        (f"--peer {args.peer}", args.peer),
        (f"--together {args.together}", args.together > 1),
        (f"--tuned {args.tuned}", args.tuned),
        ("--predict", args.predict),
    ):
        if is_set:
            why = f"{option}: workers do not support it"
            raise UserError(why, remedy="leave out --scheduler")


def cells_of(module: str, args: argparse.Namespace, bench: Bench) -> list[Cell]:
    """Return the cells of a bench, in the order of the table.

    Args:
        module: module with the function ``compute_cell``.
        args: the parsed options.
        bench: the bench of the options.
    """
    code = label(module, args)
    shared = {name: value for name, value in vars(args).items() if name not in OWN}
    # A worker would read its own file of the path of --model.
    shared["config"] = bench.config
    return [
        Cell(f"{q}, VLEN {v}, prompt of {p}", code, shared | _axes(q, v, p, args.gguf))
        for q, v, p in product(bench.quantizations, bench.recipe.vlens, bench.prompts)
    ]


def _axes(quantization: str, vlen: int, prompt: int, gguf: str | None) -> dict[str, object]:
    axes = {"quantization": [quantization], "vlen": [vlen], "prefill": [prompt]}
    return {**axes, "gguf": gguf if quantization == GGUF else None}


def label(module: str, args: argparse.Namespace) -> CodeLabel:
    """Return the label of this code and its variants, independent of folders."""
    variants = (Variant.parse(text) for text in args.variant)
    named = (f"{v.name} {v.mlc_tree is not None} {v.kernels} {v.steps}" for v in variants)
    return label_of(module, args.project, *named)
