// SPDX-License-Identifier: Apache-2.0
//
// c[m, n] = a[m, k] * transpose(b[n, k]), float32. Rows of b become lanes: strided loads read
// columns of b, a panel of n at a time. The first rows of a work with what is loaded and write it
// down as rows on their way; the other rows of a read those.

#include "gemm_rows.h"
#include "mlc_rvv_linear.h"

// Up to three rows: b is read once only, so it is used straight from where it lies.
static void mlc_gemm_few_rows(float *c, const float *a, const float *b, int64_t m, int64_t n,
                              int64_t k, int64_t ld_c, int64_t ld_a, int64_t ld_b) {
  mlc_gemm_loop *run = m == 3 ? mlc_f32_strided_3_m8 : mlc_f32_strided_2_m8;
  while (n > 0) {
    const size_t lanes = __riscv_vsetvl_e32m8((size_t)n);
    const mlc_gemm_by by = {k, ld_c, ld_a, ld_b * (int64_t)sizeof(float), lanes, 1, NULL};
    if (k >= MLC_GEMM_STEPS) {
      run(c, a, b, c, ld_c * 4, ld_a * 4, by.step, lanes, 0, k / MLC_GEMM_STEPS);
    }
    if (k % MLC_GEMM_STEPS) mlc_gemm_rest(c, a, b, m, &by, sizeof(float), by.step);
    c += lanes;
    b += (int64_t)lanes * ld_b;
    n -= (int64_t)lanes;
  }
}

typedef void packing_loop(const float *c, const float *a, const float *b, float *to, int64_t ld_c,
                          int64_t ld_a, int64_t step, size_t lanes, size_t kept, float *panel,
                          int64_t width, int64_t times);
typedef struct {
  int64_t rows;
  packing_loop *run;
} packing_block;

// The block that packs a panel of `lanes` columns; m is at least 3.
static packing_block first_block(int64_t m, size_t lanes) {
  const int many = m >= MLC_GEMM_MOST;
  if (lanes > __riscv_vsetvlmax_e32m4()) return (packing_block){3, mlc_f32_packing_3_m8};
  if (lanes > __riscv_vsetvlmax_e32m2()) {
    return many ? (packing_block){MLC_GEMM_MOST, mlc_f32_packing_6_m4}
                : (packing_block){3, mlc_f32_packing_3_m4};
  }
  return many ? (packing_block){MLC_GEMM_MOST, mlc_f32_packing_6_m2}
              : (packing_block){3, mlc_f32_packing_3_m2};
}

// Rows of c, while columns of b, `stride` bytes apart, are written to the panel.
static void pack_panel(packing_block block, float *c, const float *a, const float *b,
                       int64_t stride, const mlc_gemm_by *by) {
  const size_t lanes = by->lanes, kept = by->fresh ? 0 : lanes;
  const int64_t done = by->k - by->k % MLC_GEMM_STEPS;
  if (done > 0) {
    block.run(c, a, b, c, by->ld_c * 4, by->ld_a * 4, stride, lanes, kept, by->panel, by->step,
              done / MLC_GEMM_STEPS);
  }
  if (done == by->k) return;
  for (int64_t i = done; i < by->k; ++i) {
    __riscv_vse32_v_f32m8(by->panel + i * (int64_t)lanes,
                          __riscv_vlse32_v_f32m8(b + i, stride, lanes), lanes);
  }
  mlc_gemm_rest(c, a, by->panel, block.rows, by, by->step, sizeof(float));
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
    const packing_block block = first_block(m, lanes);
    for (int64_t first = 0; first < k; first += panel_rows) {
      const int64_t depth = k - first < panel_rows ? k - first : panel_rows;
      const mlc_gemm_by by = {depth, ld_c,       ld_a, (int64_t)(lanes * sizeof(float)),
                              lanes, first == 0, panel};
      pack_panel(block, c, a + first, b + first, ld_b * (int64_t)sizeof(float), &by);
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
