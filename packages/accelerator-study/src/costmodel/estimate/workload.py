# SPDX-License-Identifier: Apache-2.0
"""The workloads that the extraction pass wrote, with numbers for their symbolic sizes."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from costmodel.accelerator.scheme import WIDEST, Grain, Scheme
from costmodel.counting.relations import is_number
from costmodel.errors import WORK_ANEW, CostError, read_json
from costmodel.estimate.product import Gemm, Role
from groundwork.extents import evaluate, names

CONTEXT, BATCH = "context", "batch_size"
DEFAULT_PHASES = "prefill:512,decode:1024"
_VIEW = re.compile(r"T_(?:reshape|squeeze|expand_dims|flatten)_?\d*")
_SHARED_HEAD = re.compile(r"\bb\*(\d+)//(\d+)")
_WIDTH = re.compile(r"(?:int|float)(\d+)")  # of a type's name
_LAYER = re.compile(r"(?:^|_)(?:layers?|h|blocks?)_(\d+)_")
# Wrong fields, wrong types, text that is not an expression, a division by nothing, deep nesting.
_DAMAGE = (
    *(KeyError, TypeError, AttributeError, ValueError, SyntaxError, ArithmeticError),
    *(RecursionError, MemoryError),
)


@dataclass(frozen=True)
class Item:
    """A product of a model at given sizes: its GEMM, its layer, and its compiled scheme.

    Attributes:
        kind: the layer type, such as ``qkv_proj`` or ``attention QK``.
        layer: index of the decoder layer; None outside of decoder layers.
        compiled: widths and scales found in the module.
    """

    gemm: Gemm
    kind: str
    layer: int | None
    count: int
    compiled: Scheme


@dataclass(frozen=True)
class OtherWork:
    """Work beside products: loop instances, and bits in the compiled widths.

    Attributes:
        view: the result is another view of the operand's memory; no bits move.
        exact: the bits are the same under every scheme; otherwise they are activations.
        link: the bits go to other arrays.
        bits_weights: read bits that are weights, such as a norm's; None: not recorded.
        on_chip: weights come from beyond the first memory; activations stay in it.
    """

    name: str
    elements: int
    bits_read: int
    bits_written: int
    count: int
    view: bool = False
    exact: bool = False
    link: bool = False
    bits_weights: int | None = 0
    on_chip: bool = False


@dataclass(frozen=True)
class Phase:
    """A function of a model at given sizes.

    Attributes:
        chain: activations that fit stay on chip between consecutive operators.
        arrays: number of accelerators with this share of the work; figures are for each.
        beside: the share of further arrays, if it differs.
        recorded: tokens of a recorded call; None: they follow from the sizes.
    """

    name: str
    entry: str
    sizes: tuple[tuple[str, int], ...]
    items: tuple[Item, ...]
    others: tuple[OtherWork, ...]
    unclassified: tuple[str, ...]
    chain: bool = False
    arrays: int = 1
    beside: Phase | None = None
    recorded: int | None = None

    @property
    def all_arrays(self) -> int:
        """The number of accelerators that work on the phase together."""
        return self.arrays + (self.beside.all_arrays if self.beside else 0)

    @property
    def prompt(self) -> bool:
        """True if the phase reads a prompt: its name contains ``prefill``."""
        return "prefill" in self.name

    @property
    def compiled_output(self) -> int:
        """The bits of an activation in the compiled module."""
        return max((i.compiled.output for i in self.items), default=16)

    @property
    def tokens(self) -> int:
        """The tokens that the phase reads or generates: the prompt's, or a token a sequence."""
        if self.recorded is not None:
            return max(self.recorded, 1)
        sizes = dict(self.sizes)
        if self.prompt:
            return max(sizes.get("seq_len", sizes.get(CONTEXT, 1)), 1)
        return max(sizes.get(BATCH, 1), 1)


@contextmanager
def undamaged(problem: str, remedy: str) -> Iterator[None]:
    """Raise CostError with the problem if the block fails on the content of a file."""
    try:
        yield
    except _DAMAGE as error:
        raise CostError(f"{problem}: {error!r}", remedy=remedy) from error


def model_name(path: Path) -> str:
    """Return a model's name: its file's name without ``.work.json`` or ``.json``."""
    return path.name.removesuffix(".json").removesuffix(".work")


def read_workloads(path: Path) -> dict[str, Any]:
    """Read a report of the extraction pass.

    Raises:
        CostError: the file is not such a report.
    """
    return checked(read_json(path, WORK_ANEW), str(path))


def checked(content: Any, name: str) -> dict[str, Any]:
    """Return a report of schema 1, or raise CostError about the file ``name``."""
    report: dict[str, Any] = content if isinstance(content, dict) else {}
    if report.get("schema") != 1 or not isinstance(report.get("entries"), dict):
        raise CostError(f"{name}: not a work file of schema 1", remedy=WORK_ANEW)
    return report


def parse_extents(text: str, option: str) -> tuple[int, int, int]:
    """Parse ``M,N,K`` into three positive integers.

    Raises:
        CostError: the text has another form; the message names the option.
    """
    parts = text.split(",")
    if len(parts) != 3 or not all(is_number(p.strip()) and int(p) > 0 for p in parts):
        problem = f"{option} {text!r}: must be three positive numbers M,N,K"
        raise CostError(problem, remedy=f"{option} 64,64,64")
    m, n, k = (int(p) for p in parts)
    return m, n, k


def parse_phases(text: str) -> tuple[tuple[str, int], ...]:
    """Parse ``prefill:512,decode:1024`` into names and tokens.

    Raises:
        CostError: a part has another form, or occurs twice; the message names the part.
    """
    phases = []
    for part in text.split(","):
        name, _, size = part.partition(":")
        if not name or not is_number(size) or int(size) < 1:
            raise CostError(
                f"--phase: {part!r} is not NAME:TOKENS", remedy="prefill:512,decode:1024"
            )
        if (name, int(size)) in phases:
            raise CostError(f"--phase: {part} is given twice", remedy="leave one of them out")
        phases.append((name, int(size)))
    return tuple(phases)


def bind_phase(report: Mapping[str, Any], name: str, size: int, given: Mapping[str, int]) -> Phase:
    """Bind an entry to sizes: ``size`` is the context, and in a prefill also the prompt's tokens.

    ``name`` is the entry's name or its only ending; ``given`` has values of further sizes.

    Raises:
        CostError: the entry is missing or damaged, or a dimension stays unbound.
    """
    entry_name = _entry_name(report, name)
    entry = report["entries"][entry_name]
    sizes = {CONTEXT: size, **given}
    with undamaged(f"{name}:{size}: the work file's {entry_name!r} is damaged", WORK_ANEW):
        free = sorted(symbols(entry) - set(sizes))
        if "prefill" in name and len(free) == 1:
            sizes[free[0]] = size
        return bind_entry(entry_name, entry, sizes, f"{name}:{size}")


def bind_entry(
    entry_name: str, entry: Mapping[str, Any], sizes: Mapping[str, int], label: str
) -> Phase:
    """Bind an entry to sizes, and return its phase.

    Raises:
        CostError: a dimension stays unbound.
        ValueError: a count, a width, an extent or a number of bits is impossible.
    """

    def value(extent: int | str) -> int:
        try:
            return evaluate(extent, sizes)
        except KeyError as unbound:
            name = unbound.args[0]
            raise CostError(
                f"{entry_name}: dimension {name!r} is unbound in {extent!r}",
                remedy=f"bind it: --bind {name}=NUMBER",
            ) from unbound

    def amount(other: Mapping[str, Any], key: str) -> int:
        return _whole(key, value(other[key]), 0)

    return Phase(
        name=label,
        entry=entry_name,
        sizes=tuple(sorted(sizes.items())),
        items=tuple(_item(p, value, entry_name) for p in entry["products"]),
        others=tuple(
            OtherWork(
                name=o["function"],
                elements=amount(o, "elements"),
                bits_read=amount(o, "bits_read"),
                bits_written=amount(o, "bits_written"),
                count=_count(o),
                view=_is_view(str(o["block"])),
                bits_weights=amount(o, "bits_weights") if "bits_weights" in o else None,
            )
            for o in entry["others"]
        ),
        unclassified=tuple(
            f"{u['callee']} x{u['count']}: {u['reason']}" for u in entry["unclassified"]
        ),
    )


def weight_shapes(report: Mapping[str, Any]) -> dict[str, int]:
    """Return the total rows of a model's weight matrices by row length, to identify a model.

    Fused and separate weights, and all widths, give equal shapes; matrices with open sizes do not
    count.

    Raises:
        CostError: the work file is damaged.
    """
    shapes: dict[str, int] = {}
    with undamaged("the work file's 'decode' is damaged", WORK_ANEW):
        for product in report["entries"].get("decode", {"products": []})["products"]:
            n, k = product["n"], product["k"]
            if product["b"]["weight"] and isinstance(n, int) and isinstance(k, int):
                shapes[str(k)] = shapes.get(str(k), 0) + n * _count(product)
    return shapes


def _entry_name(report: Mapping[str, Any], name: str) -> str:
    entries = report["entries"]
    if name in entries:
        return name
    close = [e for e in entries if e.endswith(name)]
    if len(close) == 1:
        return str(close[0])
    raise CostError(f"the model has no function {name!r}", remedy=f"it has: {', '.join(entries)}")


def symbols(entry: Mapping[str, Any]) -> set[str]:
    """Return the names of an entry's open sizes."""
    texts: list[Any] = [p[k] for p in entry["products"] for k in ("batch", "m", "n", "k")]
    keys = ("elements", "bits_read", "bits_written")
    texts += [o[k] for o in entry["others"] for k in keys]
    return {name for text in texts for name in names(text)}


def open_sizes(report: Mapping[str, Any], entries: Sequence[str]) -> set[str]:
    """Return the names of the open sizes of some entries of a report.

    Raises:
        CostError: the work file is damaged.
    """
    with undamaged("the work file is damaged", WORK_ANEW):
        return {name for entry in entries for name in symbols(report["entries"][entry])}


def _whole(name: str, number: Any, least: int, most: int | None = None) -> int:
    """Return a number of a work file; ValueError unless it is whole and within the limits."""
    if type(number) is not int or number < least or (most is not None and number > most):
        limits = f"{least} on" if most is None else f"{least} to {most}"
        raise ValueError(f"{name} is {number!r}, not a whole number from {limits}")
    return number


def _count(work: Mapping[str, Any]) -> int:
    return _whole("count", work["count"], 1)


def _is_view(block: str) -> bool:
    return all(_VIEW.fullmatch(part) for part in block.split("+"))


def _item(product: Mapping[str, Any], value: Callable[[int | str], int], entry: str) -> Item:
    kind, layer = layer_kind(product)
    gemm = Gemm(
        name=f"{product['function']}.{product['block']}",
        m=value(product["m"]),
        n=value(product["n"]),
        k=value(product["k"]),
        batch=value(product["batch"]),
        weight=bool(product["b"]["weight"]),
    )
    if min(gemm.batch, gemm.m, gemm.n, gemm.k) < 1:
        raise CostError(
            f"{entry}: {gemm.name} of {gemm.batch}x{gemm.m}x{gemm.n}x{gemm.k} has an extent below 1"
        )
    if product["kind"] == "attention":
        gemm = _attention(gemm, product, value, entry)
    return Item(gemm, kind, layer, _count(product), compiled_scheme(product))


def _attention(
    gemm: Gemm, product: Mapping[str, Any], value: Callable[[int | str], int], entry: str
) -> Gemm:
    """Return a product of attention as a batch over sequences and key-value heads.

    The query heads that share a key-value head are rows of a product; the index of B in the work
    file gives their number, ``b*3//9`` for nine on three. A decode has a token of each sequence; a
    recorded call with two leading extents has the sequences first; other calls have one sequence.
    """
    shared = _SHARED_HEAD.search(str(product["b"]["index"]))
    heads, tokens = gemm.batch, gemm.m
    kept = int(shared.group(1)) * heads // int(shared.group(2)) if shared else heads
    sequences = tokens if "decode" in entry else 1
    if "tokens1" in str(product["m"]):
        sequences = value("tokens0")
    if kept < 1 or heads % kept or tokens % sequences:
        raise CostError(
            f"{entry}: attention of {heads} heads on {kept} and of {tokens} tokens in {sequences} "
            "sequences does not divide"
        )
    return replace(
        gemm,
        m=heads // kept * (tokens // sequences),
        batch=kept * sequences,
        role=Role.SCORES if product["block"] == "QK" else Role.VALUES,
    )


def layer_kind(product: Mapping[str, Any]) -> tuple[str, int | None]:
    """Return a product's kind and layer, from its weight's name or from its role in attention."""
    if product["kind"] == "attention":
        return f"attention {product['block']}", None
    if not product["b"]["weight"]:
        return str(product["block"]), None
    name = str(product["b"]["name"])
    layer = _LAYER.search(name)
    rest = name[layer.end() :] if layer else name
    rest = re.sub(r"_(?:q_)?(?:weight|scale)s?\d*$", "", rest)
    rest = re.sub(r"^(?:self_attn|mlp|model|transformer)_", "", rest)
    head = layer is None and ("embed" in rest or "wte" in rest or "lm_head" in rest)
    return ("lm_head" if head else rest), int(layer.group(1)) if layer else None


def compiled_scheme(product: Mapping[str, Any]) -> Scheme:
    """Return the quantization scheme with which a product of a work file was compiled.

    Raises:
        ValueError: a width or a group is impossible.
    """
    a, b = product["a"], product["b"]
    found = _WIDTH.search(product["c_dtype"])
    width = _whole("c_dtype", int(found.group(1)) if found else 16, 1, WIDEST)
    weight = _whole("bits", b["bits"], 1, WIDEST)
    grain = Grain(b["quantization"]["grain"])
    scaled = a["quantization"] if grain is Grain.NONE else b["quantization"]
    return Scheme(
        name="as-compiled",
        activation=_whole("bits", a["bits"], 1, WIDEST),
        weight=weight,
        accumulator=max(width, 32),
        output=width,
        activation_grain=Grain(a["quantization"]["grain"]),
        weight_grain=grain,
        group=_whole("group", b["quantization"]["group"], int(grain is Grain.GROUP)),
        scale=_whole("scale_bits", scaled["scale_bits"], 0, WIDEST) or 16,
        zero_point=_whole("zero_bits", b["quantization"]["zero_bits"], 0, WIDEST),
        cache=weight if product["kind"] == "attention" else 16,
    )


def only_gemm(extents: Sequence[int], batch: int) -> Phase:
    """Return a phase of a single GEMM."""
    m, n, k = extents
    compiled = Scheme("as-compiled")
    item = Item(Gemm("gemm", m, n, k, batch), "gemm", None, 1, compiled)
    return Phase("gemm", "gemm", (), (item,), (), ())
