# SPDX-License-Identifier: Apache-2.0
"""Formats that are not in the table of weights: an entry of it is all that a format needs."""

from __future__ import annotations

from pathlib import Path

from crosslab.models.formats import TABLE, Packing, packings

# Whole bytes; values that cross bytes, in groups that no power of two divides.
W8 = Packing(bits=8, group=64, zero_point=127)
W3 = Packing(bits=3, group=40, zero_point=3)
MADE_UP = {"w8": W8, "w3": W3}
# By the last part of the kernels' names, those of the table as well.
ALL_PACKINGS = {**packings(), **MADE_UP}

FORMAT = """
[q{packing.bits}f32_{kernels}]
own_model = false
reference = false
kernels = "{kernels}"
tolerance = 1e-3
reason = "made up"
packing = {{ bits = {packing.bits}, group = {packing.group}, zero_point = {packing.zero_point} }}
"""


def table_with_made_up(folder: Path) -> Path:
    """A table of formats in a folder: the project's, and those above."""
    table = folder / "formats.toml"
    entries = [FORMAT.format(kernels=k, packing=p) for k, p in MADE_UP.items()]
    table.write_text("".join([TABLE.read_text(encoding="utf-8"), *entries]), encoding="utf-8")
    return table
