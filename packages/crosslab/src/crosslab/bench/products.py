# SPDX-License-Identifier: Apache-2.0
"""Products of a model's linear layers alone, with our kernels and with OpenBLAS's sgemm."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from crosslab.assemble.pinned_archive import read_archive
from crosslab.bench.kernel_bench import Case, build, count
from crosslab.bench.options import Bench
from crosslab.bench.rows import PHASES, PRODUCTS, Row, cost_of, measured_row
from crosslab.bench.subject import Subject
from crosslab.errors import UserError
from crosslab.models.config import LlamaConfig
from crosslab.peers.openblas import NAME, ORDERS, build_openblas, run_openblas
from crosslab.run.measurement import PhaseRegions

QUANTIZATION = "q0f32"
VARIANT = "OpenBLAS"


@dataclass(frozen=True)
class Products:
    """The products of linear layers for a prompt and for a decoded token.

    Attributes:
        config: sizes of the model.
        prompt: number of tokens of the prompt.
    """

    config: LlamaConfig
    prompt: int

    @property
    def sizes(self) -> list[tuple[int, int, int]]:
        """(rows, outputs, inputs) of a layer's products in both phases, then of lm_head."""
        layer, head = self.config.linear_layers, (self.config.vocab, self.config.hidden)
        phases = [(rows, *product) for rows in (self.prompt, 1) for product in layer]
        return [*phases, (1, *head)]

    def regions(self, phase: str) -> PhaseRegions:
        """Return the regions of a phase: a layer's, repeated for each layer, and lm_head's."""
        layer = len(self.config.linear_layers)
        first = layer * PHASES.index(phase)
        once = tuple(range(first, first + layer))
        return PhaseRegions((*once * self.config.layers, 2 * layer), 1)


def check_openblas(bench: Bench) -> None:
    """Refuse options of the bench that OpenBLAS's products do not support.

    Raises:
        UserError: an option asks for threads, types other than float32, caches or a depth.
    """
    wrong = [
        ("--threads", bench.threads > 1, "only one thread is counted"),
        ("--quantization", bench.quantizations != (QUANTIZATION,), "it multiplies float32 only"),
        ("--caches", bench.caches, "its products are counted without caches"),
        ("--depth", bench.depth > 0, "products of linear layers do not read the cache"),
    ]
    for option, refused, why in wrong:
        if refused:
            raise UserError(f"--peer {NAME} with {option}: {why}", remedy=f"leave out {option}")


def product_rows(subject: Subject, say: Callable[[str], None]) -> Iterator[Row]:
    """Yield the rows of our products and OpenBLAS's, for each VLEN and prompt.

    Each phase uses OpenBLAS's order of weights with the least cycles (without a core, the least
    instructions).

    Args:
        subject: the model and the bench's options.
        say: prints a line of progress.
    """
    bench = subject.bench
    wheel = read_archive(bench.project, NAME)
    peer = build_openblas(wheel, bench.cache)
    with tempfile.TemporaryDirectory(prefix="products-") as folder:
        ours = build(Path(folder), bench.cache)
        for vlen in bench.recipe.vlens:
            for prompt in bench.prompts:
                products = Products(subject.config, prompt)
                common = {
                    "quantization": QUANTIZATION,
                    "vlen": vlen,
                    "prompt": prompt,
                    "layers": PRODUCTS,
                }
                yield from _our_rows(subject, products, ours, common)
                yield from _peer_rows(subject, products, peer, wheel.version, common)
                say(f"counted: products alone, VLEN {vlen}, prompt of {prompt}")


def _our_rows(
    subject: Subject, products: Products, program: Path, common: dict[str, Any]
) -> Iterator[Row]:
    bench = subject.bench
    tiles = bench.recipe.mode.weights == "tiles"
    kinds = ["gemm_f32_tiles"] * 2 if tiles else ["gemm_f32", "gemv_f32"]
    cases = [Case(kinds[sizes[0] == 1], sizes) for sizes in products.sizes]
    measured = count(program, cases, common["vlen"], bench.cache)
    for phase in PHASES:
        tokens = products.prompt if phase == "prefill" else 1
        fields = {**common, "variant": "ours", "phase": phase, "tokens": tokens, "path": "own"}
        yield measured_row(fields, bench, measured, products.regions(phase), program)


def _peer_rows(
    subject: Subject, products: Products, program: Path, version: str, common: dict[str, Any]
) -> Iterator[Row]:
    bench, vlen = subject.bench, common["vlen"]
    runs = {
        order: run_openblas(program, order, products.sizes, vlen=vlen, cache=bench.cache)
        for order in ORDERS
    }
    for phase in PHASES:
        tokens, rows = products.prompt if phase == "prefill" else 1, []
        for order, (kernels, measured) in runs.items():
            fields = {
                **common,
                "variant": VARIANT,
                "phase": phase,
                "tokens": tokens,
                "path": None,
                "source": f"OpenBLAS {version}, its kernels {kernels}, weights {order}",
            }
            rows.append(measured_row(fields, bench, measured, products.regions(phase), program))
        yield min(rows, key=cost_of)
