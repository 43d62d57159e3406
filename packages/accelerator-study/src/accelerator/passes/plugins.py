# SPDX-License-Identifier: Apache-2.0
"""The passes that this package's entry points in the group ``mlc_rvv.passes`` name."""

from __future__ import annotations

from mlc_llm.compiler_pass.rvv.hooks import ExtraPass

from accelerator.passes.attend_on_accelerator import AttendOnAccelerator
from accelerator.passes.call_accelerator import CallAccelerator, DescribeInt8Weights
from accelerator.passes.cost.estimate_cost import EstimateCost

ESTIMATE_COST = ExtraPass("fused", EstimateCost)
ATTEND_ON_ACCELERATOR = ExtraPass("attention", AttendOnAccelerator)
CALL_ACCELERATOR = ExtraPass("linear", CallAccelerator)
DESCRIBE_INT8_WEIGHTS = ExtraPass("metadata", DescribeInt8Weights)
