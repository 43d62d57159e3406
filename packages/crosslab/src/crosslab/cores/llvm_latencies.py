# SPDX-License-Identifier: Apache-2.0
"""``crosslab core-latencies``: write ``cores/latencies/NAME.toml`` from LLVM's scheduling model.

llvm-mca prints latency and occupancy of each instruction in a core's table, for each SEW and LMUL.
Only this command needs LLVM; counting cycles reads the file.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator, Sequence

from crosslab.cores.core import CORES, Core, core_option
from crosslab.cores.latencies import FOLDER
from crosslab.errors import LabError, UserError
from groundwork import apt
from groundwork.command_line import Parser, output_folder
from groundwork.files import atomic_write

TOOL = "llvm-mca-22"
EXTENSIONS = "+m,+a,+f,+d,+c,+v,+zvfh"
# An instruction of each scalar class; the unit, if there is one, executes one at a time.
SCALAR = {
    "load": ("ld a0, 0(a1)", ""),
    "fload": ("flw fa0, 0(a1)", ""),
    "store": ("sd a0, 0(a1)", ""),
    "fstore": ("fsw fa0, 0(a1)", ""),
    "branch": ("beq a0, a1, .", "branch"),
    "jump": ("j .", "branch"),
    "add": ("add a0, a1, a2", ""),
    "mul": ("mul a0, a1, a2", ""),
    "div": ("div a0, a1, a2", "divide"),
    "fma": ("fmadd.s fa0, fa1, fa2, fa3", "float"),
    "fdiv": ("fdiv.s fa0, fa1, fa2", "float"),
    "fmove": ("fsgnj.s fa0, fa1, fa2", "float"),
    "atomic": ("amoadd.d a0, a1, (a2)", "atomic"),
    "system": ("csrr a0, vlenb", "branch"),
}
_LINE = re.compile(r"\s*\d+\s+(\d+)\s+([\d.]+)\s.*\t")
_ACCUMULATES = re.compile(r"v(f?w?)n?m(acc|sac|add|sub)\w*\.v.")
# Cryptography and Zvbb, which some models of LLVM lack.
_LEFT_OUT = re.compile(
    r"v(aes|sha|sm[34]|gmul|ghsh|clmul|brev|rev8|clz|ctz|cpop\.v|ro[lr]\.|wsll|andn)"
)
# Operands of vector instructions by patterns of their names; the first match counts.
_OPERANDS = (
    (r"vmv\dr\.v|v[sz]ext\.\w+|vf[wn]?cvt\..*|vf(sqrt|rsqrt7|rec7|class)\.v", "v8, v16"),
    (r"viota\.m|vms[bio]f\.m|vmv\.v\.v", "v8, v16"),
    (r"vid\.v", "v8"),
    (r"vmv\.v\.x|vmv\.s\.x", "v8, a0"),
    (r"vmv\.v\.i", "v8, 3"),
    (r"vfmv\.v\.f|vfmv\.s\.f", "v8, fa0"),
    (r"vmv\.x\.s|vcpop\.m|vfirst\.m", "a0, v8"),
    (r"vfmv\.f\.s", "fa0, v8"),
    (r"v[ls]s(seg\d)?e\d+\.v", "v8, (a0), a1"),
    (r"v[ls][uo]x\w+\.v", "v8, (a0), v16"),
    (r"v[ls](m|\w*e\d+(ff)?|\dr)\.v", "v8, (a0)"),
    (r".*\.(vvm|vm)", "v8, v16, v24, v0"),
    (r".*\.vxm", "v8, v16, a0, v0"),
    (r".*\.vim", "v8, v16, 3, v0"),
    (r".*\.vfm", "v8, v16, fa0, v0"),
    (r".*\.(vv|wv|vs|mm)", "v8, v16, v24"),
    (r".*\.(vx|wx)", "v8, v16, a0"),
    (r".*\.(vi|wi)", "v8, v16, 3"),
    (r".*\.(vf|wf)", "v8, v16, fa0"),
)


def assembly(mnemonic: str) -> str:
    """Return a vector instruction with operands, as assembly text.

    Raises:
        LabError: no operands are known for this mnemonic.
    """
    if mnemonic == "vcompress.vm":
        return f"{mnemonic} v8, v16, v24"
    for pattern, text in _OPERANDS:
        if re.fullmatch(pattern, mnemonic):
            first, *others = text.split(", ")
            if _ACCUMULATES.fullmatch(mnemonic):
                others.reverse()
            return f"{mnemonic} {', '.join([first, *others])}"
    raise LabError(f"the operands of {mnemonic} are not known")


def mnemonics_of(core: Core) -> list[str]:
    """Return a core's vector instructions, without masked ones, cryptography and Zvbb."""
    return [n for n in core.cycles if " " not in n and not _LEFT_OUT.match(n)]


def run_mca(cpu: str, source: str) -> list[tuple[int, float]]:
    """Return latency and occupancy of each instruction in an assembly text, from llvm-mca.

    Raises:
        UserError: llvm-mca is missing.
        LabError: llvm-mca rejects the text.
    """
    tool = shutil.which(TOOL)
    if tool is None:
        raise UserError(f"{TOOL} is not installed", remedy=apt.command_line(["llvm-22"]))
    command = [tool, "-mtriple=riscv64", f"-mcpu={cpu}", f"-mattr={EXTENSIONS}"]
    command += ["-instruction-tables", "-instruction-info", "-resource-pressure=false"]
    done = subprocess.run(command, input=source, capture_output=True, text=True, check=False)
    if done.returncode or "error:" in done.stderr:
        raise LabError(f"{TOOL} fails: {done.stderr.strip()[:300]}")
    matches = map(_LINE.match, done.stdout.splitlines())
    return [(int(match[1]), float(match[2])) for match in matches if match]


def table_of(core: Core, cpu: str) -> Iterator[str]:
    """Yield the lines of a core's latency file; ``cpu`` is LLVM's name of the scheduling model."""
    columns = list(next(iter(core.cycles.values())))
    names = mnemonics_of(core)
    lines = [text for text, _ in SCALAR.values()]
    for name in names:
        for column in columns:
            width, group = re.fullmatch(r"(e\d+)(mf?\d)", column).groups()  # type: ignore[union-attr]
            lines += [f"vsetvli a0, zero, {width}, {group}, ta, ma", assembly(name)]
    figures = run_mca(cpu, "\n".join(lines) + "\n")
    if len(figures) != len(lines):
        raise LabError(f"{TOOL} printed {len(figures)} instructions of {len(lines)}")
    yield "# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception"
    yield f"# Latency and occupancy in cycles by the scheduling model of {cpu} in LLVM 22."
    yield f"# Written by: uv run crosslab core-latencies --core {core} --cpu {cpu}"
    yield f"columns = {json.dumps(columns)}"
    yield "\n[scalar]"
    for (name, (_, unit)), (latency, occupancy) in zip(SCALAR.items(), figures, strict=False):
        yield f'{name} = [{latency}, {occupancy:g}, "{unit}"]'
    yield "\n[vector]"
    vector = iter(figures[len(SCALAR) + 1 :: 2])
    for name in names:
        pairs = (next(vector) for _ in columns)
        yield f'"{name}" = {json.dumps([[delay, round(busy, 2)] for delay, busy in pairs])}'


def main(argv: Sequence[str]) -> int:
    """Write the latency file of a core.

    Raises:
        UserError: llvm-mca is missing.
        LabError: llvm-mca fails.
    """
    options = Parser(
        prog="crosslab core-latencies",
        description="Write cores/latencies/NAME.toml, the latencies of a core's instructions by "
        f"LLVM's scheduling model. Needs {TOOL}.",
    )
    options.add_argument("--core", type=core_option, required=True, help="core whose table is read")
    options.add_argument("--cpu", help="name of the model in LLVM (the core's)")
    options.add_argument(
        "--folder",
        type=output_folder,
        default=CORES / FOLDER,
        help="where to write (cores/latencies)",
    )
    args = options.parse_args(argv)
    cpu = args.cpu or args.core.key
    path = args.folder / f"{cpu}.toml"
    atomic_write(path, "\n".join(table_of(args.core, cpu)) + "\n")
    print(path)
    return 0
