# SPDX-License-Identifier: Apache-2.0
"""Our own headers in place of those that the TVM wheel lacks."""

from __future__ import annotations

import ctypes
import subprocess

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from crosslab.assemble.runtime import SHIMS
from crosslab.errors import UserError
from crosslab.host.toolchain import find_native

SOURCE = """
#include <builtin_fp16.h>
extern "C" void narrow32(const float* x, uint16_t* y, long n) {
  for (long i = 0; i < n; ++i)
    y[i] = __truncXfYf2__<float, uint32_t, 23, uint16_t, uint16_t, 10>(x[i]);
}
extern "C" void narrow64(const double* x, uint16_t* y, long n) {
  for (long i = 0; i < n; ++i)
    y[i] = __truncXfYf2__<double, uint64_t, 52, uint16_t, uint16_t, 10>(x[i]);
}
extern "C" void widen(const uint16_t* x, float* y, long n) {
  for (long i = 0; i < n; ++i)
    y[i] = __extendXfYf2__<uint16_t, uint16_t, 10, float, uint32_t, 23>(x[i]);
}
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    try:
        tools = find_native()
    except UserError as error:
        pytest.skip(error.what)
    folder = tmp_path_factory.mktemp("fp16")
    (folder / "fp16.cc").write_text(SOURCE)
    include = f"-I{SHIMS / '3rdparty' / 'compiler-rt'}"
    flags = ["-std=c++20", "-O2", "-Wall", "-Wextra", "-Werror", "-fPIC", "-shared", include]
    command = [*tools.cxx, *flags, "fp16.cc", "-o", "fp16.so"]
    subprocess.run(command, cwd=folder, check=True)
    return ctypes.CDLL(str(folder / "fp16.so"))


def call(function: object, values: NDArray[np.generic], result: type) -> NDArray[np.generic]:
    given_values, made = np.ascontiguousarray(values), np.empty(len(values), result)
    pointers = (given_values.ctypes.data, made.ctypes.data, len(values))
    function(*map(ctypes.c_void_p, pointers))  # type: ignore[operator]
    return made


def same_bits(ours: NDArray[np.generic], numpys: NDArray[np.generic]) -> None:
    """Equal, but that any NaN is as good as another."""
    nan = np.isnan(numpys)
    assert np.array_equal(np.isnan(ours), nan)
    word = np.dtype(f"u{ours.itemsize}")
    assert np.array_equal(ours.view(word)[~nan], numpys.view(word)[~nan])


def test_widening_is_exact_for_every_half(library: ctypes.CDLL) -> None:
    halves = np.arange(1 << 16, dtype=np.uint16)
    same_bits(call(library.widen, halves, np.float32), halves.view(np.float16).astype(np.float32))


def test_narrowing_gives_every_half_back(library: ctypes.CDLL) -> None:
    halves = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    for function, wide in ((library.narrow32, np.float32), (library.narrow64, np.float64)):
        same_bits(call(function, halves.astype(wide), np.uint16).view(np.float16), halves)


@given(st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=200))
def test_narrowing_of_any_float_is_numpys(library: ctypes.CDLL, words: list[int]) -> None:
    values = np.array(words, np.uint32).view(np.float32)
    with np.errstate(over="ignore"):
        expected = values.astype(np.float16)
    same_bits(call(library.narrow32, values, np.uint16).view(np.float16), expected)


@given(st.integers(0, 2**15 - 2), st.integers(-3, 3))
def test_ties_go_to_even(library: ctypes.CDLL, half: int, nudge: int) -> None:
    """Around the middle between two neighbouring halves, where rounding decides."""
    pair = np.array([half, half + 1], np.uint16).view(np.float16).astype(np.float64)
    if not np.all(np.isfinite(pair)):
        return
    middle = np.array([pair.mean()])
    for _ in range(abs(nudge)):
        middle = np.nextafter(middle, np.inf if nudge > 0 else -np.inf)
    same_bits(call(library.narrow64, middle, np.uint16).view(np.float16), middle.astype(np.float16))
