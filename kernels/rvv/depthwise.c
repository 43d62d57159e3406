// SPDX-License-Identifier: Apache-2.0
//
// The convolution of one channel: outputs of a row in lanes.

#include <riscv_vector.h>

#include "mlc_rvv_linear.h"

void mlc_rvv_depthwise_f32(float *out, const float *x, const float *w, int64_t rows,
                           int64_t columns, int64_t kernel_rows, int64_t kernel_columns,
                           int64_t row_stride, int64_t column_stride, int64_t row_dilation,
                           int64_t column_dilation, int64_t ld_x) {
  const ptrdiff_t bytes = (ptrdiff_t)(column_stride * (int64_t)sizeof(float));
  for (int64_t i = 0; i < rows; ++i, x += row_stride * ld_x) {
    const float *first = x;
    for (int64_t left = columns; left > 0;) {
      const size_t lanes = __riscv_vsetvl_e32m4((size_t)left);
      vfloat32m4_t sums = __riscv_vfmv_v_f_f32m4(0, lanes);
      const float *factor = w;
      for (int64_t a = 0; a < kernel_rows; ++a) {
        const float *from = first + a * row_dilation * ld_x;
        for (int64_t b = 0; b < kernel_columns; ++b, from += column_dilation) {
          const vfloat32m4_t values = column_stride == 1
                                          ? __riscv_vle32_v_f32m4(from, lanes)
                                          : __riscv_vlse32_v_f32m4(from, bytes, lanes);
          sums = __riscv_vfmacc_vf_f32m4(sums, *factor++, values, lanes);
        }
      }
      __riscv_vse32_v_f32m4(out, sums, lanes);
      out += lanes;
      first += (int64_t)lanes * column_stride;
      left -= (int64_t)lanes;
    }
  }
}
