# SPDX-License-Identifier: Apache-2.0
"""Estimates of the cost of a GEMM, of a model's phases, or of a recorded run."""
