# SPDX-License-Identifier: Apache-2.0
"""The command as a user types it, on reports of a small model."""

from __future__ import annotations

import ast
import csv
import json
import re
import struct
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from small_llama import write_gguf

from costmodel.accelerator.scheme import FLOAT32, SCHEMES
from costmodel.accuracy import llama
from costmodel.cli import main
from costmodel.errors import CostError
from costmodel.estimate.workload import bind_phase, layer_kind

NONE = {"grain": "none", "group": 0, "scale_bits": 0, "zero_bits": 0}


def operand(name: str, weight: bool, bits: int = 16, **scales: Any) -> dict[str, Any]:
    quantization = {**NONE, **scales}
    return {
        "name": name,
        "dtype": "float16",
        "bits": bits,
        "weight": weight,
        "index": "[i,k]",
        "quantization": quantization,
    }


def product(weight: str, m: Any, n: Any, k: Any, **changes: Any) -> dict[str, Any]:
    return {
        "function": "fused",
        "block": "NT_matmul",
        "kind": "gemm",
        "batch": 1,
        "m": m,
        "n": n,
        "k": k,
        "a": operand("x", False),
        "b": operand(weight, True),
        "c_dtype": "float16",
        "count": 1,
        **changes,
    }


def report() -> dict[str, Any]:
    attention = product("key", "seq_len", "context", 16, kind="attention", block="QK", batch=4)
    attention["b"] = operand("key", False)
    attention["count"] = 2
    products = [
        product(f"model_layers_{layer}_mlp_up_proj_weight{layer}", "seq_len", 96, 64)
        for layer in range(2)
    ]
    other = {
        "function": "rms_norm",
        "block": "norm",
        "elements": "(seq_len*64)",
        "bits_read": "(seq_len*1024)",
        "bits_written": "(seq_len*1024)",
        "count": 3,
    }
    entry = {"products": [*products, attention], "others": [other], "unclassified": []}
    decode = json.loads(json.dumps(entry).replace('"seq_len"', "1").replace("seq_len", "1"))
    decode["unclassified"] = [{"callee": "my.kernel", "reason": "a packed function", "count": 2}]
    return {"schema": 1, "entries": {"prefill": entry, "decode": decode}, "functions": {}}


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "model.json"
    path.write_text(json.dumps(report()))
    return path


def test_sizes_are_bound_and_kinds_named() -> None:
    phase = bind_phase(report(), "prefill", 32, {})
    assert [(i.gemm.batch, i.gemm.m, i.gemm.n, i.gemm.k) for i in phase.items] == [
        (1, 32, 96, 64),
        (1, 32, 96, 64),
        (4, 32, 32, 16),
    ]
    assert [i.kind for i in phase.items] == ["up_proj", "up_proj", "attention QK"]
    assert [i.layer for i in phase.items] == [0, 1, None]
    assert phase.others[0].elements == 32 * 64


@pytest.mark.parametrize(
    ("weight", "kind"),
    [
        ("model_layers_3_self_attn_qkv_proj_weight1", ("qkv_proj", 3)),
        ("model_layers_11_mlp_down_proj_q_weight2", ("down_proj", 11)),
        ("h_0_attn_c_attn_weight1", ("attn_c_attn", 0)),
        ("model_embed_tokens_weight2", ("lm_head", None)),
        ("lm_head_weight", ("lm_head", None)),
    ],
)
def test_kinds_come_from_the_names_of_weights(weight: str, kind: tuple[str, int | None]) -> None:
    assert layer_kind(product(weight, 1, 1, 1)) == kind


def test_an_unbound_size_is_named() -> None:
    entry = {"products": [product("w", "q*2", 1, 1)], "others": [], "unclassified": []}
    with pytest.raises(CostError, match=r"dimension 'q' is unbound in 'q\*2'") as told:
        bind_phase({"entries": {"decode": entry}}, "decode", 8, {})
    assert told.value.remedy == "bind it: --bind q=NUMBER"


def test_golden_figures_by_the_command(tmp_path: Path) -> None:
    out = tmp_path / "gemm.json"
    flows = ["output-stationary", "weight-stationary"]
    arguments = ["--gemm", "64,64,64", "--dataflow", *flows, "--json", str(out), "--quiet"]
    assert main(arguments) == 0
    os_, ws = json.loads(out.read_text())
    assert (os_["T"], os_["delay"], os_["in_delay"], os_["out_delay"]) == (4992, 16399, 16399, 1039)
    assert ws["unique"] == {"A": 32768, "B": 4096, "C": 32768}
    assert ws["reuse"]["B"] == 64**3 - 4096
    assert ws["traffic"]["buffer"]["write_bits"] == (32768 - 4096) * 32 + 4096 * 16
    assert {"macs", "utilisation", "total", "compute_delay", "energy_pj"} <= set(ws)


def test_a_model_gives_phases_layers_kinds_and_totals(model: Path, tmp_path: Path) -> None:
    out, table = tmp_path / "out.json", tmp_path / "out.csv"
    assert (
        main(
            [
                *("--model", str(model), "--hardware", "systolic8x8", "edge8x8"),
                *("--scheme", "float16", "int4-g32", "as-compiled"),
                *("--phase", "prefill:32,decode:40", "--json", str(out), "--csv", str(table)),
            ]
        )
        == 0
    )
    records = json.loads(out.read_text())
    assert len(records) == 2 * 2 * 3
    first = records[0]
    assert first["total"]["macs"] == 2 * 32 * 96 * 64 + 2 * 4 * 32 * 32 * 16
    assert set(first["by_kind"]) == {"up_proj", "attention QK", "other"}
    assert set(first["by_layer"]) == {"layer 0", "layer 1", "attention QK"}
    kinds = first["by_kind"].values()
    assert first["total"]["latency"] == sum(k["latency"] for k in kinds)
    assert first["by_kind"]["other"]["outer_bits"] == 3 * 2 * 32 * 1024
    assert records[-1]["unclassified"] == ["my.kernel x2: a packed function"]
    rows = list(csv.DictReader(table.open()))
    kinds = ["up_proj", "attention QK", "other", "total"]
    assert [row["kind"] for row in rows] == 12 * kinds
    assert int(rows[3]["latency"]) == first["total"]["latency"]


def test_the_scheme_as_compiled_takes_the_modules_scales(tmp_path: Path) -> None:
    found = report()
    weight = operand("up", True, 4, grain="group", group=32, scale_bits=16)
    found["entries"]["prefill"]["products"] = [product("up", 16, 64, 128, b=weight)]
    path, out = tmp_path / "model.json", tmp_path / "out.json"
    path.write_text(json.dumps(found))
    base = ["--model", str(path), "--phase", "prefill:16", "--quiet", "--json", str(out)]
    assert main([*base, "--scheme", "as-compiled", "int4-g32"]) == 0
    compiled, given = (r["gemms"][0] for r in json.loads(out.read_text()))
    assert compiled["bits"] == given["bits"] == {"A": 16, "B": 4, "C": 16, "scale_B": 16}
    assert compiled["delay"] == given["delay"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--gemm", "64,64"], "three positive numbers"),
        (["--gemm", "8,8,8", "--hardware", "nowhere"], "no hardware 'nowhere'"),
        (["--gemm", "8,8,8", "--dataflow", "sideways"], "no dataflow 'sideways'"),
        (["--gemm", "8,8,8", "--scheme", "int3"], "no scheme 'int3'"),
        (["--gemm", "8,8,8", "--factor", "X"], "NAME=NUMBER"),
        (["--gemm", "8,8,8", "--factor", "X=0"], "NUMBER at least 1"),
        (["--accuracy", "missing", "--scheme", "int8-token"], "not a Llama in GGUF"),
        (["--gemm", "8,8,8", "--batch", "0"], "at least 1"),
        (["--model", "x", "--search", "--macs-per-pe", "0"], "--macs-per-pe 0: must be at least 1"),
        (["--model", "x", "--search", "--pes", "-4"], "--pes -4: must be at least 1"),
        (["--gemm", "9999,9999,9999", "--hardware", "edge8x8", "--tile", "999,999,999"], "--tile"),
        (["--gemm", "8,8,8", "--batch", "9" * 18], "more than 2**56 multiply-accumulates"),
        (["--gemm", "999999,99999,100001", "--hardware", "edge8x8"], "too many tiles to try"),
        (["--gemm", f"1,1,{10**16}", "--hardware", "edge8x8"], "a dimension of 1" + "0" * 16),
        (["--tenet", "missing"], "cannot be read"),
        (["--model", "missing"], "missing: cannot be read"),
        (["--trace", "missing"], "cannot be read"),
    ],
)
def test_mistakes_end_with_a_message_and_two(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    said = capsys.readouterr().err
    assert message in said
    assert "Traceback" not in said


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("m", "seq_len*(", "damaged: SyntaxError"),
        ("m", "seq_len//0", "damaged: ZeroDivisionError"),
        ("m", None, "damaged"),
        ("m", -3, "has an extent below 1"),
        ("m", "-" * 900 + "1", "is not integer arithmetic"),
        ("m", "-" * 5000 + "1", "damaged: ValueError('an extent of 5001 characters"),
        ("b", [], "damaged: TypeError"),
        ("count", -30, "count is -30, not a whole number from 1"),
        ("count", "2", "count is '2'"),
        ("count", True, "count is True"),
        ("c_dtype", "float999", "c_dtype is 999, not a whole number from 1 to 64"),
        ("a.bits", None, "bits is None, not a whole number from 1 to 64"),
        ("b.bits", 65, "bits is 65"),
        ("b.quantization.group", -1, "group is -1"),
        ("b.quantization", {**NONE, "grain": "group"}, "group is 0, not a whole number from 1"),
        ("b.quantization.zero_bits", -8, "zero_bits is -8"),
        ("a.quantization.scale_bits", "16", "scale_bits is '16'"),
        ("elements", "0-seq_len", "elements is -8, not a whole number from 0"),
        ("bits_read", -(10**12), "bits_read is -1000000000000"),
        ("bits_written", True, "bits_written is True"),
        ("bits_weights", -1, "bits_weights is -1"),
    ],
)
def test_a_damaged_work_file_is_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], field: str, value: Any, message: str
) -> None:
    found = report()
    *parents, last = field.split(".")
    part = "others" if field.startswith(("elements", "bits")) else "products"
    changed = found["entries"]["prefill"][part][0]
    for parent in parents:
        changed = changed[parent]
    changed[last] = value
    path = tmp_path / "model.json"
    path.write_text(json.dumps(found))
    assert main(["--model", str(path), "--phase", "prefill:8"]) == 2
    said = capsys.readouterr().err
    assert message in said
    assert "Traceback" not in said


def test_unknown_phases_are_reported(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--model", str(model), "--phase", "warmup:3"]) == 2
    assert "it has: prefill, decode" in capsys.readouterr().err
    assert main(["--model", str(model), "--phase", "prefill"]) == 2
    assert "is not NAME:TOKENS" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('zero_point = "4 bit"', "only symmetric schemes with scales of 16 bits are measured"),
        ('scale = "8 bit"', "only symmetric schemes with scales of 16 bits are measured"),
        ('activation = "1 bit"', "activation of 1 bit"),
        ('weight = "1 bit"', "weight of 1 bit"),
        ('cache = "1 bit"', "cache of 1 bit"),
    ],
)
def test_the_accuracy_of_a_scheme_that_cannot_be_rounded_is_refused(
    line: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    weights, scheme = tmp_path / "tiny.gguf", tmp_path / "mine.toml"
    write_gguf(weights)
    scheme.write_text(f'schema = 1\nname = "mine"\n{line}\n')
    assert main(["--accuracy", str(weights), "--scheme", "float16", str(scheme)]) == 2
    said = capsys.readouterr()
    assert message in said.err
    assert said.out == ""


def test_the_accuracy_of_one_scheme_is_that_among_others(tmp_path: Path) -> None:
    weights, out = tmp_path / "tiny.gguf", tmp_path / "out.json"
    write_gguf(weights)
    found = []
    for names in (["int8-token"], ["float32", "int4-g64-a4", "int8-token"]):
        options = ["--scheme", *names, "--json", str(out), "--quiet"]
        assert main(["--accuracy", str(weights), *options]) == 0
        found.append({row.pop("scheme"): row for row in json.loads(out.read_text())["rows"]})
    one, many = found
    assert list(one) == ["float32", "int8-token"]
    assert one == {name: many[name] for name in one}
    assert one["float32"]["agreement"] == 1
    assert 0.9 < one["int8-token"]["agreement"] < 1
    assert many["int4-g64-a4"]["agreement"] < one["int8-token"]["agreement"]


def test_the_accuracy_does_not_depend_on_the_order_of_sums(tmp_path: Path) -> None:
    """BLAS and its threads order them, and a last digit of a float32 changes a rounding."""
    weights = tmp_path / "tiny.gguf"
    write_gguf(weights)
    plain = llama.load(weights)
    turned = dict(plain.tensors)
    for name, value in plain.tensors.items():
        if ".ffn_" in name and value.ndim == 2:
            turned[name] = value[:, ::-1] if "down" in name else value[::-1]
    tokens = np.arange(200) % 7
    first, second = (
        replace(plain, tensors=tensors).logits(tokens, FLOAT32)
        for tensors in (plain.tensors, turned)
    )
    np.testing.assert_allclose(first, second, rtol=0, atol=1e-10 * float(np.abs(first).max()))


def test_a_measurement_is_added_to_the_file_of_an_earlier_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    weights, out = tmp_path / "tiny.gguf", tmp_path / "out.json"
    write_gguf(weights)
    command = ["--accuracy", str(weights), "--quiet", "--json", str(out), "--scheme"]
    assert main([*command, "int8-token"]) == 0
    first = json.loads(out.read_text())
    assert main([*command, "int8-token-kv4"]) == 0
    second = json.loads(out.read_text())
    assert second["rows"][:2] == first["rows"]
    assert [r["scheme"] for r in second["rows"]] == ["float32", "int8-token", "int8-token-kv4"]
    assert {**second, "rows": []} == {**first, "rows": []}
    for text, message in (
        (json.dumps({**second, "text_sha256": "0"}), "measured on another model or another text"),
        ("[]", "not a measurement"),
    ):
        out.write_text(text)
        assert main([*command, "int8-token"]) == 2
        assert message in capsys.readouterr().err
        assert out.read_text() == text


def test_a_model_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[Path] = []
    plain = llama.load
    monkeypatch.setattr(llama, "load", lambda path: read.append(path) or plain(path))
    weights = tmp_path / "tiny.gguf"
    write_gguf(weights)
    command = ["--accuracy", str(weights), "--scheme", "float16", "--quiet"]
    assert main([*command, "--json", str(tmp_path / "out.json")]) == 0
    assert read == [weights]


def test_a_model_whose_counts_lead_past_its_end_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    endless = tmp_path / "endless.gguf"
    one_array = struct.pack("<Q1sIIQ", 1, b"a", 9, 4, 1 << 40)  # key, then so many numbers
    endless.write_bytes(struct.pack("<4sIQQ", b"GGUF", 3, 0, 1) + one_array + bytes(64))
    assert main(["--accuracy", str(endless)]) == 2
    assert "a count leads past the end of the file" in capsys.readouterr().err


def test_names_that_look_like_markup_are_printed_as_they_are(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = report()
    found["entries"]["prefill"]["products"][0]["b"]["name"] = "[/x]:sun:"
    found["entries"]["prefill"]["unclassified"] = [{"callee": "[bold]", "count": 1, "reason": "."}]
    path = tmp_path / "model.json"
    path.write_text(json.dumps(found))
    assert main(["--model", str(path), "--phase", "prefill:8"]) == 0
    printed = capsys.readouterr().out
    assert "[/x]:sun:" in printed
    assert "not counted: [bold] x1: ." in printed


def test_the_accuracy_of_a_model_with_other_words_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    weights = tmp_path / "other.gguf"
    write_gguf(weights, words="llama-bpe")
    assert main(["--accuracy", str(weights), "--scheme", "float16"]) == 2
    assert "its text is cut into words by 'llama-bpe'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("tensors", "scaling", "message"),
    [
        ({"rope_freqs": (16,)}, 1.0, "has the tensor rope_freqs.weight, which is not computed"),
        ({"blk.0.ffn_gate_inp": (4, 96)}, 1.0, "has the tensor blk.0.ffn_gate_inp.weight"),
        ({"blk.0.ffn_up": ()}, 1.0, "it lacks the tensor blk.0.ffn_up.weight"),
        ({}, 4.0, "its rotary embedding is scaled (linear, factor 4), which is not computed"),
    ],
)
def test_a_llama_that_is_computed_otherwise_is_refused(
    tensors: dict[str, tuple[int, ...]],
    scaling: float,
    message: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    weights = tmp_path / "other.gguf"
    write_gguf(weights, tensors, scaling)
    assert main(["--accuracy", str(weights), "--scheme", "float16"]) == 2
    assert message in capsys.readouterr().err


def test_a_looked_up_embedding_is_not_rounded(tmp_path: Path) -> None:
    weights = tmp_path / "untied.gguf"
    for more, embedding in (({}, True), ({"output": (257, 96)}, False)):
        write_gguf(weights, more)
        plain = llama.load(weights)
        found = plain.quantized(SCHEMES["int4-g64"]).tensors
        changed = {n for n, value in plain.tensors.items() if not np.array_equal(value, found[n])}
        assert ("token_embd.weight" in changed) is embedding
        assert ("output.weight" in changed) is not embedding
        assert "blk.0.ffn_up.weight" in changed


def test_plots_are_written_and_repeatable(model: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="plots need matplotlib")
    phases = "prefill:32,decode:16,decode:64"
    for folder in ("one", "two"):
        arguments = ["--model", str(model), "--phase", phases, "--quiet"]
        assert main([*arguments, "--plots", str(tmp_path / folder)]) == 0
    one = {p.name: p.read_bytes() for p in (tmp_path / "one").iterdir()}
    assert set(one) == {"roofline.png", "latency.png", "decode_bandwidth.png"}
    assert one == {p.name: p.read_bytes() for p in (tmp_path / "two").iterdir()}


ROOT = Path(__file__).resolve().parents[2]
TYPED = re.compile(r"^nox -s cost -- (--(?:gemm|tenet) .*)$", re.MULTILINE)


def test_commands_of_the_page_that_need_no_model_run(monkeypatch: pytest.MonkeyPatch) -> None:
    commands = TYPED.findall((ROOT / "docs" / "cost" / "README.md").read_text(encoding="utf-8"))
    assert {line.split()[0] for line in commands} == {"--gemm", "--tenet"}
    monkeypatch.chdir(ROOT.parents[1])
    for line in commands:
        assert main([*line.split(), "--quiet"]) == 0


def test_the_default_tile_is_explained_in_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    assert "which is not the least latency" in " ".join(capsys.readouterr().out.split())


SOURCE = ROOT / "src"
OURS = {"accelerator", "boardfarm", "crosslab", "forkpatch", "report", "sessions", "torchroad"}


@pytest.mark.parametrize("path", sorted(SOURCE.glob("costmodel/**/*.py")), ids=lambda p: p.stem)
def test_the_package_imports_nothing_else_of_the_project(path: Path) -> None:
    """It stands by itself: of this project's packages it imports ``groundwork`` alone."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0
            found.add(str(node.module).partition(".")[0])
    assert not found & (OURS | {"tvm", "tvm_ffi"})


@pytest.mark.parametrize("others", [True, False])
def test_plots_of_a_phase_without_products_are_written(others: bool, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="plots need matplotlib")
    found = report()
    found["entries"]["embed"] = {**found["entries"]["prefill"], "products": []}
    bind = ["--bind", "seq_len=8"]
    if not others:
        found["entries"]["embed"]["others"], bind = [], []
    path = tmp_path / "model.json"
    path.write_text(json.dumps(found))
    for number, phases in enumerate(("embed:8", "embed:8,decode:8")):
        folder = tmp_path / str(number)
        words = ["--model", str(path), "--phase", phases, *bind, "--quiet"]
        assert main([*words, "--plots", str(folder), "--csv", str(folder / "x.csv")]) == 0
        names = {"roofline.png", "latency.png", "x.csv"}
        assert {path.name for path in folder.iterdir()} == names
