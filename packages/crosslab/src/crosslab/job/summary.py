# SPDX-License-Identifier: Apache-2.0
"""The answer of the main job in a few lines, made from its report alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.markup import escape
from rich.table import Table

from crosslab.assemble.kernel_values import told

SHOWN_SECONDS = 0.5  # of a step; shorter ones took their results from the cache


def summary(report: Mapping[str, Any]) -> Table:
    """Return the run, its correctness and its cost as a table."""
    done = [entry for entry in report["tensorized"] if entry.get("symbol")]
    tokens, error, beside = "not checked", "not checked", {}
    if report["checked"]:
        tokens = _tokens(report)
        bound = report["logit_error_bound"]
        error = f"{report['max_logit_error']:.1e} of the largest (bound {bound:.0e})"
        beside = _beside(report)
    prefill, decode = report["prefill_seconds"], report["decode_seconds"]
    counters = report["counters"]
    about = ("model", "quantization", "path", "target")
    int8 = ["int8 activations"] if report["activations"] == "int8" else []
    int8 += ["int8 KV cache"] if report["kv_cache"] == "int8" else []
    int8 += [f"products by {device}"] if (device := report.get("accelerator")) else []
    # An encoder gives a vector instead of tokens.
    vector = report.get("vector")
    rows = {
        "model": ", ".join([*(str(report[name]) for name in about), *int8]),
        **({"vector": f"{vector} numbers"} if vector else {}),
        **({} if vector else {"tokens": f"{len(report['tokens'])}, {tokens}"}),
        "error" if vector else "logit error": error,
        **beside,
        "tensorized": f"{len(done)} blocks, {len({e['symbol'] for e in done})} kernels",
        **({"schedules": taken} if (taken := report.get("schedules")) else {}),
        **({"parameters": told(values)} if (values := report.get("kernel_values")) else {}),
        "prefill": f"{len(report['prompt_tokens'])} tokens, {sum(prefill):.1f} s"
        + _millions(counters["prefill"]),
        **({} if vector else {"decode": _decode(decode, counters)}),
        **({"device": _device(counts)} if (counts := report.get("device")) else {}),
        **_times(report),
    }
    table = Table(show_header=False, box=None, pad_edge=False)
    for name, value in rows.items():
        table.add_row(f"[bold]{name}[/]", escape(value))
    return table


def _decode(seconds: Sequence[float], counters: Mapping[str, Any]) -> str:
    counted = _millions(counters["decode_per_token"], " a token")
    return f"{len(seconds)} tokens, {sum(seconds):.1f} s{counted}"


def _times(report: Mapping[str, Any]) -> dict[str, str]:
    """Return rows with the time of the verdict, and of the steps of this run."""
    rows = {}
    if report.get("kept"):
        rows["verdict"] = f"kept from {report['answered']}; --again runs emulator and reference"
    steps = report["seconds"].items()
    rows["steps"] = ", ".join(f"{name} {s:.0f} s" for name, s in steps if s >= SHOWN_SECONDS)
    if "checked_after" in report:
        rows["time"] = (
            f"{report['checked_after']:.0f} s to the checked answer, "
            f"{report['finished_after']:.0f} s to the finished model"
        )
    return rows


def _tokens(report: Mapping[str, Any]) -> str:
    """Say whether the tokens equal the reference's."""
    pairs = zip(report["tokens"], report["reference_tokens"], strict=True)
    if not (other := sum(ours != theirs for ours, theirs in pairs)):
        return "equal"
    return f"equal but for {other} equally likely" if report["right"] else "NOT the reference's"


def _beside(report: Mapping[str, Any]) -> dict[str, str]:
    """Return rows about the file's weights and the roundings."""
    rows = {}
    if (stored := report.get("stored_weights_error")) is not None:
        rows["file's weights"] = f"in float32 they give numbers {stored:.1e} of the largest apart"
    if taken := report.get("roundings"):
        rows["roundings"] = (
            f"{taken['other']:,} of {taken['count']:,} are not the reference's own, at most "
            f"{taken['farthest']:.1e} of a step from the middle"
        )
    if cost := report.get("int8_cost"):
        rows["float32"] = f"{_rounded(report)} change logits by {cost['logit_error']:.1e}"
        if cost["first"]:
            ours, plain = report["int8_words"]
            rows["float32"] += (
                f", {cost['steps']} of {len(report['tokens'])} tokens, the first from {plain!r} to "
                f"{ours!r}"
            )
        else:
            rows["float32"] += ", no token"
        if cost["perplexity"]:
            rounded, plain = cost["perplexity"]
            rows["float32"] += f", perplexity of a text from {plain:.2f} to {rounded:.2f}"
    return rows


def _rounded(report: Mapping[str, Any]) -> str:
    """Name the numbers that the model rounds to int8."""
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
