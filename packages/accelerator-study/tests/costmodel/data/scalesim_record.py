# SPDX-License-Identifier: Apache-2.0
"""Record what scalesim 3.0.0 counts, for test_scalesim.py.

With the dependency group `scalesim` installed::

    cd tests/costmodel/data
    python scalesim_record.py > scalesim.json
    python scalesim_record.py --random 200 > scalesim_random.json

The first are shapes that the array divides evenly and ragged ones; the second are drawn at random.
``--step N`` records every N-th case only.
"""

import argparse
import contextlib
import csv
import io
import json
import random
import sys
import tempfile
from pathlib import Path

import numpy as np
from scalesim.memory import double_buffered_scratchpad_mem
from scalesim.scale_sim import scalesim

# The greatest of a column is an array to it, of which int() makes no number since numpy 2.4.
double_buffered_scratchpad_mem.max = lambda *values: np.max(values)

CASES = [
    (flow, rows, columns, m, n, k)
    for flow in ("os", "ws", "is")
    for rows, columns, m, n, k in (
        (8, 8, 32, 32, 32),
        (8, 8, 64, 64, 64),
        (8, 8, 40, 16, 64),
        (8, 8, 16, 48, 24),
        (16, 16, 64, 32, 80),
        (4, 4, 4, 12, 8),
        (8, 8, 33, 17, 9),
        (8, 8, 1, 576, 40),
        (8, 8, 5, 7, 3),
        (8, 16, 20, 50, 70),
        (16, 4, 31, 33, 35),
        (32, 32, 33, 100, 64),
        (8, 8, 9, 64, 65),
    )
]
SIDES = (4, 8, 12, 16, 32)
LONGEST = 200
SETTINGS = {
    "general": {"run_name": "run"},
    "architecture_presets": {
        "IfmapSramSzkB": 4096,
        "FilterSramSzkB": 4096,
        "OfmapSramSzkB": 4096,
        "IfmapOffset": 0,
        "FilterOffset": 10000000,
        "OfmapOffset": 20000000,
        "Bandwidth": 1000,
        "ReadRequestBuffer": 512,
        "WriteRequestBuffer": 512,
    },
    "layout": {
        f"{tensor}{key}": value
        for tensor in ("Ifmap", "Filter")
        for key, value in (
            ("CustomLayout", "False"),
            ("SRAMBankBandwidth", 10),
            ("SRAMBankNum", 10),
            ("SRAMBankPort", 2),
        )
    },
    "sparsity": {
        "SparsitySupport": "false",
        "SparseRep": "ellpack_block",
        "OptimizedMapping": "false",
        "BlockSize": 8,
        "RandomNumberGeneratorSeed": 40,
    },
    "run_presets": {"InterfaceBandwidth": "CALC", "UseRamulatorTrace": "False"},
}


def configuration(flow: str, rows: int, columns: int) -> str:
    own = {"ArrayHeight": rows, "ArrayWidth": columns, "Dataflow": flow}
    lines = []
    for section, values in SETTINGS.items():
        lines.append(f"[{section}]")
        every = {**values, **own} if section == "architecture_presets" else values
        lines += [f"{key}: {value}" for key, value in every.items()]
    return "\n".join(lines) + "\n"


def run(flow: str, rows: int, columns: int, m: int, n: int, k: int) -> dict[str, object]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "run.cfg").write_text(configuration(flow, rows, columns))
        (folder / "gemm.csv").write_text(f"Layer, M, N, K,\ngemm,{m},{n},{k},\n")
        (folder / "layout.csv").write_text("Layer,\ngemm," + "1," * 30 + "\n")
        with contextlib.redirect_stdout(io.StringIO()):
            simulator = scalesim(
                save_disk_space=True,
                verbose=False,
                config=str(folder / "run.cfg"),
                topology=str(folder / "gemm.csv"),
                layout=str(folder / "layout.csv"),
                input_type_gemm=True,
            )
            simulator.run_scale(top_path=str(folder))
        compute = report(folder, "COMPUTE_REPORT.csv")
        access = report(folder, "DETAILED_ACCESS_REPORT.csv")
    return {
        "flow": flow,
        "array": [rows, columns],
        "gemm": [m, n, k],
        "cycles": int(float(compute["Total Cycles"])),
        "reads_a": int(float(access["SRAM IFMAP Reads"])),
        "reads_b": int(float(access["SRAM Filter Reads"])),
        "writes_c": int(float(access["SRAM OFMAP Writes"])),
    }


def report(folder: Path, name: str) -> dict[str, str]:
    (path,) = folder.rglob(name)
    with path.open() as stream:
        rows = list(csv.reader(stream, skipinitialspace=True))
    return dict(zip(rows[0], rows[1], strict=False))


def drawn(number: int) -> list[tuple[str, int, int, int, int, int]]:
    """Cases at random, extents spread evenly over their logarithm."""
    source = random.Random(17)

    def extent() -> int:
        return min(LONGEST, round(LONGEST ** source.random()))

    return [
        (
            source.choice(("os", "ws", "is")),
            *(source.choice(SIDES) for _ in range(2)),
            *(extent() for _ in range(3)),
        )
        for _ in range(number)
    ]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--random", type=int, default=0, metavar="NUMBER")
    parser.add_argument(
        "--step", type=int, default=1, metavar="NUMBER", help="each so many-th case"
    )
    args = parser.parse_args()
    cases = drawn(args.random) if args.random else CASES
    rows = [json.dumps(run(*case)) for case in cases[:: args.step]]
    sys.stdout.write('{"scalesim": "3.0.0", "cases": [\n' + ",\n".join(rows) + "\n]}\n")


if __name__ == "__main__":
    main()
