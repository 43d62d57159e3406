# SPDX-License-Identifier: Apache-2.0
"""The linear-layer kernels against float64, over drawn shapes, strides and panel sizes."""

from __future__ import annotations

import struct
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass, replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from support.passes.made_up_formats import ALL_PACKINGS, MADE_UP, table_with_made_up

from crosslab.host.toolchain import Toolchain
from crosslab.models.formats import Packing, int8_kernels, packings
from crosslab.models.roundings import round_to_int8

from .conftest import AtVlen, host_command, rvv_command

pytestmark = pytest.mark.slow

DRIVER = Path(__file__).with_name("linear_driver.c")
VLENS = (128, 256, 512, 1024)
UNIT_ROUNDOFF = 2.0**-24


def kinds_of(formats: Mapping[str, Packing | None]) -> tuple[str, ...]:
    """Names of the kernels with float32 activations, by formats as :func:`packings` gives them."""
    return (
        *(f"{kind}_{weights}" for kind in ("gemm", "gemv") for weights in formats),
        *(f"gemm_{weights}_tiles" for weights in formats),
        *(f"gemv_{weights}_tiles" for weights, packing in formats.items() if packing),
    )


KINDS = (*kinds_of(packings()), *(f"gemm_{weights}_int8" for weights in sorted(int8_kernels())))

Floats = NDArray[np.float32]


@dataclass(frozen=True)
class Call:
    """One call; matrices lie in flat buffers that end with the last element of the last row."""

    kind: str
    m: int
    n: int
    k: int
    paddings: tuple[int, int, int]
    panel_rows: int
    panel_columns: int
    seed: int

    def __post_init__(self) -> None:
        # A panel holds a group at least.
        if self.packing and self.panel_rows < self.packing.group:
            object.__setattr__(self, "panel_rows", -(-self.packing.group // 32) * 32)

    @property
    def packing(self) -> Packing | None:
        """Of the weights."""
        return ALL_PACKINGS[self.kind.split("_")[1]]

    @property
    def int8(self) -> bool:
        """Activations are rounded to 8 bits."""
        return self.kind.endswith("_int8")

    @property
    def strides(self) -> tuple[int, int, int]:
        """Of c, a and b; packed weights are dense."""
        return (
            self.n + self.paddings[0],
            self.k + self.paddings[1],
            self.k + (0 if self.packing or self.kind.endswith("_tiles") else self.paddings[2]),
        )

    def buffers(self) -> tuple[Floats, Floats, NDArray[np.uint32] | Floats, Floats]:
        """Buffers: c before the call, a, b or its quants, scales."""
        rng = np.random.default_rng(self.seed)

        def drawn(rows: int, columns: int, stride: int) -> Floats:
            values = rng.standard_normal((rows - 1) * stride + columns)
            values *= 2.0 ** rng.integers(-20, 21, values.size)
            values[rng.random(values.size) < 0.05] = 0
            return values.astype(np.float32)

        ld_c, ld_a, ld_b = self.strides
        c, a = drawn(self.m, self.n, ld_c), drawn(self.m, self.k, ld_a)
        if self.packing is None:
            return c, a, drawn(self.n, self.k, ld_b), drawn(1, 1, 1)
        groups = -(-self.k // self.packing.group)
        words = groups * self.packing.group // self.packing.per_word
        quants = rng.integers(0, 2**32, self.n * words, np.uint32)
        return c, a, quants, drawn(1, self.n * groups, 0)

    def packed(self) -> bytes:
        buffers = self.buffers()
        head = struct.pack(
            "16s12q",
            self.kind.encode(),
            *(self.m, self.n, self.k, *self.strides, self.panel_rows, self.panel_columns),
            *(b.size for b in buffers),
        )
        return head + b"".join(b.tobytes() for b in buffers)

    def check(self, got: Floats) -> None:
        """Compare with float64, within what any order of summation keeps."""
        c, a, b, scales = self.buffers()
        floats = matrix(a, (self.m, self.k), self.strides[1])
        left = (round_to_int8(floats) if self.int8 else floats).astype(np.float64)
        right, size = self.weights(b, scales)
        want = left @ right.T
        # Packed weights are themselves rounded once, and gemv_q4 adds partial sums of a group. In
        # tiles it sums up to 55 times an activation, above its size (at least 7) 8 times.
        terms = (self.k + 12) * (8 if self.packing and self.kind.endswith("_tiles") else 1)
        bound = 1.01 * terms * UNIT_ROUNDOFF * (np.abs(left) @ size.T)
        tile = matrix(got, want.shape, self.strides[0]).astype(np.float64)
        assert np.all(np.abs(tile - want) <= bound), self
        untouched = got.copy()
        matrix(untouched, want.shape, self.strides[0])[:] = matrix(c, want.shape, self.strides[0])
        assert np.array_equal(untouched, c), f"{self} wrote between the rows"

    def weights(
        self, b: NDArray[np.uint32] | Floats, scales: Floats
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """The weights [n, k], and for each the size of the numbers that it is summed from."""
        if self.packing is None:
            dense = matrix(b.view(np.float32), (self.n, self.k), self.strides[2])
            return dense.astype(np.float64), np.abs(dense.astype(np.float64))
        bits, group, zero_point = astuple(self.packing)
        words = b.view(np.uint32).reshape(self.n, -1, 1)
        shifts = np.arange(self.packing.per_word, dtype=np.uint32) * np.uint32(bits)
        values = (words >> shifts & (1 << bits) - 1).reshape(self.n, -1).astype(np.float64)
        factor = np.repeat(scales.reshape(self.n, -1).astype(np.float64), group, axis=1)
        weights = (values - zero_point) * factor
        size = (values + zero_point) * np.abs(factor)
        return weights[:, : self.k], size[:, : self.k]


def matrix(buffer: Floats, shape: tuple[int, int], stride: int) -> Floats:
    """The rows that lie in a flat buffer, as a view."""
    item = buffer.itemsize
    return np.lib.stride_tricks.as_strided(buffer, shape, (stride * item, item))


def results(command: Sequence[str], calls: Sequence[Call]) -> list[Floats]:
    """The buffer of c after each call."""
    done = subprocess.run(
        command, input=b"".join(c.packed() for c in calls), capture_output=True, check=False
    )
    assert done.returncode == 0, done.stderr.decode(errors="replace")
    floats = np.frombuffer(done.stdout, dtype=np.float32)
    ends = np.cumsum([c.buffers()[0].size for c in calls])
    assert floats.size == ends[-1]
    return np.split(floats, ends[:-1])


def run(command: Sequence[str], calls: Sequence[Call]) -> None:
    for call, got in zip(calls, results(command, calls), strict=True):
        call.check(got)


@pytest.fixture(scope="module")
def rvv(cross: Toolchain, qemu: Path, tmp_path_factory: pytest.TempPathFactory) -> AtVlen:
    return rvv_command(DRIVER, tmp_path_factory.mktemp("rvv"), cross, qemu)


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    directory = tmp_path_factory.mktemp("host")
    return host_command(DRIVER, directory, table_with_made_up(directory))


def calls_for(kind: str, panel: int) -> st.SearchStrategy[Call]:
    """Calls around a panel of that many columns: below one, to three of them, all remainders."""
    rows = st.integers(1, 24) if kind.startswith("gemm") else st.just(1)
    padding = st.integers(0, 20)
    return st.builds(
        Call,
        st.just(kind),
        rows,
        st.integers(1, 3 * panel + 7),
        st.integers(1, 100) | st.integers(100, 2 * panel + 70),
        st.tuples(padding if kind.startswith("gemm") else st.just(0), padding, padding),
        st.sampled_from((32, 64, 256)),
        st.sampled_from((panel, panel // 2, 24)),
        st.integers(0, 2**32 - 1),
    )


def one_of_each(panel: int, kinds: Sequence[str] = KINDS) -> st.SearchStrategy[tuple[Call, ...]]:
    return st.tuples(*(calls_for(kind, panel) for kind in kinds))


light = settings(
    max_examples=15,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


@light
@given(calls=one_of_each(64, (*KINDS, *kinds_of(MADE_UP))))
def test_portable(host: list[str], calls: tuple[Call, ...]) -> None:
    """Portable kernels follow from an entry of the table, so that made-up formats have them."""
    run(host, calls)


@pytest.mark.parametrize("vlen", VLENS)
@light
@given(data=st.data())
def test_rvv(rvv: AtVlen, vlen: int, data: st.DataObject) -> None:
    run(rvv(vlen), data.draw(one_of_each(vlen // 4)))


@pytest.mark.parametrize("rows", range(1, 25))
def test_every_number_of_rows(rvv: AtVlen, rows: int) -> None:
    """All blocks of rows, on panels of every LMUL at VLEN 256."""
    calls = [
        Call(kind, rows, columns, 37, (1, 2, 3), 32, 64, rows)
        for kind in KINDS
        if kind.startswith("gemm")
        for columns in (1, 16, 17, 32, 33, 64, 64 + 9, 64 + 24)
    ]
    run(rvv(256), calls)


@pytest.mark.parametrize("vlen", [None, *VLENS])
def test_parts_of_the_rows_give_the_numbers_of_all(
    rvv: AtVlen, host: list[str], monkeypatch: pytest.MonkeyPatch, vlen: int | None
) -> None:
    """Threads share rows: parts begin at multiples of 16 and have 16 rows at least."""
    command, columns = (rvv(vlen), vlen // 4) if vlen else (host, 64)
    plain = Call.buffers
    for kind in (kind for kind in KINDS if kind.startswith("gemm")):
        whole = Call(kind, 16 + 32 + 29, columns + 5, 77, (0, 0, 0), 32, columns, 4)
        (want,) = results(command, [whole])
        c, a, b, scales = plain(whole)
        for first, rows in ((0, 16), (16, 32), (48, 29)):
            part = replace(whole, m=rows)
            at_c, at_a = (slice(first * n, (first + rows) * n) for n in (whole.n, whole.k))
            some = (c[at_c], a[at_a], b, scales)
            with monkeypatch.context() as patched:
                patched.setattr(Call, "buffers", lambda _, some=some: some)
                (got,) = results(command, [part])
            assert np.array_equal(got, want[at_c]), (kind, first)


@pytest.mark.parametrize("vlen", VLENS)
def test_int8_rows_that_are_longer_than_the_buffer(rvv: AtVlen, vlen: int) -> None:
    """Many rows write down sums of 44 groups at most (VLEN 128): these have 47."""
    call = Call("gemm_q4_int8", 27, vlen // 4 + 3, 1500, (1, 2, 3), 32, vlen // 4, 0)
    run(rvv(vlen), [call])


@pytest.mark.parametrize("stored", [0, 15])
@pytest.mark.parametrize("sign", [-1, 1])
def test_sums_of_int8_fit_16_bits(
    rvv: AtVlen, monkeypatch: pytest.MonkeyPatch, stored: int, sign: int
) -> None:
    """All activations and weights of a group are the largest there are, of either sign."""
    calls = [Call("gemm_q4_int8", rows, 70, 64, (0, 0, 0), 32, 64, 0) for rows in (1, 4, 13)]
    plain = Call.buffers

    def largest(call: Call) -> tuple[Floats, Floats, NDArray[np.uint32] | Floats, Floats]:
        c, a, quants, scales = plain(call)
        words = np.full_like(quants.view(np.uint32), stored * 0x11111111)
        return c, np.full_like(a, sign), words, np.ones_like(scales)

    monkeypatch.setattr(Call, "buffers", largest)
    run(rvv(256), calls)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_int8_keeps_what_is_not_finite(
    rvv: AtVlen, host: list[str], monkeypatch: pytest.MonkeyPatch, bad: float
) -> None:
    call = Call("gemm_q4_int8", 2, 40, 70, (0, 0, 0), 32, 32, 1)
    c, a, quants, scales = call.buffers()
    a[70 + 40] = bad
    monkeypatch.setattr(Call, "buffers", lambda _: (c, a, quants, np.abs(scales) + 1))
    for command in (host, rvv(256)):
        done = subprocess.run(command, input=call.packed(), capture_output=True, check=True)
        rows = np.frombuffer(done.stdout, dtype=np.float32).reshape(2, 40)
        assert np.all(np.isfinite(rows[0]))
        assert not np.any(np.isfinite(rows[1]))
