# SPDX-License-Identifier: Apache-2.0
"""A GEMM accelerator with VTA's instruction set: compiler, checker and simulators.

The instruction set is that of VTA (Moreau et al., IEEE Micro 2019; apache/tvm-vta). Predictions
come from :mod:`costmodel`, the C++ compiler from :mod:`crosslab`. docs/accelerator.md has details.
"""
