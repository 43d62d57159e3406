# SPDX-License-Identifier: Apache-2.0
"""Every kernel against float64, over drawn data and leading dimensions."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from crosslab.assemble.kernels import read_kernels

from .calls import Call, make_call, run

pytestmark = pytest.mark.slow

VLENS = (128, 256, 512, 1024)

paddings = st.integers(0, 40)
call_of = {
    kernel: st.builds(
        make_call,
        st.just(kernel),
        st.tuples(paddings, paddings, paddings),
        st.integers(0, 2**32 - 1),
        st.integers(0, 30),
    )
    for kernel in read_kernels()
}
# One drawn call of every kernel: each start of the emulator covers the whole list.
whole_list = st.tuples(*call_of.values())

settings.register_profile(
    "drivers",
    max_examples=12,
)
drivers = settings.get_profile("drivers")


@settings(drivers)
@given(calls=whole_list)
def test_portable_kernels(host_driver: list[str], calls: tuple[Call, ...]) -> None:
    run(host_driver, calls)


@pytest.mark.parametrize("vlen", VLENS)
@settings(drivers)
@given(calls=whole_list)
def test_rvv_kernels(
    rvv_driver: Callable[[int], list[str]], vlen: int, calls: tuple[Call, ...]
) -> None:
    run(rvv_driver(vlen), calls)
