# SPDX-License-Identifier: Apache-2.0
"""The micro-kernels: their lists, and one relocatable object made from them."""

from __future__ import annotations

import enum
import itertools
import json
import platform
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from crosslab.assemble.kernel_list import KERNELS, LIST, SCHEMA, read_list, with_values
from crosslab.cached_build import cached_build
from crosslab.compile.targets import X86_64_V3, X86_64_V3_VECTORS, host_cpu
from crosslab.cores.core import CORES, Core, core_option
from crosslab.errors import UserError
from crosslab.host.objects import run_compiler
from crosslab.host.toolchain import CompilerKind, clang_version, find_cross, find_native
from crosslab.host.tuning import require_tuning_clang
from crosslab.loops.library import LOOPS, loops_header
from crosslab.loops.machine import USUAL
from crosslab.models.formats import TABLE, Packing, int8_kernels, packings
from crosslab.models.gguf_formats import TABLE as GGUF_TABLE
from crosslab.models.gguf_formats import gguf_formats
from groundwork.hashing import digest

OBJECT = "mlc_rvv_kernels.o"
INDEX = "kernels.json"

# The core that loops are ordered for, unless a compile names another: it issues in order, and an
# order that it runs well does no harm to others.
ORDERED_FOR = "spacemit-x60"

_ZVFH = "zvfh"

# No libc symbol may be needed, and a kernel never unwinds: a model library links the object
# whatever its C library is.
COMMON_FLAGS = (
    "-std=c17",
    "-O3",
    "-g0",
    "-fPIC",
    "-ffreestanding",
    "-fno-asynchronous-unwind-tables",
    "-fno-stack-protector",
    "-Wall",
    "-Wextra",
    "-Werror",
)
# Kernels for SpacemiT's matrix unit, too: kernels/rvv/ime.h.
IME_FLAGS = ("-DMLC_RVV_IME",)
# The same to count cycles: vmacc.vv stands in for vmadot.
IME_STAND_IN = ("-DMLC_RVV_IME_STAND_IN",)


class KernelTarget(enum.StrEnum):
    """Target of the kernels: RVV sources, or portable C for this machine."""

    RISCV64 = "riscv64"
    HOST = "host"

    @property
    def sources(self) -> str:
        """Return the folder of the sources under ``kernels/``."""
        return "rvv" if self is KernelTarget.RISCV64 else "portable"

    @property
    def arch(self) -> str:
        """Return the architecture, as the first part of a target triple."""
        return "riscv64" if self is KernelTarget.RISCV64 else platform.machine()


@dataclass(frozen=True)
class Kernel:
    """One micro-kernel; ``kernels/include/mlc_rvv_kernels.h`` says what it computes."""

    product: str
    dtype: str
    q_tile: int
    kv_tile: int
    d: int

    @property
    def symbol(self) -> str:
        """Return the C symbol, which contains all properties that distinguish kernels."""
        short = {"float32": "f32"}[self.dtype]
        return f"mlc_rvv_{self.product}_{short}_{self.q_tile}x{self.kv_tile}x{self.d}"


@dataclass(frozen=True)
class Routine:
    """A kernel of linear layers; ``kernels/include/mlc_rvv_linear.h`` says what it computes.

    Attributes:
        kind: "gemm", "gemv" or "gemv_prepare"; the same with "_tiles" for weights in tiles;
            "gemm_int8" for int8 activations, too, of formats that have it; "take", of rows from
            tiles; "pack_tiles" and "quantize_int8" for all weights; "gemv_f16_tiles" of halves;
            "depthwise", a convolution of one channel;
            "quantize_blocks", "gemm_gguf_<format>" and "take_gguf_<format>" for formats of GGUF.
        packing: layout of the weights; None of float32.
        symbol: the C symbol.
    """

    kind: str
    packing: Packing | None
    symbol: str


def linear_routines(table: Path = TABLE, *, zvfh: bool = False) -> Iterator[Routine]:
    """Yield the routines for every format of weights; with ``zvfh`` also those for halves."""
    if zvfh:
        yield Routine("gemv_f16_tiles", None, "mlc_rvv_gemv_f16_tiles")
    yield Routine("pack_tiles", None, "mlc_rvv_pack_tiles")
    yield Routine("quantize_int8", None, "mlc_rvv_quantize_int8")
    yield Routine("depthwise", None, "mlc_rvv_depthwise_f32")
    for weights, packing in packings(table).items():
        yield Routine("gemm", packing, f"mlc_rvv_gemm_{weights}")
        yield Routine("gemv", packing, f"mlc_rvv_gemv_{weights}")
        yield Routine("gemm_tiles", packing, f"mlc_rvv_gemm_{weights}_tiles")
        yield Routine("take", packing, f"mlc_rvv_take_{weights}")
        if packing:
            yield Routine("gemv_prepare", packing, f"mlc_rvv_gemv_{weights}_prepare")
            yield Routine("gemv_tiles", packing, f"mlc_rvv_gemv_{weights}_tiles")
            yield Routine("gemv_prepare_tiles", packing, f"mlc_rvv_gemv_{weights}_prepare_tiles")
        if weights in int8_kernels(table):
            yield Routine("gemm_int8", packing, f"mlc_rvv_gemm_{weights}_int8")
    yield Routine("quantize_blocks", None, "mlc_rvv_quantize_blocks")
    for kind in ("gemm", "take"):
        for name in map(str.lower, gguf_formats()):
            yield Routine(f"{kind}_gguf_{name}", None, f"mlc_rvv_{kind}_gguf_{name}")


def read_kernels(path: Path = LIST) -> tuple[Kernel, ...]:
    """Read attention's kernels from the list, one for each combination of sizes.

    Raises:
        UserError: the file is missing, malformed, or names a kernel twice.
    """
    kernels = tuple(
        kernel
        for number, table in enumerate(read_list(path).get("kernel", []), start=1)
        for kernel in _expand(table, f"{path}, kernel table {number}")
    )
    if not kernels:
        raise UserError(f"{path} lists no kernel", remedy="add a [[kernel]] table")
    if len(set(kernels)) != len(kernels):
        twice = sorted({k.symbol for k in kernels if kernels.count(k) > 1})
        raise UserError(f"{path} lists kernels twice: {', '.join(twice)}")
    return kernels


def _expand(table: dict[str, Any], where: str) -> list[Kernel]:
    if table.get("product") not in ("qk", "pv") or table.get("dtype") != "float32":
        raise UserError(f'{where}: product must be "qk" or "pv" and dtype "float32"')
    extents = []
    for name in ("q_tile", "kv_tile", "d"):
        values = table.get(name)
        good = isinstance(values, list) and all(type(v) is int and v > 0 for v in values)
        if not isinstance(values, list) or not good:
            raise UserError(f"{where}: {name} must be a list of positive integers")
        extents.append(values)
    return [
        Kernel(table["product"], table["dtype"], *shape) for shape in itertools.product(*extents)
    ]


def list_header(
    kernels: Sequence[Kernel], table: Path = TABLE, parameters: Mapping[str, int] | None = None
) -> str:
    """Generate the C header that lists the kernels.

    It has an X-macro per product and dtype with every instance, one of the packed weights of linear
    layers, and one of those that are multiplied with int8 activations, too: X(name, bits, group,
    zero_point). Parameters are constants; without any, those of the project's list.
    """
    lines = ["// Generated from kernels.toml and formats.toml.", "#pragma once"]
    for name, value in (with_values({}) if parameters is None else parameters).items():
        lines.append(f"#define MLC_RVV_{name.upper()} {value}")
    for product, dtype in sorted({(k.product, k.dtype) for k in kernels}):
        instances = [
            f"  X({k.symbol}, {k.q_tile}, {k.kv_tile}, {k.d})"
            for k in kernels
            if (k.product, k.dtype) == (product, dtype)
        ]
        head = f"#define MLC_RVV_{product.upper()}_{dtype.upper()}(X)"
        lines.append(" \\\n".join([head, *instances]))
    packed = {weights: packing for weights, packing in packings(table).items() if packing}
    for weights, packing in packed.items():
        lines.append(f"#define MLC_RVV_{weights.upper()}_GROUP {packing.group}")
        lines.append(f"#define MLC_RVV_{weights.upper()}_ZERO_POINT {packing.zero_point}")
    for name, among in (("PACKED", set(packed)), ("PACKED_INT8", int8_kernels(table))):
        rows = [
            f"  X({w}, {p.bits}, {p.group}, {p.zero_point})"
            for w, p in packed.items()
            if w in among
        ]
        lines.append(" \\\n".join([f"#define MLC_RVV_{name}(X)", *rows]))
    fields = ("low", "high", "block", "group", "zero", "minimums")
    rows = [
        f"  X({', '.join([name.lower(), *(str(int(getattr(f, key))) for key in fields)])})"
        for name, f in gguf_formats().items()
    ]
    lines.append(" \\\n".join(["#define MLC_RVV_GGUF(X)", *rows]))
    return "\n".join(lines) + "\n"


def write_sources(
    target: KernelTarget,
    directory: Path,
    root: Path = KERNELS,
    table: Path = TABLE,
    parameters: Mapping[str, int] | None = None,
    core: Core | None = None,
) -> tuple[Path, list[str]]:
    """Write the generated headers and one translation unit that includes every source.

    Values of ``parameters`` take the place of the list's. Loops are in the order that suits the
    core, or the one in ``ORDERED_FOR``.

    Returns:
        The translation unit and the include options that it needs.
    """
    index = root / LIST.name
    header = list_header(read_kernels(index), table, with_values(parameters or {}, index))
    (directory / "mlc_rvv_kernel_list.h").write_text(header, encoding="utf-8")
    sources = sorted(
        s for folder in ("common", target.sources) for s in (root / folder).glob("*.c")
    )
    if target is KernelTarget.RISCV64:
        loops = loops_header(root / "loops", core or core_option(ORDERED_FOR))
        (directory / "mlc_rvv_loops.h").write_text(loops, encoding="utf-8")
    unit = directory / "mlc_rvv_kernels.c"
    unit.write_text("".join(f'#include "{s.name}"\n' for s in sources), encoding="utf-8")
    folders = (directory, root / "include", root / "common", root / target.sources)
    include = [f"-I{folder}" for folder in folders]
    return unit, include


def compiler_for(target: KernelTarget, *, zvfh: bool = False, tune: str = "") -> tuple[str, ...]:
    """Return the compiler command for kernels of a target.

    With ``zvfh`` that is a RISC-V CPU with vectors of halves. With ``tune``, LLVM's name of a CPU,
    it is the newest clang that has a scheduling model of it; without such a clang the name is not
    used.

    Raises:
        UserError: no compiler is installed.
    """
    if target is KernelTarget.HOST:
        native, cpu = find_native(), host_cpu()
        # zig spells an architecture as a CPU, with underscores.
        zig = native.kind is CompilerKind.ZIG
        option = f"-mcpu={cpu.replace('-', '_')}" if zig else f"-march={cpu}"
        return (*native.cc, option) if cpu else native.cc
    extensions = ["v", _ZVFH] if zvfh else ["v"]
    command = tuple(_with_vectors(option, extensions) for option in find_cross().cc)
    suffix = require_tuning_clang(tune) if tune and find_cross().is_clang else None
    return command if suffix is None else (f"clang{suffix}", *command[1:], f"-mtune={tune}")


def _with_vectors(option: str, extensions: list[str]) -> str:
    """Add vectors to an option with rv64gc; C++ must stay rv64gc, but kernels never unwind."""
    if option.startswith("-march="):
        return option + "_".join(extensions)
    # zig spells the architecture as a CPU and its features.
    return "+".join([option, *extensions]) if option.startswith("-mcpu=") else option


def build_kernels(
    target: KernelTarget | str,
    output: Path,
    *,
    compiler: Sequence[str] | None = None,
    extra_flags: Sequence[str] = (),
    root: Path = KERNELS,
    table: Path = TABLE,
    parameters: Mapping[str, int] | None = None,
    core: Core | None = None,
) -> Path:
    """Compile every kernel of the list into ``output/mlc_rvv_kernels.o``.

    Also writes ``output/kernels.json``, from which TensorizePrefill learns what is in the
    object; it appears last and whole, so that a directory which has it is complete.

    Args:
        target: what to build for.
        output: directory, made if need be; older results in it are replaced.
        compiler: command of a C compiler that takes clang's options, aimed at the target (for
            riscv64, with vectors); compiler_for(target) if None.
        extra_flags: further compiler options, such as ``-fsanitize=address``.
        root: the folder that holds kernels.toml, include, common, rvv and portable.
        table: the formats of weights.
        parameters: values of parameters in place of the list's.
        core: core that loops are ordered for; None: the one in ``ORDERED_FOR``.

    Returns:
        The path of kernels.json.

    Raises:
        UserError: no compiler, or a bad list of kernels.
        LabError: the compiler failed.
    """
    target = KernelTarget(target)
    command = tuple(compiler) if compiler is not None else compiler_for(target)
    output.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".kernels-", dir=output) as scratch_name:
        scratch = Path(scratch_name)
        unit, include = write_sources(target, scratch, root, table, parameters, core)
        flags = [*COMMON_FLAGS, *extra_flags, *include]
        _run([*command, *flags, "-c", str(unit), "-o", str(scratch / OBJECT)])
        (scratch / INDEX).write_text(_index(target, command, root, table), encoding="utf-8")
        (output / INDEX).unlink(missing_ok=True)
        (scratch / OBJECT).replace(output / OBJECT)
        (scratch / INDEX).replace(output / INDEX)
    return output / INDEX


def cached_kernels(
    target: KernelTarget,
    cache: Path,
    parameters: Mapping[str, int] | None = None,
    *,
    zvfh: bool = False,
    core: Core | None = None,
    tune: str = "",
    flags: Sequence[str] = (),
) -> Path:
    """Return the cached folder of compiled kernels; compile them if an input changed.

    Loops are in the order that suits the core, or the one in ``ORDERED_FOR``. The compiler is that
    of :func:`compiler_for`. ``flags`` may be :data:`IME_FLAGS` or :data:`IME_STAND_IN`.
    """
    values = with_values(parameters or {})
    command = compiler_for(target, zvfh=zvfh, tune=tune)
    toolchain = find_native() if target is KernelTarget.HOST else find_cross()
    key = digest(
        toolchain.digest,
        str(clang_version(command[0])),
        " ".join((*command, *COMMON_FLAGS, *flags, *(f"{name}={values[name]}" for name in values))),
        KERNELS,
        *(table for one in (TABLE, GGUF_TABLE) for table in (one, one.with_suffix(".py"))),
        Path(__file__),
        LOOPS,
        *(CORES / f"{name}.toml" for name in dict.fromkeys((str(core or ORDERED_FOR), USUAL))),
        CORES / "latencies",
    )

    def make(folder: Path) -> None:
        build_kernels(
            target, folder, compiler=command, extra_flags=flags, parameters=values, core=core
        )

    return cached_build(cache, f"kernels-{target}", key, make)


def _index(target: KernelTarget, command: Sequence[str], root: Path, table: Path) -> str:
    widened = any(o.partition("=")[2].replace("_", "-") == X86_64_V3 for o in command)
    zvfh = any(_ZVFH in option for option in command)
    document = {
        "schema": SCHEMA,
        "target": target.value,
        "arch": target.arch,
        "features": [*(X86_64_V3_VECTORS if widened else ()), *([_ZVFH] if zvfh else ())],
        "object": OBJECT,
        "kernels": [{"symbol": k.symbol, **asdict(k)} for k in read_kernels(root / LIST.name)],
        "routines": [asdict(r) for r in linear_routines(table, zvfh=zvfh)],
    }
    return json.dumps(document, indent=1) + "\n"


def _run(command: Sequence[str]) -> None:
    try:
        run_compiler("compiling the kernels", command, Path())
    except OSError as error:
        raise UserError(
            f"the compiler {command[0]} cannot be started: {error.strerror}",
            remedy="install it, or name another with --compiler",
        ) from error
