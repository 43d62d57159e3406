# SPDX-License-Identifier: Apache-2.0
"""``accelerator VERB``: a model's cost, its layers on a device, its answer, a stream as text."""

from __future__ import annotations

import argparse
import importlib
import json
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from accelerator import model, study
from accelerator.device import DEVICES, Device, MemoryId, load_device
from accelerator.errors import AcceleratorError
from accelerator.extension.lowering import lower_extension
from accelerator.extension.unit import MatrixUnit, load_target
from accelerator.isa.listing import disassemble
from accelerator.layer import EXACT, Layer, LinearLayer, Requantisation, new_name
from accelerator.study import StudiedLayer
from accelerator.timing import timeline
from accelerator.workload.extraction import NAMED, model_workloads
from accelerator.workload.networks import NETWORKS
from costmodel import cli as estimate
from costmodel.accelerator.settings import shipped_names
from costmodel.counting.relations import is_number
from costmodel.estimate.workload import (
    DEFAULT_PHASES,
    Phase,
    bind_phase,
    checked,
    only_gemm,
    parse_extents,
    parse_phases,
)
from costmodel.results import report
from crosslab.cached_build import default_cache
from crosslab.job.job_options import PINNED_MODEL, PROMPT
from crosslab.models.sources.asset import fetch_asset
from crosslab.models.sources.pins import read_pins
from crosslab.project import PROJECT
from groundwork.command_line import Parser, output_file, output_folder
from groundwork.errors import exit_code_of
from groundwork.files import atomic_write, atomic_write_json

ESTIMATE, DEVICE = "estimate", "device"
KINDS = (
    f"{', '.join(NAMED)}, a config.json of Hugging Face (Llama, GPT-2), an IRModule saved by "
    "tvm.ir.save_json, or a work file"
)


def _add_attention(add: Callable[..., Any]) -> None:
    """Add the option --attention, which chooses the CPU or the device for attention's products."""
    who = f"who multiplies queries by keys and probabilities by values ({DEVICE})"
    add("--attention", choices=(DEVICE, "cpu"), default=DEVICE, help=who)


# Title, key in a layer's record, and format of the numbers of a layer on a device.
COLUMNS: tuple[tuple[str, str, Callable[[Any], str]], ...] = (
    ("times", "count", str),
    ("extents", "extents", report.crossed),
    ("tile, blocks", "tile", report.crossed),
    ("instructions", "instructions", "{:,}".format),
    ("cycles predicted", "predicted_cycles", "{:,.0f}".format),
    ("simulated", "cycles", "{:,.0f}".format),
    ("error", "cycle_error", "{:+.1%}".format),
    ("DRAM bytes predicted", "predicted_bytes", "{:,}".format),
    ("simulated", "bytes", "{:,}".format),
    ("core busy", "utilisation", "{:.1%}".format),
    ("one half", "single_utilisation", "{:.1%}".format),
    ("useful", "useful", "{:.1%}".format),
)


def parser() -> Parser:
    """Return the parser of the command line of ``accelerator``."""
    command_line = Parser(
        prog="accelerator",
        description="Estimate, simulate and run a model's matrix products on an accelerator.",
    )
    verbs = command_line.add_subparsers(dest="verb", required=True, metavar="VERB")
    default = "estimate time, traffic and energy (also without the verb: accelerator --gemm ...)"
    verbs.add_parser(ESTIMATE, help=default, add_help=False)
    work_file = verbs.add_parser("workload", help="write the matrix products of a model to a file")
    work_file.add_argument("model", metavar="MODEL", help=KINDS)
    work_file.add_argument("--output", type=output_file, required=True, metavar="FILE")
    layers = verbs.add_parser(
        "layers", help="compile layers for a device, simulate them, compare with the estimate"
    )
    add = layers.add_argument
    add("device", help=f"{', '.join(shipped_names(DEVICES))}, or a TOML file")
    work = layers.add_mutually_exclusive_group(required=True)
    work.add_argument("--model", type=Path, help=KINDS)
    work.add_argument("--gemm", metavar="M,N,K", help="one product: rows, outputs, inputs")
    work.add_argument("--network", choices=sorted(NETWORKS), help="a network for pictures")
    add("--phase", metavar="NAME:TOKENS,...", help=f"with --model ({DEFAULT_PHASES})")
    _add_attention(add)
    layers.set_defaults(attention=None)
    add(
        "--requantise",
        metavar="BYTES:SHIFT",
        help="width and right shift of the results (default: 4:0, the whole sum); not with "
        "--network, whose layers have their own",
    )
    add(
        "--prove",
        action="store_true",
        help="check each stream for races and deadlocks, run it, compare with numpy",
    )
    add(
        "--streams",
        metavar="DIR",
        type=output_folder,
        help="write the instruction stream of each layer",
    )
    add(
        "--traces",
        metavar="DIR",
        type=output_folder,
        help="write timelines for Perfetto: of each layer, and of all layers of a phase or network",
    )
    add("--timeline", metavar="FILE", type=output_file, help="draw all layers' timeline")
    add("--roofline", metavar="FILE", type=output_file, help="draw a roofline plot as PNG")
    add("--json", metavar="FILE", type=output_file, help="write all figures")
    add = verbs.add_parser(
        "answer", help="let SmolLM2 answer a prompt, with its products on the device"
    ).add_argument
    add("device", help="as above")
    add(
        "--gguf",
        metavar="FILE",
        type=Path,
        help="another model of a Llama-like family (default: the pinned SmolLM2)",
    )
    add("--prompt", default=PROMPT, help=f"(default: {PROMPT})")
    _add_attention(add)
    add("--tokens", type=int, default=16, metavar="N", help="answer at most N tokens (16)")
    about = verbs.add_parser("describe", help="print the sizes and rates of a device")
    about.add_argument("device", help="as above")
    text = verbs.add_parser("disassemble", help="print an instruction stream as text")
    text.add_argument("device", help="as above")
    text.add_argument("stream", metavar="FILE", type=Path)
    return command_line


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command ``accelerator`` and return its exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    if words and words[0].startswith("--") and words[0] != "--help":
        words.insert(0, ESTIMATE)
    if words[:1] == [ESTIMATE]:
        return estimate.main(words[1:], read_model)
    args = parser().parse_args(words)
    return exit_code_of(lambda: _run(args), AcceleratorError)


def read_model(model: Path) -> dict[str, Any]:
    """Return a model's workloads, from a work file or from the IRModule that TVM builds.

    Raises:
        CostError: the work is damaged.
        UserError: the model cannot be read, or TVM is missing.
    """
    return checked(model_workloads(str(model)), str(model))


def _run(args: argparse.Namespace) -> int:
    if args.verb == "disassemble":
        device = load_device(args.device)
        sys.stdout.write(disassemble(_given(args.stream, "a stream").read_bytes(), device))
        return 0
    if args.verb == "workload":
        atomic_write_json(args.output, model_workloads(args.model))
        print(args.output)
        return 0
    if args.verb == "describe":
        sys.stdout.write(_described(load_target(args.device)))
        return 0
    target = load_target(args.device)
    if args.verb == "answer":
        return _answer(args, target)
    for option in ("phase", "attention"):
        if args.model is None and getattr(args, option) is not None:
            raise AcceleratorError(f"--{option} is for --model", remedy=f"leave out --{option}")
    if args.network and args.requantise is not None:
        raise AcceleratorError(
            "--requantise is for --model and --gemm: a network's layers have forms of their own",
            remedy="leave out --requantise",
        )
    args.phase, args.attention = args.phase or DEFAULT_PHASES, args.attention or DEVICE
    if isinstance(target, MatrixUnit):
        _unit_layers(args, target)
    else:
        _layers(args, target)
    return 0


def _given(path: Path, content: str) -> Path:
    """Return the path, or refuse it if no file is there; ``content`` is for the message."""
    if not path.is_file():
        raise AcceleratorError(
            f"{path}: the file does not exist", remedy=f"give the path of {content}"
        )
    return path


def _described(device: Device | MatrixUnit) -> str:
    if isinstance(device, MatrixUnit):
        rows, inputs = device.rows, device.inputs
        return (
            f"{device.name}: {device.description}\n"
            f"  an instruction: {rows} x {inputs} by {rows} x {inputs}, {rows * rows * inputs} "
            f"multiply-accumulates; registers of {device.vlen} bits\n"
            "  simulated, and unproved on silicon\n"
        )
    block = f"{device.batch} x {device.inputs} by {device.outputs} x {device.inputs}"
    rate = device.dram_bandwidth * device.clock / 1e9
    names = {memory: memory.name.lower().replace("_", "-") for memory in MemoryId}
    buffers = ", ".join(
        f"{device.depth(memory)} {names[memory]}s"
        for memory in (MemoryId.INPUT, MemoryId.WEIGHT, MemoryId.ACCUMULATOR, MemoryId.MICRO_OP)
    )
    return (
        f"{device.name}: {device.description}\n"
        f"  a step of the GEMM core: {block}; {device.peak:,.0f} multiply-accumulates a cycle at "
        f"{device.clock / 1e6:,.0f} MHz\n"
        f"  buffers, in blocks: {buffers}\n"
        f"  memory: {device.memory >> 20} MiB, {rate:,.1f} GB/s, a latency of "
        f"{device.dram_latency} cycles\n"
    )


def _unit_layers(args: argparse.Namespace, unit: MatrixUnit) -> None:
    """Run each layer on random operands, compare with numpy, and show the counts."""
    for option in ("traces", "roofline", "timeline"):
        if getattr(args, option):
            raise AcceleratorError(
                f"--{option}: {unit.name} has no queues, so its time is that of the CPU"
            )
    if args.network:
        raise AcceleratorError(
            f"--network: {unit.name} multiplies matrices", remedy="give --gemm or --model"
        )
    records, left, taken = [], list[str](), set[str]()
    counted = ("times", "instructions", "products", "MACs each", "loads")
    table = report.titled(f"{unit.name}: {unit.description}", ("phase", "layer"), counted)
    for work in _works(args):
        left += (f"{work.name}, {line}" for line in work.left)
        for layer, count in work.layers:
            assert isinstance(layer, LinearLayer)  # as all products of a phase
            program = lower_extension(layer, unit)
            counts = study.prove(program)
            if args.streams:
                stem = _file_stem(taken, work.name, layer.name)
                atomic_write(args.streams / f"{stem}.bin", program.stream)
            useful = layer.macs / counts.gemm_steps
            loads = f"{counts.read_bytes / 1e6:.2f} MB"
            numbers = (f"{counts.instructions:,}", f"{counts.gemm_steps:,}", f"{useful:.1f}", loads)
            table.add_row(work.name, layer.name, str(count), *numbers)
            records.append(
                {
                    "phase": work.name,
                    "layer": layer.name,
                    "count": count,
                    **dict(zip(("rows", "outputs", "inputs"), layer.extents, strict=True)),
                    "instructions": counts.instructions,
                    "products": counts.gemm_steps,
                    "loaded_bytes": counts.read_bytes,
                    "stored_bytes": counts.written_bytes,
                }
            )
    report.console().print(table)
    _show_left(report.console(), left)
    print("Every layer ran on random operands: equal to numpy's bit for bit.")
    if args.json:
        record = {"schema": 1, "device": unit.name, "layers": records, "not_lowered": left}
        atomic_write_json(args.json, record)


def _layers(args: argparse.Namespace, device: Device) -> None:
    console = report.console()
    records, drawn, order, taken = [], {}, list[StudiedLayer](), set[str]()
    for work in _works(args):
        studied = []
        for layer, count in work.layers:
            layer_study = study.study(layer, count, device)
            if args.prove:
                study.prove(layer_study.program)
            _write(args, _file_stem(taken, work.name, layer.name), layer_study)
            studied.append(layer_study)
        for title, linear in ((work.name, True), (f"{work.name}, attention", False)):
            part = [e for e in studied if e.layer.macs and (e.layer in work.linear) is linear]
            if part:
                drawn[title] = part
        order += studied
        if args.traces:
            _write_timeline(args.traces / f"{_file_stem(taken, work.name)}.json", studied)
        records.append(_record(work, studied))
        _show(console, records[-1], work, device, args.prove)
    if args.roofline or args.timeline:
        # matplotlib takes a second to read: import it only for figures.
        plots = importlib.import_module("costmodel.results.plots")
        figures = importlib.import_module("accelerator.figures")
        if args.roofline:
            plots.save(args.roofline, lambda: figures.roofline(device, drawn))
        if args.timeline:
            plots.save(args.timeline, lambda: figures.timeline(device, order))
    if args.json:
        atomic_write_json(args.json, {"schema": 1, "device": device.name, "phases": records})


@dataclass(frozen=True)
class _Work:
    """The layers of a phase or of a network, with their counts.

    Attributes:
        size: tokens of a phase; pictures of a network.
        unit: of the size.
        linear: the layers that are not attention's.
        left: lines about work that is not lowered.
    """

    name: str
    size: int
    unit: str
    layers: list[tuple[Layer, int]]
    linear: frozenset[Layer]
    left: Sequence[str] = ()


def _works(args: argparse.Namespace) -> Iterator[_Work]:
    """Yield the layers of each phase, or of a network.

    Raises:
        AcceleratorError: a phase has no product for the device.
    """
    if args.network:
        layers = NETWORKS[args.network]()
        weighted = frozenset(layer for layer, _ in layers if layer.macs)
        yield _Work(args.network, 1, "picture", layers, weighted)
        return
    form, attention = _requantisation(args.requantise), args.attention == DEVICE
    for phase in _phases(args):
        products = study.products(phase, form, attention)
        if not products:
            raise AcceleratorError(
                f"{phase.name}: the phase has no matrix product that a device can do",
                remedy="give another phase, or leave out --attention cpu",
            )
        linear = frozenset(layer for layer, _ in products if layer.weighted)
        left = study.not_lowered(phase, attention)
        yield _Work(phase.name, phase.tokens, "tokens", [*products], linear, left)


def _answer(args: argparse.Namespace, device: Device | MatrixUnit) -> int:
    """Print the device's answer and its errors; return 1 if its logits differ from numpy's."""
    if args.tokens < 1:
        raise AcceleratorError(f"--tokens {args.tokens}: must be at least 1")
    cache = default_cache()
    path = (
        _given(args.gguf, "a model in GGUF")
        if args.gguf
        else fetch_asset(read_pins(PROJECT).asset(PINNED_MODEL), cache)
    )
    loaded, tokenizer = model.load(path, cache)
    prompt = tokenizer.chat_ids(args.prompt)
    steps, attention = [], args.attention == DEVICE
    for step in model.answer(loaded, device, prompt, args.tokens, tokenizer.stop_ids, attention):
        steps.append(step)
        print(f"{tokenizer.decode([step.token])!r}", end=" ", flush=True)
    tokens = [step.token for step in steps]
    print(f"\n{tokenizer.decode(tokens)}\n{len(prompt)} tokens of prompt, answer {tokens}")
    equal = all(step.equal and step.token == step.numpy for step in steps)
    print(f"logits equal to numpy's in W8A8, bit for bit: {'yes' if equal else 'NO'}")
    same = sum(step.token == step.plain for step in steps)
    print(f"likeliest in float32 as well: {same} of {len(steps)} tokens")
    print(f"largest error of a logit against float32: {max(step.error for step in steps):.2%}")
    if attention:
        print(f"the same with attention in float32: {max(step.linear for step in steps):.2%}")
    moved = model.sensitivity(loaded, prompt, model.DISTURBANCE, attention)
    print(
        f"embeddings disturbed by up to {model.DISTURBANCE:.0e} of each move a logit by {moved:.2%}"
    )
    return 0 if equal else 1


def _phases(args: argparse.Namespace) -> list[Phase]:
    if args.gemm is not None:
        return [only_gemm(parse_extents(args.gemm, "--gemm"), 1)]
    work = read_model(args.model)
    return [bind_phase(work, name, size, {}) for name, size in parse_phases(args.phase)]


def _requantisation(text: str | None) -> Requantisation:
    if text is None:
        return EXACT
    width, _, shift = text.partition(":")
    if not is_number(width) or not is_number(shift):
        raise AcceleratorError(
            f"--requantise {text!r}: must have the form BYTES:SHIFT", remedy="for example 4:0"
        )
    return Requantisation(int(width), int(shift))


def _file_stem(taken: set[str], *names: str) -> str:
    """Return names as a new file's name without ending: ``-`` replaces what may lead elsewhere."""
    return new_name(re.sub(r"[^A-Za-z0-9._-]+", "-", "-".join(names)), taken, "-")


def _write(args: argparse.Namespace, name: str, layer_study: StudiedLayer) -> None:
    if args.streams:
        atomic_write(args.streams / f"{name}.bin", layer_study.program.stream)
    if args.traces:
        _write_timeline(args.traces / f"{name}.json", [layer_study])


def _write_timeline(path: Path, studied: Sequence[StudiedLayer]) -> None:
    parts = ((e.layer.name, e.program.instructions, e.timing) for e in studied)
    atomic_write(path, json.dumps(timeline(parts)))


def _record(work: _Work, studied: list[StudiedLayer]) -> dict[str, Any]:
    rows = []
    for entry in studied:
        layer, mapping = entry.layer, entry.program.mapping
        rows.append(
            {
                "layer": layer.name,
                "count": entry.count,
                "extents": layer.extents,
                "tile": mapping.sides,
                "rows_outermost": mapping.rows_outermost,
                "instructions": len(entry.program.instructions),
                "predicted_cycles": entry.predicted.cycles,
                "cycles": entry.timing.cycles,
                "cycle_error": entry.cycle_error,
                "predicted_bytes": entry.predicted.bytes,
                "bytes": entry.timing.bytes,
                "utilisation": entry.timing.utilisation,
                "single_utilisation": entry.single.utilisation,
                "useful": entry.useful,
            }
        )
    cycles = sum(entry.count * entry.timing.cycles for entry in studied)
    peak = studied[0].program.device.peak
    return {
        "phase": work.name,
        work.unit: work.size,
        "layers": rows,
        "not_lowered": list(work.left),
        "cycles": cycles,
        "milliseconds": 1e3 * cycles / studied[0].program.device.clock,
        "utilisation": study.utilisation(studied),
        "single_utilisation": study.utilisation(studied, single=True),
        "useful": sum(entry.count * entry.layer.macs for entry in studied) / (cycles * peak),
        "spent": study.spent((entry.count, entry.timing) for entry in studied),
    }


def _show_left(console: Console, lines: Sequence[str]) -> None:
    for line in lines:
        console.print(f"not lowered: {line}", soft_wrap=True)


def _show(
    console: Console, record: dict[str, Any], work: _Work, device: Device, proved: bool
) -> None:
    title = f"{work.name}, {work.size} {work.unit}, on {device.name}"
    table = report.titled(title, ("layer",), [name for name, _, _ in COLUMNS])
    for row in record["layers"]:
        table.add_row(row["layer"], *(form(row[key]) for _, key, form in COLUMNS))
    console.print(table)
    _show_left(console, work.left)
    console.print(
        f"all layers: {record['milliseconds']:,.2f} ms, GEMM core busy "
        f"{record['utilisation']:.1%} (in one half of each buffer "
        f"{record['single_utilisation']:.1%}), useful {record['useful']:.1%} of its peak"
    )
    for queue, causes in record["spent"].items():
        parts = ", ".join(f"{cause} {part:.1%}" for cause, part in causes.items() if part >= 5e-4)
        console.print(f"  {queue:<8}{parts}")
    if proved:
        console.print("  proved: tokens in order, results equal to numpy's bit for bit")
