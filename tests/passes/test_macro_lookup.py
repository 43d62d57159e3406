# SPDX-License-Identifier: Apache-2.0
"""Macros of TVMScript and the parser that calls them, on the patched tree."""

from __future__ import annotations

import inspect
from types import ModuleType

import pytest


def test_a_macro_reads_no_source_of_its_callers(
    tvm: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tvm.script import tirx as T  # noqa: N812, PLC0415

    @T.macro
    def store(to, place, value):  # type: ignore[no-untyped-def]
        to[place] = value

    calls: list[int] = []
    original = inspect.getouterframes

    def count(frame, context=1):  # type: ignore[no-untyped-def]
        calls.append(context)
        return original(frame, context)

    monkeypatch.setattr(inspect, "getouterframes", count)

    @T.prim_func
    def without(a: T.Buffer((2,), "int32")) -> None:
        a[0] = 5
        a[1] = 7

    plain, calls[:] = len(calls), []

    @T.prim_func
    def through_macros(a: T.Buffer((2,), "int32")) -> None:
        store(a, 0, 5)
        store(a, 1, 7)

    assert len(calls) == plain
    tvm.ir.assert_structural_equal(
        through_macros, without.with_attr("global_symbol", "through_macros")
    )
