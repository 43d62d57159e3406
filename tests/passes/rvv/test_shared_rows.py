# SPDX-License-Identifier: Apache-2.0
"""How threads share a linear layer: each output is in one task, and threads have as much to do."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from crosslab.compile.overlaypass import load_pass

Evaluate = Callable[[Any], int]
COLUMNS = 64
WIDTHS = (1, 100, 576, 1024, 1536, 3072, 49152)
ROWS = (1, 15, 31, 32, 47, 64, 100, 129)
THREADS = range(1, 17)


@pytest.fixture(scope="module")
def calls(tvm: ModuleType) -> ModuleType:
    return load_pass("linear.calls")


@pytest.fixture(scope="module")
def parts(calls: ModuleType) -> ModuleType:
    return load_pass("linear.parts")


def evaluate(expression: Any, values: dict[Any, int]) -> int:
    """The value of an expression of integers."""
    from tvm import arith, tirx  # noqa: PLC0415 - the patched tree is on sys.path only in a test

    constants = {var: tirx.const(value, var.ty.dtype) for var, value in values.items()}
    return int(arith.Analyzer().simplify(tirx.stmt_functor.substitute(expression, constants)))


def values_of(split: Any, of_rows: Any, rows: int, threads: int) -> dict[Any, int]:
    """The variables of parts of the rows, where the pool has that many threads."""
    (size,) = split.bindings
    chosen = size.value
    return {
        of_rows: rows,
        size.var: evaluate(chosen.body, {of_rows: rows, chosen.var: threads}),
    }


def most_tasks(tasks: int, threads: int) -> int:
    """Tasks of the thread that has most, as TVM's pool gives them out."""
    return -(-tasks // threads)


@pytest.mark.parametrize("n", WIDTHS)
def test_a_task_of_one_row_is_a_panel_unless_these_are_very_many(calls: ModuleType, n: int) -> None:
    from tvm import tirx  # noqa: PLC0415 - the patched tree is on sys.path only in a test

    width = calls.outputs_of_a_task(tirx.IntImm("int64", n), 576, COLUMNS)
    assert width == (COLUMNS if n <= 3072 else 3 * COLUMNS)
    if n > 3072:
        shares = [most_tasks(-(-n // width), t) * width * t / n for t in THREADS]
        assert max(shares) < 1.06


def test_tasks_are_worth_a_call(calls: ModuleType) -> None:
    from tvm import tirx  # noqa: PLC0415 - the patched tree is on sys.path only in a test

    for n in (tirx.IntImm("int64", 4096), tirx.Var("n", "int64")):
        assert calls.outputs_of_a_task(n, 64, COLUMNS) * 64 == calls.TASK_WEIGHTS


def tasks_of(parts: ModuleType, n: int, rows: int, threads: int) -> list[tuple[int, ...]]:
    """First row, rows, first output and outputs of each task of a layer, in order."""
    from tvm import tirx  # noqa: PLC0415 - the patched tree is on sys.path only in a test

    of_rows = tirx.Var("rows", "int64")
    split = parts.Parts.of(of_rows, n, COLUMNS)
    values = values_of(split, of_rows, rows, threads)
    found: list[tuple[Any, ...]] = []

    def body(*place: Any) -> Any:
        found.append(place)
        return tirx.Evaluate(0)

    loop = split.shared(tirx.IntImm("int64", n), COLUMNS, body)
    (place,) = found
    return [
        tuple(evaluate(one, {**values, loop.loop_var: task}) for one in place)
        for task in range(evaluate(loop.extent, values))
    ]


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("n", [100, 192, 576])
def test_each_output_of_several_rows_is_in_one_task(parts: ModuleType, n: int, rows: int) -> None:
    for threads in (1, 2, 5, 8, 16):
        times = np.zeros((rows, n), int)
        for first, count, start, outputs in tasks_of(parts, n, rows, threads):
            times[first : first + count, start : start + outputs] += 1
            assert first % parts.ROWS == 0
            assert count >= min(rows, parts.ROWS)
        assert (times == 1).all()


def test_one_thread_computes_all_rows_at_once(parts: ModuleType) -> None:
    assert len(tasks_of(parts, 576, 256, 1)) == 9


@pytest.mark.parametrize("n", [576, 960, 1024, 1536, 3072])
def test_threads_have_as_much_to_do(parts: ModuleType, n: int) -> None:
    """Of 64 rows: at most a ninth more than the mean with 8 threads, and a third with up to 16."""
    for threads in THREADS:
        work = [count * outputs for _, count, _, outputs in tasks_of(parts, n, 64, threads)]
        each = most_tasks(len(work), threads)
        largest = max(sum(work[i : i + each]) for i in range(0, len(work), each))
        share = largest * threads / sum(work)
        assert share <= (1.12 if threads == 8 else 1.34), (threads, share)


@pytest.mark.parametrize("rows", ROWS)
def test_each_row_is_rounded_once_where_its_part_is(parts: ModuleType, rows: int) -> None:
    from tvm import tirx  # noqa: PLC0415 - the patched tree is on sys.path only in a test

    of_rows = tirx.Var("rows", "int64")
    split = parts.Parts.of(of_rows, 576, COLUMNS)
    found: list[Any] = []

    def body(*place: Any) -> Any:
        found.append(place)
        return tirx.Evaluate(0)

    loop = split.rounded(body)
    values = values_of(split, of_rows, rows, 8)
    wanted = {(first, count) for first, count, _, _ in tasks_of(parts, 576, rows, 8)}
    done = []
    for task in range(evaluate(loop.extent, values)):
        at = {**values, loop.loop_var: task}
        first, count, begin, in_part = (evaluate(one, at) for one in found[0])
        assert (begin, in_part) in wanted
        assert begin <= first
        assert first + count <= begin + in_part
        done += range(first, first + count)
    assert done == list(range(rows))
