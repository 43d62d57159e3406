# SPDX-License-Identifier: Apache-2.0
"""Micro-kernels in tiled prefill attention."""
