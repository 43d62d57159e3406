# SPDX-License-Identifier: Apache-2.0
"""Cells on the workers of a Dask scheduler: results, workers that end, failures, other code."""

from __future__ import annotations

import os
import subprocess
import sys
from argparse import Namespace
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from importlib.metadata import version
from pathlib import Path

import pytest

pytest.importorskip("distributed")

from crosslab.address import Address
from crosslab.bench.options import bench_of, parser
from crosslab.bench.remote import cells_of, check_remote, label
from crosslab.errors import LabError, UserError
from crosslab.models.config import write_config
from crosslab.models.shapes import shapes
from crosslab.remote import ATTEMPTS, Cell, CodeLabel, compute, label_of, scheduler_of
from crosslab.zoo.cli import main as zoo

LABEL = CodeLabel("made_up", "0")
NEXT = CodeLabel("made_up", "0", "2026.10")
# A command whose cells do what their options say; the worker's own option is a folder.
MADE_UP = """
import os, signal
from pathlib import Path

from crosslab.errors import UserError

def compute_cell(args):
    folder, what, number = args.folder, args.what, args.number
    if what == "refuse":
        raise UserError("no such number", remedy="another one")
    seen = Path(folder) / f"{what}-{number}"
    if what == "note":
        seen.touch()
    if what == "end" or (what == "end-once" and not seen.exists()):
        seen.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return number ** 2
"""
WORKER = """
import sys
from argparse import Namespace
from crosslab.address import Address
from crosslab.remote import CodeLabel, serve_worker
label = CodeLabel("made_up", "0", sys.argv[2])
args = Namespace(folder=sys.argv[3], worker_port=0)
serve_worker(Address.parse(sys.argv[1]), label, args, print)
"""
StartWorker = Callable[[str], subprocess.Popen[bytes]]


@pytest.fixture
def start_worker(scheduler: Address, tmp_path: Path) -> Iterator[StartWorker]:
    (tmp_path / "made_up.py").write_text(MADE_UP, encoding="utf-8")
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    command = [sys.executable, "-u", "-c", WORKER, str(scheduler)]
    with ExitStack() as ended:

        def start(release: str) -> subprocess.Popen[bytes]:
            own = [*command, release, str(tmp_path / release)]
            (tmp_path / release).mkdir(exist_ok=True)
            process = subprocess.Popen(own, env=environment, stdout=subprocess.PIPE)
            ended.enter_context(process)
            ended.callback(process.kill)
            return process

        yield start


def _await(*workers: subprocess.Popen[bytes]) -> None:
    for worker in workers:
        assert worker.stdout
        assert worker.stdout.readline().startswith(b"joined")


def _cell(what: str, number: int, label: CodeLabel = LABEL) -> Cell:
    return Cell(f"{what} {number}", label, {"what": what, "number": number})


def test_workers_that_end_lose_no_cell(scheduler: Address, start_worker: StartWorker) -> None:
    missing = list[str]()
    with pytest.raises(UserError, match="none joined"):
        list(compute(scheduler, [_cell("square", 1)], missing.append))
    workers = [start_worker("") for _ in range(ATTEMPTS + 1)]
    _await(*workers)
    cells = [_cell("end-once", 2), *(_cell("square", number) for number in range(9))]
    results = dict(compute(scheduler, cells, missing.append))
    assert results == {cell: cell.values["number"] ** 2 for cell in cells}
    assert [worker.poll() is None for worker in workers].count(False) == 1
    with pytest.raises(UserError, match="3 joined, with other code"):
        list(compute(scheduler, [_cell("square", 1, CodeLabel("made_up", "1"))], missing.append))
    with pytest.raises(UserError, match="no such number") as refused:
        list(compute(scheduler, [_cell("refuse", 1)], missing.append))
    assert refused.value.remedy == "another one"
    with pytest.raises(LabError, match=f"end 5: {ATTEMPTS} workers ended"):
        list(compute(scheduler, [_cell("end", 5)], missing.append))
    assert not missing


def test_cells_of_a_release_go_to_its_workers(
    scheduler: Address, start_worker: StartWorker, tmp_path: Path
) -> None:
    both = [_cell("note", 1), _cell("note", 2, NEXT)]
    _await(start_worker(""))
    with pytest.raises(
        UserError, match=r"for release 2026.10: 1 joined.*another release"
    ) as refused:
        list(compute(scheduler, both, print))
    assert "--release 2026.10" in refused.value.remedy
    _await(start_worker(NEXT.release))
    assert dict(compute(scheduler, both, print)) == {both[0]: 1, both[1]: 4}
    assert (tmp_path / "note-1").exists()
    assert (tmp_path / "2026.10" / "note-2").exists()


def test_a_client_knows_the_labels_of_other_releases(tmp_path: Path) -> None:
    lock = '[releases."A"]\ntvm = "%s"\n[releases."B"]\ntvm = "9"\n'
    (tmp_path / "VERSIONS.lock").write_text(lock % version("apache-tvm"), encoding="utf-8")
    here = label_of("m", tmp_path, release="A")
    assert here == label_of("m", tmp_path, release="A", own=False)
    # What runs here as B is not what the lock has as B.
    assert label_of("m", tmp_path, release="B") != label_of("m", tmp_path, release="B", own=False)
    with pytest.raises(UserError, match="not have the release C") as refused:
        label_of("m", tmp_path, release="C", own=False)
    assert "A, B" in refused.value.remedy


def test_other_code_has_another_label(tmp_path: Path) -> None:
    (tmp_path / "patches").mkdir()
    (tmp_path / "patches" / "series").write_text("one.patch\n", encoding="utf-8")
    first = label_of("m", tmp_path)
    assert first == label_of("m", tmp_path)
    assert first not in (label_of("n", tmp_path), label_of("m", tmp_path, "more"))
    (tmp_path / "patches" / "series").write_text("two.patch\n", encoding="utf-8")
    assert first != label_of("m", tmp_path)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--scheduler", "127.0.0.1:1", "--worker", "127.0.0.1:1"], "not both"),
        (["--scheduler", "tcp://127.0.0.1:1"], "no scheduler answers at 127.0.0.1:1"),
        (["--worker", "192.0.2.1:8786"], "not on this machine's loopback"),
        (["--worker", "here"], "is not HOST:PORT"),
        (["--scheduler", "127.0.0.1:1", "--work", "w"], "--work: workers do not send"),
        (["--scheduler", "127.0.0.1:1", "--jobs", "2"], "start more workers"),
        (["--work", "w", "--vlen", "128,256"], "for one VLEN"),
        (["--releases", "2026.08,2026.10"], "the trees of one release only"),
    ],
)
def test_schedulers_that_cannot_be_are_refused(options: list[str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        zoo(options)


def test_cells_of_the_bench_and_a_worker_make_the_options_of_one_machine() -> None:
    trees = ["--tvm-tree", "T", "--variant", "upstream=U", "--variant", "ours=O,kernels"]
    asked = ["--prefill", "9", "20", "--vlen", "128,256", "--profile", "--decode", "4"]
    asked += ["--quantization", "q0f32", "gguf", "--gguf", "Q4_K_M"]
    one = parser().parse_args([*trees, *asked])
    worker = parser().parse_args([*trees, "--worker", "127.0.0.1:1"])
    cells = cells_of("m", one, bench_of(one))
    assert len(cells) == 8
    for cell in cells:
        made = bench_of(Namespace(**{**vars(worker), **cell.values}))
        assert (made.profile, made.decode, made.model) == (True, 4, "S")
        if made.quantizations == ("gguf",):
            assert made.gguf == "Q4_K_M"
        assert [variant.name for variant in made.variants] == ["upstream", "ours"]
    assert label("m", one) == label("m", worker)
    with pytest.raises(UserError, match="--together 4"):
        check_remote(parser().parse_args([*trees, "--together", "4"]))
    with pytest.raises(UserError, match="--predict"):
        check_remote(parser().parse_args([*trees, "--predict"]))


def test_a_worker_takes_the_sizes_that_the_client_read(tmp_path: Path) -> None:
    config = tmp_path / "config.json"
    write_config(shapes()["qwen3-0.6b"], config)
    trees = ["--tvm-tree", "T", "--variant", "ours=O"]
    client = parser().parse_args([*trees, "--model", str(config)])
    check_remote(client)
    (cell,) = cells_of("m", client, bench_of(client))
    config.unlink()
    worker = parser().parse_args([*trees, "--worker", "127.0.0.1:1"])
    made = bench_of(Namespace(**{**vars(worker), **cell.values}))
    assert made.config == bench_of(parser().parse_args([*trees, "--model", "qwen3-0.6b"])).config
    assert made.model == str(config)


@pytest.mark.parametrize(
    ("options", "remedy"),
    [(["--worker-port", "5"], "add --worker"), (["--force"], "add --scheduler")],
)
def test_an_option_of_workers_alone_is_refused(options: list[str], remedy: str) -> None:
    args = parser().parse_args(["--tvm-tree", "T", "--variant", "ours=T", *options])
    with pytest.raises(UserError) as refused:
        scheduler_of(args, print)
    assert remedy in refused.value.remedy
