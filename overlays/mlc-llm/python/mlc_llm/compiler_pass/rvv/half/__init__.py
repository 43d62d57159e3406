# SPDX-License-Identifier: Apache-2.0
"""Half precision as a format of memory: all computation is in float32.

The exception is decode attention on a CPU with vectors of halves (Zvfh): it multiplies halves, and
adds the products up in float32.

The kernels take float32, and a RISC-V CPU without Zfh has no instruction for halves at all. LLVM
would call a function for each conversion, and the two that TVM puts into every module take halves
in integer registers, where RISC-V's calling convention has them in floating-point ones: the
numbers are wrong, and nothing reports it. So there are two passes, :mod:`compute_in_float32` and
:mod:`convert_by_bits`.
"""
