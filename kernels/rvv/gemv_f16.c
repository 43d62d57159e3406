// SPDX-License-Identifier: Apache-2.0
//
// y[n] = b[n, k] * x[k], weights and inputs in halves, b in tiles: outputs in lanes. A product of two
// halves is exact in float32, so that results are those of the widened numbers, bit by bit. The loop
// is in loops/float16.py.

#include <riscv_vector.h>

#include "mlc_rvv_linear.h"
#include "mlc_rvv_loops.h"

#if defined(__riscv_zvfh)
void mlc_rvv_gemv_f16_tiles(float *y, const void *x, const void *b, int64_t n, int64_t k,
                            int64_t tile) {
  enum { STEPS = 8 };
  const _Float16 *const inputs = x, *column = b;
  const int64_t whole = k - k % STEPS;
  for (int64_t step; n > 0; n -= step, y += step) {
    step = n < tile ? n : tile;
    const size_t lanes = (size_t)step;
    if (whole > 0) {
      (lanes > __riscv_vsetvlmax_e32m4()   ? mlc_f16_row_m8
       : lanes > __riscv_vsetvlmax_e32m2() ? mlc_f16_row_m4
       : lanes > __riscv_vsetvlmax_e32m1()
           ? mlc_f16_row_m2
           : mlc_f16_row_m1)(y, inputs, column, 2 * step, lanes, whole / STEPS);
      column += whole * step;
    }
    if (whole == k) continue;
    vfloat32m8_t sums =
        whole > 0 ? __riscv_vle32_v_f32m8(y, lanes) : __riscv_vfmv_v_f_f32m8(0, lanes);
    for (int64_t i = whole; i < k; ++i, column += step) {
      sums = __riscv_vfwmacc_vf_f32m8(sums, inputs[i], __riscv_vle16_v_f16m4(column, lanes), lanes);
    }
    __riscv_vse32_v_f32m8(y, sums, lanes);
  }
}
#endif
