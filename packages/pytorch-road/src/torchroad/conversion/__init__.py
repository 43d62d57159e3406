# SPDX-License-Identifier: Apache-2.0
"""Conversion of torch's operators to TVM: operators, dtypes and formulas."""
