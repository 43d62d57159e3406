// SPDX-License-Identifier: Apache-2.0
//
// acc[rows, columns] += lhs[rows, depth] * rhs[depth, columns] as a sum of outer products:
// columns lie in vector lanes, every step over the depth takes one row of rhs and multiplies
// it by one scalar of each row of lhs.
//
// Which LMUL? A step over R rows at LMUL=M is R flw, R vfmacc.vf and the load of rhs's row,
// for R * M * VLEN/32 multiply-adds; the accumulators take R * M of the 32 registers. With a
// unit-stride load and its address, at VLEN 256, per multiply-add:
//
//   rows  LMUL  registers  instructions      weighted by LMUL
//      4     4     16 + 4  10/128 = 0.078    25/128 = 0.195
//      8     2     16 + 2  18/128 = 0.141    27/128 = 0.211
//      8     1      8 + 1  18/64  = 0.281    18/64  = 0.281
//
// So a strip of columns is done at LMUL=4, in two halves of the eight rows, while more than an
// LMUL=2 group of columns is left, and otherwise at the smallest LMUL that holds the rest:
// nothing is spent on lanes that are not there, at any VLEN. The registers left over are for
// the rows of rhs that are loaded ahead. (LMUL=8 with two rows needs fewer instructions, 6/128,
// but more weighted, 27/128, and reads rhs twice as often.)
#ifndef MLC_RVV_OUTER_PRODUCT_H_
#define MLC_RVV_OUTER_PRODUCT_H_

#include <riscv_vector.h>
#include <stddef.h>
#include <stdint.h>

enum {
  MLC_RVV_ROWS = 8,    // rows of a block
  MLC_RVV_UNROLL = 16  // steps of an iteration
};

#define MLC_RVV_INLINE static inline __attribute__((always_inline))

// The types cannot be put into arrays, so rows are spelled out.
#define MLC_RVV_ROWS4(DO, M) DO(M, 0) DO(M, 1) DO(M, 2) DO(M, 3)
#define MLC_RVV_ROWS8(DO, M) MLC_RVV_ROWS4(DO, M) DO(M, 4) DO(M, 5) DO(M, 6) DO(M, 7)

#define MLC_RVV_BEGIN(M, r)                 \
  const float *lhs##r = lhs + (r) * ld_lhs; \
  float *out##r = acc + (r) * ld_acc;       \
  vfloat32m##M##_t sum##r = __riscv_vle32_v_f32m##M(out##r, lanes);
#define MLC_RVV_STEP(M, r) sum##r = __riscv_vfmacc_vf_f32m##M(sum##r, lhs##r[k], row, lanes);
#define MLC_RVV_ADVANCE(M, r) lhs##r += MLC_RVV_UNROLL;
#define MLC_RVV_END(M, r) __riscv_vse32_v_f32m##M(out##r, sum##r, lanes);

// Defines NAME, which does columns in strips of an LMUL=M group while more than `spare` of them
// are left, and returns how many are. ROWS spells R rows. SIXTEEN_STEPS does MLC_RVV_UNROLL
// steps from `row_of_rhs` on. COLUMN_STEP is the distance in rhs between neighbouring columns.
//
// Two things are kept from the compiler. The function is not inlined, so that all instances
// share one copy. And it must not learn the depth: where that is a single iteration, the rows
// of rhs would be kept for the second half of the rows, in registers that there are not.
#define MLC_RVV_DEFINE_STRIPS(NAME, M, R, SIXTEEN_STEPS, COLUMN_STEP)                            \
  __attribute__((noinline)) static int64_t NAME(                                                 \
      float *all_acc, const float *all_lhs, const float *rhs, int64_t ld_acc, int64_t ld_lhs,    \
      int64_t ld_rhs, int64_t columns, int64_t depth) {                                          \
    const int64_t spare = (int64_t)MLC_RVV_SPARE_##M;                                            \
    __asm__("" : "+r"(depth));                                                                   \
    do {                                                                                         \
      const size_t lanes = __riscv_vsetvl_e32m##M((size_t)columns);                              \
      float *acc = all_acc;                                                                      \
      const float *lhs = all_lhs;                                                                \
      _Pragma("clang loop unroll(disable)")                                                      \
      for (int group = 0; group < MLC_RVV_ROWS / R; ++group) {                                   \
        const float *row_of_rhs = rhs;                                                           \
        MLC_RVV_ROWS##R(MLC_RVV_BEGIN, M)                                                        \
        int64_t left = depth;                                                                    \
        do {                                                                                     \
          SIXTEEN_STEPS(M, MLC_RVV_ROWS##R)                                                      \
          MLC_RVV_ROWS##R(MLC_RVV_ADVANCE, M)                                                    \
          left -= MLC_RVV_UNROLL;                                                                \
        } while (left > 0);                                                                      \
        MLC_RVV_ROWS##R(MLC_RVV_END, M)                                                          \
        acc += R * ld_acc;                                                                       \
        lhs += R * ld_lhs;                                                                       \
      }                                                                                          \
      all_acc += lanes;                                                                          \
      rhs += (int64_t)lanes * (COLUMN_STEP);                                                     \
      columns -= (int64_t)lanes;                                                                 \
    } while (columns > spare);                                                                   \
    return columns;                                                                              \
  }

// What the next smaller LMUL holds.
#define MLC_RVV_SPARE_4 __riscv_vsetvlmax_e32m2()
#define MLC_RVV_SPARE_2 __riscv_vsetvlmax_e32m1()
#define MLC_RVV_SPARE_1 0

typedef int64_t mlc_rvv_strips(float *acc, const float *lhs, const float *rhs, int64_t ld_acc,
                               int64_t ld_lhs, int64_t ld_rhs, int64_t columns, int64_t depth);

// All columns of MLC_RVV_ROWS rows.
MLC_RVV_INLINE void mlc_rvv_row_block(float *acc, const float *lhs, const float *rhs,
                                      int64_t ld_acc, int64_t ld_lhs, int64_t ld_rhs,
                                      int64_t columns, int64_t depth, int64_t column_step,
                                      mlc_rvv_strips *by_m4, mlc_rvv_strips *by_m2,
                                      mlc_rvv_strips *by_m1) {
  int64_t done = 0;
  if (columns > (int64_t)MLC_RVV_SPARE_4) {
    done = columns - by_m4(acc, lhs, rhs, ld_acc, ld_lhs, ld_rhs, columns, depth);
  }
  if (done < columns) {
    const int64_t left = columns - done;
    mlc_rvv_strips *rest = left > (int64_t)MLC_RVV_SPARE_2 ? by_m2 : by_m1;
    rest(acc + done, lhs, rhs + done * column_step, ld_acc, ld_lhs, ld_rhs, left, depth);
  }
}

#endif  // MLC_RVV_OUTER_PRODUCT_H_
