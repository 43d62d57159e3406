# SPDX-License-Identifier: Apache-2.0
"""A bound check that the ``gguf`` package's reader lacks."""

from __future__ import annotations

from typing import Any


class Bounded:
    """A mixin for ``gguf.GGUFReader`` that refuses counts that lead past the end of the file.

    Without it, the reader appends empty elements behind the end until memory is full.
    """

    data: Any

    def _get(self, offset: int, dtype: Any, count: int = 1, override_order: Any = None) -> Any:
        if int(offset) + dtype(0).nbytes * int(count) > len(self.data):
            raise ValueError("a count leads past the end of the file")
        return super()._get(offset, dtype, count, override_order)  # type: ignore[misc]
