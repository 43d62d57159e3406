# SPDX-License-Identifier: Apache-2.0
"""Causal skipping, pages, activations that stay on chip, several arrays, widths of the cache."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from costmodel.accelerator.dataflow import load_dataflow
from costmodel.accelerator.hardware import load_hardware
from costmodel.accelerator.scheme import FLOAT16, schemes
from costmodel.accelerator.technology import technology
from costmodel.cli import main
from costmodel.errors import CostError
from costmodel.estimate.execution import SEQUENCES, Execution, chained
from costmodel.estimate.model import PhaseCost, phase_cost
from costmodel.estimate.product import Role
from costmodel.estimate.workload import Phase, read_workloads
from costmodel.search.explore import Design

WORK = read_workloads(Path(__file__).parent / "data" / "smollm2.work.json")
MOBILE, FLOW = load_hardware("systolic32x32"), load_dataflow("output-stationary")
LAYERS, HEADS, KEPT, WIDTH = 30, 9, 3, 64  # of SmolLM2
TOKENS = 60


def phase(name: str, size: int, execution: Execution) -> Phase:
    return execution.bind(WORK, name, size, {})


def attention(of: Phase) -> int:
    """Multiply-accumulates of attention's two products."""
    return sum(i.count * i.gemm.macs for i in of.items if i.gemm.role is not Role.PRODUCT)


def estimate(name: str, size: int, execution: Execution) -> PhaseCost:
    return phase_cost(phase(name, size, execution), MOBILE, FLOW, FLOAT16)


@pytest.mark.parametrize("block", [1, 16, TOKENS])
def test_keys_after_a_block_are_skipped(block: int) -> None:
    found = attention(phase("prefill", TOKENS, Execution(causal=block)))
    seen = sum(min(TOKENS, (t // block + 1) * block) for t in range(TOKENS))
    assert found == 2 * LAYERS * HEADS * WIDTH * seen


def test_a_token_has_nothing_to_skip() -> None:
    plain = phase("decode", TOKENS, Execution())
    assert phase("decode", TOKENS, Execution(causal=16)).items == plain.items


def test_whole_pages_and_their_entries_are_read() -> None:
    plain, paged = (phase("decode", TOKENS, Execution(page=p)) for p in (0, 16))
    assert attention(paged) * TOKENS == attention(plain) * 64
    one, other = (phase_cost(p, MOBILE, FLOW, FLOAT16).total.bits for p in (plain, paged))
    cache = LAYERS * KEPT * 2 * (64 - TOKENS) * WIDTH * 16
    assert other - one == cache + LAYERS * KEPT * 4 * 32


def test_activations_that_fit_stay_on_chip() -> None:
    plain, fused = (estimate("decode", TOKENS, Execution(chain=c)) for c in (False, True))
    moved = [
        {i.item.kind: (i.cost.traffic[-1].read, i.cost.traffic[-1].write) for i in p.items}
        for p in (plain, fused)
    ]
    weights = 576 * 3072 * 16
    assert moved[0]["gate_up_proj"] == (weights + 576 * 16, 3072 * 16)
    assert moved[1]["gate_up_proj"] == (weights, 0)
    # Keys and values go to the cache, the queries with them.
    assert moved[1]["qkv_proj"] == (576 * 960 * 16, 960 * 16)
    assert moved[1]["attention PV"][1] == 0
    # Two norms a layer and the last one: their weights are all that is still read.
    assert fused.other.bits == (2 * LAYERS + 1) * 576 * 16 < plain.other.bits
    assert fused.total.latency < plain.total.latency


def test_a_work_file_that_does_not_tell_weights_has_no_chain() -> None:
    work = json.loads(json.dumps(WORK))
    for other in work["entries"]["decode"]["others"]:
        del other["bits_weights"]
    assert Execution().bind(work, "decode", TOKENS, {}).others[0].bits_weights is None
    bound = Execution(chain=True).bind(work, "decode", TOKENS, {})
    with pytest.raises(CostError, match="does not list the weights of rms_norm"):
        phase_cost(bound, MOBILE, FLOW, FLOAT16)


def test_activations_that_do_not_fit_leave_the_chip() -> None:
    small = replace(MOBILE.levels[0], size=4 * 50_000)
    kept = chained(phase("decode", TOKENS, Execution(chain=True)), small, FLOAT16)
    on_chip = {i.kind: i.gemm.kept for i in kept.items}
    assert on_chip["gate_up_proj"] == {"A"}
    assert on_chip["down_proj"] == {"C"}
    assert on_chip["qkv_proj"] == {"A"}


def test_arrays_share_the_layers_and_send_sums() -> None:
    one, three = (estimate("decode", TOKENS, Execution(arrays=n)) for n in (1, 3))
    assert three.total.macs * 3 == one.total.macs
    sums = LAYERS * 2 * 2 * 2 * 576 // 3 * 16  # o_proj and down_proj, 2 (3 - 1) / 3 each
    gathered = 2 * 49152 // 3 * 16
    assert three.total.link_bits == sums + gathered
    assert one.total.latency / 3 < three.total.latency < one.total.latency
    weights = {i.item.kind: i.cost.traffic[-1].read for i in three.items}
    assert weights["down_proj"] == (512 * 576 + 512) * 16


@pytest.mark.parametrize("arrays", [2, 4, 7])
def test_what_does_not_divide_is_counted_once(arrays: int) -> None:
    """Three key-value heads on other numbers of arrays: some have one more than the others."""
    one, many = (estimate("decode", TOKENS, Execution(arrays=n)) for n in (1, arrays))
    shares: list[PhaseCost] = []
    share: PhaseCost | None = many
    while share is not None:
        shares.append(share)
        share = share.beside
    assert sum(s.phase.arrays for s in shares) == many.phase.all_arrays == arrays
    assert sum(s.phase.arrays * s.total.macs for s in shares) == one.total.macs
    heads = [
        sum(i.item.gemm.batch for i in s.items if i.item.kind.startswith("attention"))
        for s in shares
    ]
    assert sum(s.phase.arrays * h for s, h in zip(shares, heads, strict=True)) == 2 * KEPT
    assert many.latency == many.total.latency == max(s.total.latency for s in shares)
    assert many.bits == sum(s.phase.arrays * s.total.bits for s in shares)
    # What every array does for itself: other work, and the activations that each takes in.
    assert one.bits < many.bits < 1.02 * one.bits


def test_arrays_need_a_link() -> None:
    lonely = replace(MOBILE, link=None)
    with pytest.raises(CostError, match="needs a \\[link\\]"):
        phase_cost(phase("decode", TOKENS, Execution(arrays=3)), lonely, FLOW, FLOAT16)


def batched() -> dict[str, Any]:
    """SmolLM2 with a decode of many sequences, products alone."""
    work: dict[str, Any] = json.loads(json.dumps(WORK))
    entry = json.loads(json.dumps(WORK["entries"]["decode"]))
    for item in entry["products"]:
        item["m"] = "batch_size"
    work["entries"]["batch_decode"] = {**entry, "others": []}
    return work


def divided(sequences: int, arrays: int) -> PhaseCost:
    run = Execution(arrays=arrays, split=SEQUENCES)
    bound = run.bind(batched(), "batch_decode", TOKENS, {"batch_size": sequences})
    return phase_cost(bound, MOBILE, FLOW, FLOAT16)


def test_arrays_share_the_sequences_and_each_has_the_weights() -> None:
    """13 sequences on 4 arrays: one has 4, three have 3; all send their logits to three others."""
    one, four, most = divided(13, 1), divided(13, 4), divided(4, 1)
    assert four.beside is not None
    assert (four.phase.arrays, four.beside.phase.arrays) == (1, 3)
    assert four.phase.tokens == four.beside.phase.tokens == one.phase.tokens == 13
    assert four.total.macs * 13 == one.total.macs * 4
    assert four.beside.total.macs * 13 == one.total.macs * 3
    # The weights once more for each further array; keys, values and activations as before.
    weights = 30 * (576 * 960 + 576 * 576 + 576 * 3072 + 1536 * 576) + 576 * 49152
    assert four.bits - one.bits == 3 * weights * 16
    assert four.total.link_bits == 3 * 4 * 49152 * 16
    assert four.beside.total.link_bits == 3 * 3 * 49152 * 16
    # The array of four sequences decides: 9,437,184 bits at 200 a cycle after 500 cycles.
    assert four.latency == four.total.latency == most.total.latency + 47_185 + 500
    assert four.beside.latency < four.latency < one.latency
    assert four.energy == pytest.approx(four.total.energy + 3 * four.beside.total.energy)


def test_an_even_batch_has_one_share() -> None:
    two = divided(8, 2)
    assert (two.phase.arrays, two.beside) == (2, None)
    assert two.total.link_bits == 4 * 49152 * 16
    assert two.bits == 2 * two.total.bits


def test_the_slower_share_decides() -> None:
    found = divided(5, 2)
    assert found.beside is not None
    swapped = replace(found.beside, beside=replace(found, beside=None))
    assert swapped.latency == found.latency == found.total.latency > found.beside.latency
    assert swapped.energy == pytest.approx(found.energy)


def test_the_command_divides_a_batch(tmp_path: Path) -> None:
    work, out = tmp_path / "batched.work.json", tmp_path / "out.json"
    work.write_text(json.dumps(batched()))
    arguments = ["--model", str(work), "--hardware", "systolic32x32", "--json", str(out)]
    arguments += ["--phase", f"batch_decode:{TOKENS}", "--bind", "batch_size=13", "--compare"]
    assert main([*arguments, "--arrays", "4", "--split", "batch"]) == 0
    (record,) = json.loads(out.read_text())
    wanted = divided(13, 4)
    assert (record["arrays"], record["sizes"]["batch_size"]) == (4, 13)
    assert record["by_token"] == {
        "ms": pytest.approx(wanted.latency / 1e6),
        "tokens_per_second": pytest.approx(13 / (wanted.latency / 1e9)),
        "mj_per_token": pytest.approx(wanted.energy / 1e9 / 13),
        "bytes_per_token": pytest.approx(wanted.bits / 8 / 13),
    }


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--phase", "prefill:8", "--arrays", "2"], "prefill:8: has no batch"),
        (["--phase", "decode:8", "--arrays", "2"], "--phase batch_decode:8 --bind batch_size=N"),
        (["--phase", "batch_decode:8", "--arrays", "4"], "3 sequences are too few for 4 arrays"),
        (["--phase", "batch_decode:8"], "--split batch does nothing with one array"),
    ],
)
def test_a_phase_without_sequences_to_split_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    work = tmp_path / "batched.work.json"
    work.write_text(json.dumps(batched()))
    base = ["--model", str(work), "--hardware", "systolic32x32", "--split", "batch"]
    assert main([*base, *arguments, "--bind", "batch_size=3"]) == 2
    assert message in capsys.readouterr().err


def test_the_search_divides_a_batch(tmp_path: Path) -> None:
    work, out, again = (tmp_path / n for n in ("two.work.json", "out.json", "again.json"))
    found = batched()
    found["entries"]["batch_decode"]["products"] = found["entries"]["batch_decode"]["products"][:1]
    work.write_text(json.dumps(found))
    base = ["--model", str(work), "--hardware", "systolic32x32", "--scheme", "float16", "--quiet"]
    base += ["--phase", "batch_decode:8", "--bind", "batch_size=5"]
    base += ["--arrays", "2", "--split", "batch"]
    assert main([*base, "--search", "--pes", "16", "--json", str(out)]) == 0
    written = json.loads(out.read_text())
    assert written["execution"]["split"] == "batch"
    row = written["fronts"][0]
    assert {p.split("x")[1] for p in row["mapping"]["products"]} == {"2", "3"}
    assert main([*base, "--mapping", str(out), "--json", str(again)]) == 0
    assert json.loads(again.read_text())["fronts"] == written["fronts"]


def test_the_cache_has_the_width_of_the_name() -> None:
    plain, eight, four = schemes(["int8-token", "int8-token-kv8", "int8-token-kv4"])
    assert (plain.cache, eight.cache, four.cache) == (16, 8, 4)
    assert replace(eight, name=plain.name, cache=16) == plain
    run = phase("decode", 1024, Execution())
    bits = [phase_cost(run, MOBILE, FLOW, s).total.bits for s in (plain, eight, four)]
    entries = LAYERS * KEPT * 2 * 1024
    assert bits[0] - bits[1] == entries * (8 * WIDTH - 16)  # a scale for each entry
    assert bits[1] - bits[2] == entries * 4 * WIDTH


def test_parts_of_a_split_buffer_have_their_own_energy() -> None:
    split = Design((32, 32), 1 << 20, (2, 4, 2)).hardware(MOBILE).levels[0]
    sram = technology().memories["sram-45nm"]
    quarter, half = sram.energy_of(1 << 18), sram.energy_of(1 << 19)
    for access in split.operand_energy():
        assert access == pytest.approx((quarter, half, quarter))
