# SPDX-License-Identifier: Apache-2.0
"""Files of a job's artefact, and their descriptions in its manifest."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape

from crosslab.artifact.board_readme import README
from crosslab.artifact.dist import OBJECTS, RUN, SERVICE, Dist
from crosslab.artifact.manifest import MANIFEST, SBOM, SUMS, Verdict
from crosslab.artifact.provenance import (
    OURS,
    Provenance,
    TreeOrigin,
    library_licences,
    read_origins,
)
from crosslab.artifact.relink import ARCHIVE, SCRIPT, relinking
from crosslab.artifact.relink import README as OBJECTS_README
from crosslab.artifact.sbom import Part
from crosslab.assemble.kernels import IME_FLAGS
from crosslab.assemble.libraries import licences
from crosslab.assemble.link import SERVER, LinkRequest, flags_of
from crosslab.assemble.runner import Runner
from crosslab.boards.matrices import Matrix, kind_named
from crosslab.boards.predictions import predictions
from crosslab.compile.driver import LIBRARY
from crosslab.compile.overlaypass import PASSES
from crosslab.job.job_options import Job
from crosslab.models.config import kind_of, read_family
from crosslab.models.encoder import ENCODERS
from crosslab.models.formats import GGUF
from crosslab.models.gguf_params import matrix_types
from crosslab.models.sources.model_folder import CONFIG_FILE as CONFIG_JSON
from crosslab.models.sources.model_folder import ImportedModel
from crosslab.tokenizer.chat_config import CONFIG_FILE, chat_config
from crosslab.tokenizer.chat_tokenizer import TOKENIZER_FILE, ChatTokenizer
from crosslab.tokenizer.device_tokenizer import DEVICE_FILE, device_tokenizer
from crosslab.tokenizer.unsupported import UnsupportedTokenizerError
from groundwork.hashing import sha256_of

EMBEDDING, LM_HEAD = "model.embed_tokens.weight", "lm_head.weight"
HOLDS = {
    README: "what the board must have, how to use this folder, what to type when it fails",
    "run.sh": "the model from a shell: ./run.sh PROMPT, and chat, serve, install, bench or verify",
    SERVICE.name: "the service that ./run.sh install --user installs",
    "runner": "a static riscv64 program: the runner, TVM's runtime, the model library with its "
    "kernels, and the C and C++ libraries",
    "params": "the model's parameters in MLC-LLM's format",
    DEVICE_FILE: "the tokenizer and the chat template, for the runner",
    TOKENIZER_FILE: "the tokenizer as Hugging Face writes it",
    "licenses": "licences and notices of what the runner holds",
    SBOM: "bill of materials, CycloneDX",
    SUMS: "hash of every file but this one and MANIFEST.json, for sha256sum -c",
    MANIFEST: "hash of every other file, and what they were made from",
}
OBJECTS_HOLD = {
    README: "how to link the runner again",
    LIBRARY: "the model library as objects, to link the runner again or a program of one's own",
    ARCHIVE: "the runner's other objects, and the options of their link",
    SCRIPT.name: "links both to the runner again, also with another C library (LGPL 2.1, section "
    "6)",
    **{name: HOLDS[name] for name in ("licenses", SBOM, SUMS, MANIFEST)},
}
# The program whose answer was compared: the server is compiled after that.
ANSWERED = (
    "the runner without its server: linked from the same objects as the file runner, except those "
    f"of {', '.join(f'runner/{name}' for name in SERVER)}, XGrammar and cpp-httplib"
)

_console = Console(stderr=True, highlight=False)


def dists_of(
    job: Job,
    model: ImportedModel,
    params: Path,
    checked: Runner,
    runner: Runner,
    verdict: Verdict,
) -> tuple[Dist, Dist]:
    """Return the folders to write: the objects of the job's runner, and the finished model.

    Args:
        job: what was asked for.
        model: the imported model.
        params: folder of the stored parameters.
        checked: the program that answered, without a server.
        runner: the whole program, its model library and the inputs of its link.
        verdict: the check of the model's answer.
    """
    recipe = job.recipe
    files = {
        **_text(job, model.folder),
        "runner": runner.program,
        "params": params,
        TOKENIZER_FILE: model.folder / TOKENIZER_FILE,
        **(texts := _licences(job, runner.linking)),
    }
    again = relinking(runner.linking, runner.program, job.cache)
    objects = {LIBRARY: runner.library.library, README: OBJECTS_README, **again, **texts}
    provenance = Provenance(
        project=job.project,
        origins=_origins(job),
        passes=PASSES,
        model=model.origin,
        targets=recipe.targets,
        linking=runner.linking,
        with_mlc=recipe.mlc_tree is not None,
        kernel_flags=IME_FLAGS if job.recipe.ime else (),
        flags=flags_of(runner.linking, job.cache),
    )
    about = {**_about(job, ChatTokenizer.load(model.folder)), "verdict": verdict}
    if kind_of(model.folder) in ENCODERS:
        about |= {"encodes": True}
    if predicted := _predictions(job, model.folder):
        about |= {"predictions": predicted}
    about |= {"inputs": provenance.inputs(), "tools": provenance.tools()}
    about |= {"links_again": bool(again)}
    about |= {"answered": {"sha256": sha256_of(checked.program), "program": ANSWERED}}
    parts = tuple(provenance.parts())

    def dist(ending: str, files: Mapping[str, Path], facts: Mapping[str, Any]) -> Dist:
        name = f"{job.name}{ending}-{recipe.label}"
        whole = Part(name, job.release, OURS, shipped=True, kind="application")
        folder = job.dist.with_name(job.dist.name + ending)
        return Dist(folder, files, {**about, **facts}, whole, parts)

    # The runner's hash reveals objects of another build.
    of_objects = {"runner": sha256_of(runner.program), "holds": _held(objects, OBJECTS_HOLD)}
    return dist(OBJECTS, objects, of_objects), dist("", files, {"holds": _held(files, HOLDS)})


def _text(job: Job, model: Path) -> dict[str, Path]:
    """Files for text on the device, by path; none if the runner does not support the tokenizer."""
    try:
        return {
            "run.sh": RUN,
            SERVICE.name: SERVICE,
            DEVICE_FILE: device_tokenizer(model, job.cache),
            f"params/{CONFIG_FILE}": chat_config(model, job.cache),
        }
    except UnsupportedTokenizerError as error:
        _console.print(f"[yellow]dist without run.sh:[/] {escape(error.what)}", soft_wrap=True)
        return {}


def _origins(job: Job) -> tuple[TreeOrigin, ...]:
    """Origins of the patched trees that the job uses; none without a report."""
    origins = read_origins(job.applied) if job.applied else ()
    return tuple(origin for origin in origins if job.recipe.mlc_tree or origin.name != "mlc-llm")


def _about(job: Job, tokenizer: ChatTokenizer) -> dict[str, Any]:
    recipe = job.recipe
    return {
        "release": job.release,
        "target": recipe.label,
        "vlens": list(recipe.vlens),
        "zvfh": recipe.zvfh,
        "tuned_for": recipe.tune,
        "model": job.model,
        "quantization": recipe.quantization,
        "weights": recipe.mode.weights,
        "activations": recipe.mode.activations,
        "kv_cache": recipe.mode.kv_cache,
        **({"accelerator": job.offload.name} if job.offload else {}),
        **({"kernel_values": values} if (values := recipe.kernel_values) else {}),
        "path": recipe.path,
        "stop_ids": list(tokenizer.stop_ids),
        "chat_template": tokenizer.settings.get("chat_template"),
    }


def _predictions(job: Job, model: Path) -> list[dict[str, Any]]:
    """Predicted speeds on boards; none unless weights are GGUF, and activations int8."""
    if job.recipe.quantization != GGUF or not job.int8 or job.recipe.mlc:
        return []
    config = read_family(model / CONFIG_JSON)
    if config.experts:
        # No published row of a mixture was compared with the model of a board.
        return []
    counted: Counter[tuple[int, int, str]] = Counter()
    head = ""
    for name, rows, inputs, type_ in matrix_types(model):
        kind = kind_named(type_)
        if name in (EMBEDDING, LM_HEAD):
            # The embedding is no product, unless it is lm_head, too.
            head = kind if name == LM_HEAD or not head else head
        else:
            counted[rows, inputs, kind] += 1
    layers = tuple(Matrix(*key, count) for key, count in sorted(counted.items()))
    weights = layers, Matrix(config.vocab, config.hidden, head)
    return predictions(config, weights, job.recipe.vlens, job.recipe.mode.kv_cache)


def _held(files: Mapping[str, Path], holds: Mapping[str, str]) -> dict[str, str]:
    tops = {name.partition("/")[0] for name in files} | {SBOM, SUMS, MANIFEST}
    if RUN.name in files:
        tops.add(README)
    return {name: what for name, what in holds.items() if name in tops}


def _licences(job: Job, linking: LinkRequest) -> dict[str, Path]:
    """Licence texts of what is compiled and linked in."""
    folders = {"mlc-rvv": job.project, "tvm": job.recipe.tvm_tree}
    found = {
        f"licenses/{name}/{file}": folder / file
        for name, folder in folders.items()
        for file in ("LICENSE", "NOTICE")
    }
    found |= licences(job.cache)
    of_libraries = library_licences(linking.toolchain)
    for path in of_libraries.values():
        if not path.is_file():
            _console.print("[yellow]dist without a licence text:[/]", path, soft_wrap=True)
    found |= of_libraries
    return {name: path for name, path in found.items() if path.is_file()}
