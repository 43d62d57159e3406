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
// their use, into two sets of registers by turns.
#ifndef MLC_RVV_GEMM_ROWS_H_
#define MLC_RVV_GEMM_ROWS_H_

#include <riscv_vector.h>
#include <stddef.h>
#include <stdint.h>

enum { MLC_RVV_GEMM_UNROLL = 16 };

#define MLC_GEMM_1(DO, ...) DO(0, __VA_ARGS__)
#define MLC_GEMM_2(DO, ...) MLC_GEMM_1(DO, __VA_ARGS__) DO(1, __VA_ARGS__)
#define MLC_GEMM_3(DO, ...) MLC_GEMM_2(DO, __VA_ARGS__) DO(2, __VA_ARGS__)
#define MLC_GEMM_4(DO, ...) MLC_GEMM_3(DO, __VA_ARGS__) DO(3, __VA_ARGS__)
#define MLC_GEMM_7(DO, ...) \
  MLC_GEMM_4(DO, __VA_ARGS__) DO(4, __VA_ARGS__) DO(5, __VA_ARGS__) DO(6, __VA_ARGS__)

// Assembly: scalars of one step (ft0.. or fa0..), its multiply-adds, whole steps.
#define MLC_GEMM_LOAD(r, set, i) "flw " #set #r ", 4*" #i "(%[a" #r "])\n\t"
#define MLC_GEMM_MACC(r, set) "vfmacc.vf %[c" #r "], " #set #r ", %[row]\n\t"
#define MLC_GEMM_BUMP(r, bytes) "addi %[a" #r "], %[a" #r "], " #bytes "\n\t"
#define MLC_GEMM_STEP(ROWS, NEXT, now, later, i) \
  NEXT ROWS(MLC_GEMM_LOAD, later, i) ROWS(MLC_GEMM_MACC, now)
#define MLC_GEMM_LAST(ROWS, NEXT, now) NEXT ROWS(MLC_GEMM_MACC, now)
#define MLC_GEMM_STEPS4(ROWS, NEXT, i1, i2, i3, i4)                                    \
  MLC_GEMM_STEP(ROWS, NEXT, ft, fa, i1) MLC_GEMM_STEP(ROWS, NEXT, fa, ft, i2)          \
  MLC_GEMM_STEP(ROWS, NEXT, ft, fa, i3) MLC_GEMM_STEP(ROWS, NEXT, fa, ft, i4)
#define MLC_GEMM_STEPS16(ROWS, NEXT)                                                   \
  ROWS(MLC_GEMM_LOAD, ft, 0)                                                           \
  MLC_GEMM_STEPS4(ROWS, NEXT, 1, 2, 3, 4) MLC_GEMM_STEPS4(ROWS, NEXT, 5, 6, 7, 8)      \
  MLC_GEMM_STEPS4(ROWS, NEXT, 9, 10, 11, 12)                                           \
  MLC_GEMM_STEP(ROWS, NEXT, ft, fa, 13) MLC_GEMM_STEP(ROWS, NEXT, fa, ft, 14)          \
  MLC_GEMM_STEP(ROWS, NEXT, ft, fa, 15) MLC_GEMM_LAST(ROWS, NEXT, fa)

// How a step fetches its row: from a packed panel, or a column of b where it lies.
#define MLC_GEMM_PACKED "vle32.v %[row], (%[b])\n\tadd %[b], %[b], %[step]\n\t"
#define MLC_GEMM_STRIDED "vlse32.v %[row], (%[b]), %[step]\n\taddi %[b], %[b], 4\n\t"

#define MLC_GEMM_LOOP(M, BODY)                                                         \
  "vsetvli zero, %[lanes], e32, m" #M ", ta, ma\n"                                     \
  "1:\n\t" BODY "addi %[left], %[left], -1\n\tbnez %[left], 1b\n\t"

#define MLC_GEMM_POINTER(r, _) const float *a##r = a + (r) * ld_a;
#define MLC_GEMM_DECLARE(r, M) vfloat32m##M##_t c##r;
#define MLC_GEMM_ZERO(r, M) c##r = __riscv_vfmv_v_f_f32m##M(0.0f, lanes);
#define MLC_GEMM_RESUME(r, M) c##r = __riscv_vle32_v_f32m##M(c + (r) * ld_c, lanes);
#define MLC_GEMM_STORE(r, M) __riscv_vse32_v_f32m##M(c + (r) * ld_c, c##r, lanes);
#define MLC_GEMM_OPERAND(r, _) , [c##r] "+vr"(c##r), [a##r] "+r"(a##r)
#define MLC_GEMM_RUN(M, ROWS, BODY, count)                                             \
  {                                                                                    \
    int64_t left = count;                                                              \
    vfloat32m##M##_t row;                                                              \
    __asm__ volatile(MLC_GEMM_LOOP(M, BODY)                                            \
                     : [row] "=&vr"(row), [b] "+r"(b),                                 \
                       [left] "+r"(left)ROWS(MLC_GEMM_OPERAND, )                       \
                     : [lanes] "r"(lanes), [step] "r"(step)                            \
                     : "memory", "vl", "vtype", "ft0", "ft1", "ft2", "ft3", "ft4",     \
                       "ft5", "ft6", "fa0", "fa1", "fa2", "fa3", "fa4", "fa5", "fa6"); \
  }

// c[R, lanes] = (fresh ? 0 : c) + a[R, k] * b[k, lanes]; `step` is the distance in bytes between
// b's rows if it is a packed panel, between its columns if it is strided. k > 0.
#define MLC_GEMM_DEFINE(NAME, R, M, NEXT)                                              \
  __attribute__((noinline)) static void NAME(                                          \
      float *c, const float *a, const float *b, int64_t k, int64_t ld_c, int64_t ld_a, \
      int64_t step, size_t lanes, int fresh) {                                         \
    MLC_GEMM_##R(MLC_GEMM_POINTER, )                                                   \
    MLC_GEMM_##R(MLC_GEMM_DECLARE, M)                                                  \
    if (fresh) {                                                                       \
      MLC_GEMM_##R(MLC_GEMM_ZERO, M)                                                   \
    } else {                                                                           \
      MLC_GEMM_##R(MLC_GEMM_RESUME, M)                                                 \
    }                                                                                  \
    if (k >= MLC_RVV_GEMM_UNROLL) {                                                    \
      MLC_GEMM_RUN(M, MLC_GEMM_##R,                                                    \
                   MLC_GEMM_STEPS16(MLC_GEMM_##R, NEXT) MLC_GEMM_##R(MLC_GEMM_BUMP, 64), \
                   k / MLC_RVV_GEMM_UNROLL)                                            \
    }                                                                                  \
    if (k % MLC_RVV_GEMM_UNROLL != 0) {                                                \
      MLC_GEMM_RUN(M, MLC_GEMM_##R,                                                    \
                   MLC_GEMM_##R(MLC_GEMM_LOAD, ft, 0)                                  \
                       MLC_GEMM_LAST(MLC_GEMM_##R, NEXT, ft) MLC_GEMM_##R(MLC_GEMM_BUMP, 4), \
                   k % MLC_RVV_GEMM_UNROLL)                                            \
    }                                                                                  \
    MLC_GEMM_##R(MLC_GEMM_STORE, M)                                                    \
  }

MLC_GEMM_DEFINE(mlc_gemm_3xm8, 3, 8, MLC_GEMM_PACKED)
MLC_GEMM_DEFINE(mlc_gemm_2xm8, 2, 8, MLC_GEMM_PACKED)
MLC_GEMM_DEFINE(mlc_gemm_1xm8, 1, 8, MLC_GEMM_PACKED)
MLC_GEMM_DEFINE(mlc_gemm_7xm4, 7, 4, MLC_GEMM_PACKED)
MLC_GEMM_DEFINE(mlc_gemm_3xm4, 3, 4, MLC_GEMM_PACKED)
MLC_GEMM_DEFINE(mlc_gemm_1xm4, 1, 4, MLC_GEMM_PACKED)
MLC_GEMM_DEFINE(mlc_gemm_7xm2, 7, 2, MLC_GEMM_PACKED)
MLC_GEMM_DEFINE(mlc_gemm_3xm2, 3, 2, MLC_GEMM_PACKED)
MLC_GEMM_DEFINE(mlc_gemm_1xm2, 1, 2, MLC_GEMM_PACKED)

typedef void mlc_gemm_rows(float *c, const float *a, const float *b, int64_t k, int64_t ld_c,
                           int64_t ld_a, int64_t step, size_t lanes, int fresh);

// Kernels for blocks of `most` rows, of `some`, and of one.
typedef struct {
  int64_t most, some;
  mlc_gemm_rows *by_most, *by_some, *by_one;
} mlc_gemm_shape;

// All m rows of a times one packed panel of `lanes` columns and k rows.
static inline void mlc_gemm_panel(float *c, const float *a, const float *panel, int64_t m,
                                  int64_t k, int64_t ld_c, int64_t ld_a, size_t lanes, int fresh) {
  mlc_gemm_shape by = {3, 2, mlc_gemm_3xm8, mlc_gemm_2xm8, mlc_gemm_1xm8};
  if (lanes <= __riscv_vsetvlmax_e32m2()) {
    by = (mlc_gemm_shape){7, 3, mlc_gemm_7xm2, mlc_gemm_3xm2, mlc_gemm_1xm2};
  } else if (lanes <= __riscv_vsetvlmax_e32m4()) {
    by = (mlc_gemm_shape){7, 3, mlc_gemm_7xm4, mlc_gemm_3xm4, mlc_gemm_1xm4};
  }
  while (m > 0) {
    const int64_t rows = m >= by.most ? by.most : m >= by.some ? by.some : 1;
    mlc_gemm_rows *run = m >= by.most ? by.by_most : m >= by.some ? by.by_some : by.by_one;
    run(c, a, panel, k, ld_c, ld_a, (int64_t)(lanes * sizeof(float)), lanes, fresh);
    c += rows * ld_c;
    a += rows * ld_a;
    m -= rows;
  }
}

#endif  // MLC_RVV_GEMM_ROWS_H_
