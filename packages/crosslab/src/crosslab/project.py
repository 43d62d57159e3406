# SPDX-License-Identifier: Apache-2.0
"""The checkout around this package, with kernels, runner, cores, overlays and the lock."""

from __future__ import annotations

from pathlib import Path

PROJECT = Path(__file__).resolve().parents[4]
