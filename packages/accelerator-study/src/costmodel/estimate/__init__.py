# SPDX-License-Identifier: Apache-2.0
"""Estimates: the cost of one GEMM, of a model's phases, of a recorded run."""
