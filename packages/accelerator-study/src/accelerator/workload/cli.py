# SPDX-License-Identifier: Apache-2.0
"""``python -m crosslab workload MODEL``: write a model's matrix products as a work file."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from accelerator.workload.extraction import NAMED, model_workloads
from groundwork.files import atomic_write_json


def main(argv: Sequence[str] | None = None) -> int:
    """Write the work file; returns the exit code.

    Raises:
        UserError: the model cannot be read, or TVM is missing.
    """
    parser = argparse.ArgumentParser(
        prog="crosslab workload", description="Write a model's matrix products for costmodel."
    )
    parser.add_argument(
        "model",
        metavar="MODEL",
        help=f"{', '.join(NAMED)}, a config.json, or an IRModule or work file (JSON)",
    )
    parser.add_argument("--output", type=Path, required=True, metavar="FILE")
    args = parser.parse_args(argv)
    found = model_workloads(args.model)
    atomic_write_json(args.output, found)
    print(args.output)
    return 0
