# SPDX-License-Identifier: Apache-2.0
"""Compiler passes for the cost estimate and for devices, as entry points of ``mlc_rvv.passes``."""
