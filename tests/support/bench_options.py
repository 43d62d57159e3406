# SPDX-License-Identifier: Apache-2.0
"""A bench of options."""

from __future__ import annotations

from collections.abc import Sequence

from crosslab.bench.options import Bench, bench_of, parser


def parse_bench(argv: Sequence[str]) -> Bench:
    """The bench that the options describe, as the command reads it."""
    return parser().read(argv, bench_of)
