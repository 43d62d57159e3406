# SPDX-License-Identifier: Apache-2.0
"""Options of ``build-and-test`` and ``model``."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from crosslab.assemble.offload import Offload, find_offload
from crosslab.assemble.recipe import Recipe
from crosslab.assemble.recipe_options import check_int8, read_recipe, recipe_options
from crosslab.compile.modes import TILES, KernelMode
from crosslab.cores.core import core_list
from crosslab.errors import UserError, supply_mlc
from crosslab.json_table import read_applied
from crosslab.models.config import FAMILIES, kind_of
from crosslab.models.encoder import ENCODERS
from crosslab.models.formats import DEFAULT_FORMAT, FORMATS, GGUF, OWN_FORMATS
from crosslab.models.sources.gguf_import import kind_of_file
from crosslab.models.sources.hub import HUB, download
from crosslab.models.sources.model_folder import CONFIG_FILE, check_source, name_of
from groundwork.command_line import Parser, at_first_look, output_file

BUILD_AND_TEST, MODEL = "build-and-test", "model"
MODEL_FORMAT = "q4f16_1"
# The bound of logits' errors where decode attention rounds queries and weights to int16.
INT8_CACHE_TOLERANCE = 1e-3
PROMPT = "What is the capital of France?"
PINNED_MODEL = "smollm2-135m"


@dataclass(frozen=True)
class Omission:
    """A missing input: its name, the reason, and its remedy."""

    what: str
    why: str
    remedy: str = ""


def read_omissions(report: Path | None) -> tuple[Omission, ...]:
    """Missing upstreams in the report of ``forkpatch apply --json``.

    Args:
        report: the file; None: no report was made, and nothing is named as missing.

    Raises:
        UserError: the file is missing, or is not such a report.
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
        recipe: inputs of the build; its model is the folder that ``source`` is imported to.
        project: the project's root.
        release: name of the release that the trees belong to.
        applied: report of ``forkpatch apply --json`` on the trees, for the manifest; may be None.
        without: upstreams that it names as missing.
        source: the model as its user names it: pinned, a folder, a GGUF file, or of a hub.
        model: its name in dist/.
        prompt: the user's message.
        threads: worker threads of the model.
        max_new: most tokens to generate.
        report: file of the JSON report.
        cache: folder of builds that clones share.
        unchecked: build a model that the reference cannot compute, and do not check it.
        offload: computes parts of the model; None: the CPU computes all of it.
        again: run emulator and reference even if an earlier run with the same inputs was right.
        verb: of the command.
    """

    recipe: Recipe
    project: Path
    release: str
    applied: Path | None
    without: tuple[Omission, ...]
    source: str
    model: str
    prompt: str
    threads: int
    max_new: int
    report: Path
    cache: Path
    unchecked: bool = False
    offload: Offload | None = None
    again: bool = False
    verb: str = BUILD_AND_TEST

    @property
    def supply_mlc(self) -> str:
        """Remedy for a missing MLC-LLM."""
        return supply_mlc(self.verb.replace("-", "_"))

    @property
    def tolerance(self) -> float:
        """Largest error of a logit, divided by the reference's largest logit."""
        if self.offload:
            return self.offload.tolerance
        tolerance = self.recipe.weights.tolerance
        return max(tolerance, INT8_CACHE_TOLERANCE) if self.int8_cache else tolerance

    @property
    def rounds(self) -> bool:
        """Return True if activations, the KV cache or a device's operands are rounded to int8."""
        return self.int8 or self.int8_cache or self.offload is not None

    @property
    def halves(self) -> bool:
        """Return True if activations are stored in float16."""
        return self.recipe.weights.halves

    @property
    def chunk(self) -> int:
        """Return the largest number of a prompt's tokens in one call of the model."""
        return self.recipe.prefill_chunk

    @property
    def int8(self) -> bool:
        """Return True if activations are rounded to int8."""
        return self.recipe.mode.activations == "int8"

    @property
    def int8_cache(self) -> bool:
        """Return True if keys and values in the cache are rounded to int8."""
        return self.recipe.mode.kv_cache == "int8"

    @property
    def name(self) -> str:
        """Return the artefact's name: model, format, and kernel mode or accelerator."""
        ending = f"-{self.offload.name}" if self.offload else self.recipe.mode.label
        return f"{self.model}-{self.recipe.quantization}{ending}"

    @property
    def dist(self) -> Path:
        """Return the folder of the finished model."""
        return self.project / "dist" / self.release / self.recipe.label / self.name


def parser(verb: str = BUILD_AND_TEST) -> Parser:
    """The command's options; ``model`` requires a model, ``build-and-test`` has a default."""
    several = "or several with commas, for one artefact that runs on each"
    default = f"{MODEL_FORMAT} with MLC-LLM, else and of a BERT {DEFAULT_FORMAT}; GGUF file: {GGUF}"
    shared = recipe_options(
        *("project", "release", "tvm-tree", "mlc-tree", "applied", "core", "vlen"),
        *("quantization", "context", "weights", "activations", "kv-cache", "tuned", "cache"),
        core={
            "type": core_list,
            "metavar": "NAME[,NAME...]",
            "help": f"a core by the name of its file in cores/, {several}",
        },
        vlen={"help": f"bits in a vector register (256, or the cores'), {several}"},
        quantization={
            "choices": FORMATS,
            "help": f"format of the weights ({default if verb == MODEL else DEFAULT_FORMAT})",
        },
        activations={"default": None},
    )
    options = Parser(
        prog=f"crosslab {verb}",
        description="Build a model for RVV, run it in the emulator, and compare its answer with "
        "a reference." + " If it is right, put it into a tarball." * (verb == MODEL),
        parents=[shared],
    )
    add = options.add_argument
    kinds = "a Hugging Face folder, a GGUF file, hf:OWNER/NAME[@REVISION], or a pinned model"
    if verb == MODEL:
        add("source", metavar="MODEL", help=kinds)
        add("--name", help="name of the model in dist/ (the folder's name)")
    else:
        add("--model", dest="source", default=PINNED_MODEL, help=f"{kinds} ({PINNED_MODEL})")
    add("--prompt", default=PROMPT, help=f"the user's message ({PROMPT})")
    if verb == BUILD_AND_TEST:
        add("--accelerator", metavar="DEVICE", help="let a companion's device do linear layers")
        where = "with --accelerator: what computes the products of attention (cpu)"
        add("--attention", choices=("cpu", "device"), help=where)
    add("--threads", type=int, default=1, help="threads of the model (1)")
    most = 8 if verb == MODEL else 32
    add("--max-new", type=int, default=most, help=f"most tokens to generate ({most})")
    add(
        "--unchecked",
        action="store_true",
        help="build a model that the reference cannot compute, without a check of its answer",
    )
    add(
        "--again",
        action="store_true",
        help="run emulator and reference again, although the same inputs gave a right answer",
    )
    stem = "NAME" if verb == MODEL else "build_and_test"
    add("--json", type=output_file, dest="report", help=f"report (PROJECT/out/{stem}.json)")
    return options


def parse_job(argv: Sequence[str], verb: str = BUILD_AND_TEST) -> Job:
    """Parse the options, check that the model exists, return the job; errors as :func:`job_of`."""

    def checked(args: argparse.Namespace) -> Job:
        check_source(args.source, args.project)
        return job_of(args, verb)

    return parser(verb).read(argv, checked)


def job_of(args: argparse.Namespace, verb: str = BUILD_AND_TEST) -> Job:
    """Return the job that options describe.

    Raises:
        UserError: a value is out of range, options exclude each other, or one needs MLC-LLM.
    """
    for option in ("threads", "max_new", "context"):
        number = getattr(args, option)
        if number is not None and number < 1:
            named = option.replace("_", "-")
            raise UserError(f"--{named} {number} is too small", remedy="give 1 or more")
    default = DEFAULT_FORMAT
    kind, in_blocks = _kind_of(args.source, args.cache, mlc=args.mlc_tree is not None)
    if verb == MODEL and in_blocks:
        default = GGUF
    elif verb == MODEL and args.mlc_tree and kind not in ENCODERS:
        # Vectors are compared with those of other programs, so that no weight is rounded.
        default = MODEL_FORMAT
    project, name = args.project.resolve(), _model_name(args)
    stem = "build_and_test" if verb == BUILD_AND_TEST else name
    recipe, offload = read_recipe(args, args.quantization or default), None
    if recipe.quantization == GGUF and kind in FAMILIES:
        # The project's own definition computes them, with or without MLC-LLM.
        recipe = replace(recipe, mlc_tree=None)
    if device := getattr(args, "accelerator", None):
        offload = find_offload(device, args.attention == "device")
        recipe = replace(recipe, mode=mode_of(offload, recipe))
        stem += f"-{offload.name}"
    elif getattr(args, "attention", None):
        raise UserError(
            f"--attention {args.attention} is an option of an accelerator",
            remedy="add --accelerator DEVICE",
        )
    job = Job(
        recipe=recipe,
        offload=offload,
        project=project,
        release=args.release,
        applied=args.applied,
        without=read_omissions(args.applied),
        source=args.source,
        model=name,
        prompt=args.prompt,
        threads=args.threads,
        max_new=args.max_new,
        report=args.report or project / "out" / f"{stem}.json",
        cache=args.cache,
        unchecked=args.unchecked,
        again=args.again,
        verb=verb,
    )
    check_int8(recipe.mode.activations, recipe.quantization)
    if recipe.quantization not in (*OWN_FORMATS, GGUF) and recipe.mlc_tree is None:
        raise UserError(
            f"{recipe.quantization} is a quantization of MLC-LLM, which is missing here; "
            f"the project's own model definition supports {', '.join(OWN_FORMATS)} only",
            remedy=job.supply_mlc,
        )
    return job


def _kind_of(source: str, cache: Path, *, mlc: bool) -> tuple[str, bool]:
    """Return a model's ``model_type``, and whether its weights stay in GGUF blocks by default.

    A model of a hub is downloaded. A model that cannot be read yet counts as a Llama.
    """
    path = Path(source)
    if source.startswith(HUB) and not at_first_look():
        path = download(source, cache)[0]
    if path.suffix == ".gguf" and not at_first_look():
        kind, experts = kind_of_file(path)
        # Experts are most of a mixture's weights.
        return kind, kind in FAMILIES or (mlc and experts)
    if (path / CONFIG_FILE).is_file():
        return kind_of(path), False
    # A first look has no package that reads a file. Pinned ones are of a family of the project.
    return FAMILIES[0], path.suffix == ".gguf"


def mode_of(offload: Offload, recipe: Recipe) -> KernelMode:
    """Return the kernel mode of a build with an accelerator.

    Raises:
        UserError: the user chose other weights or activations than the device takes.
    """
    if recipe.quantization != DEFAULT_FORMAT or recipe.mode != TILES:
        raise UserError(
            f"{offload.name} rounds float32 weights and activations itself",
            remedy=f"leave out --quantization (it is {DEFAULT_FORMAT}), --weights, --activations, "
            "--kv-cache",
        )
    return offload.mode


def _model_name(args: argparse.Namespace) -> str:
    given: str | None = getattr(args, "name", None)
    name = name_of(given or args.source)
    if given and name != given:
        raise UserError(
            f"--name {given} cannot name a folder in dist/",
            remedy=f"use small letters, digits, -, _ and .: --name {name}",
        )
    return name
