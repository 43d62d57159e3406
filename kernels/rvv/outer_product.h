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

// Defines NAME: one strip of `lanes` columns (at most an LMUL=M group) of the rows that ROWS
// spells. SIXTEEN_STEPS does MLC_RVV_UNROLL steps and moves rhs on by as many. Never inlined:
// all instances share one copy, and where the compiler sees both halves of an LMUL=4 strip at
// once it keeps the rows of rhs for the second half, for which there are not enough registers.
#define MLC_RVV_DEFINE_STRIP(NAME, M, ROWS, SIXTEEN_STEPS)                                   \
  __attribute__((noinline)) static void NAME(                                                \
      float *acc, const float *lhs, const float *rhs, int64_t ld_acc, int64_t ld_lhs,        \
      int64_t ld_rhs, int64_t depth, size_t lanes) {                                         \
    ROWS(MLC_RVV_BEGIN, M)                                                                   \
    for (int64_t done = 0; done < depth; done += MLC_RVV_UNROLL) {                           \
      SIXTEEN_STEPS(M, ROWS)                                                                 \
      ROWS(MLC_RVV_ADVANCE, M)                                                               \
    }                                                                                        \
    ROWS(MLC_RVV_END, M)                                                                     \
  }

typedef void mlc_rvv_strip(float *acc, const float *lhs, const float *rhs, int64_t ld_acc,
                           int64_t ld_lhs, int64_t ld_rhs, int64_t depth, size_t lanes);

// All columns of MLC_RVV_ROWS rows. `column_step` is the distance in rhs between neighbouring
// columns of a row: 1, or rhs's leading dimension where rhs is transposed.
MLC_RVV_INLINE void mlc_rvv_row_block(float *acc, const float *lhs, const float *rhs,
                                      int64_t ld_acc, int64_t ld_lhs, int64_t ld_rhs,
                                      int64_t column_step, int64_t columns, int64_t depth,
                                      mlc_rvv_strip *strip_m4, mlc_rvv_strip *strip_m2,
                                      mlc_rvv_strip *strip_m1) {
  const int64_t half = MLC_RVV_ROWS / 2;
  size_t left = (size_t)columns;
  while (left > 0) {
    size_t lanes = left;
    if (left > __riscv_vsetvlmax_e32m2()) {
      lanes = __riscv_vsetvl_e32m4(left);
      strip_m4(acc, lhs, rhs, ld_acc, ld_lhs, ld_rhs, depth, lanes);
      strip_m4(acc + half * ld_acc, lhs + half * ld_lhs, rhs, ld_acc, ld_lhs, ld_rhs, depth,
               lanes);
    } else if (left > __riscv_vsetvlmax_e32m1()) {
      strip_m2(acc, lhs, rhs, ld_acc, ld_lhs, ld_rhs, depth, lanes);
    } else {
      strip_m1(acc, lhs, rhs, ld_acc, ld_lhs, ld_rhs, depth, lanes);
    }
    acc += lanes;
    rhs += (int64_t)lanes * column_step;
    left -= lanes;
  }
}

#endif  // MLC_RVV_OUTER_PRODUCT_H_
