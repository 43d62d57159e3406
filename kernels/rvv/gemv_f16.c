// SPDX-License-Identifier: Apache-2.0
//
// y[n] = b[n, k] * x[k], weights and inputs in halves, b in tiles: outputs in lanes. A product of two
// halves is exact in float32, so that results are those of the widened numbers, bit by bit.

#include <riscv_vector.h>

#include "mlc_rvv_linear.h"

#if defined(__riscv_zvfh)
void mlc_rvv_gemv_f16_tiles(float *y, const void *x, const void *b, int64_t n, int64_t k,
                            int64_t tile) {
  const _Float16 *const inputs = x, *column = b;
  while (n > 0) {
    const size_t lanes = __riscv_vsetvl_e16m4((size_t)(n < tile ? n : tile));
    vfloat32m8_t sums = __riscv_vfmv_v_f_f32m8(0, lanes);
#pragma GCC unroll 4
    for (int64_t i = 0; i < k; ++i) {
      const vfloat16m4_t weights = __riscv_vle16_v_f16m4(column, lanes);
      sums = __riscv_vfwmacc_vf_f32m8(sums, inputs[i], weights, lanes);
      column += lanes;
    }
    __riscv_vse32_v_f32m8(y, sums, lanes);
    y += lanes;
    n -= (int64_t)lanes;
  }
}
#endif
