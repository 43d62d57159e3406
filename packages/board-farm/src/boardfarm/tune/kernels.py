# SPDX-License-Identifier: Apache-2.0
"""``crosslab farm tune-kernels``: searches the best values of the kernels' parameters for a core.

The search tries parameter after parameter. It keeps a value if no call of a kernel needs more of
the core's cycles (of its pipeline; if the pipeline is unknown, serial cycles and the larger of
vector and scalar cycles), and if the geometric mean of all calls falls. The kept values give the
same results as before on random input.
"""

from __future__ import annotations

import secrets
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import geometric_mean

import numpy as np
from rich.console import Console

from boardfarm.options import DATABASE, trees
from crosslab.assemble.kernel_list import Parameter, core_values, read_parameters, with_values
from crosslab.assemble.kernel_values import KernelValues, Timed, find_values, sources, told
from crosslab.bench.kernel_bench import Case, build
from crosslab.bench.options import MODEL_S
from crosslab.cores.core import Core
from crosslab.cores.pipeline import all_cycles
from crosslab.errors import LabError, UserError
from crosslab.models.config import LlamaConfig, read_config
from crosslab.models.formats import weight_formats
from crosslab.run.counter import count_guest
from crosslab.run.emulator import GuestMachine, run_guest
from groundwork.command_line import Parser

MODELS = {
    "S": MODEL_S,
    "smollm2": LlamaConfig(
        hidden=576, intermediate=1536, heads=9, kv_heads=3, head_dim=64, layers=30, vocab=49152
    ),
    "M": LlamaConfig(
        hidden=1024, intermediate=2816, heads=16, kv_heads=4, head_dim=64, layers=16, vocab=32000
    ),
}
ROWS = (1, 2, 3, 4, 8, 10, 32, 128)
# Tiles of outputs have equal costs: of wider matrices only these outputs and the rest are counted.
OUTPUTS, TILE = 512, 64
# A smaller gain can come from the linker's placement.
LEAST_GAIN = 1.0005
# Time limit of all calls of a candidate together; a candidate that hangs is rejected.
SECONDS = 1200.0

_console = Console(stderr=True, highlight=False)


def cases_of(
    configs: Sequence[LlamaConfig], kernels: Sequence[str], rows: Sequence[int]
) -> list[Case]:
    """Return the distinct calls of kernels in the linear layers of models, for each number of rows.

    A layer with more than OUTPUTS outputs counts with OUTPUTS, and those of its last partial TILE.
    """
    layers = dict[tuple[int, int], None]()
    for config in configs:
        for outputs, inputs in (*config.linear_layers, (config.vocab, config.hidden)):
            most = outputs if outputs <= OUTPUTS else OUTPUTS + outputs % TILE
            layers[most, inputs] = None
    return [Case(kernel, (m, *layer)) for kernel in kernels for layer in layers for m in rows]


@dataclass
class KernelTuner:
    """A search for values of kernel parameters, by counts of a core's cycles.

    Attributes:
        core: core for the cycles.
        vlen: bits of the core's vector registers.
        cases: the calls.
        cache: folder of finished builds.
        known: counted cycles of calls by parameter values.
    """

    core: Core
    vlen: int
    cases: Sequence[Case]
    cache: Path
    known: dict[tuple[int, ...], dict[Case, tuple[int, ...]]] = field(default_factory=dict)

    def cycles(
        self, values: Mapping[str, int], cases: Sequence[Case]
    ) -> dict[Case, tuple[int, ...]]:
        """Return each call's cycles of the pipeline, or serial and vec_serial cycles without one.

        ``values`` replace parameters of kernels.toml.
        """
        counted = self.known.setdefault(tuple(with_values(values).values()), {})
        if missing := [case for case in cases if case not in counted]:
            with tempfile.TemporaryDirectory(prefix="tune-") as folder:
                program = build(Path(folder), self.cache, values)
                machine = GuestMachine(self.vlen, timeout=SECONDS)
                _, measured = count_guest(program, self._words(missing), machine, self.cache)
            for i, case in enumerate(missing):
                cycles = all_cycles(self.core, measured, [i])
                sums = (cycles.serial, cycles.vec_serial)
                counted[case] = sums if cycles.pipeline is None else (cycles.pipeline,)
        return {case: counted[case] for case in cases}

    def results(
        self, values: Mapping[str, int], cases: Sequence[Case], seed: int
    ) -> list[np.ndarray]:
        """Return the results of calls on random input, an array for each call."""
        with tempfile.TemporaryDirectory(prefix="tune-") as folder:
            program, out = build(Path(folder), self.cache, values), Path(folder) / "results"
            words = ["-o", str(out), str(seed), *self._words(cases)]
            run_guest(program, words, GuestMachine(self.vlen, timeout=SECONDS))
            numbers = np.fromfile(out, np.float32)
        ends = np.cumsum([case.sizes[0] * case.sizes[1] for case in cases])
        return np.split(numbers, ends[:-1])

    def difference(self, values: Mapping[str, int], cases: Sequence[Case], seed: int) -> str:
        """Return a text on a call whose result differs from that of kernels.toml's values, or "".

        Results that differ only by the order of float32 sums count as equal.
        """
        bound = weight_formats()["q0f32"].tolerance
        both = zip(self.results({}, cases, seed), self.results(values, cases, seed), strict=True)
        for case, (old, new) in zip(cases, both, strict=True):
            error = float(np.max(np.abs(old - new)) / np.max(np.abs(old)))
            if not error <= bound:
                return f"{name_of(case)} differs by {error:.2g} of its largest result, seed {seed}"
        return ""

    def _words(self, cases: Sequence[Case]) -> list[str]:
        words = (word for case in cases for word in (case.kernel, *map(str, case.sizes)))
        return [str(self.vlen // 4), *words]

    def search(self) -> Iterator[str]:
        """Try all values; yield a line for each; leave the best values in :attr:`best`."""
        self.best: dict[str, int] = {}
        for parameter in read_parameters().values():
            cases = [case for case in self.cases if case.kernel in parameter.kernels]
            for value in parameter.values:
                if cases and value != parameter.value:
                    yield f"{parameter.name} = {value}: {self._try(parameter, value, cases)}"

    def _try(self, parameter: Parameter, value: int, cases: Sequence[Case]) -> str:
        before, now = self.cycles({}, cases), self.cycles(self.best, cases)
        wanted = {**self.best, parameter.name: value}
        try:
            new = self.cycles(wanted, cases)
        except LabError as error:
            if error.exit_code == 2:
                raise
            return f"rejected: {error.what.splitlines()[0]}"
        slower = [c for c in cases if any(n > b for n, b in zip(new[c], before[c], strict=True))]
        mean = geometric_mean([now[case][0] / new[case][0] for case in cases])
        gain = f"{mean:.4f} times fewer cycles in the mean of {len(cases)} calls"
        if slower:
            worst = max(slower, key=lambda case: new[case][0] / before[case][0])
            ratio = new[worst][0] / before[worst][0]
            return f"{gain}, but {len(slower)} are slower ({name_of(worst)}: {ratio:.4f}); left"
        if mean < LEAST_GAIN:
            return f"{gain}; left"
        if wrong := self.difference(wanted, cases, secrets.randbits(62) + 1):
            return f"{gain}; rejected: {wrong}"
        self.best = wanted
        return f"{gain}; taken"

    def timed(self) -> list[Timed]:
        """Return every call's cycles with the values of kernels.toml and with the best values."""
        before, after = self.cycles({}, self.cases), self.cycles(self.best, self.cases)
        return [Timed(c.kernel, c.sizes, before[c][0], after[c][0]) for c in self.cases]


def name_of(case: Case) -> str:
    """Return the name of a call for messages."""
    return f"{case.kernel} {'x'.join(map(str, case.sizes))}"


def table(timed: Sequence[Timed]) -> list[str]:
    """Return Markdown lines: cycles before divided by cycles after, by kernel and rows."""
    lines = ["| kernel | rows | calls | mean | least | most |", "|---|---|---|---|---|---|"]
    for kernel, rows in dict.fromkeys((entry.kernel, entry.sizes[0]) for entry in timed):
        ratios = [o.before / o.after for o in timed if (o.kernel, o.sizes[0]) == (kernel, rows)]
        figures = (geometric_mean(ratios), min(ratios), max(ratios))
        cells = " | ".join(f"{figure:.4f}" for figure in figures)
        lines.append(f"| {kernel} | {rows} | {len(ratios)} | {cells} |")
    ratios = [entry.before / entry.after for entry in timed]
    slower, same = sum(r < 1 for r in ratios), sum(r == 1 for r in ratios)
    counts = f"{len(ratios)} calls, {slower} slower, {same} as before: "
    return [*lines, "", f"{counts}{geometric_mean(ratios):.4f} times fewer cycles (geometric mean)"]


def parser() -> Parser:
    """Return the parser of the command line of ``crosslab farm tune-kernels``."""
    options = Parser(
        prog="crosslab farm tune-kernels",
        parents=[trees("core", core={"required": True})],
        description="Search the best values of the kernels' parameters (kernels.toml) for a core, "
        "on the linear layers of models. Later compiles use them with --tuned DIR.",
    )
    add = options.add_argument
    add("--model", nargs="+", metavar="NAME", help=f"{', '.join(MODELS)}, or a config.json (all)")
    add(
        "--rows",
        nargs="+",
        type=int,
        default=ROWS,
        help=f"of a call ({' '.join(map(str, ROWS))})",
    )
    add("--kernel", nargs="+", metavar="NAME", help="only these routines (all with parameters)")
    add("--database", **DATABASE)
    return options


def main(argv: Sequence[str]) -> int:
    """Search the best values, check their results, and keep them; return 0.

    Raises:
        UserError: an option is wrong, or a tool is missing.
        LabError: kernels do not build or run, or the best values change results.
    """
    args = parser().parse_args(argv)
    core: Core = args.core
    if min(args.rows) < 1:
        raise UserError(f"--rows {min(args.rows)}", remedy="give 1 or more")
    kernels = _kernels(args.kernel)
    configs = [MODELS[m] if m in MODELS else read_config(Path(m)) for m in args.model or MODELS]
    cases = cases_of(configs, kernels, list(dict.fromkeys(args.rows)))
    tuner = KernelTuner(core, core.vlen, cases, args.cache)
    for line in tuner.search():
        _console.print(line, markup=False, soft_wrap=True)
    timed = tuner.timed()
    # Check all values together, on new input.
    if tuner.best and (wrong := tuner.difference(tuner.best, cases, secrets.randbits(62) + 1)):
        raise LabError(f"{tuner.best}: {wrong}; nothing was kept")
    folder = (args.database or args.project / "out" / "tuned") / core.key
    values = {**_others(folder, core, kernels), **tuner.best}
    KernelValues(core.key, core.vlen, sources(), values, timed).write(folder)
    print(f"{core.key}: {told(values)}; kept in {folder}")
    print("\n".join(table(timed)))
    return 0


def _others(folder: Path, core: Core, kernels: Sequence[str]) -> dict[str, int]:
    """Return the values of parameters that a search of these kernels leaves as they are.

    They are those of the record in the folder, or the core's in the kernel list if the record is
    missing, damaged or of other kernels.

    Raises:
        UserError: the kernel list is malformed.
    """
    try:
        values = find_values(folder, [core.vlen], [core])
    except UserError:
        values = core_values([core])
    tried = {p.name for p in read_parameters().values() if set(p.kernels) & set(kernels)}
    return {name: value for name, value in values.items() if name not in tried}


def _kernels(names: Sequence[str] | None) -> list[str]:
    """Return the named kernels, or all kernels with parameters.

    Raises:
        UserError: a named kernel has no parameter.
    """
    known = list(dict.fromkeys(k for p in read_parameters().values() for k in p.kernels))
    if unknown := [name for name in names or () if name not in known]:
        raise UserError(
            f"--kernel {unknown[0]} has no parameter", remedy=f"these have: {', '.join(known)}"
        )
    return list(names or known)
