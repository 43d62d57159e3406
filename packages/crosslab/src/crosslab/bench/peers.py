# SPDX-License-Identifier: Apache-2.0
"""Rows of llama.cpp on the same model, measured by the same counter."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor
from pathlib import Path
from typing import Any

from crosslab.assemble.pinned_archive import read_archive
from crosslab.bench.options import Bench
from crosslab.bench.rows import Row, cost_of, measured_row
from crosslab.bench.subject import Subject
from crosslab.errors import UserError
from crosslab.models.formats import GGUF, weight_formats
from crosslab.peers.gguf_export import export_gguf, fits
from crosslab.peers.llama_cpp import PeerRun, fill_cache, run_llama_cpp
from crosslab.peers.llama_cpp_build import NAME
from crosslab.peers.llama_cpp_programs import FILLER, build_llama_cpp, build_native

# Type of activations in products, by the peer's format of weights.
ACTIVATIONS = {"F32": "float32", "F16": "float16", "Q8_0": "int8", "Q4_0": "int8"}
ACTIVATIONS |= dict.fromkeys(("IQ4_NL", "Q4_K_M"), "int8")


def formats_beside(bench: Bench, quantization: str) -> Sequence[str]:
    """Return llama.cpp's formats of weights that compare with a quantization; empty: none does."""
    if quantization == GGUF:
        return (bench.file.name if bench.file else bench.gguf,)
    return weight_formats()[quantization].llama_cpp


def check_peer(bench: Bench) -> None:
    """Check that llama.cpp can run the bench's measurements.

    Raises:
        UserError: there are several threads, or no format fits a quantization or the model.
    """
    if bench.threads > 1:
        raise UserError(f"--peer {NAME} runs in one thread only", remedy="leave out --threads")
    for quantization in bench.quantizations:
        if not formats_beside(bench, quantization):
            others = [name for name, f in weight_formats().items() if f.llama_cpp]
            raise UserError(
                f"--peer {NAME} has no format that compares with {quantization}",
                remedy=f"leave out --peer, or use --quantization {' or '.join(others)}",
            )
    if bench.config and bench.config.hidden % 32:
        raise UserError(
            f"--peer {NAME}: its formats need groups of 32 weights, and {bench.config.hidden} is "
            "not a multiple of 32",
            remedy="leave out --peer, or use another model",
        )


def peer_rows(
    subject: Subject, quantization: str, pool: Executor, say: Callable[[str], None]
) -> Iterator[Row]:
    """Yield llama.cpp's rows of a quantization, for each VLEN and prompt.

    Each phase uses the build with the least cycles (without a core, the least instructions),
    unless the bench reports each build.

    Args:
        subject: the model and the bench's options.
        quantization: quantization of ours.
        pool: runs the emulators in parallel.
        say: prints a line of progress.
    """
    bench = subject.bench
    source = read_archive(bench.project)
    builds = build_llama_cpp(source, bench.cache, bench.core)
    if bench.peer_builds:
        builds = {build: builds[build] for build in bench.peer_builds}
    for format_ in formats_beside(bench, quantization):
        if not bench.file and not fits(subject.config):
            say(f"left out: {NAME} {format_}: its blocks do not divide the model's widths")
            continue
        model = bench.file or export_gguf(subject.folder, format_, bench.cache)
        if bench.depth:
            filler = build_native(source, FILLER, bench.cache)
            model = fill_cache(filler, model, bench.depth, bench.cache)
        for vlen in bench.recipe.vlens:
            for prompt in bench.prompts:
                tokens = subject.prompt(prompt)

                futures = {
                    build: pool.submit(
                        run_llama_cpp,
                        *(program, model, tokens, bench.decode),
                        depth=bench.depth,
                        vlen=vlen,
                        cache=bench.cache,
                        caches=bench.cache_option,
                    )
                    for build, program in builds.items()
                }
                runs = {build: future.result() for build, future in futures.items()}
                say(f"counted: {NAME} {format_}, VLEN {vlen}, prompt of {prompt}")
                common = {
                    "variant": f"{NAME} {format_}",
                    "quantization": quantization,
                    "vlen": vlen,
                    "prompt": prompt,
                    "path": None,
                    "activations": "int8" if bench.file else ACTIVATIONS[format_],
                }
                yield from _rows(subject, common, builds, runs, source.commit)


def _rows(
    subject: Subject,
    common: dict[str, Any],
    builds: dict[str, Path],
    runs: dict[str, PeerRun],
    commit: str,
) -> Iterator[Row]:
    bench = subject.bench
    cases = (("prefill", "all"), ("prefill", "as shipped"), ("decode", "all"))
    for phase, layers in cases:
        rows = []
        for build, run in runs.items():
            regions = run.decode
            if phase == "prefill":
                regions = run.every_layer if layers == "all" else run.as_shipped
            fields = {
                **common,
                "phase": phase,
                "layers": layers,
                "tokens": bench.decode if phase == "decode" else common["prompt"],
                "build": build,
                "source": f"llama.cpp {commit[:9]}, {build} build",
            }
            rows.append(measured_row(fields, bench, run.measured, regions, builds[build]))
        yield from rows if bench.each_build else [min(rows, key=cost_of)]
