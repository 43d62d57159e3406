// SPDX-License-Identifier: Apache-2.0
//
// The heart of the matrix products: rows of a times one panel of b, whose columns lie in vector
// lanes, in blocks of a few rows. loops/float32.py has the loops and says how many rows share what.
#ifndef MLC_RVV_GEMM_ROWS_H_
#define MLC_RVV_GEMM_ROWS_H_

#include <riscv_vector.h>
#include <stddef.h>
#include <stdint.h>

#include "mlc_rvv_kernel_list.h"
#include "mlc_rvv_loops.h"

enum {
  MLC_GEMM_STEPS = 8,  // of an iteration
  MLC_GEMM_WIDE = 3,   // most rows of a block at LMUL 8
  MLC_GEMM_MOST = 6    // most rows of a block at a smaller one
};

// What is the same for all rows of a.
typedef struct {
  int64_t k;     // steps, at least one
  int64_t ld_c;  // distance between rows of c, in elements
  int64_t ld_a;  // the same of a
  int64_t step;  // in bytes: between b's rows if it is a panel, else between its columns
  size_t lanes;  // columns
  int fresh;     // whether c begins at zero
  float *panel;  // room for k rows of `lanes`, if b is not packed yet
} mlc_gemm_by;

// A loop over whole iterations for a number of rows and an LMUL.
typedef void mlc_gemm_loop(const float *c, const float *a, const float *b, float *to, int64_t ld_c,
                           int64_t ld_a, int64_t step, size_t lanes, size_t kept, int64_t times);

// The steps that no iteration is left for: those from `done` on. Rows of b are `step` bytes apart, and
// elements of each `stride`.
__attribute__((noinline)) static void mlc_gemm_rest(float *c, const float *a, const float *b,
                                                    int64_t rows, const mlc_gemm_by *by,
                                                    int64_t step, int64_t stride) {
  const int64_t done = by->k - by->k % MLC_GEMM_STEPS;
  for (int64_t row = 0; row < rows; ++row, a += by->ld_a, c += by->ld_c) {
    const char *at = (const char *)b + done * step;
    vfloat32m8_t sum = by->fresh && done == 0 ? __riscv_vfmv_v_f_f32m8(0.0f, by->lanes)
                                              : __riscv_vle32_v_f32m8(c, by->lanes);
    for (int64_t i = done; i < by->k; ++i, at += step) {
      sum = __riscv_vfmacc_vf_f32m8(
          sum, a[i], __riscv_vlse32_v_f32m8((const float *)at, stride, by->lanes), by->lanes);
    }
    __riscv_vse32_v_f32m8(c, sum, by->lanes);
  }
}

// c[rows, lanes] = (fresh ? 0 : c) + a[rows, k] * b[k, lanes], of a packed panel b.
static inline void mlc_gemm_block(mlc_gemm_loop *run, float *c, const float *a, const float *b,
                                  int64_t rows, const mlc_gemm_by *by) {
  const size_t kept = by->fresh ? 0 : by->lanes;
  if (by->k >= MLC_GEMM_STEPS) {
    run(c, a, b, c, by->ld_c * 4, by->ld_a * 4, by->step, by->lanes, kept, by->k / MLC_GEMM_STEPS);
  }
  if (by->k % MLC_GEMM_STEPS) mlc_gemm_rest(c, a, b, rows, by, by->step, sizeof(float));
}

// Columns of panels of weights as they are stored, for m rows of a.
static inline int64_t mlc_gemm_width(int64_t panel_columns, int64_t m) {
  const int64_t part = (int64_t)__riscv_vsetvlmax_e32m4();
  return m >= MLC_RVV_GEMM_NARROW_ROWS && part < panel_columns ? part : panel_columns;
}

#define MLC_GEMM_LOOPS(M)                                                             \
  {mlc_f32_rows_1_##M, mlc_f32_rows_2_##M, mlc_f32_rows_3_##M, mlc_f32_rows_4_##M,    \
   mlc_f32_rows_5_##M, mlc_f32_rows_6_##M}

// m rows of a times the packed panel b. What is left of m rows is one block, as the panel is read
// anew for each.
static inline void mlc_gemm_panel(float *c, const float *a, const float *panel, int64_t m,
                                  const mlc_gemm_by *by) {
  static mlc_gemm_loop *const of8[] = {mlc_f32_wide_1_m8, mlc_f32_wide_2_m8, mlc_f32_wide_3_m8};
  static mlc_gemm_loop *const narrower[][MLC_GEMM_MOST] = {MLC_GEMM_LOOPS(m4), MLC_GEMM_LOOPS(m2),
                                                           MLC_GEMM_LOOPS(m1)};
  const int wide = by->lanes > __riscv_vsetvlmax_e32m4();
  mlc_gemm_loop *const *loops = wide                                    ? of8
                                : by->lanes > __riscv_vsetvlmax_e32m2() ? narrower[0]
                                : by->lanes > __riscv_vsetvlmax_e32m1() ? narrower[1]
                                                                        : narrower[2];
  const int64_t most = wide ? MLC_GEMM_WIDE : MLC_GEMM_MOST;
  for (int64_t rows; m > 0; m -= rows) {
    rows = m < most ? m : most;
    mlc_gemm_block(loops[rows - 1], c, a, panel, rows, by);
    c += rows * by->ld_c;
    a += rows * by->ld_a;
  }
}

// The same for weights in tiles: in parts of LMUL=4 where four rows or more share each. On real
// cores a multiply-add at LMUL=8 takes as long as two at LMUL=4, and what a row of the panel costs
// is shared by up to six rows rather than three (docs/kernels.md has cycles). Few rows that are
// left of sixes are done at once for a whole tile: half as many scalars.
__attribute__((noinline)) static void mlc_gemm_parts(float *c, const float *a, const float *panel,
                                                     int64_t m, const mlc_gemm_by *by) {
  const size_t part = __riscv_vsetvlmax_e32m4();
  const int64_t rest = m % MLC_GEMM_MOST;
  const int64_t left = by->lanes == 2 * part && rest <= MLC_RVV_GEMM_WIDE_REST ? rest : 0;
  m -= left;
  for (size_t first = 0; first < by->lanes; first += part) {
    mlc_gemm_by columns = *by;
    columns.lanes = by->lanes - first < part ? by->lanes - first : part;
    mlc_gemm_panel(c + first, a, panel + first, m, &columns);
  }
  mlc_gemm_panel(c + m * by->ld_c, a + m * by->ld_a, panel, left, by);
}

static inline void mlc_gemm_tile(float *c, const float *a, const float *panel, int64_t m,
                                 const mlc_gemm_by *by) {
  const int one = m <= MLC_RVV_GEMM_WIDE_ROWS || by->lanes <= __riscv_vsetvlmax_e32m4();
  (one ? mlc_gemm_panel : mlc_gemm_parts)(c, a, panel, m, by);
}

#endif  // MLC_RVV_GEMM_ROWS_H_
