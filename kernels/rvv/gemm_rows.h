// SPDX-License-Identifier: Apache-2.0
//
// The heart of the matrix products: a few rows of a times one panel of b, whose columns lie in
// vector lanes, as a sum of outer products over k. A step loads one row of the panel into one
// register group and multiplies it by one scalar of each row of a:
//
//   rows  LMUL  registers  instructions a step  per multiply-add   weighted by LMUL
//      3     8     24 + 8            2 + 2 * 3    8/192 = 0.042     36/192 = 0.188
//      7     4     28 + 4            2 + 2 * 7   16/224 = 0.071     40/224 = 0.179
//      7     2     14 + 2            2 + 2 * 7   16/112 = 0.143     24/112 = 0.214
//
// (at VLEN 256; a vector load has no offset, so that its address takes an instruction as well).
// Three rows at LMUL=8 need the fewest instructions. Narrow panels, as at the right edge of a
// matrix, take more rows at a smaller LMUL: nothing is spent on columns that are not there.
//
// This is inline assembly because a tile fills the register file: from intrinsics, clang 19 makes
// vfmadd and copies out of vfmacc and spills accumulators. Scalars are loaded one step ahead of
// their use, into two sets of registers by turns. Loops are unrolled by MLC_RVV_GEMM_STEPS; 32 of
// them leave 4 instructions in 260 for the loop.
#ifndef MLC_RVV_GEMM_ROWS_H_
#define MLC_RVV_GEMM_ROWS_H_

#include <riscv_vector.h>
#include <stddef.h>
#include <stdint.h>

#include "mlc_rvv_kernel_list.h"

#define MLC_GEMM_1(DO, ...) DO(0, __VA_ARGS__)
#define MLC_GEMM_2(DO, ...) MLC_GEMM_1(DO, __VA_ARGS__) DO(1, __VA_ARGS__)
#define MLC_GEMM_3(DO, ...) MLC_GEMM_2(DO, __VA_ARGS__) DO(2, __VA_ARGS__)
#define MLC_GEMM_4(DO, ...) MLC_GEMM_3(DO, __VA_ARGS__) DO(3, __VA_ARGS__)
#define MLC_GEMM_5(DO, ...) MLC_GEMM_4(DO, __VA_ARGS__) DO(4, __VA_ARGS__)
#define MLC_GEMM_6(DO, ...) MLC_GEMM_5(DO, __VA_ARGS__) DO(5, __VA_ARGS__)
#define MLC_GEMM_7(DO, ...) MLC_GEMM_6(DO, __VA_ARGS__) DO(6, __VA_ARGS__)

// Assembly: scalars of one step (ft0.. or fa0..), its multiply-adds, whole steps.
#define MLC_GEMM_LOAD(r, set, i) "flw " #set #r ", 4*(" #i ")(%[a" #r "])\n\t"
#define MLC_GEMM_MACC(r, set) "vfmacc.vf %[c" #r "], " #set #r ", %[row]\n\t"
#define MLC_GEMM_BUMP(r, steps) "addi %[a" #r "], %[a" #r "], 4*" #steps "\n\t"
#define MLC_GEMM_STEP(ROWS, NEXT, now, later, i) \
  NEXT ROWS(MLC_GEMM_LOAD, later, i) ROWS(MLC_GEMM_MACC, now)
#define MLC_GEMM_LAST(ROWS, NEXT, now) NEXT ROWS(MLC_GEMM_MACC, now)
// Steps i + 1 to i + 4, but the multiply-adds are one behind; `i` and `fa` are loaded before.
#define MLC_GEMM_STEPS4(ROWS, NEXT, i)                                                 \
  MLC_GEMM_STEP(ROWS, NEXT, ft, fa, i + 1) MLC_GEMM_STEP(ROWS, NEXT, fa, ft, i + 2)    \
  MLC_GEMM_STEP(ROWS, NEXT, ft, fa, i + 3) MLC_GEMM_STEP(ROWS, NEXT, fa, ft, i + 4)
#define MLC_GEMM_STEPS3(ROWS, NEXT, i)                                                 \
  MLC_GEMM_STEP(ROWS, NEXT, ft, fa, i + 1) MLC_GEMM_STEP(ROWS, NEXT, fa, ft, i + 2)    \
  MLC_GEMM_STEP(ROWS, NEXT, ft, fa, i + 3) MLC_GEMM_LAST(ROWS, NEXT, fa)
#define MLC_GEMM_STEPS12(ROWS, NEXT, i)                                                \
  MLC_GEMM_STEPS4(ROWS, NEXT, i) MLC_GEMM_STEPS4(ROWS, NEXT, i + 4)                    \
  MLC_GEMM_STEPS4(ROWS, NEXT, i + 8)
#define MLC_GEMM_STEPS_1(ROWS, NEXT) ROWS(MLC_GEMM_LOAD, ft, 0) MLC_GEMM_LAST(ROWS, NEXT, ft)
#define MLC_GEMM_STEPS_16(ROWS, NEXT) \
  ROWS(MLC_GEMM_LOAD, ft, 0) MLC_GEMM_STEPS12(ROWS, NEXT, 0) MLC_GEMM_STEPS3(ROWS, NEXT, 12)
#define MLC_GEMM_STEPS_32(ROWS, NEXT)                                   \
  ROWS(MLC_GEMM_LOAD, ft, 0) MLC_GEMM_STEPS12(ROWS, NEXT, 0)            \
  MLC_GEMM_STEPS12(ROWS, NEXT, 12) MLC_GEMM_STEPS4(ROWS, NEXT, 24)      \
  MLC_GEMM_STEPS3(ROWS, NEXT, 28)
#define MLC_GEMM_STEPS_64(ROWS, NEXT)                                   \
  ROWS(MLC_GEMM_LOAD, ft, 0) MLC_GEMM_STEPS12(ROWS, NEXT, 0)            \
  MLC_GEMM_STEPS12(ROWS, NEXT, 12) MLC_GEMM_STEPS12(ROWS, NEXT, 24)     \
  MLC_GEMM_STEPS12(ROWS, NEXT, 36) MLC_GEMM_STEPS12(ROWS, NEXT, 48)     \
  MLC_GEMM_STEPS3(ROWS, NEXT, 60)

// How a step fetches its row: from a packed panel; a column of b where it lies; or such a column,
// which is written into the panel for the rows of a that follow.
#define MLC_GEMM_PACKED "vle32.v %[row], (%[b])\n\tadd %[b], %[b], %[step]\n\t"
#define MLC_GEMM_STRIDED "vlse32.v %[row], (%[b]), %[step]\n\taddi %[b], %[b], 4\n\t"
#define MLC_GEMM_PACKING \
  MLC_GEMM_STRIDED "vse32.v %[row], (%[panel])\n\tadd %[panel], %[panel], %[width]\n\t"

#define MLC_GEMM_POINTER(r, _) const float *a##r = a + (r) * by->ld_a;
#define MLC_GEMM_DECLARE(r, M) vfloat32m##M##_t c##r;
#define MLC_GEMM_ZERO(r, M) c##r = __riscv_vfmv_v_f_f32m##M(0.0f, lanes);
#define MLC_GEMM_RESUME(r, M) c##r = __riscv_vle32_v_f32m##M(c + (r) * by->ld_c, lanes);
#define MLC_GEMM_STORE(r, M) __riscv_vse32_v_f32m##M(c + (r) * by->ld_c, c##r, lanes);
#define MLC_GEMM_OPERAND(r, _) , [c##r] "+vr"(c##r), [a##r] "+r"(a##r)
#define MLC_GEMM_RUN(M, ROWS, STEPS, NEXT, times)                                      \
  {                                                                                    \
    const float *end = a0 + STEPS * (times);                                           \
    vfloat32m##M##_t row;                                                              \
    __asm__ volatile("vsetvli zero, %[lanes], e32, m" #M ", ta, ma\n"                  \
                     "1:\n\t" MLC_GEMM_STEPS_##STEPS(ROWS, NEXT)                       \
                     ROWS(MLC_GEMM_BUMP, STEPS) "bne %[a0], %[end], 1b\n\t"            \
                     : [row] "=&vr"(row), [b] "+r"(b),                                 \
                       [panel] "+r"(panel)ROWS(MLC_GEMM_OPERAND, )                     \
                     : [lanes] "r"(lanes), [step] "r"(by->step), [width] "r"(width),   \
                       [end] "r"(end)                                                  \
                     : "memory", "vl", "vtype", "ft0", "ft1", "ft2", "ft3", "ft4",     \
                       "ft5", "ft6", "fa0", "fa1", "fa2", "fa3", "fa4", "fa5", "fa6"); \
  }

// As many steps as are a number of sixteens.
#if MLC_RVV_GEMM_STEPS == 64
#define MLC_GEMM_RUNS(M, ROWS, NEXT)                                 \
  if (by->k >= 64) MLC_GEMM_RUN(M, ROWS, 64, NEXT, by->k / 64)       \
  if (by->k & 32) MLC_GEMM_RUN(M, ROWS, 32, NEXT, 1)                 \
  if (by->k & 16) MLC_GEMM_RUN(M, ROWS, 16, NEXT, 1)
#elif MLC_RVV_GEMM_STEPS == 32
#define MLC_GEMM_RUNS(M, ROWS, NEXT)                                 \
  if (by->k >= 32) MLC_GEMM_RUN(M, ROWS, 32, NEXT, by->k / 32)       \
  if (by->k & 16) MLC_GEMM_RUN(M, ROWS, 16, NEXT, 1)
#else
#define MLC_GEMM_RUNS(M, ROWS, NEXT) \
  if (by->k >= 16) MLC_GEMM_RUN(M, ROWS, 16, NEXT, by->k / 16)
#endif

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

typedef void mlc_gemm_rows(float *c, const float *a, const float *b, const mlc_gemm_by *by);

// c[R, lanes] = (fresh ? 0 : c) + a[R, k] * b[k, lanes].
#define MLC_GEMM_DEFINE(NAME, R, M, NEXT)                                                  \
  __attribute__((noinline)) static void NAME(float *c, const float *a, const float *b,     \
                                             const mlc_gemm_by *by) {                      \
    const size_t lanes = by->lanes, width = lanes * sizeof(float);                         \
    float *panel = by->panel;                                                              \
    MLC_GEMM_##R(MLC_GEMM_POINTER, )                                                       \
    MLC_GEMM_##R(MLC_GEMM_DECLARE, M)                                                      \
    if (by->fresh) {                                                                       \
      MLC_GEMM_##R(MLC_GEMM_ZERO, M)                                                       \
    } else {                                                                               \
      MLC_GEMM_##R(MLC_GEMM_RESUME, M)                                                     \
    }                                                                                      \
    MLC_GEMM_RUNS(M, MLC_GEMM_##R, NEXT)                                                   \
    if (by->k & 15) MLC_GEMM_RUN(M, MLC_GEMM_##R, 1, NEXT, by->k & 15)                     \
    MLC_GEMM_##R(MLC_GEMM_STORE, M)                                                        \
  }

#define MLC_GEMM_DEFINE_3(M)                               \
  MLC_GEMM_DEFINE(mlc_gemm_1xm##M, 1, M, MLC_GEMM_PACKED)  \
  MLC_GEMM_DEFINE(mlc_gemm_2xm##M, 2, M, MLC_GEMM_PACKED)  \
  MLC_GEMM_DEFINE(mlc_gemm_3xm##M, 3, M, MLC_GEMM_PACKED)
#define MLC_GEMM_DEFINE_7(M)                               \
  MLC_GEMM_DEFINE_3(M)                                     \
  MLC_GEMM_DEFINE(mlc_gemm_4xm##M, 4, M, MLC_GEMM_PACKED)  \
  MLC_GEMM_DEFINE(mlc_gemm_5xm##M, 5, M, MLC_GEMM_PACKED)  \
  MLC_GEMM_DEFINE(mlc_gemm_6xm##M, 6, M, MLC_GEMM_PACKED)  \
  MLC_GEMM_DEFINE(mlc_gemm_7xm##M, 7, M, MLC_GEMM_PACKED)
MLC_GEMM_DEFINE_3(8)
MLC_GEMM_DEFINE_7(4)
MLC_GEMM_DEFINE_7(2)

// A kernel for a block of rows.
typedef struct {
  int64_t rows;
  mlc_gemm_rows *run;
} mlc_gemm_block;

// Kernels of one LMUL, for any number of rows up to the most that registers hold: what is left of m
// rows is one block, as the panel is read anew for each.
#define MLC_GEMM_KERNELS_3(M) mlc_gemm_1xm##M, mlc_gemm_2xm##M, mlc_gemm_3xm##M
#define MLC_GEMM_KERNELS_7(M) \
  MLC_GEMM_KERNELS_3(M), mlc_gemm_4xm##M, mlc_gemm_5xm##M, mlc_gemm_6xm##M, mlc_gemm_7xm##M

// Columns of panels of weights as they are stored, for m rows of a.
static inline int64_t mlc_gemm_width(int64_t panel_columns, int64_t m) {
  const int64_t part = (int64_t)__riscv_vsetvlmax_e32m4();
  return m >= MLC_RVV_GEMM_NARROW_ROWS && part < panel_columns ? part : panel_columns;
}

// m rows of a times the packed panel b.
static inline void mlc_gemm_panel(float *c, const float *a, const float *panel, int64_t m,
                                  const mlc_gemm_by *by) {
  static mlc_gemm_rows *const of8[3] = {MLC_GEMM_KERNELS_3(8)};
  static mlc_gemm_rows *const of4[7] = {MLC_GEMM_KERNELS_7(4)};
  static mlc_gemm_rows *const of2[7] = {MLC_GEMM_KERNELS_7(2)};
  const int wide = by->lanes > __riscv_vsetvlmax_e32m4();
  mlc_gemm_rows *const *kernels = wide ? of8 : by->lanes > __riscv_vsetvlmax_e32m2() ? of4 : of2;
  const int64_t most = wide ? 3 : 7;
  while (m > 0) {
    const int64_t rows = m < most ? m : most;
    kernels[rows - 1](c, a, panel, by);
    c += rows * by->ld_c;
    a += rows * by->ld_a;
    m -= rows;
  }
}

// The same for weights in tiles: in parts of LMUL=4 where four rows or more share each. On real
// cores a multiply-add at LMUL=8 takes as long as two at LMUL=4, and what a row of the panel costs
// is shared by up to seven rows rather than three (docs/kernels.md has cycles). Few rows that are
// left of sevens are done at once for a whole tile: half as many scalars.
__attribute__((noinline)) static void mlc_gemm_parts(float *c, const float *a, const float *panel,
                                                     int64_t m, const mlc_gemm_by *by) {
  const size_t part = __riscv_vsetvlmax_e32m4();
  const int64_t left = by->lanes == 2 * part && m % 7 <= MLC_RVV_GEMM_WIDE_REST ? m % 7 : 0;
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
