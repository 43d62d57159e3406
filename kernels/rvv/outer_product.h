// SPDX-License-Identifier: Apache-2.0
//
// acc[16, columns] += lhs[16, depth] * rhs[depth, columns] as a sum of outer products: columns lie in
// vector lanes, every step over the depth takes one row of rhs and multiplies it by one scalar of
// each row of lhs.
//
// Which LMUL? A step over R rows at LMUL=M is R flw, R vfmacc.vf and the load of rhs's row with its
// address, for R * M * VLEN/32 multiply-adds; the accumulators take R * M of the 32 registers. On
// real cores a load takes as long as one or two multiply-adds of its LMUL (SpacemiT's X60: 16.5
// cycles to 8 at LMUL=8), so that what counts is how many rows share it. A step over 16 rows and 64
// columns at VLEN 256:
//
//   rows       strips x LMUL  registers  instructions  cycles on an X60, vector + scalar
//   5 x 3 + 1          1 x 8     24 + 8            44                           227 + 19
//   6 + 5 + 5          2 x 4     24 + 8            76                           180 + 35
//   8 + 8              4 x 2     16 + 8           144                           163 + 68
//
// So a strip of columns is done at LMUL=4 while more than an LMUL=2 group of columns is left, and
// what is left after that at the smallest LMUL that holds it: nothing is spent on lanes that are
// not there, at any VLEN. Rows of rhs are in v24 to v31 by turns.
//
// Tiles are small, so that what surrounds the steps counts: a block of rows is one piece of inline
// assembly from its accumulators' loads to their stores; functions end in calls of each other
// without a frame.
#ifndef MLC_RVV_OUTER_PRODUCT_H_
#define MLC_RVV_OUTER_PRODUCT_H_

#include <riscv_vector.h>
#include <stddef.h>
#include <stdint.h>

enum {
  MLC_RVV_ROWS = 16,   // rows of a tile
  MLC_RVV_UNROLL = 16  // steps of an iteration
};

#define MLC_OUTER_1(DO, ...) DO(0, __VA_ARGS__)
#define MLC_OUTER_2(DO, ...) MLC_OUTER_1(DO, __VA_ARGS__) DO(1, __VA_ARGS__)
#define MLC_OUTER_3(DO, ...) MLC_OUTER_2(DO, __VA_ARGS__) DO(2, __VA_ARGS__)
#define MLC_OUTER_4(DO, ...) MLC_OUTER_3(DO, __VA_ARGS__) DO(3, __VA_ARGS__)
#define MLC_OUTER_5(DO, ...) MLC_OUTER_4(DO, __VA_ARGS__) DO(4, __VA_ARGS__)
#define MLC_OUTER_6(DO, ...) MLC_OUTER_5(DO, __VA_ARGS__) DO(5, __VA_ARGS__)
#define MLC_OUTER_8(DO, ...) \
  MLC_OUTER_6(DO, __VA_ARGS__) DO(6, __VA_ARGS__) DO(7, __VA_ARGS__)

// A step: scalars of the next one into ft0.. or fa0.. by turns, multiply-adds with those of `now`.
#define MLC_OUTER_LOAD(r, set, k) "flw " #set #r ", 4*(" #k ")(%[a" #r "])\n\t"
#define MLC_OUTER_MACC(r, set, row) "vfmacc.vf %[c" #r "], " #set #r ", " #row "\n\t"
#define MLC_OUTER_STEP(ROWS, fetch, row, now, later, k) \
  fetch ROWS(MLC_OUTER_LOAD, later, k) ROWS(MLC_OUTER_MACC, now, row)
#define MLC_OUTER_LAST(ROWS, fetch, row) fetch ROWS(MLC_OUTER_MACC, fa, row)

// Eight steps from step k on; a pattern is what fetches the row of each and the row's register.
#define MLC_OUTER_SEVEN(ROWS, k, f0, r0, f1, r1, f2, r2, f3, r3, f4, r4, f5, r5, f6, r6)     \
  MLC_OUTER_STEP(ROWS, f0, r0, ft, fa, k + 1) MLC_OUTER_STEP(ROWS, f1, r1, fa, ft, k + 2)    \
  MLC_OUTER_STEP(ROWS, f2, r2, ft, fa, k + 3) MLC_OUTER_STEP(ROWS, f3, r3, fa, ft, k + 4)    \
  MLC_OUTER_STEP(ROWS, f4, r4, ft, fa, k + 5) MLC_OUTER_STEP(ROWS, f5, r5, fa, ft, k + 6)    \
  MLC_OUTER_STEP(ROWS, f6, r6, ft, fa, k + 7)
#define MLC_OUTER_EIGHT(ROWS, k, f0, r0, f1, r1, f2, r2, f3, r3, f4, r4, f5, r5, f6, r6, f7, r7) \
  MLC_OUTER_SEVEN(ROWS, k, f0, r0, f1, r1, f2, r2, f3, r3, f4, r4, f5, r5, f6, r6)           \
  MLC_OUTER_STEP(ROWS, f7, r7, fa, ft, k + 8)
#define MLC_OUTER_FINAL(ROWS, k, f0, r0, f1, r1, f2, r2, f3, r3, f4, r4, f5, r5, f6, r6, f7, r7) \
  MLC_OUTER_SEVEN(ROWS, k, f0, r0, f1, r1, f2, r2, f3, r3, f4, r4, f5, r5, f6, r6)           \
  MLC_OUTER_LAST(ROWS, f7, r7)
#define MLC_OUTER_EXPAND(DO, ...) DO(__VA_ARGS__)
#define MLC_OUTER_STEPS(ROWS, k, ...)                                                        \
  ROWS(MLC_OUTER_LOAD, ft, k) MLC_OUTER_EXPAND(MLC_OUTER_EIGHT, ROWS, k, __VA_ARGS__)        \
  MLC_OUTER_EXPAND(MLC_OUTER_FINAL, ROWS, k + 8, __VA_ARGS__)

// The pattern: rows of rhs by turns in two places, LMUL=4 apart.
#define MLC_OUTER_FETCH(v) "vle32.v " #v ", (%[b])\n\tadd %[b], %[b], %[step]\n\t"
#define MLC_OUTER_TWO MLC_OUTER_FETCH(v24), v24, MLC_OUTER_FETCH(v28), v28
#define MLC_OUTER_ROWS MLC_OUTER_TWO, MLC_OUTER_TWO, MLC_OUTER_TWO, MLC_OUTER_TWO

// The depth: known, or any number of sixteens.
#define MLC_OUTER_DEPTH_16(R, ...) MLC_OUTER_STEPS(MLC_OUTER_##R, 0, __VA_ARGS__)
#define MLC_OUTER_DEPTH_32(R, ...) \
  MLC_OUTER_DEPTH_16(R, __VA_ARGS__) MLC_OUTER_STEPS(MLC_OUTER_##R, 16, __VA_ARGS__)
#define MLC_OUTER_BUMP(r, _) "addi %[a" #r "], %[a" #r "], 4*16\n\t"
#define MLC_OUTER_DEPTH_ANY(R, ...) \
  "1:\n\t" MLC_OUTER_DEPTH_16(R, __VA_ARGS__) MLC_OUTER_##R(MLC_OUTER_BUMP, ) \
  "bne %[a0], %[end], 1b\n\t"

// Accumulators in and out. Row r lies at a<r> in lhs and at p<r> in acc; `on` leads from the last
// row's a, when the steps are done, to the next block's first. Of eight rows the way in acc is gone
// down and up by one register.
#define MLC_OUTER_ADDRESS(r, s) "add %[a" #r "], %[a" #s "], %[ld_a]\n\t"
#define MLC_OUTER_IN(r, s) \
  MLC_OUTER_ADDRESS(r, s) "add %[p" #r "], %[p" #s "], %[ld_c]\n\t" \
  "vle32.v %[c" #r "], (%[p" #r "])\n\t"
#define MLC_OUTER_OUT(r, _) "vse32.v %[c" #r "], (%[p" #r "])\n\t"
#define MLC_OUTER_GO_ON(r) "add %[a0], %[a" #r "], %[on]\n\tadd %[p0], %[p" #r "], %[ld_c]\n\t"
#define MLC_OUTER_IN_1 "vle32.v %[c0], (%[p0])\n\t"
#define MLC_OUTER_IN_5 \
  MLC_OUTER_IN_1 MLC_OUTER_IN(1, 0) MLC_OUTER_IN(2, 1) MLC_OUTER_IN(3, 2) MLC_OUTER_IN(4, 3)
#define MLC_OUTER_IN_6 MLC_OUTER_IN_5 MLC_OUTER_IN(5, 4)
#define MLC_OUTER_OUT_5 MLC_OUTER_5(MLC_OUTER_OUT, ) MLC_OUTER_GO_ON(4)
#define MLC_OUTER_OUT_6 MLC_OUTER_6(MLC_OUTER_OUT, ) MLC_OUTER_GO_ON(5)
#define MLC_OUTER_DOWN(r, s) \
  MLC_OUTER_ADDRESS(r, s) "add %[p0], %[p0], %[ld_c]\n\tvle32.v %[c" #r "], (%[p0])\n\t"
#define MLC_OUTER_UP(r) "vse32.v %[c" #r "], (%[p0])\n\tsub %[p0], %[p0], %[ld_c]\n\t"
#define MLC_OUTER_IN_8                                                                    \
  MLC_OUTER_IN_1 MLC_OUTER_DOWN(1, 0) MLC_OUTER_DOWN(2, 1) MLC_OUTER_DOWN(3, 2)           \
  MLC_OUTER_DOWN(4, 3) MLC_OUTER_DOWN(5, 4) MLC_OUTER_DOWN(6, 5) MLC_OUTER_DOWN(7, 6)
#define MLC_OUTER_OUT_8                                                                   \
  MLC_OUTER_UP(7) MLC_OUTER_UP(6) MLC_OUTER_UP(5) MLC_OUTER_UP(4) MLC_OUTER_UP(3)         \
  MLC_OUTER_UP(2) MLC_OUTER_UP(1) "vse32.v %[c0], (%[p0])\n\tadd %[a0], %[a7], %[on]\n\t"

#define MLC_OUTER_SUM(r, M) vfloat32m##M##_t c##r;
#define MLC_OUTER_OPERAND(r, _) , [c##r] "=&vr"(c##r)
#define MLC_OUTER_POINTERS_5                                                              \
  [a1] "=&r"(a1), [p1] "=&r"(p1), [a2] "=&r"(a2), [p2] "=&r"(p2), [a3] "=&r"(a3),         \
  [p3] "=&r"(p3), [a4] "=&r"(a4), [p4] "=&r"(p4)
#define MLC_OUTER_POINTERS_6 MLC_OUTER_POINTERS_5, [a5] "=&r"(a5), [p5] "=&r"(p5)
#define MLC_OUTER_POINTERS_8                                                              \
  [a1] "=&r"(a1), [a2] "=&r"(a2), [a3] "=&r"(a3), [a4] "=&r"(a4), [a5] "=&r"(a5),         \
  [a6] "=&r"(a6), [a7] "=&r"(a7)
#define MLC_OUTER_END_16
#define MLC_OUTER_END_32
#define MLC_OUTER_END_ANY , [end] "r"(end)

// acc[R, lanes] += lhs[R, depth] * rhs, and on to the rows after them.
#define MLC_OUTER_BLOCK(M, R, DEPTH, ...)                                                  \
  {                                                                                        \
    const float *b = rhs;                                                                  \
    __attribute__((unused)) const float *end = lhs + depth, *a1, *a2, *a3, *a4, *a5, *a6, *a7; \
    __attribute__((unused)) float *p1, *p2, *p3, *p4, *p5;                                 \
    MLC_OUTER_##R(MLC_OUTER_SUM, M)                                                        \
    __asm__ volatile("vsetvli zero, %[lanes], e32, m" #M ", ta, ma\n\t" MLC_OUTER_IN_##R   \
                     MLC_OUTER_DEPTH_##DEPTH(R, __VA_ARGS__) MLC_OUTER_OUT_##R             \
                     : [b] "+r"(b), [a0] "+r"(lhs), [p0] "+r"(acc),                        \
                       MLC_OUTER_POINTERS_##R MLC_OUTER_##R(MLC_OUTER_OPERAND, )           \
                     : [lanes] "r"(lanes), [step] "r"(step), [ld_a] "r"(ld_lhs * 4),       \
                       [ld_c] "r"(ld_acc * 4), [on] "r"(on) MLC_OUTER_END_##DEPTH          \
                     : "memory", "vl", "vtype", "ft0", "ft1", "ft2", "ft3", "ft4", "ft5",  \
                       "ft6", "ft7", "fa0", "fa1", "fa2", "fa3", "fa4", "fa5", "fa6",      \
                       "fa7", "v24", "v25", "v26", "v27", "v28", "v29", "v30", "v31");     \
  }
#define MLC_OUTER_BLOCKS_4(DEPTH)                                                          \
  MLC_OUTER_BLOCK(4, 6, DEPTH, MLC_OUTER_ROWS) MLC_OUTER_BLOCK(4, 5, DEPTH, MLC_OUTER_ROWS) \
  MLC_OUTER_BLOCK(4, 5, DEPTH, MLC_OUTER_ROWS)
// Eight rows leave acc where it was.
#define MLC_OUTER_EIGHTS(M, DEPTH)                                                         \
  MLC_OUTER_BLOCK(M, 8, DEPTH, MLC_OUTER_ROWS)                                             \
  acc += 8 * ld_acc;                                                                       \
  MLC_OUTER_BLOCK(M, 8, DEPTH, MLC_OUTER_ROWS)
#define MLC_OUTER_BLOCKS_2(DEPTH) MLC_OUTER_EIGHTS(2, DEPTH)
#define MLC_OUTER_BLOCKS_1(DEPTH) MLC_OUTER_EIGHTS(1, DEPTH)
#define MLC_OUTER_DEPTH_GONE_16 0
#define MLC_OUTER_DEPTH_GONE_32 0
#define MLC_OUTER_DEPTH_GONE_ANY depth

#define MLC_OUTER_FUNCTION(NAME, DEPTH)                                                        \
  __attribute__((noinline)) static void NAME(float *acc, const float *lhs, const float *rhs,   \
                                             int64_t ld_acc, int64_t ld_lhs, int64_t ld_rhs,   \
                                             int64_t columns, int64_t depth) {                 \
    const int64_t on = (ld_lhs - MLC_OUTER_DEPTH_GONE_##DEPTH) * (int64_t)sizeof(float);       \
    const int64_t step = ld_rhs * (int64_t)sizeof(float);

// Defines NAME, which does as many columns as an LMUL=M group holds.
#define MLC_OUTER_DEFINE_COLUMNS(NAME, M, DEPTH) \
  MLC_OUTER_FUNCTION(NAME, DEPTH)                \
    const size_t lanes = (size_t)columns;        \
    (void)depth;                                 \
    MLC_OUTER_BLOCKS_##M(DEPTH)                  \
  }

// Defines NAME, which takes any number of columns, and DEPTH steps: 16, 32 or ANY, which is
// `depth`, a number of sixteens. At most an LMUL=2 group of columns is left to NAME_m2 or NAME_m1,
// what is more is done in strips. vlenb is what LMUL=4 holds.
#define MLC_OUTER_DEFINE(NAME, DEPTH)                                                           \
  MLC_OUTER_DEFINE_COLUMNS(NAME##_m1, 1, DEPTH)                                                 \
  MLC_OUTER_DEFINE_COLUMNS(NAME##_m2, 2, DEPTH)                                                 \
  static inline __attribute__((always_inline)) void NAME##_rest(                                \
      float *acc, const float *lhs, const float *rhs, int64_t ld_acc, int64_t ld_lhs,           \
      int64_t ld_rhs, int64_t columns, int64_t depth) {                                         \
    if (4 * columns > (int64_t)__riscv_vlenb()) {                                               \
      NAME##_m2(acc, lhs, rhs, ld_acc, ld_lhs, ld_rhs, columns, depth);                         \
    } else {                                                                                    \
      NAME##_m1(acc, lhs, rhs, ld_acc, ld_lhs, ld_rhs, columns, depth);                         \
    }                                                                                           \
  }                                                                                             \
  MLC_OUTER_FUNCTION(NAME##_m4, DEPTH)                                                          \
    float *all_acc = acc;                                                                       \
    const float *all_lhs = lhs;                                                                 \
    const int64_t spare = (int64_t)__riscv_vlenb() / 2;                                         \
    do {                                                                                        \
      const size_t lanes = __riscv_vsetvl_e32m4((size_t)columns);                               \
      acc = all_acc;                                                                            \
      lhs = all_lhs;                                                                            \
      MLC_OUTER_BLOCKS_4(DEPTH)                                                                 \
      all_acc += lanes;                                                                         \
      rhs += lanes;                                                                             \
      columns -= (int64_t)lanes;                                                                \
    } while (columns > spare);                                                                  \
    if (columns > 0) NAME##_rest(all_acc, all_lhs, rhs, ld_acc, ld_lhs, ld_rhs, columns, depth); \
  }                                                                                             \
  static inline __attribute__((always_inline)) void NAME(                                       \
      float *acc, const float *lhs, const float *rhs, int64_t ld_acc, int64_t ld_lhs,           \
      int64_t ld_rhs, int64_t columns, int64_t depth) {                                         \
    if (2 * columns > (int64_t)__riscv_vlenb()) {                                               \
      NAME##_m4(acc, lhs, rhs, ld_acc, ld_lhs, ld_rhs, columns, depth);                         \
    } else {                                                                                    \
      NAME##_rest(acc, lhs, rhs, ld_acc, ld_lhs, ld_rhs, columns, depth);                       \
    }                                                                                           \
  }

#endif  // MLC_RVV_OUTER_PRODUCT_H_
