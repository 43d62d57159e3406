# SPDX-License-Identifier: Apache-2.0
"""Matrices of a model in a file's format, and the work of programs on them."""

import math
import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

from crosslab.boards.board import Board, Layout, Work
from crosslab.boards.kernels import cycles_of, kernel_cycles
from crosslab.errors import UserError
from crosslab.models.config import LlamaConfig

FILE = Path(__file__).with_name("llama_cpp.toml")
# Elements of the blocks that llama-quantize needs for K formats; other rows get SMALL's formats.
LARGE_BLOCK = 256
LAST_LAYERS = 8
ROUNDS = 50  # of the fixed point of a miss rate
ACTIVATION = {"f16": 2.0}  # bytes of an activation by type of weights
INT8_ACTIVATION = 34 / 32


@dataclass(frozen=True)
class Matrix:
    """Equal matrices of a model.

    Attributes:
        rows: number of outputs.
        columns: elements of a row.
        kind: type of the blocks, as in names of ggml's functions (``q4_K``).
        count: number of such matrices.
    """

    rows: int
    columns: int
    kind: str
    count: int = 1

    @property
    def size(self) -> float:
        """Bytes of one matrix."""
        return self.rows * self.columns * bytes_of_weight(self.kind)


@dataclass(frozen=True)
class Route:
    """The order in which a kernel walks a product.

    Attributes:
        kernel: kernel in ``kernels.csv``; ``{}`` is the type of the weights.
        single: the same for one token.
        rows: rows of weights that a thread multiplies with all tokens of a pass; 0: a quarter of
            the thread's share.
        tokens: tokens of a tile, between two reads of these rows.
        kept: True if these rows are read once for all tokens of a pass.
        batch: tokens of a pass, after which the weights are read from memory again; 0: all tokens.
        unit: name of the matrix unit that multiplies; empty: vectors.
    """

    kernel: str
    single: str
    rows: int
    tokens: int
    batch: int = 0
    unit: str = ""
    kept: bool = False


@dataclass(frozen=True)
class Flash:
    """The walk of flash attention: a tile of queries meets a step of keys after the other.

    Attributes:
        kernel: kernel in ``kernels.csv``, of a multiply-add; ``{}`` is the size of a head, 64 or
            128.
        queries: queries of a tile; a tile that is filled in part costs as much.
        keys: keys of a step.
        least: tokens from which on there are tiles; fewer take the kernel ``attention``.
        grouped: True if a tile has the query heads of a KV head.
        parts: parts of a thread's queries, which end tiles; 0: a head ends them.
        softmax: kernel of an element of the softmax; empty: ``kernel`` has it.
        hidden: kernel of a hidden key with a query; empty: it costs nothing.
        cycles: cycles of a multiply-add in place of those of ``kernel``; 0: they are counted.
    """

    kernel: str
    queries: int
    keys: int
    least: int = 2
    grouped: bool = False
    parts: int = 0
    softmax: str = ""
    hidden: str = ""
    cycles: float = 0.0


@dataclass(frozen=True)
class Program:
    """A build of llama.cpp, or ours.

    Attributes:
        name: name in tables.
        routes: route by type of weights.
        only: other types have no products; else they take dot products.
        vlen: bits in a vector register that its kernels are written for; 0: any.
        huge_pages: weights lie in huge pages.
        flash: walk of flash attention; None: products of halves and a softmax.
        padding: the attention takes a multiple of so many columns of the cache.
        cache: bytes of a number in the KV cache.
    """

    name: str
    routes: Mapping[str, Route]
    only: bool = False
    vlen: int = 0
    huge_pages: bool = False
    flash: Flash | None = None
    padding: int = 256
    cache: float = 2.0


@cache
def _table() -> Mapping[str, Any]:
    return tomllib.loads(FILE.read_text(encoding="utf-8"))


def formats() -> tuple[str, ...]:
    """Return the names of the known formats of files, such as ``Q4_0``."""
    return tuple(_table()["mix"])


@cache
def programs() -> Mapping[str, Program]:
    """Return the programs of ``llama_cpp.toml`` by name."""
    routes = {name: Route(**fields) for name, fields in _table()["route"].items()}
    flash = {name: Flash(**fields) for name, fields in _table()["flash"].items()}
    found = {}
    for name, fields in _table()["program"].items():
        by_kind = {kind: routes[r] for r, kinds in fields["routes"].items() for kind in kinds}
        walk = flash.get(fields.get("flash", ""))
        found[name] = Program(**{**fields, "name": name, "routes": by_kind, "flash": walk})
    return found


def dot_products() -> Route:
    """Return the route of dot products, for types of weights without another route."""
    return Route(**_table()["route"]["dot"])


def bytes_of_weight(kind: str) -> float:
    """Return the bytes of a block, scales included, divided by its weights."""
    block, size = GGML_QUANT_SIZES[GGMLQuantizationType[kind.upper()]]
    return float(size / block)


def kind_named(type_: str) -> str:
    """Return the type of blocks as in names of ggml's functions, by ggml's name of the type."""
    name = type_.lower()
    return f"{name[:-1]}K" if name.endswith("_k") else name


# Matrices of all layers, and lm_head.
Matrices = tuple[tuple[Matrix, ...], Matrix]


def matrices(config: LlamaConfig, format_: str) -> Matrices:
    """Return the layers' matrices, equal ones as one with a count, and lm_head, in a format.

    Args:
        config: the model's sizes.
        format_: a table ``[mix]`` of ``llama_cpp.toml``.
    """
    mix: Mapping[str, str] = _table()["mix"][format_]
    heads, kv = config.heads * config.head_dim, config.kv_heads * config.head_dim
    shapes = {
        "q": (heads, config.hidden),
        "k": (kv, config.hidden),
        "v": (kv, config.hidden),
        "o": (config.hidden, heads),
        "gate": (config.intermediate, config.hidden),
        "up": (config.intermediate, config.hidden),
        "down": (config.hidden, config.intermediate),
    }
    counted: Counter[tuple[int, int, str]] = Counter()
    for layer in range(config.layers):
        for role, (rows, columns) in shapes.items():
            counted[rows, columns, _kind(mix, role, layer, config.layers, columns)] += 1
    layers = tuple(Matrix(*key, count) for key, count in counted.items())
    head = _fitting(mix.get("head", mix["all"]), config.hidden)
    return layers, Matrix(config.vocab, config.hidden, head)


def _kind(mix: Mapping[str, str], role: str, layer: int, layers: int, columns: int) -> str:
    """Return the type of a matrix; ``mix`` has other types for some layers, or the first ones."""
    kind = mix.get(role, mix["all"])
    if f"{role} more" in mix and _more(layer, layers):
        kind = mix[f"{role} more"]
    if f"{role} first" in mix and layer < layers // int(mix["first"]):
        kind = mix[f"{role} first"]
    return _fitting(kind, columns)


def _more(layer: int, layers: int) -> bool:
    first = layers // LAST_LAYERS
    last = (LAST_LAYERS - 1) * layers // LAST_LAYERS
    return layer < first or layer >= last or (layer - first) % 3 == 2


def _fitting(kind: str, columns: int) -> str:
    return kind if columns % LARGE_BLOCK == 0 else str(_table()["small"].get(kind, kind))


def product(
    layout: Layout, program: Program, matrix: Matrix, tokens: int, threads: int
) -> tuple[Work, ...]:
    """Return one thread's work in the products of ``matrix.count`` matrices with ``tokens`` tokens.

    The first part is that of the tiles that fetch weights from memory; the other tiles find them in
    a cache, or fetch them again.

    Raises:
        UserError: the program has no such products, or a kernel was not counted.
    """
    route = program.routes.get(matrix.kind)
    if route is None and program.only:
        raise UserError(
            f"{program.name} has no products with {matrix.kind}",
            remedy=f"its types are {', '.join(program.routes)}",
        )
    if route is None or (route.rows == 0 and matrix.rows % 16):
        route = dot_products()
    adds = matrix.rows * matrix.columns * tokens * matrix.count / threads
    size = matrix.size * matrix.count / threads / layout.line
    if tokens == 1:
        work = _arithmetic(layout, route, matrix.kind, tokens, adds)
        return (replace(work, memory_lines=size),)
    cluster = layout.clusters[0]
    in_l2 = cluster.l2 / layout.shares_l2(threads)
    batch = min(tokens, route.batch or tokens)
    rows = route.rows or max(16, matrix.rows // (4 * threads))
    width = ACTIVATION.get(matrix.kind, INT8_ACTIVATION)
    passes = math.ceil(tokens / batch)
    again = 0.0 if route.kept else size * (tokens / route.tokens - passes)
    reads = (
        (again, rows * bytes_of_weight(matrix.kind), in_l2),
        (adds / rows * width / layout.line, batch * width, cluster.l2),
    )
    memory = l2 = 0.0
    for lines, height, room in reads:
        block = height * matrix.columns
        missed = max(0.0, lines) * miss_rate(block, cluster.l1)
        memory += missed * miss_rate(block, room)
        l2 += missed * (1 - miss_rate(block, room))
    first = min(1.0, passes * route.tokens / tokens)
    parts = (first, size * passes, 0.0), (1 - first, memory, l2)
    return tuple(
        replace(
            _arithmetic(layout, route, matrix.kind, tokens, share * adds),
            memory_lines=from_memory,
            l2_lines=from_l2,
        )
        for share, from_memory, from_l2 in parts
    )


@cache
def miss_rate(block: float, size: float) -> float:
    """Return the share of misses if ``block`` bytes are read again and again through a cache.

    The cache has ``size`` bytes, and replaces lines at random: a line hits if none of the misses
    since its last use replaced it.
    """
    if block <= size:
        return 0.0
    hits = 0.0
    for _ in range(ROUNDS):
        hits = math.exp((hits - 1) * block / size)
    return 1 - hits


def _arithmetic(layout: Layout, route: Route, kind: str, tokens: int, adds: float) -> Work:
    if route.unit:
        # The unit multiplies tiles of tokens; a single token takes as long.
        return Work(unit=route.unit, unit_adds=adds * max(1, route.tokens // tokens))
    name = (route.kernel if tokens >= route.tokens else route.single).format(kind)
    return Work(products=adds * cycles_of(layout.core, name, layout.measure))


@dataclass(frozen=True)
class Phase:
    """A prompt, or the generation of one token.

    Attributes:
        tokens: tokens that are computed together.
        before: tokens in the cache before them.
    """

    tokens: int
    before: float = 0.0


def phase_work(
    layout: Layout,
    program: Program,
    config: LlamaConfig,
    weights: Matrices,
    phase: Phase,
    threads: int,
) -> Iterator[Work]:
    """Yield the work of a phase, as parts that run one after the other.

    lm_head is computed for one token.
    """
    layers, head = weights
    for matrix in layers:
        yield from product(layout, program, matrix, phase.tokens, threads)
    yield from product(layout, program, head, 1, threads)
    yield _attention(layout, program, config, phase, threads)
    yield _operations(layout, program, config, layers, phase, threads)


def cache_item(kv_cache: str, head_dim: int) -> float:
    """Return the bytes of a number in our KV cache, by its type; int8 has a factor for each head.

    Args:
        kv_cache: "float32" or "int8".
        head_dim: elements of a head.
    """
    return 1 + FLOAT / head_dim if kv_cache == "int8" else FLOAT


def cache_lines(
    layout: Layout, config: LlamaConfig, phase: Phase, item: float, threads: int
) -> float:
    """Return the lines of the KV cache that each thread reads: once each, also in a prompt.

    Args:
        layout: layout of the board.
        config: the model's sizes.
        phase: tokens of the phase, and before it.
        item: bytes of a number in the cache.
        threads: number of threads.
    """
    numbers = 2 * config.layers * config.kv_heads * config.head_dim
    return numbers * (phase.before + phase.tokens) * item / threads / layout.line


def _attention(
    layout: Layout, program: Program, config: LlamaConfig, phase: Phase, threads: int
) -> Work:
    """Return the work of the attention of all layers; what it writes to the cache is left out."""
    tokens, times = phase.tokens, config.layers * phase.tokens / threads
    lines = cache_lines(layout, config, phase, program.cache, threads)
    if program.flash and tokens >= program.flash.least:
        return _tiles(layout, program, program.flash, config, phase, threads)
    if program.flash:
        kernel = cycles_of(layout.core, "attention", layout.measure)
        adds = 2 * config.heads * config.head_dim * (phase.before + (tokens + 1) / 2)
        return Work(kernel * adds * times, cache_lines=lines)
    # Products and softmax take all columns of the cache, also those that the mask hides.
    columns = _columns(phase, program.padding)
    scores = config.heads * columns * times
    cycles = kernel_cycles(layout.core, layout.measure)["softmax"]
    for length in (config.head_dim, columns):
        cycles += config.head_dim * _halves(layout, program, tokens, length)
    # The softmax reads and writes scores that a product wrote, and the other product rounds them to
    # halves, and reads these.
    moved = 5 * scores * FLOAT / layout.line
    size = config.heads * columns * min(tokens, TOGETHER) * FLOAT
    if size > layout.clusters[0].l2:
        return Work(cycles * scores, cache_lines=lines + moved)
    return Work(cycles * scores, cache_lines=lines, l2_lines=moved)


def _tiles(
    layout: Layout,
    program: Program,
    flash: Flash,
    config: LlamaConfig,
    phase: Phase,
    threads: int,
) -> Work:
    """Return the work of flash attention in tiles, in all layers."""
    steps, hidden = _steps(flash, config, phase, program.padding, threads)
    d, scores = config.head_dim, flash.queries * flash.keys
    name = flash.kernel.format(64 if d <= 96 else 128)
    cycles = 2 * d * (flash.cycles or cycles_of(layout.core, name, layout.measure))
    if flash.softmax:
        cycles += cycles_of(layout.core, flash.softmax, layout.measure)
    cycles *= steps * scores
    if flash.hidden:
        cycles += hidden * cycles_of(layout.core, flash.hidden, layout.measure)
    # A step writes and reads queries, keys, values, outputs, scores and mask, in float32.
    block = FLOAT * 2 * (d * (flash.queries + flash.keys) + scores)
    touched = steps * block / layout.line * miss_rate(block, layout.clusters[0].l1)
    # It also reads keys and values of one head from the cache, which all threads walk at a time.
    once = cache_lines(layout, config, phase, program.cache, 1)
    again = max(0.0, steps * 2 * flash.keys * d * program.cache / layout.line - once)
    head = once * layout.line / config.layers / config.kv_heads
    missed = again * miss_rate(head, layout.clusters[0].l2)
    return Work(
        cycles / threads,
        cache_lines=(once + missed) / threads,
        l2_lines=(touched + again - missed) / threads,
    )


@cache
def _steps(
    flash: Flash, config: LlamaConfig, phase: Phase, padding: int, threads: int
) -> tuple[float, float]:
    """Return the steps of all tiles and layers, and the pairs of a query and a hidden key."""
    group = config.heads // config.kv_heads if flash.grouped else 1
    steps = hidden = 0.0
    for first in range(0, phase.tokens, TOGETHER):
        size = min(phase.tokens - first, TOGETHER)
        before, rows = phase.before + first, size * group
        columns = math.ceil((before + size) / padding) * padding
        total = rows * config.heads // group
        part = math.ceil(total / (flash.parts * threads)) if flash.parts else rows
        start = 0
        while start < total:
            end = min(
                start + flash.queries, start - start % part + part, start - start % rows + rows
            )
            seen = before + ((end - 1) % rows + 1) / group
            tile_steps = math.ceil(seen / flash.keys)
            steps += tile_steps
            hidden += (end - start) * max(0, columns - tile_steps * flash.keys)
            start = end
    return config.layers * steps, config.layers * hidden


def _columns(phase: Phase, padding: int) -> float:
    """Return the mean number of the cache's columns that a token is multiplied with."""
    columns = 0.0
    for start in range(0, phase.tokens, TOGETHER):
        size = min(phase.tokens - start, TOGETHER)
        filled = phase.before + start + size
        columns += math.ceil(filled / padding) * padding * size / phase.tokens
    return columns


def _halves(layout: Layout, program: Program, tokens: int, length: float) -> float:
    """Return the cycles of a multiply-add in the attention's products of rows of a length.

    A row costs its start and its elements: both follow from rows of 64 and of 2,048.
    """
    route = program.routes.get("f16", dot_products())
    name = (route.kernel if tokens >= route.tokens else route.single).format("f16")
    long, short = (
        cycles_of(layout.core, kernel, layout.measure) for kernel in (name, f"{name} 64")
    )
    return long + (short - long) * (1 / length - 1 / 2048) / (1 / 64 - 1 / 2048)


def _operations(
    layout: Layout,
    program: Program,
    config: LlamaConfig,
    layers: Sequence[Matrix],
    phase: Phase,
    threads: int,
) -> Work:
    """Return the work beside the products and the attention: activations, and waits."""
    cycles, kernels = 0.0, kernel_cycles(layout.core, layout.measure)
    tokens, heads = phase.tokens, config.heads * config.head_dim
    kv, times = config.kv_heads * config.head_dim, config.layers * phase.tokens
    # A thread takes whole rows: tokens of an operation, four tokens of a repacked product.
    rows = tokens / math.ceil(tokens / threads)
    for name, width in (
        ("rms_norm", 2 * config.hidden),
        ("add", 2 * config.hidden),
        ("swiglu", config.intermediate),
        ("rope", heads + kv),
    ):
        cycles += kernels[name] * width * times / rows
    for matrix in layers:
        name, tile = _quantization(program, matrix.kind, tokens)
        tiles = math.ceil(tokens / tile)
        busy = tiles / math.ceil(tiles / threads) if tokens > 1 else threads
        cycles += kernels.get(name, 0.0) * matrix.columns * matrix.count * tokens / busy
    # Each operation reads its inputs and writes its output.
    numbers = 17 * config.hidden + 6 * config.intermediate + 4 * (heads + kv)
    lines = numbers * FLOAT / layout.line * times / threads
    in_memory = tokens * config.hidden * FLOAT > layout.clusters[0].l2
    return Work(
        cycles,
        memory_lines=lines if in_memory else 0.0,
        l2_lines=0.0 if in_memory else lines,
        barriers=waits(config),
    )


FLOAT = 4  # bytes


def waits(config: LlamaConfig) -> float:
    """Return how often all threads wait for each other in a phase."""
    return float(config.layers * _table()["barriers"])


TOGETHER = 512  # tokens of a prompt that llama.cpp computes together (n_ubatch)


def _quantization(program: Program, kind: str, tokens: int) -> tuple[str, int]:
    """Return the kernel that rounds activations (empty: none), and the tokens that it rounds."""
    blocks = "q8_K" if kind.endswith("_K") else "q8_0"
    route = program.routes.get(kind)
    if route and route.rows == 0 and tokens >= route.tokens:
        return f"quantize_mat {blocks}", route.tokens
    return ("" if kind.startswith("f") else f"quantize_row {blocks}"), 1


@cache
def _parts(
    layout: Layout,
    name: str,
    config: LlamaConfig,
    weights: Matrices,
    phase: Phase,
    threads: int,
    item: float | None,
) -> tuple[Work, ...]:
    program = programs()[name]
    program = replace(program, cache=program.cache if item is None else item)
    return tuple(phase_work(layout, program, config, weights, phase, threads))


def seconds(
    board: Board,
    name: str,
    config: LlamaConfig,
    weights: Matrices,
    phase: Phase,
    threads: int,
    *,
    item: float | None = None,
) -> float:
    """Return the seconds of a phase of a program on a number of threads.

    Args:
        board: the board.
        name: name of the program.
        config: the model's sizes.
        weights: its matrices.
        phase: tokens of the phase, and before it.
        threads: number of threads.
        item: bytes of a number in the KV cache; None: as the program's own.

    Raises:
        UserError: the program has no product with a matrix's type, or a kernel was not counted.
    """
    parts = _parts(board.layout, name, config, weights, phase, threads, item)
    huge = programs()[name].huge_pages
    return sum(board.seconds(work, threads, huge_pages=huge) for work in parts)
