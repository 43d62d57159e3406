// SPDX-License-Identifier: Apache-2.0
//
// c[m, n] = a[m, k] * transpose(b[n, k]), float32. Rows of b become lanes: strided loads read
// columns of b, a panel of n at a time, and write them down as rows, once for all rows of a.

#include "gemm_rows.h"
#include "mlc_rvv_linear.h"

MLC_GEMM_DEFINE(mlc_gemm_3xm8_strided, 3, 8, MLC_GEMM_STRIDED)
MLC_GEMM_DEFINE(mlc_gemm_2xm8_strided, 2, 8, MLC_GEMM_STRIDED)
MLC_GEMM_DEFINE(mlc_gemm_1xm8_strided, 1, 8, MLC_GEMM_STRIDED)

// panel[k, lanes] = transpose(b[lanes, k]).
static void mlc_gemm_pack(float *panel, const float *b, int64_t k, int64_t ld_b, size_t lanes) {
  const ptrdiff_t stride = (ptrdiff_t)(ld_b * (int64_t)sizeof(float));
  for (int64_t i = 0; i < k; ++i) {
    __riscv_vse32_v_f32m8(panel, __riscv_vlse32_v_f32m8(b + i, stride, lanes), lanes);
    panel += lanes;
  }
}

// Up to three rows: b is read once only, so it is used straight from where it lies.
static void mlc_gemm_few_rows(float *c, const float *a, const float *b, int64_t m, int64_t n,
                              int64_t k, int64_t ld_c, int64_t ld_a, int64_t ld_b) {
  mlc_gemm_rows *run = m == 3   ? mlc_gemm_3xm8_strided
                       : m == 2 ? mlc_gemm_2xm8_strided
                                : mlc_gemm_1xm8_strided;
  while (n > 0) {
    const size_t lanes = __riscv_vsetvl_e32m8((size_t)n);
    run(c, a, b, k, ld_c, ld_a, ld_b * (int64_t)sizeof(float), lanes, 1);
    c += lanes;
    b += (int64_t)lanes * ld_b;
    n -= (int64_t)lanes;
  }
}

void mlc_rvv_gemm_f32(float *c, const float *a, const float *b, int64_t m, int64_t n, int64_t k,
                      int64_t ld_c, int64_t ld_a, int64_t ld_b, float *panel,
                      int64_t panel_rows, int64_t panel_columns) {
  if (m <= 3) {
    if (m > 0) mlc_gemm_few_rows(c, a, b, m, n, k, ld_c, ld_a, ld_b);
    return;
  }
  while (n > 0) {
    const size_t lanes = __riscv_vsetvl_e32m8((size_t)(n < panel_columns ? n : panel_columns));
    for (int64_t first = 0; first < k; first += panel_rows) {
      const int64_t depth = k - first < panel_rows ? k - first : panel_rows;
      mlc_gemm_pack(panel, b + first, depth, ld_b, lanes);
      mlc_gemm_panel(c, a + first, panel, m, depth, ld_c, ld_a, lanes, first == 0);
    }
    c += lanes;
    b += (int64_t)lanes * ld_b;
    n -= (int64_t)lanes;
  }
}
