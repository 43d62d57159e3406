# SPDX-License-Identifier: Apache-2.0
"""How threads share a product of several rows: columns of tasks, and parts of the rows.

A thread of the pool takes a run of ceil(tasks / threads) tasks, so that with few panels of outputs
some have twice the work of others: nine panels among eight threads. Rows are split, too, if threads
would have uneven work, and only then, as a kernel does best with many rows. A row gives the same
numbers in any part: parts begin at multiples of ROWS, and none has fewer, so that kernels go the
same ways as for all rows.

All numbers are positive, and a division by a variable is a truncated one. TVM tries to prove the
signs of a floor division, which takes minutes for a model.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tvm import tirx

# Rows that a task rounds to int8. Parts begin at multiples of it, and have no fewer: kernels that
# round otherwise do so for fewer rows, or for the last of an odd number.
ROWS = 16
# Parts that are tried; a largest share of at most (EVEN + 1) / EVEN of the mean is good enough.
TRIED = (1, 2)
MOST = 4
EVEN = 10


def int64(value: Any) -> Any:
    """Convert a size to an int64 expression."""
    if isinstance(value, int | tirx.IntImm):
        return tirx.IntImm("int64", int(value))
    return tirx.Cast("int64", value)


def parts_for(panels: Any, threads: Any) -> Any:
    """Return the number of parts of the rows that shares the panels evenly; MOST if no number does.

    All are int32 expressions.
    """
    parts = tirx.const(MOST, "int32")
    for tried in reversed(TRIED):
        tasks = panels * tried
        largest = tirx.truncdiv(tasks + threads - 1, threads) * threads
        parts = tirx.Select(largest * EVEN <= tasks * (EVEN + 1), tried, parts)
    return parts


@dataclass(frozen=True)
class Parts:
    """Parts of the rows of a product.

    Attributes:
        rows: of all parts, int64.
        size: rows of each part but the last, which has the rest, too; int64.
        count: of the parts, int64; one if they are not to be split.
        bindings: a statement before all others, which binds ``size``; empty: one part.
    """

    rows: Any
    size: Any
    count: Any
    bindings: tuple[Any, ...] = ()

    @staticmethod
    def of(rows: Any, outputs: Any, columns: int) -> Parts:
        """Split rows into parts where threads would otherwise share the panels unevenly.

        Args:
            rows: number of rows; a constant below 2 * ROWS is not split.
            outputs: outputs of each row.
            columns: outputs of a panel.
        """
        all_rows = int64(rows)
        if isinstance(rows, int | tirx.IntImm) and int(rows) < 2 * ROWS:
            return Parts(all_rows, all_rows, int64(1))
        # TVM may make all indices of a function int32, and would then lose an int64 in a `Let`.
        threads, size = tirx.Var("threads", "int32"), tirx.Var("size", "int64")
        panels = tirx.Cast("int32", tirx.ceildiv(int64(outputs), int64(columns)))
        wanted = tirx.truncdiv(all_rows, int64(parts_for(panels, threads))) // ROWS * ROWS
        # The call is in the value of `size`: TVM copies a value without a call to all its uses, and
        # its passes then take several times as long.
        pool = tirx.call_packed("runtime.NumThreads")
        chosen = tirx.Let(threads, pool, tirx.max(wanted, int64(ROWS)))
        count = tirx.max(tirx.truncdiv(all_rows, size), int64(1))
        return Parts(all_rows, size, count, (tirx.Bind(size, chosen),))

    @staticmethod
    def row_of_data(row: Any) -> Any:
        """Return the row of the data that a row reads."""
        return row

    @property
    def whole(self) -> bool:
        """Return True if the rows are never split."""
        return not self.bindings

    def rows_of(self, part: Any) -> Any:
        """Return the number of rows of a part."""
        if self.whole:
            return self.rows
        rest = self.rows - part * self.size
        return tirx.Select(part + 1 < self.count, self.size, rest)

    def rounded(self, body: Callable[[Any, Any, Any, Any], Any]) -> Any:
        """Return a parallel loop whose body computes up to ROWS rows.

        Args:
            body: of a first row and a number of rows, and those of their part.
        """
        if self.whole and isinstance(self.rows, tirx.IntImm) and int(self.rows) <= ROWS:
            return body(int64(0), self.rows, int64(0), self.rows)
        task = tirx.Var("task", "int64")
        first = task * ROWS
        part = int64(0) if self.whole else tirx.min(tirx.truncdiv(first, self.size), self.count - 1)
        count = tirx.min(self.rows - first, int64(ROWS))
        inner = body(first, count, part * self.size, self.rows_of(part))
        tasks = tirx.ceildiv(self.rows, int64(ROWS))
        return tirx.For(task, int64(0), tasks, tirx.ForKind.PARALLEL, inner)

    def shared(self, outputs: Any, width: int, body: Callable[[Any, Any, Any, Any], Any]) -> Any:
        """Return a parallel loop over parts of rows and runs of ``width`` outputs.

        Parts are the fast index: a thread reads the same weights again.

        Args:
            outputs: number of all outputs.
            width: outputs of a task.
            body: of a first row and a number of rows, a first output and a number of outputs.
        """
        n = int64(outputs)
        one = isinstance(outputs, int | tirx.IntImm) and int(outputs) <= width
        if one and self.whole:
            return body(int64(0), self.rows, int64(0), n)
        task = tirx.Var("task", "int64")
        part, panel = int64(0), task
        if not self.whole:
            part, panel = tirx.truncmod(task, self.count), tirx.truncdiv(task, self.count)
        start = panel * width
        inner = body(part * self.size, self.rows_of(part), start, tirx.min(n - start, int64(width)))
        tasks = tirx.ceildiv(n, int64(width)) * self.count
        return tirx.For(task, int64(0), tasks, tirx.ForKind.PARALLEL, inner)


@dataclass(frozen=True)
class RowsOfExperts:
    """The rows of a mixture, each with the weights of its expert; :class:`Parts` has the methods.

    Attributes:
        index: buffer [experts + 1]: rows ``index[e]`` up to ``index[e + 1]`` are of expert e; or
            [1, rows]: the expert of each row.
        one_x: all rows read one row of the data.
    """

    index: Any
    one_x: bool = False
    bindings: tuple[Any, ...] = ()

    @property
    def steps(self) -> int:
        """Return the number of experts, or of rows if each row names its expert."""
        return int(self.index.shape[-1]) - (len(self.index.shape) == 1)

    def row_of_data(self, row: Any) -> Any:
        """Return the row of the data that a row reads."""
        return int64(0) if self.one_x else row

    def _some(self, step: Any, body: Callable[[Any, Any, Any], Any]) -> Any:
        """Return the body for the first row, number of rows and expert of a step, if any row."""
        if len(self.index.shape) > 1:
            expert = tirx.BufferLoad(self.index, [0, step])
            return body(int64(step), int64(1), int64(expert))
        first = tirx.BufferLoad(self.index, [step])
        rows = tirx.BufferLoad(self.index, [step + 1]) - first
        return tirx.IfThenElse(rows > 0, body(int64(first), int64(rows), int64(step)), None)

    def rounded(self, body: Callable[[Any, Any, Any, Any], Any]) -> Any:
        """Return a parallel loop over the steps whose body computes the rows of one."""
        if self.one_x:
            return body(int64(0), int64(1), int64(0), int64(1))
        step = tirx.Var("step", "int32")
        inner = self._some(step, lambda first, rows, _: body(first, rows, first, rows))
        return tirx.For(step, 0, self.steps, tirx.ForKind.PARALLEL, inner)

    def shared(self, outputs: Any, width: int, body: Callable[..., Any]) -> Any:
        """Return a parallel loop over runs of ``width`` outputs of each step.

        Steps are the fast index: threads take as many runs of each, whichever have rows.

        Args:
            outputs: of an expert.
            width: outputs of a task.
            body: as that of Parts, with the number of the expert.
        """
        n, task = int(outputs), tirx.Var("task", "int32")
        step, panel = tirx.truncmod(task, self.steps), tirx.truncdiv(task, self.steps)
        start = int64(panel) * width
        count = tirx.min(n - start, int64(width))
        inner = self._some(
            step, lambda first, rows, expert: body(first, rows, start, count, expert)
        )
        tasks = -(-n // width) * self.steps
        return tirx.For(task, 0, tasks, tirx.ForKind.PARALLEL, inner)
