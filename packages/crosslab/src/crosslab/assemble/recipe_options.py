# SPDX-License-Identifier: Apache-2.0
"""The command-line options of a build, and their recipe."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from crosslab.assemble.kernel_values import FILE
from crosslab.assemble.recipe import Recipe
from crosslab.cached_build import CACHE_OPTION
from crosslab.compile.modes import ACTIVATIONS, KV_CACHES, TILES, WEIGHTS, KernelMode
from crosslab.compile.schedules import WORKLOADS
from crosslab.compile.targets import VLENS
from crosslab.cores.core import Core, core_option
from crosslab.errors import UserError
from crosslab.models.formats import GGUF, MLC_FORMATS, weight_formats
from groundwork.command_line import Parser

DEFAULT_VLEN = 256
#: Names of the options that sessions add to every command.
OF_SESSIONS = ("project", "release", "applied", "tvm_tree", "mlc_tree", "cache")


def vlen_list(text: str) -> tuple[int, ...]:
    """Parse vector lengths with commas between them, as argparse's type; return them ascending."""
    words = text.split(",")
    if unknown := [word for word in words if word not in map(str, VLENS)]:
        raise argparse.ArgumentTypeError(
            f"{unknown[0]!r} is not a supported length; choose from {', '.join(map(str, VLENS))}"
        )
    return tuple(sorted({int(word) for word in words}))


def one_vlen(text: str) -> int:
    """Parse one vector length, as argparse's type."""
    vlens = vlen_list(text)
    if len(vlens) > 1:
        raise argparse.ArgumentTypeError(f"{text!r} names several lengths; give one")
    return vlens[0]


#: The option of a command that takes one length.
ONE_VLEN: Mapping[str, Any] = {
    "type": one_vlen,
    "metavar": "BITS",
    "help": f"bits in a vector register ({DEFAULT_VLEN}, or the core's)",
}


OPTIONS: dict[str, dict[str, Any]] = {
    "project": {"type": Path, "default": Path(), "help": "root folder of the project (.)"},
    "release": {"default": "unnamed", "help": "name of the release, for dist and reports"},
    "tvm-tree": {"type": Path, "required": True, "help": "patched TVM tree"},
    "mlc-tree": {
        "type": Path,
        "help": "patched MLC-LLM tree; without it, the project's own definition of the model is "
        "compiled",
    },
    "applied": {"type": Path, "metavar": "FILE", "help": "report of forkpatch apply --json"},
    "core": {
        "type": core_option,
        "metavar": "NAME",
        "help": "a core by the name of its file in cores/",
    },
    "vlen": {
        "type": vlen_list,
        "metavar": "BITS[,BITS...]",
        "help": f"bits in a vector register ({DEFAULT_VLEN}, or the core's); several with commas",
    },
    "quantization": {"choices": MLC_FORMATS, "help": "format of the weights"},
    "context": {"type": int, "metavar": "N", "help": "longest sequence, tokens"},
    "weights": {
        "choices": WEIGHTS,
        "default": TILES.weights,
        "help": f"order in which kernels read weights ({TILES.weights})",
    },
    "activations": {
        "choices": ACTIVATIONS,
        "default": TILES.activations,
        "help": f"type of the activations that kernels multiply ({TILES.activations})",
    },
    "kv-cache": {
        "choices": KV_CACHES,
        "default": TILES.kv_cache,
        "help": f"type of the keys and values that the KV cache keeps ({TILES.kv_cache})",
    },
    "tuned": {
        "type": Path,
        "metavar": "DIR",
        "help": "database that nox -s farm -- tune or tune-kernels wrote for a core",
    },
    "cache": CACHE_OPTION,
}


def recipe_options(*names: str, **changes: Mapping[str, Any]) -> Parser:
    """Return a parent parser with shared options; the options not named have their defaults.

    Args:
        names: names of the options that the command accepts, in the order of ``--help``.
        changes: fields of :data:`OPTIONS` that differ in this command, by the option's name with
            underscores.
    """
    parent = Parser(add_help=False)
    for name, fields in OPTIONS.items():
        dest = name.replace("-", "_")
        if name not in names:
            parent.set_defaults(**{dest: fields.get("default")})
    for name in names:
        fields = {**OPTIONS[name], **changes.get(name.replace("-", "_"), {})}
        parent.add_argument(f"--{name}", **fields)
    return parent


def read_recipe(args: argparse.Namespace, quantization: str) -> Recipe:
    """Read the recipe from options; its model is set later.

    Args:
        args: what a parser with :func:`recipe_options` read.
        quantization: format of the weights.

    Raises:
        UserError: options that exclude each other.
    """
    cores = _several(args.core)
    activations = activations_of(args.activations, quantization)
    return Recipe(
        quantization=quantization,
        vlens=vlens_of(_several(args.vlen), cores),
        tvm_tree=args.tvm_tree,
        runtime_tree=args.tvm_tree,
        mlc_tree=args.mlc_tree,
        mode=KernelMode(args.weights, activations, kv_cache_of(args.kv_cache, args.tvm_tree)),
        context=args.context,
        tuned=find_database(args.tuned, cores),
        cores=cores,
        halves=bool(cores) and all(core.zvfh for core in cores),
    )


def activations_of(asked: str | None, quantization: str) -> str:
    """Return the type of activations: as requested, else int8 for GGUF, and the default for others.

    Raises:
        UserError: weights in a GGUF file's blocks are not multiplied with such activations.
    """
    if quantization != GGUF:
        return asked or TILES.activations
    if asked not in (None, "int8"):
        raise UserError(
            f"--activations {asked}: weights in a GGUF file's blocks are multiplied with int8",
            remedy="leave out --activations, or give another --quantization",
        )
    return "int8"


def check_int8(activations: str, quantization: str) -> None:
    """Refuse int8 activations of weights that no kernel multiplies with them.

    Raises:
        UserError: the format has no such kernel.
    """
    if activations == "int8" and not weight_formats()[quantization].int8:
        others = [f.name for f in weight_formats().values() if f.int8]
        raise UserError(
            f"int8 activations are not multiplied with weights in {quantization}",
            remedy=f"use --quantization {' or '.join(others)}",
        )


def kv_cache_of(asked: str, tvm_tree: Path | None) -> str:
    """Return the requested type of a KV cache; refuse int8 if TVM's tree lacks it.

    Raises:
        UserError: the tree's cache keeps no int8.
    """
    # Without the tree, the compile itself reports that.
    if asked != "int8" or tvm_tree is None:
        return asked
    source = tvm_tree / "python" / "tvm" / "relax" / "frontend" / "nn" / "llm" / "kv_cache.py"
    if source.is_file() and "int8_pages" not in source.read_text("utf-8"):
        raise UserError(
            f"--kv-cache int8: the KV cache of {tvm_tree} has no such type",
            remedy="leave out --kv-cache, or use a tree with the patch kv-cache-int8-pages-cpu",
        )
    return asked


def _several(given: Any) -> tuple[Any, ...]:
    """Return an option's value, or its list of values, as a tuple."""
    if isinstance(given, list | tuple):
        return tuple(given)
    return () if given is None else (given,)


def vlens_of(asked: Sequence[int], cores: Sequence[Core]) -> tuple[int, ...]:
    """Return the vector lengths to compile for: those of the cores, as requested, or the default.

    Raises:
        UserError: the cores have other lengths than the requested ones.
    """
    own = tuple(sorted({core.vlen for core in cores})) or tuple(asked) or (DEFAULT_VLEN,)
    if asked and set(asked) != set(own):
        raise UserError(
            f"--vlen {','.join(map(str, asked))}: {', '.join(map(str, cores))} has "
            f"{', '.join(map(str, own))}",
            remedy="leave out --vlen",
        )
    return tuple(dict.fromkeys(own))


def find_database(folder: Path | None, cores: Sequence[Core]) -> Path | None:
    """Return the tuning database for a compile: the folder, or its subfolder for the core.

    Args:
        folder: the value of ``--tuned``; None: no database is read.
        cores: that are compiled for.

    Raises:
        UserError: the folder has no database for the core.
    """
    if folder is None:
        return None
    name = ",".join(map(str, cores))
    for one in (folder, folder / name):
        if _is_database(one):
            return one
    there = sorted(one.name for one in folder.glob("*") if _is_database(one))
    if not there:
        raise UserError(f"--tuned: no database in {folder}", remedy="make it: nox -s farm -- tune")
    others = f"or give --tuned {shlex.quote(str(folder / there[0]))}"
    raise UserError(
        f"--tuned {folder} has databases for {', '.join(there)}, "
        + (f"not for {name}" if name else "and no --core chooses one"),
        remedy=f"tune for the core: nox -s farm -- tune; {others}",
    )


def _is_database(folder: Path) -> bool:
    return any((folder / name).is_file() for name in (WORKLOADS, FILE))
