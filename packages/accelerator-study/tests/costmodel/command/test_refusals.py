# SPDX-License-Identifier: Apache-2.0
"""Mistakes of a user: each is refused with what is wrong, where, and what to type next."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from costmodel.accelerator.dataflow import load_dataflow
from costmodel.accelerator.hardware import load_hardware
from costmodel.accelerator.scheme import Scheme, schemes
from costmodel.accelerator.settings import LIBRARY
from costmodel.cli import main
from costmodel.errors import CostError
from costmodel.search import explore

DATA = Path(__file__).resolve().parents[1] / "data"
SMOLLM2 = ["--model", str(DATA / "smollm2.work.json")]
SEARCH = [*SMOLLM2, "--search", "--quiet"]
EMBED = [*SEARCH, "--phase", "embed:8"]
Said = pytest.CaptureFixture[str]


def refusal(arguments: list[str], capsys: Said) -> str:
    """The message of a command that is refused, which has a line of what to type."""
    assert main(arguments) == 2
    said = capsys.readouterr().err
    assert len(said.splitlines()) > 1, f"no remedy: {said}"
    return said


@pytest.mark.parametrize(
    ("typed", "searched"),
    [
        (["int8-token-kv8"], [("int8-token-kv8", 8)]),
        (["int8-token-kv8", "--cache", "8"], [("int8-token-kv8", 8)]),
        (["int8-token", "--cache", "16", "4"], [("int8-token", 16), ("int8-token-kv4", 4)]),
        (
            ["int8-token", "int4-g64-kv8", "--cache", "16", "8"],
            [("int8-token", 16), ("int4-g64-kv8", 8), ("int8-token-kv8", 8)],
        ),
        (["FILE"], [("mine", 8)]),
        (["float32"], [("float32", 32)]),
    ],
)
def test_a_search_uses_the_cache_that_a_scheme_names(
    typed: list[str],
    searched: list[tuple[str, int]],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    mine = tmp_path / "mine.toml"
    mine.write_text('schema = 1\nname = "mine"\ncache = "8 bit"\n')
    found: list[tuple[str, int]] = []

    def spy(phases: Any, base: Any, chosen: tuple[Scheme, ...], *others: Any) -> list[Any]:
        found.extend((s.name, s.cache) for s in chosen)
        return []

    monkeypatch.setattr(explore, "search", spy)
    words = [str(mine) if word == "FILE" else word for word in typed]
    assert main([*SEARCH, "--scheme", *words]) == 0
    assert found == searched


def test_a_cache_that_contradicts_the_name_of_a_scheme_is_refused(capsys: Said) -> None:
    said = refusal([*SEARCH, "--scheme", "int8-token-kv8", "--cache", "4"], capsys)
    assert "int8-token-kv8 has a cache of 8 bits, --cache 4 not" in said
    assert "--cache 4 8" in said


@pytest.fixture(scope="module")
def searched(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The file of a small search with an eight-bit cache."""
    out = tmp_path_factory.mktemp("search") / "fronts.json"
    words = ["--hardware", "edge8x8", "--scheme", "int8-token-kv8", "--phase", "decode:16"]
    assert main([*SEARCH, *words, "--pes", "16", "--json", str(out)]) == 0
    found: dict[str, Any] = json.loads(out.read_text())
    return found


MAPPED = [*SMOLLM2, "--hardware", "edge8x8", "--phase", "decode:16", "--quiet"]


def test_rows_of_a_search_are_of_the_scheme_that_was_typed(
    searched: dict[str, Any], tmp_path: Path
) -> None:
    assert {row["scheme"] for row in searched["fronts"]} == {"int8-token-kv8"}
    assert (searched["pes"], searched["macs_per_pe"]) == (16, 1)
    path, again = tmp_path / "fronts.json", tmp_path / "again.json"
    for older in (False, True):
        kept = {k: v for k, v in searched.items() if not older or k not in ("pes", "macs_per_pe")}
        path.write_text(json.dumps(kept))
        assert main([*MAPPED, "--mapping", str(path), "--json", str(again)]) == 0
        assert json.loads(again.read_text())["fronts"] == searched["fronts"]
        assert json.loads(again.read_text())["macs_per_pe"] == 1


def test_a_scheme_of_ones_own_with_a_smaller_cache_is_found_again(tmp_path: Path) -> None:
    scheme, path, again = (tmp_path / name for name in ("mine.toml", "fronts.json", "again.json"))
    scheme.write_text('schema = 1\nname = "mine"\nactivation = "8 bit"\nweight = "8 bit"\n')
    words = [*MAPPED, "--scheme", str(scheme)]
    assert main([*words, "--search", "--pes", "16", "--cache", "4", "--json", str(path)]) == 0
    found = json.loads(path.read_text())["fronts"]
    assert {row["scheme"] for row in found} == {"mine-kv4"}
    assert main([*words, "--mapping", str(path), "--json", str(again)]) == 0
    assert json.loads(again.read_text())["fronts"] == found


@pytest.mark.parametrize(
    ("change", "options", "message"),
    [
        ({}, ["--macs-per-pe", "2"], "was searched with 1 multiply-accumulates a PE"),
        ({"macs_per_pe": 2}, [], "--macs-per-pe 2"),
        ({"schema": 99}, [], "not the JSON file of a search (schema 1)"),
        ({"fronts": []}, [], "contains no rows"),
        ({"array": [5, 3]}, [], "array is [5, 3], not an array that a search of 16 PEs makes"),
        ({"pes": "many"}, [], "pes is 'many', not a number"),
    ],
)
def test_a_mapping_of_another_search_is_refused(
    searched: dict[str, Any],
    change: dict[str, Any],
    options: list[str],
    message: str,
    tmp_path: Path,
    capsys: Said,
) -> None:
    path = tmp_path / "fronts.json"
    found = json.loads(json.dumps(searched))
    for key, value in change.items():
        (found["fronts"][0] if key == "array" else found)[key] = value
    path.write_text(json.dumps(found))
    assert message in refusal([*MAPPED, "--mapping", str(path), *options], capsys)


GEMM = ["--gemm", "64,64,64", "--quiet"]


@pytest.mark.parametrize(
    ("arguments", "message", "typed_next"),
    [
        ([*SMOLLM2, "--page", "16", "--phase", "prefill:512"], "does nothing", "decode:1024"),
        ([*SMOLLM2, "--phase", ""], "'' is not NAME:TOKENS", "prefill:512,decode:1024"),
        ([*SMOLLM2, "--phase", "decode:8,decode:8"], "decode:8 is given twice", "leave one"),
        (
            [*GEMM, "--hardware", "edge8x8", "--tile", "100000,100000,32"],
            "larger than the product, 64,64,64",
            "--tile 64,64,32",
        ),
        ([*SEARCH, "--scheme", "as-compiled"], "for an estimate", "schemes: all, float16"),
        ([*EMBED, "--bind", "seq_len=8"], "embed:8: has no product", "leave it out of --phase"),
        ([*SEARCH, "--pes", "3"], "--pes 3: must be at least 16", "--pes 16"),
        ([*SEARCH, "--pes", str(1 << 40)], "at most 1048576", "--pes 1048576"),
        ([*SEARCH, "--hardware", "edge8x8", "systolic32x32"], "one --hardware", "edge8x8"),
        (["--gemm", "64,64"], "three positive numbers", "--gemm 64,64,64"),
        ([*GEMM, "--batch", "0"], "--batch 0: must be at least 1", "--batch 1"),
        ([*GEMM, "--macs-per-pe", "0"], "at least 1", "--macs-per-pe 1"),
        ([*SMOLLM2, "--arrays", "0"], "--arrays 0: must be at least 1", "--arrays 1"),
        ([*SMOLLM2, "--causal", "-1"], "--causal -1: must be at least 0", "--causal 0"),
        ([*SMOLLM2, "--page", "-1"], "--page -1: must be at least 0", "--page 0"),
        ([*GEMM, "--json", "/proc/x.json"], "/proc: cannot be written", "--json out/"),
        ([*GEMM, "--scheme", "missing.toml"], "missing.toml: cannot be read", "example"),
        (["--model", "missing"], "cannot be read: No such file", "accelerator workload"),
        ([*SMOLLM2, "--mapping", "missing"], "cannot be read: No such file", "--search --json"),
        (["--trace", "missing"], "cannot be read: No such file", "Recorder"),
        (["--tenet", "missing"], "cannot be read: No such file", "tenet/experiment"),
        (["--accuracy", "missing"], "not a Llama in GGUF", "--accuracy MODEL.gguf"),
    ],
)
def test_a_mistake_is_reported_with_what_to_type(
    arguments: list[str], message: str, typed_next: str, capsys: Said
) -> None:
    said = refusal(arguments, capsys)
    assert message in said
    assert typed_next in said.split("\n", 1)[1]


@pytest.mark.parametrize("option", ["--model", "--trace", "--mapping", "--tenet", "--accuracy"])
@pytest.mark.parametrize("content", [b"{", b"[]", b'{"schema": 1}', b"\xff\xfe\x00"])
def test_a_damaged_file_is_reported_with_what_to_type(
    option: str, content: bytes, tmp_path: Path, capsys: Said
) -> None:
    path = tmp_path / "file"
    path.write_bytes(content)
    words = [*SMOLLM2, option] if option == "--mapping" else [option]
    assert str(path) in refusal([*words, str(path)], capsys)


def test_a_recording_without_calls_is_refused(tmp_path: Path, capsys: Said) -> None:
    path = tmp_path / "trace.json"
    path.write_text('{"schema": 1, "sections": [], "functions": {}, "entries": []}')
    said = refusal(["--trace", str(path), "--csv", str(tmp_path / "x.csv")], capsys)
    assert f"{path}: contains no calls" in said
    assert "Recorder" in said


@pytest.mark.parametrize("words", [GEMM, [*SEARCH, "--phase", "decode:16", "--pes", "16"]])
def test_a_buffer_that_holds_no_tile_is_reported(
    words: list[str], tmp_path: Path, capsys: Said
) -> None:
    text = (LIBRARY / "hardware" / "edge8x8.toml").read_text()
    path = tmp_path / "small.toml"
    path.write_text(text.replace('"128 KiB"', '"8 B"'))
    assert "larger first level" in refusal([*words, "--hardware", str(path)], capsys)


def test_a_recording_with_a_damaged_section_is_reported(tmp_path: Path, capsys: Said) -> None:
    path = tmp_path / "trace.json"
    path.write_text('{"schema": 1, "sections": [{"name": "prompt"}]}')
    assert "damaged: KeyError('calls')" in refusal(["--trace", str(path)], capsys)


def test_the_help_names_the_defaults_of_a_search(capsys: Said) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    said = " ".join(capsys.readouterr().out.split())
    assert "as-compiled for a trace, all for a search, else float16" in said
    assert "smollm2, gpt2, a Hugging Face config.json" in said


def load_scheme(path: str) -> object:
    return schemes([path])


SCHEME = """schema = 1
name = "mine"
weight = "4 bit"
weight_grain = "group"
group = 64
"""


@pytest.mark.parametrize(
    ("load", "old", "new", "line", "message"),
    [
        (load_hardware, '"1 MiB"', '"-1 MiB"', "size", "is '-1 MiB', not a number from 0 on"),
        (load_hardware, '"16 cycles"', '"-16 cycles"', "latency", "not a number from 0 on"),
        (load_hardware, '"1 GHz"', '"nan GHz"', "clock", "is 'nan GHz', not a number from 0 on"),
        (load_hardware, '"1 GHz"', '"inf GHz"', "clock", "is 'inf GHz', which is too large"),
        (load_hardware, '"1 GHz"', '"fast"', "clock", "is 'fast', not a number with a unit"),
        (load_hardware, '"0.01 pJ/bit"', '"-1 pJ/bit"', "register", "not a number from 0 on"),
        (load_hardware, "[32, 32]", "[99999, 99999]", "shape", "9999800001 PEs"),
        (load_hardware, "[array]", "[aray]", "[aray]", "unknown key 'aray'"),
        (
            load_hardware,
            '"1 MiB"',
            '"1 MiB"\nsplit = [524288, 262144, 262145]',
            "split",
            "do not fit",
        ),
        (load_hardware, '"unbounded"', '"unbounded"\nsplit = [1, 1, 1]', "split", "'unbounded'"),
        (load_hardware, 'name = "buffer"', 'name="dram"', 'name = "dram"', "'dram' is the name of"),
        (
            load_hardware,
            '"2048 bit/cycle"',
            '"1e-310 bit/cycle"',
            "bandwidth",
            "at least 1e-06 bit/cycle",
        ),
        (load_scheme, '"4 bit"', '"-8 bit"', "weight =", "is '-8 bit', not a number from 0 on"),
        (load_scheme, '"4 bit"', '"999999 bit"', "weight =", "at least 1 bit and at most 64"),
        (load_scheme, '"4 bit"', '"4.5 bit"', "weight =", "not a whole number"),
        (load_scheme, "group = 64", "", "weight_grain", "go together"),
        (load_scheme, "schema = 1", "schema = 2", "schema", "only schema 1 is known"),
        (load_scheme, '"mine"', '"int8-token"', "name", "is the name of a shipped scheme"),
        (load_scheme, '"mine"', '"int4-g64-kv8"', "name", "is the name of a shipped scheme"),
        (load_dataflow, '"k", "i"]', '"k"]', "tiles", "not an order of the three loops"),
    ],
)
def test_a_wrong_line_of_a_file_is_reported(
    load: Callable[[str], object], old: str, new: str, line: str, message: str, tmp_path: Path
) -> None:
    text = {
        load_hardware: (LIBRARY / "hardware" / "systolic32x32.toml").read_text(),
        load_dataflow: (LIBRARY / "dataflow" / "weight-stationary.toml").read_text(),
    }.get(load, SCHEME)
    path = tmp_path / "wrong.toml"
    assert old in text
    path.write_text(text.replace(old, new))
    with pytest.raises(CostError) as caught:
        load(str(path))
    assert message in str(caught.value)
    lines = path.read_text().splitlines()
    number = next(n for n, text in enumerate(lines, 1) if text.startswith(line))
    assert str(caught.value).startswith(f"{path}:{number}: ")


def test_a_file_may_repeat_a_shipped_scheme(tmp_path: Path) -> None:
    path = tmp_path / "same.toml"
    path.write_text(SCHEME.replace("mine", "int4-g64"))
    assert schemes([str(path)]) == schemes(["int4-g64"])


def test_a_last_smaller_group_has_a_scale_of_its_own() -> None:
    """Groups need not divide K: 64 in groups of 7 are nine whole ones and one of one weight."""
    (plain,) = schemes(["int4-g64"])
    found = Scheme("mine", weight=4, weight_grain=plain.weight_grain, group=7)
    assert found.weight_bits(64, 1) == 64 * 4 + 10 * 16
