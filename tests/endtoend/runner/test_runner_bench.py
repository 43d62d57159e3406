# SPDX-License-Identifier: Apache-2.0
"""``runner bench`` on a tiny model: its rows, and what it rejects."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest
from support import shared_builds, tiny_runner
from support.tiny_runner import CONFIG, VLEN

from crosslab.assemble.link import link_runner
from crosslab.compile.driver import compile_llama
from crosslab.run.emulator import GuestMachine, run_guest

pytestmark = pytest.mark.usefixtures("emulator")


@pytest.fixture(scope="module")
def program() -> Path:
    return link_runner(tiny_runner.riscv_request(), shared_builds.CACHE)


@pytest.fixture(scope="module")
def params(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model") / "params"
    folder.mkdir()
    library = compile_llama(tiny_runner.riscv_compilation(), shared_builds.CACHE).library
    return tiny_runner.write_random_params(library, folder)


def bench(program: Path, params: Path, *more: str) -> CompletedProcess[str]:
    machine = GuestMachine(vlen=VLEN, timeout=120)
    return run_guest(program, ["bench", "--params", str(params), *more], machine, check=False)


def test_a_row_for_each_number_of_threads_and_each_test(program: Path, params: Path) -> None:
    asked = ["--threads", "1,3", "--prompt-tokens", "40", "--new-tokens", "5", "--repeat", "2"]
    done = bench(program, params, *asked, "--json")
    assert done.returncode == 0, done.stderr
    result: dict[str, Any] = json.loads(done.stdout)
    assert result["model"] == params.parent.name
    assert (result["vlen"], result["verdict"]) == (VLEN, "")
    assert result["huge_page_bytes"] % (2 << 20) == 0
    names = [(row["threads"], row["test"], row["tokens"]) for row in result["rows"]]
    assert names == [(1, "pp40", 40), (1, "tg5", 5), (3, "pp40", 40), (3, "tg5", 5)]
    for row in result["rows"]:
        speeds = [row["tokens"] / seconds for seconds in row["seconds"]]
        assert len(speeds) == 2
        assert row["tokens_per_second"] == pytest.approx(sum(speeds) / 2)
        assert row["deviation"] == pytest.approx(abs(speeds[0] - speeds[1]) / 2**0.5)


@pytest.fixture
def manifest(params: Path) -> Iterator[Path]:
    """The manifest of the model, which other tests do not have."""
    path = params.parent / "MANIFEST.json"
    yield path
    path.unlink()


ROWS = [
    {"threads": 1, "test": "pp40", "tokens_per_second": 12.9, "error": 0.1},
    {"threads": 1, "test": "tg5", "tokens_per_second": 2, "error": None},
]
PREDICTIONS = [
    {"board": name, "name": f"Board {name}", "compatible": ["x,y"], "vlen": VLEN, "rows": rows}
    for name, rows in (("first", []), ("second", ROWS))
]


def test_predictions_stand_beside_the_measurements(
    program: Path, params: Path, manifest: Path
) -> None:
    manifest.write_text(json.dumps({"verdict": "right", "predictions": PREDICTIONS}))
    asked = ["--threads", "1", "--prompt-tokens", "40", "--new-tokens", "5", "--repeat", "1"]
    done = bench(program, params, *asked, "--board", "second")
    assert "; predicted for Board second\n" in done.stdout
    assert [line.split("|")[-2].strip() for line in done.stdout.splitlines()[2:]] == [
        *("predicted", "---:"),
        *("12.90 ± 1.29", "2.00"),
    ]
    told = json.loads(bench(program, params, *asked, "--board", "second", "--json").stdout)
    assert told["board"] == "Board second"
    assert [row["predicted"] for row in told["rows"]] == [12.9, 2.0]
    # No test of another board, and none for a machine that no prediction is for.
    told = json.loads(bench(program, params, *asked, "--board", "first", "--json").stdout)
    assert [row["predicted"] for row in told["rows"]] == [None, None]
    told = json.loads(bench(program, params, *asked, "--json").stdout)
    assert (told["board"], told["rows"][0]["predicted"]) == ("", None)
    refused = bench(program, params, *asked, "--board", "third")
    assert refused.returncode == 2
    assert "--board third: MANIFEST.json has no predictions for it, but for first, second" in (
        refused.stderr
    )


def test_a_table_for_people(program: Path, params: Path, manifest: Path) -> None:
    manifest.write_text('{"verdict": "unchecked"}')
    done = bench(program, params, "--threads", "1", "--new-tokens", "0", "--repeat", "1")
    assert done.returncode == 0, done.stderr
    assert done.stderr == (
        "runner: this model's answers were not compared with a reference (MANIFEST.json)\n"
    )
    lines = done.stdout.splitlines()
    assert lines[0].endswith(f"vector registers of {VLEN} bits, its answer when built: unchecked")
    # Without --prompt-tokens, as much as the model's context holds.
    assert lines[-1].startswith(f"| 1 | pp{CONFIG.context} | ")
    assert len(lines) == 5


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"verdict": "wrong"}', "do not use this model: when it was built, its answer was wrong"),
        ('{"verdict": 1}', "MANIFEST.json, verdict: a text was expected"),
        ("[", "MANIFEST.json: "),
    ],
)
def test_warns_of_a_wrong_model(
    program: Path, params: Path, manifest: Path, text: str, said: str
) -> None:
    manifest.write_text(text)
    words = ["--params", str(params), "--tokens", "1", "--max-new", "1"]
    done = run_guest(program, words, GuestMachine(vlen=VLEN, timeout=120), check=False)
    assert said in done.stderr
    assert done.returncode == (0 if "wrong" in text else 2)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--new-tokens", "99"], "--new-tokens 99 is more than the model's context of 64 tokens"),
        (["--prompt-tokens", "0", "--new-tokens", "0"], "leave nothing to measure"),
        (["--threads", "1,0"], "--threads: 0 is outside 1 to 1024"),
        (["--threads"], "--threads needs a value"),
        (["--chat"], "--chat is not an option of bench"),
        (["--tokenizer", "x"], "--tokenizer is not an option of bench"),
        (["--temperature", "1"], "--temperature is not an option of bench"),
        (["--roi", "decode"], "--roi is not an option of bench"),
    ],
)
def test_options_that_bench_rejects(
    program: Path, params: Path, options: list[str], message: str
) -> None:
    done = bench(program, params, *options)
    assert message in done.stderr
    assert (done.returncode, done.stdout) == (2, "")
