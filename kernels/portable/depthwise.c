// SPDX-License-Identifier: Apache-2.0
//
// The convolution of one channel for the host.

#include "mlc_rvv_linear.h"

void mlc_rvv_depthwise_f32(float *out, const float *x, const float *w, int64_t rows,
                           int64_t columns, int64_t kernel_rows, int64_t kernel_columns,
                           int64_t row_stride, int64_t column_stride, int64_t row_dilation,
                           int64_t column_dilation, int64_t ld_x) {
  for (int64_t i = 0; i < rows; ++i, x += row_stride * ld_x, out += columns) {
    for (int64_t j = 0; j < columns; ++j) out[j] = 0.0f;
    for (int64_t a = 0; a < kernel_rows; ++a) {
      for (int64_t b = 0; b < kernel_columns; ++b) {
        const float factor = w[a * kernel_columns + b];
        const float *const from = x + a * row_dilation * ld_x + b * column_dilation;
        for (int64_t j = 0; j < columns; ++j) out[j] += factor * from[j * column_stride];
      }
    }
  }
}
