// SPDX-License-Identifier: Apache-2.0
//
// c[m, n] = a[m, k] * transpose(b[n, k]), float32. Rows of b become lanes: strided loads read
// columns of b, a panel of n at a time. The first rows of a work with what is loaded and write it
// down as rows on their way; the other rows of a read those.

#include "gemm_rows.h"
#include "mlc_rvv_linear.h"

MLC_GEMM_DEFINE(mlc_gemm_3xm8_strided, 3, 8, MLC_GEMM_STRIDED)
MLC_GEMM_DEFINE(mlc_gemm_2xm8_strided, 2, 8, MLC_GEMM_STRIDED)

MLC_GEMM_DEFINE(mlc_gemm_3xm8_packing, 3, 8, MLC_GEMM_PACKING)
MLC_GEMM_DEFINE(mlc_gemm_7xm4_packing, 7, 4, MLC_GEMM_PACKING)
MLC_GEMM_DEFINE(mlc_gemm_3xm4_packing, 3, 4, MLC_GEMM_PACKING)
MLC_GEMM_DEFINE(mlc_gemm_7xm2_packing, 7, 2, MLC_GEMM_PACKING)
MLC_GEMM_DEFINE(mlc_gemm_3xm2_packing, 3, 2, MLC_GEMM_PACKING)

// Up to three rows: b is read once only, so it is used straight from where it lies.
static void mlc_gemm_few_rows(float *c, const float *a, const float *b, int64_t m, int64_t n,
                              int64_t k, int64_t ld_c, int64_t ld_a, int64_t ld_b) {
  mlc_gemm_rows *run = m == 3 ? mlc_gemm_3xm8_strided : mlc_gemm_2xm8_strided;
  while (n > 0) {
    const size_t lanes = __riscv_vsetvl_e32m8((size_t)n);
    const mlc_gemm_by by = {k, ld_c, ld_a, ld_b * (int64_t)sizeof(float), lanes, 1, NULL};
    run(c, a, b, &by);
    c += lanes;
    b += (int64_t)lanes * ld_b;
    n -= (int64_t)lanes;
  }
}

// The block that packs a panel of `lanes` columns; m is at least 3.
static mlc_gemm_block mlc_gemm_first(int64_t m, size_t lanes) {
  if (lanes > __riscv_vsetvlmax_e32m4()) return (mlc_gemm_block){3, mlc_gemm_3xm8_packing};
  if (lanes > __riscv_vsetvlmax_e32m2()) {
    return m >= 7 ? (mlc_gemm_block){7, mlc_gemm_7xm4_packing}
                  : (mlc_gemm_block){3, mlc_gemm_3xm4_packing};
  }
  return m >= 7 ? (mlc_gemm_block){7, mlc_gemm_7xm2_packing}
                : (mlc_gemm_block){3, mlc_gemm_3xm2_packing};
}

void mlc_rvv_gemm_f32(float *c, const float *a, const float *b, int64_t m, int64_t n, int64_t k,
                      int64_t ld_c, int64_t ld_a, int64_t ld_b, float *panel, int64_t panel_rows,
                      int64_t panel_columns) {
  if (m == 1) {
    mlc_rvv_gemv_f32(c, a, b, n, k, ld_b);
    return;
  }
  if (m <= 3) {
    if (m > 0) mlc_gemm_few_rows(c, a, b, m, n, k, ld_c, ld_a, ld_b);
    return;
  }
  const int64_t width = mlc_gemm_width(panel_columns, m);
  while (n > 0) {
    const size_t lanes = __riscv_vsetvl_e32m8((size_t)(n < width ? n : width));
    const mlc_gemm_block block = mlc_gemm_first(m, lanes);
    for (int64_t first = 0; first < k; first += panel_rows) {
      const int64_t depth = k - first < panel_rows ? k - first : panel_rows;
      mlc_gemm_by by = {depth, ld_c, ld_a, ld_b * (int64_t)sizeof(float), lanes, first == 0, panel};
      block.run(c, a + first, b + first, &by);
      by.step = (int64_t)(lanes * sizeof(float));
      mlc_gemm_panel(c + block.rows * ld_c, a + first + block.rows * ld_a, panel, m - block.rows,
                     &by);
    }
    c += lanes;
    b += (int64_t)lanes * ld_b;
    n -= (int64_t)lanes;
  }
}

void mlc_rvv_gemm_f32_tiles(float *c, const float *a, const float *b, int64_t m, int64_t n,
                            int64_t k, int64_t ld_c, int64_t ld_a, int64_t tile) {
  while (n > 0) {
    const int64_t step = n < tile ? n : tile;
    const mlc_gemm_by by = {k, ld_c, ld_a, step * (int64_t)sizeof(float), (size_t)step, 1, NULL};
    mlc_gemm_tile(c, a, b, m, &by);
    c += step;
    b += step * k;
    n -= step;
  }
}
