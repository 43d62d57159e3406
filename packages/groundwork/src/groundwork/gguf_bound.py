# SPDX-License-Identifier: Apache-2.0
"""The bound that the ``gguf`` package's reader lacks."""

from __future__ import annotations

from typing import Any


class Bounded:
    """Mixin of ``gguf.GGUFReader`` that refuses counts that lead past the end of the file.

    The reader itself continues behind the end, one empty element after another, until memory ends.
    """

    data: Any

    def _get(self, offset: int, dtype: Any, count: int = 1, override_order: Any = None) -> Any:
        if int(offset) + dtype(0).nbytes * int(count) > len(self.data):
            raise ValueError("a count leads past the end of the file")
        return super()._get(offset, dtype, count, override_order)  # type: ignore[misc]
