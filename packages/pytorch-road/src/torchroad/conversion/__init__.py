# SPDX-License-Identifier: Apache-2.0
"""Operators of torch as TVM's: what is taken, in which types, and by which formulas."""
