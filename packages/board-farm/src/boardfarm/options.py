# SPDX-License-Identifier: Apache-2.0
"""Options that all verbs of ``crosslab farm`` share, so that a session need not know the verb."""

from __future__ import annotations

import argparse
from pathlib import Path

from crosslab.cached_build import add_cache_option


def trees() -> argparse.ArgumentParser:
    """Make a parent parser with the options about trees and folders."""
    options = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    add = options.add_argument
    add("--project", type=Path, default=Path(), help="the project's root (.)")
    add("--tvm-tree", type=Path, help="patched TVM tree")
    add("--mlc-tree", type=Path, help="patched MLC-LLM tree; without it, the project's own model")
    add("--release", default="unnamed", help=argparse.SUPPRESS)
    add("--applied", type=Path, help=argparse.SUPPRESS)
    add_cache_option(options)
    return options
