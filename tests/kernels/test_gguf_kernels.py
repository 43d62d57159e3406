# SPDX-License-Identifier: Apache-2.0
"""Kernels for the formats of GGUF files, against numpy on the stored numbers."""

from __future__ import annotations

import struct
import subprocess
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from support.gguf_bytes import random_rows

from crosslab.host.toolchain import Toolchain
from crosslab.models.gguf_formats import F32, Blocks, GgufFormat, gguf_formats, read_blocks
from crosslab.run.emulator import VLENS

from .conftest import AtVlen, host_command, rvv_command

pytestmark = pytest.mark.slow

DRIVER = Path(__file__).with_name("gguf_driver.c")
PARTS = ("quants", "high", "scales", "factors")
F64 = np.typing.NDArray[np.float64]
I64 = np.typing.NDArray[np.int64]


@pytest.fixture(scope="module")
def rvv(cross: Toolchain, qemu: Path, tmp_path_factory: pytest.TempPathFactory) -> AtVlen:
    return rvv_command(DRIVER, tmp_path_factory.mktemp("gguf"), cross, qemu)


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    return host_command(DRIVER, tmp_path_factory.mktemp("gguf-host"))


def rounded(a: F32, block: int) -> tuple[I64, F32]:
    """Activations [m, k] as int8 values and a scale for each block, as the kernels round them."""
    groups = a.reshape(len(a), -1, block)
    largest = np.abs(groups).max(axis=-1, keepdims=True)
    with np.errstate(divide="ignore"):
        factor = np.where(largest > 2.0**-100, np.float32(127) / largest, np.float32(0))
    values = np.rint(groups * factor.astype(np.float32)).astype(np.int64)
    return values, (largest * np.float32(1 / np.float32(127)))[..., 0]


def product(values: I64, scales: F32, blocks: Blocks) -> tuple[F64, F64]:
    """The product [m, n] in float64, and the sum of the sizes of what is added for it."""
    f, n = blocks.format, len(blocks.values)
    stored = (blocks.values.astype(np.int64) - f.zero).reshape(n, -1, f.block // f.group, f.group)
    x = values.reshape(*values.shape[:2], -1, f.group)
    sums = np.einsum("nbgi,mbgi->mnbg", stored, x)
    totals = np.broadcast_to(x.sum(axis=-1)[:, None], sums.shape)
    factors = blocks.factors.astype(np.float64).reshape(n, stored.shape[1], -1)
    first, least = sums.sum(axis=-1), totals.sum(axis=-1)
    if blocks.scales is not None:
        s = blocks.scales.astype(np.int64).reshape(n, stored.shape[1], -1, sums.shape[-1])
        first = (sums * s[:, :, 0]).sum(axis=-1)
        least = -(totals * s[:, :, -1]).sum(axis=-1)
    terms = [first * factors[..., 0]]
    if f.minimums:
        terms.append(least * factors[..., 1])
    terms = [term * scales.astype(np.float64)[:, None] for term in terms]
    return sum(t.sum(axis=-1) for t in terms), sum(np.abs(t).sum(axis=-1) for t in terms)


def packed_call(name: str, blocks: Blocks, a: F32, ld_c: int, tile: int, rows: I64) -> bytes:
    f, (n, k) = blocks.format, blocks.values.shape
    parts = blocks.packed()
    columns = [parts[part].shape[1] if part in parts else 0 for part in PARTS]
    head = struct.pack(
        "16s11q", name.lower().encode(), len(a), n, k, ld_c, tile, len(rows), f.block, *columns
    )
    body = b"".join(parts[part].tobytes() for part in PARTS if part in parts)
    return head + a.tobytes() + body + rows.astype(np.int32).tobytes()


def check(command: Sequence[str], f: GgufFormat, m: int, n: int, k: int, tile: int) -> None:
    random = np.random.default_rng(m * 1000 + n)
    blocks = read_blocks(f.name, random_rows(f.name, n, k, seed=n))
    # Blocks of activations of many sizes, and one of zeros.
    a = random.standard_normal((m, k)) * 2.0 ** random.integers(-9, 9, (m, k // f.block)).repeat(
        f.block, axis=1
    )
    a[0, : f.block] = 0
    a = a.astype(np.float32)
    ld_c, rows = n + 3, random.integers(0, n, 4)
    call = packed_call(f.name, blocks, a, ld_c, tile, rows)
    done = subprocess.run(command, input=call, capture_output=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr.decode()
    each = f.block + 4 + f.block // 4
    ready = np.frombuffer(done.stdout, np.uint8, k // f.block * m * each).reshape(-1, m, each)
    values, scales = rounded(a, f.block)
    assert np.array_equal(ready[..., : f.block].view(np.int8), values.swapaxes(0, 1))
    tail = np.ascontiguousarray(ready[..., f.block :])
    assert np.array_equal(tail[..., :4].view(np.float32)[..., 0], scales.T)
    eights = values.reshape(m, k // f.block, -1, 8).sum(axis=-1)
    assert np.array_equal(tail[..., 4:].view(np.int16), eights.swapaxes(0, 1))

    size = (m - 1) * ld_c + n
    buffer = np.frombuffer(done.stdout, np.float32, size, ready.size)
    padded = np.full(m * ld_c, np.nan, np.float32)
    padded[:size] = buffer
    c = padded.reshape(m, ld_c)
    want, sizes = product(values, scales, blocks)
    # Integers are exact: what is rounded are a block's conversion, two products and the sum.
    bound = (k // f.block * 2 + 4) * 2.0**-24 * sizes
    assert np.all(np.abs(c[:, :n] - want) <= bound), f.name
    assert np.isnan(c[:, n:]).all(), "written between the rows"

    taken = np.frombuffer(done.stdout, np.float32, 4 * k, ready.size + 4 * size).reshape(4, k)
    assert np.array_equal(taken, blocks.dequantized()[rows])


# Rows: one, what is done one by one, fours, and a rest; outputs: less than a tile, and odd ones.
SHAPES = [(1, 150, 768), (2, 70, 256), (3, 37, 512), (9, 65, 768), (4, 1, 256)]


@pytest.mark.parametrize("vlen", VLENS)
@pytest.mark.parametrize("f", gguf_formats().values(), ids=lambda f: f.name)
def test_products_of_stored_numbers(rvv: AtVlen, vlen: int, f: GgufFormat) -> None:
    for m, n, k in SHAPES:
        check(rvv(vlen), f, m, n, k, vlen // 4)


@pytest.mark.parametrize("f", gguf_formats().values(), ids=lambda f: f.name)
def test_longer_registers_than_compiled_for_and_odd_numbers_of_blocks(
    rvv: AtVlen, f: GgufFormat
) -> None:
    check(rvv(512), f, 5, 100, 9 * f.block, 32)
    check(rvv(512), f, 1, 100, 9 * f.block, 32)


@pytest.mark.parametrize("f", gguf_formats().values(), ids=lambda f: f.name)
def test_portable_kernels(host: list[str], f: GgufFormat) -> None:
    for m, n, k in SHAPES:
        check(host, f, m, n, k, 64)


@pytest.mark.parametrize("f", gguf_formats().values(), ids=lambda f: f.name)
def test_parts_of_the_rows_give_the_numbers_of_all(
    rvv: AtVlen, host: list[str], f: GgufFormat
) -> None:
    """Threads share rows: parts begin at multiples of 16 and have 16 rows at least."""
    n, k = 70, 2 * f.block
    blocks = read_blocks(f.name, random_rows(f.name, n, k))
    a = np.random.default_rng(3).standard_normal((16 + 29, k)).astype(np.float32)

    def outputs(command: Sequence[str], some: F32) -> F32:
        call = packed_call(f.name, blocks, some, n, 64, np.zeros(1, np.int64))
        done = subprocess.run(command, input=call, capture_output=True, check=True, timeout=60)
        ready = k // f.block * len(some) * (f.block + 4 + f.block // 4)
        return np.frombuffer(done.stdout, np.float32, len(some) * n, ready).reshape(-1, n)

    for command in (rvv(256), host):
        together = outputs(command, a)
        assert np.array_equal(outputs(command, a[:16]), together[:16])
        assert np.array_equal(outputs(command, a[16:]), together[16:])


@pytest.mark.parametrize("name", ["Q4_0", "Q6_K"])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_nan_and_infinity_in_activations_stay(
    rvv: AtVlen, host: list[str], name: str, bad: float
) -> None:
    f = gguf_formats()[name]
    blocks = read_blocks(name, random_rows(name, 5, 256))
    a = np.ones((1, 256), np.float32)
    a[0, 7] = bad
    call = packed_call(name, blocks, a, 5, 32, np.zeros(1, np.int64))
    for command in (rvv(128), host):
        done = subprocess.run(command, input=call, capture_output=True, check=True, timeout=60)
        ready = 256 // f.block * (f.block + 4 + f.block // 4)
        assert not np.isfinite(np.frombuffer(done.stdout, np.float32, 5, ready)).any()
