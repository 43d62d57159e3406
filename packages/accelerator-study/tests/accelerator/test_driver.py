# SPDX-License-Identifier: Apache-2.0
"""The runtime of a device in C++, without a model around it: results, and what it refuses."""

from __future__ import annotations

import ast
import re
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from support import shared_builds
from support.rounding_records import CALL

from accelerator.device import NATIVE, Device, load_device
from accelerator.errors import AcceleratorError
from accelerator.extension.unit import MatrixUnit, load_target
from accelerator.host.driver import LOWERING, WARNINGS, folders_of
from accelerator.host.image import (
    CHUNK,
    MOST_ROWS,
    attention_sizes,
    programs_of,
    row_counts,
    source,
)
from accelerator.host.offload import offload
from accelerator.host.params import in_int8, int8_rows
from accelerator.model import IntegerProduct, attend
from crosslab.assemble.cmake import RUNNER
from crosslab.assemble.runtime import sanitizer_flags
from crosslab.cached_build import cached_build
from crosslab.models.roundings import RunRoundings
from groundwork.hashing import digest

DEVICES = [load_device("vta-1x16x16"), load_device("vta-16x16x16"), load_target("spacemit-ime")]
MAIN = Path(__file__).with_name("driver_probe.cc")
# A single weight, ragged edges, several tiles of outputs and of inputs.
SIZES = ((1, 1), (17, 33), (40, 72), (600, 300))
SMALL = (17, 33)
PACKAGE = NATIVE.parent
WIDTH = 24  # of a head: one and a half blocks
# Tokens of two prompts, the first of which ends near a chunk's end, and those that follow.
TEXTS = ((CHUNK - 1, 3), (9, 2))
FLAGS = ("-std=c++20", "-O0", *WARNINGS, *sanitizer_flags(("address", "undefined")))
Case = tuple[np.ndarray, np.ndarray]


@dataclass(frozen=True)
class AttentionCase:
    """Queries, keys, values in float32; how many tokens each row sees; a cache keeps the tokens."""

    query: np.ndarray
    key: np.ndarray
    value: np.ndarray
    visible: np.ndarray
    kept: bool

    @property
    def given(self) -> bytes:
        sizes = (len(self.query), 0, len(self.key), self.query.shape[1], self.kept)
        parts = (np.array(sizes, np.uint64), self.query, self.key, self.value, self.visible)
        return b"".join(part.tobytes() for part in parts)

    @property
    def mask(self) -> np.ndarray:
        return np.arange(len(self.key)) < self.visible[:, None]


def compiled(out: Path, *sources: Path) -> None:
    include = [f"-I{folder}" for folder in (NATIVE, RUNNER)]
    command = [*shared_builds.sanitizing().cxx, *FLAGS, *include, "-c", *map(str, sources)]
    subprocess.run(command, cwd=out, check=True, timeout=300)


@cache
def probe(device: Device | MatrixUnit) -> Path:
    tools = shared_builds.sanitizing()
    runtime, own = (NATIVE / name for name in folders_of(device))
    names = "model/roundings", "input/output_file"
    headers, record = ([RUNNER / f"{name}.{ending}" for name in names] for ending in ("h", "cc"))
    about = (tools.digest, *FLAGS, MAIN, *headers, *record, runtime)
    text = source(
        device, [programs_of(*size, device) for size in (*SIZES, *attention_sizes(WIDTH))]
    )

    def built(key: str, *sources: Path) -> Path:
        return cached_build(
            shared_builds.CACHE, "accelerator-parts", key, lambda out: compiled(out, *sources)
        )

    # The functions of a runner need TVM.
    plain = [path for path in sorted(runtime.glob("*.cc")) if path.name != "functions.cc"]
    parts = [
        built(digest(*about), *plain, *record, MAIN),
        built(digest(*about, own), *sorted(own.glob("*.cc"))),
    ]

    def make(out: Path) -> None:
        (out / "image.cc").write_text(text, encoding="utf-8")
        compiled(out, out / "image.cc")
        objects = [str(path) for part in parts for path in sorted(part.glob("*.o"))]
        objects += ["image.o", "-o", "probe"]
        subprocess.run([*tools.cxx, *FLAGS, *objects], cwd=out, check=True, timeout=300)

    key = digest(*about, own, text)
    return cached_build(shared_builds.CACHE, "accelerator-probe", key, make) / "probe"


def run(
    device: Device | MatrixUnit,
    cases: Sequence[Case | AttentionCase],
    fault: str = "none",
    record: Path | None = None,
) -> subprocess.CompletedProcess[bytes]:
    given = b""
    for each in cases:
        if isinstance(each, AttentionCase):
            given += each.given
            continue
        weights, values = each
        sizes = np.array([len(values), *weights.shape], np.uint64)
        given += sizes.tobytes() + weights.tobytes() + values.tobytes()
    command = [str(probe(device)), fault, *([str(record)] if record else [])]
    return subprocess.run(command, input=given, capture_output=True, check=False, timeout=120)


def case(random: np.random.Generator, size: tuple[int, int], rows: int) -> Case:
    weights = random.normal(0, random.choice([1e-20, 0.1, 1e9], (size[0], 1)), size)
    values = random.normal(0, random.choice([0, 1e-10, 1, 1e9], (rows, 1)), (rows, size[1]))
    return weights.astype(np.float32), values.astype(np.float32)


@pytest.mark.parametrize("device", DEVICES, ids=lambda d: d.name)
def test_results_are_numpys_bit_for_bit(device: Device | MatrixUnit) -> None:
    random = np.random.default_rng(11)
    # Between two programs, at their ends, and more rows than any of them has.
    rows = [1, 3, 16, 37, MOST_ROWS, MOST_ROWS + 1, 2 * MOST_ROWS + 50]
    cases = [case(random, size, count) for size in SIZES for count in rows]
    done = run(device, cases)
    assert done.returncode == 0, done.stderr.decode()[-3000:]
    found = np.frombuffer(done.stdout, np.float32)
    wanted = [IntegerProduct()(values, "w", {"w": weights}) for weights, values in cases]
    assert np.array_equal(found, np.concatenate([each.ravel() for each in wanted]))


def texts(random: np.random.Generator) -> list[AttentionCase]:
    """A prompt, tokens after it, another text in the same places, and a prompt without a cache."""
    group, found = 2, []
    for prompt, steps in TEXTS:
        size = (prompt + steps, WIDTH)
        key, value = (random.normal(0, 2, size).astype(np.float32) for _ in range(2))
        for count, rows in [(prompt, prompt), *((prompt + i, 1) for i in range(1, steps + 1))]:
            query = random.normal(0, 2, (rows * group, WIDTH)).astype(np.float32)
            visible = np.repeat(np.arange(count - rows, count, dtype=np.uint64) + 1, group)
            found.append(AttentionCase(query, key[:count], value[:count], visible, True))
    last = found[0]
    return [*found, replace(last, query=last.query[::-1].copy(), kept=False)]


@pytest.mark.parametrize("device", DEVICES, ids=lambda d: d.name)
def test_attention_is_numpys_and_a_cache_is_written_once(device: Device | MatrixUnit) -> None:
    cases = texts(np.random.default_rng(5))
    done = run(device, cases)
    assert done.returncode == 0, done.stderr.decode()[-3000:]
    at, written = 0, []
    for each in cases:
        wanted, _ = attend(each.query, each.key, each.value, each.mask, IntegerProduct().sums)
        found = np.frombuffer(done.stdout, np.float32, wanted.size, at).reshape(wanted.shape)
        assert np.array_equal(found, wanted)
        at += wanted.nbytes
        lse = np.frombuffer(done.stdout, np.float32, len(wanted), at)
        scores = np.where(each.mask, each.query @ each.key.T / np.sqrt(WIDTH), -np.inf)
        plain = np.log2(np.exp(scores.astype(np.float64)).sum(axis=1))
        assert np.abs(lse - plain).max() < 0.3
        at += lse.nbytes
        written.append(int(np.frombuffer(done.stdout, np.uint64, 1, at)[0]))
        at += 8
    (first, more), (second, others) = TEXTS
    cached = [first + i for i in range(more + 1)]
    cached += [cached[-1] + second + i for i in range(others + 1)]
    assert written == [*cached, cached[-1] + first]


def test_what_was_rounded_is_written_in_numpys_order(tmp_path: Path) -> None:
    random = np.random.default_rng(8)
    layer, attention = case(random, SMALL, 5), texts(random)
    record = tmp_path / "record"
    assert run(DEVICES[0], [layer, *attention], record=record).returncode == 0
    taking = RunRoundings(record.read_bytes() + CALL)
    taking.begin()
    device = offload(DEVICES[0], attention=True).arithmetic(taking)
    device.product(layer[1], "w", {"w": layer[0]})
    for each in attention:
        device.attend(each.query, each.key, each.value, each.mask)
    taking.end()
    assert taking.taken > 0
    assert (taking.other, taking.farthest) == (0, 0)


def test_a_record_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    done = run(DEVICES[0], [case(np.random.default_rng(3), SMALL, 5)], record=tmp_path)
    assert (done.returncode, done.stdout) == (2, b"")
    assert f"--roundings: cannot write {tmp_path}" in done.stderr.decode()
    if Path("/dev/full").exists():
        done = run(DEVICES[0], [case(np.random.default_rng(3), SMALL, 5)], record=Path("/dev/full"))
        assert done.returncode == 1
        assert "is the disk full?" in done.stderr.decode()


def test_a_query_that_sees_nothing_is_zero() -> None:
    (case, *_) = texts(np.random.default_rng(6))
    blind = replace(case, visible=np.zeros_like(case.visible))
    done = run(DEVICES[0], [blind])
    assert done.returncode == 0, done.stderr.decode()[-3000:]
    found = np.frombuffer(done.stdout[:-8], np.float32)
    assert not found[: case.query.size].any()
    assert (found[case.query.size :] == np.float32(-5e4)).all()


def results(done: subprocess.CompletedProcess[bytes], rows: int, columns: int) -> np.ndarray:
    assert done.returncode == 0, done.stderr.decode()[-3000:]
    return np.frombuffer(done.stdout, np.float32, rows * columns).reshape(rows, columns)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("device", DEVICES, ids=lambda d: d.name)
def test_a_row_that_is_not_finite_is_nan_and_no_other_row(
    device: Device | MatrixUnit, value: float
) -> None:
    weights, values = case(np.random.default_rng(3), SMALL, 5)
    spoilt = values.copy()
    spoilt[2, 7] = value
    plain, found = (results(run(device, [(weights, v)]), 5, SMALL[0]) for v in (values, spoilt))
    assert np.isnan(found[2]).all()
    assert np.array_equal(np.delete(found, 2, axis=0), np.delete(plain, 2, axis=0))


@pytest.mark.parametrize("part", ["query", "key", "value"])
def test_attention_is_nan_where_it_reads_what_is_not_finite(part: str) -> None:
    (whole, *_) = texts(np.random.default_rng(7))
    spoilt = replace(whole, **{part: getattr(whole, part).copy()})
    getattr(spoilt, part)[40, 3] = np.nan
    reads = np.arange(len(whole.query)) == 40 if part == "query" else whole.visible > 40
    plain, found = (results(run(DEVICES[0], [c]), *c.query.shape) for c in (whole, spoilt))
    assert reads.any() and not reads.all()
    assert np.isnan(found[reads]).all()
    assert np.array_equal(found[~reads], plain[~reads])


def test_attention_without_a_program_is_named() -> None:
    done = run(DEVICES[0], texts(np.random.default_rng(7))[:1], "chunk")
    assert (done.returncode, done.stdout) == (2, b"")
    assert "no program for attention was linked in" in done.stderr.decode()


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("opcode", "unknown opcode|buffer .* cannot be loaded|no field|no queue"),
        ("token", "deadlock|no queue is before LOAD|left over"),
        ("address", "address .* is outside of memory"),
        ("memory", "memory is full: .* bytes are wanted"),
        ("block", "block or a buffer of 17 elements"),
        ("layer", "no program for layers of 17 x 33"),
        ("weight", "a weight holds NaN or infinity"),
        ("unknown", "weights of 17 x 33 were not loaded"),
    ],
)
def test_faults_are_refused_with_their_names(fault: str, message: str) -> None:
    done = run(DEVICES[0], [case(np.random.default_rng(3), SMALL, 5)], fault)
    assert done.returncode == 2, done.stderr.decode()[-3000:]
    assert done.stdout == b""
    said = done.stderr.decode()
    assert said.startswith("driver_probe: ")
    assert re.search(message, said), said


@pytest.mark.parametrize("device", DEVICES, ids=lambda d: d.name)
def test_programs_of_a_layer_share_their_weights(device: Device | MatrixUnit) -> None:
    found = programs_of(600, 300, device)
    batch = device.rows if isinstance(device, MatrixUnit) else device.batch
    assert [program.rows for program in found.programs] == row_counts(batch)


def imported(module: Path) -> set[Path]:
    """Return a module and the modules of the package that it imports, directly or not."""
    found, waiting = set[Path](), [module]
    while waiting:
        path = waiting.pop()
        if path in found:
            continue
        found.add(path)
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("accelerator."):
                parts = node.module.split(".")[1:]
                names = [parts, *([*parts, alias.name] for alias in node.names)]
                files = [PACKAGE.joinpath(*each).with_suffix(".py") for each in names]
                waiting += [file for file in files if file.is_file()]
    return found


def test_an_image_is_made_again_if_a_module_changes_that_makes_it() -> None:
    files = {str(path.relative_to(PACKAGE)) for path in imported(PACKAGE / "host" / "image.py")}
    assert {"lowering.py", "extension/encoding.py", "isa/tokens.py"} < files
    # These two change no stream.
    files -= {"errors.py", "checker.py"}
    known = {name for name in LOWERING if name.endswith(".py")}
    folders = tuple(f"{name}/" for name in LOWERING if not name.endswith(".py"))
    assert {name for name in files if not name.startswith(folders)} == known


def test_a_block_of_many_rows_has_a_program() -> None:
    wide = replace(load_device("vta-16x16x16"), batch=2 * MOST_ROWS)
    assert [program.rows for program in programs_of(*SMALL, wide).programs] == [2 * MOST_ROWS]


def test_a_device_too_small_is_refused() -> None:
    with pytest.raises(AcceleratorError, match=r"no tile fits|takes .* bytes"):
        programs_of(600, 300, replace(DEVICES[0], memory=1 << 16))


def test_rows_of_int8_carry_their_scales() -> None:
    weights = np.random.default_rng(2).normal(0, 3, (5, 7)).astype(np.float32)
    rows = int8_rows(weights)
    assert (rows.dtype, rows.shape) == (np.dtype(np.int8), (5, 11))
    scales = np.ascontiguousarray(rows[:, 7:]).view(np.float32)
    assert np.array_equal(np.abs(rows[:, :7]).max(axis=1), np.full(5, 127))
    assert np.abs(rows[:, :7] * scales - weights).max() <= 0.501 * scales.max()
    kinds = [in_int8(name, (4, 4)) for name in ("lm_head.weight", "model.embed_tokens.weight")]
    assert kinds == [True, False]
    assert not in_int8("model.norm.weight", (4,))
