# SPDX-License-Identifier: Apache-2.0
"""The answer of the main job in a few lines, made from its report alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.table import Table

from crosslab.build.kernel_values import told


def summary(report: Mapping[str, Any]) -> Table:
    """The run, its correctness and its cost as a table."""
    done = [entry for entry in report["tensorized"] if entry.get("symbol")]
    tokens, error = "not checked", "not checked"
    if report["checked"]:
        same = report["tokens"] == report["reference_tokens"]
        tokens = "equal" if same else "NOT the reference's"
        if not same and report.get("right"):
            tokens = f"the reference's up to two that {_rounded(report)} make equally likely"
        bound = report["logit_error_bound"]
        error = f"{report['max_logit_error']:.1e} of the largest (bound {bound:.0e})"
    if (rounding := report["int8_rounding_error"]) is not None:
        error += f"; {_rounded(report)} change {rounding:.1e}"
    beside = {}
    if (stored := report.get("stored_weights_error")) is not None:
        beside["file's weights"] = f"their logits in float32 are {stored:.1e} of the largest apart"
    if alone := report.get("alone"):
        same = "equal" if report["tokens"] == alone["tokens"] else f"not its {alone['tokens']}"
        beside |= {
            "roundings": f"{alone['other']:,} of {alone['taken']:,} are not the reference's own, "
            f"at most {alone['farthest']:.1e} of a step from the middle",
            "numpy alone": f"tokens {same}; logits {alone['logit_error']:.1e} apart, its own move "
            f"by {alone['moved']:.1e} when disturbed",
            "float32": f"logit error {alone['float32']:.1e}",
        }
    prefill, decode = report["prefill_seconds"], report["decode_seconds"]
    counters = report["counters"]
    about = ("model", "quantization", "path", "target")
    int8 = ["int8 activations"] if report["activations"] == "int8" else []
    int8 += ["int8 KV cache"] if report["kv_cache"] == "int8" else []
    int8 += [f"products by {device}"] if (device := report.get("accelerator")) else []
    rows = {
        "model": ", ".join([*(str(report[name]) for name in about), *int8]),
        "tokens": f"{len(report['tokens'])}, {tokens}",
        "logit error": error,
        **beside,
        "tensorized": f"{len(done)} blocks, {len({e['symbol'] for e in done})} kernels",
        **({"schedules": taken} if (taken := report.get("schedules")) else {}),
        **({"parameters": told(values)} if (values := report.get("kernel_values")) else {}),
        "prefill": f"{len(report['prompt_tokens'])} tokens, {sum(prefill):.1f} s"
        + _millions(counters["prefill"]),
        "decode": f"{len(decode)} tokens, {sum(decode):.1f} s"
        + _millions(counters["decode_per_token"], " a token"),
        **({"device": _device(counts)} if (counts := report.get("device")) else {}),
        "steps": ", ".join(f"{name} {s:.0f} s" for name, s in report["seconds"].items()),
    }
    table = Table(show_header=False, box=None, pad_edge=False)
    for name, value in rows.items():
        table.add_row(f"[bold]{name}[/]", value)
    return table


def _rounded(report: Mapping[str, Any]) -> str:
    """The kinds of numbers that the model rounds to int8, in words."""
    kinds = {"activations": report["activations"], "keys and values": report["kv_cache"]}
    named = [kind for kind, type_ in kinds.items() if type_ == "int8"]
    return "int8 " + (" and ".join(named) or "products")


def _device(counts: Mapping[str, int]) -> str:
    moved = (counts["read_bytes"] + counts["written_bytes"]) / 1e6
    return (
        f"{counts['instructions']:,} instructions, {counts['gemm_steps'] / 1e6:.1f} M steps of its "
        f"core, {moved:,.0f} MB moved, {counts['tokens_written']:,} tokens of attention written"
    )


def _millions(counts: Mapping[str, int] | None, each: str = "") -> str:
    return f", {counts['insns'] / 1e6:.1f} M instructions{each}" if counts else ""
