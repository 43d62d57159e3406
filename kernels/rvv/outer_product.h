// SPDX-License-Identifier: Apache-2.0
//
// acc[8, columns] += lhs[8, depth] * rhs[depth, columns] as a sum of outer products: columns lie in
// vector lanes, every step over the depth takes one row of rhs and multiplies it by one scalar of
// each row of lhs.
//
// Which LMUL? A step over R rows at LMUL=M is R flw, R vfmacc.vf and the load of rhs's row with its
// address, for R * M * VLEN/32 multiply-adds; the accumulators take R * M of the 32 registers. For
// eight rows, at VLEN 256, per multiply-add:
//
//   rows       LMUL  registers  instructions      weighted by LMUL
//   3 + 3 + 2     8     24 + 8  22/512 = 0.043    99/512 = 0.193
//   4 + 4         4     16 + 4  20/256 = 0.078    50/256 = 0.195
//   8             2     16 + 2  18/128 = 0.141    27/128 = 0.211
//   8             1      8 + 1  18/64  = 0.281    18/64  = 0.281
//
// So a strip of columns is done at LMUL=8 while more than an LMUL=4 group of columns is left, and
// what is left after that at the smallest LMUL that holds it: nothing is spent on lanes that are
// not there, at any VLEN. Rows of rhs are in v24 to v31, as many as are loaded at once.
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
  MLC_RVV_ROWS = 8,    // rows of a tile
  MLC_RVV_UNROLL = 16  // steps of an iteration
};

#define MLC_OUTER_1(DO, ...) DO(0, __VA_ARGS__)
#define MLC_OUTER_2(DO, ...) MLC_OUTER_1(DO, __VA_ARGS__) DO(1, __VA_ARGS__)
#define MLC_OUTER_3(DO, ...) MLC_OUTER_2(DO, __VA_ARGS__) DO(2, __VA_ARGS__)
#define MLC_OUTER_4(DO, ...) MLC_OUTER_3(DO, __VA_ARGS__) DO(3, __VA_ARGS__)
#define MLC_OUTER_8(DO, ...)                                                        \
  MLC_OUTER_4(DO, __VA_ARGS__) DO(4, __VA_ARGS__) DO(5, __VA_ARGS__) DO(6, __VA_ARGS__) \
  DO(7, __VA_ARGS__)

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

// Patterns for one row a fetch and, at LMUL=4, 2 and 1, as many as make eight registers.
#define MLC_OUTER_BY_1(f) f, v24, f, v24, f, v24, f, v24, f, v24, f, v24, f, v24, f, v24
#define MLC_OUTER_BY_2(f) f, v24, "", v28, f, v24, "", v28, f, v24, "", v28, f, v24, "", v28
#define MLC_OUTER_BY_4(f) f, v24, "", v26, "", v28, "", v30, f, v24, "", v26, "", v28, "", v30
#define MLC_OUTER_BY_8(f) f, v24, "", v25, "", v26, "", v27, "", v28, "", v29, "", v30, "", v31

// The depth: known, or any number of sixteens.
#define MLC_OUTER_DEPTH_16(R, ...) MLC_OUTER_STEPS(MLC_OUTER_##R, 0, __VA_ARGS__)
#define MLC_OUTER_DEPTH_32(R, ...) \
  MLC_OUTER_DEPTH_16(R, __VA_ARGS__) MLC_OUTER_STEPS(MLC_OUTER_##R, 16, __VA_ARGS__)
#define MLC_OUTER_BUMP(r, _) "addi %[a" #r "], %[a" #r "], 4*16\n\t"
#define MLC_OUTER_DEPTH_ANY(R, ...) \
  "1:\n\t" MLC_OUTER_DEPTH_16(R, __VA_ARGS__) MLC_OUTER_##R(MLC_OUTER_BUMP, ) \
  "bne %[a0], %[end], 1b\n\t"

// Accumulators in and out. Row r lies at a<r> in lhs and at p<r> in acc; `on` leads from the last
// row's a, when the steps are done, to the next block's first. Of eight rows none follows, and
// their way in acc is gone up and down by one register.
#define MLC_OUTER_ADDRESS(r, s) "add %[a" #r "], %[a" #s "], %[ld_a]\n\t"
#define MLC_OUTER_IN(r, s) \
  MLC_OUTER_ADDRESS(r, s) "add %[p" #r "], %[p" #s "], %[ld_c]\n\t" \
  "vle32.v %[c" #r "], (%[p" #r "])\n\t"
#define MLC_OUTER_OUT(r, _) "vse32.v %[c" #r "], (%[p" #r "])\n\t"
#define MLC_OUTER_GO_ON(r) "add %[a0], %[a" #r "], %[on]\n\tadd %[p0], %[p" #r "], %[ld_c]\n\t"
#define MLC_OUTER_IN_1 "vle32.v %[c0], (%[p0])\n\t"
#define MLC_OUTER_IN_2 MLC_OUTER_IN_1 MLC_OUTER_IN(1, 0)
#define MLC_OUTER_IN_3 MLC_OUTER_IN_2 MLC_OUTER_IN(2, 1)
#define MLC_OUTER_IN_4 MLC_OUTER_IN_3 MLC_OUTER_IN(3, 2)
#define MLC_OUTER_OUT_2 MLC_OUTER_2(MLC_OUTER_OUT, ) MLC_OUTER_GO_ON(1)
#define MLC_OUTER_OUT_3 MLC_OUTER_3(MLC_OUTER_OUT, ) MLC_OUTER_GO_ON(2)
#define MLC_OUTER_OUT_4 MLC_OUTER_4(MLC_OUTER_OUT, ) MLC_OUTER_GO_ON(3)
#define MLC_OUTER_DOWN(r, s) \
  MLC_OUTER_ADDRESS(r, s) "add %[p0], %[p0], %[ld_c]\n\tvle32.v %[c" #r "], (%[p0])\n\t"
#define MLC_OUTER_UP(r) "vse32.v %[c" #r "], (%[p0])\n\tsub %[p0], %[p0], %[ld_c]\n\t"
#define MLC_OUTER_IN_8                                                                    \
  MLC_OUTER_IN_1 MLC_OUTER_DOWN(1, 0) MLC_OUTER_DOWN(2, 1) MLC_OUTER_DOWN(3, 2)           \
  MLC_OUTER_DOWN(4, 3) MLC_OUTER_DOWN(5, 4) MLC_OUTER_DOWN(6, 5) MLC_OUTER_DOWN(7, 6)
#define MLC_OUTER_OUT_8                                                                   \
  MLC_OUTER_UP(7) MLC_OUTER_UP(6) MLC_OUTER_UP(5) MLC_OUTER_UP(4) MLC_OUTER_UP(3)         \
  MLC_OUTER_UP(2) MLC_OUTER_UP(1) "vse32.v %[c0], (%[p0])\n\t"

#define MLC_OUTER_SUM(r, M) vfloat32m##M##_t c##r;
#define MLC_OUTER_OPERAND(r, _) , [c##r] "=&vr"(c##r)
#define MLC_OUTER_POINTERS_2 [a1] "=&r"(a1), [p1] "=&r"(p1)
#define MLC_OUTER_POINTERS_3 MLC_OUTER_POINTERS_2, [a2] "=&r"(a2), [p2] "=&r"(p2)
#define MLC_OUTER_POINTERS_4 MLC_OUTER_POINTERS_3, [a3] "=&r"(a3), [p3] "=&r"(p3)
#define MLC_OUTER_POINTERS_8                                                              \
  [a1] "=&r"(a1), [a2] "=&r"(a2), [a3] "=&r"(a3), [a4] "=&r"(a4), [a5] "=&r"(a5),         \
  [a6] "=&r"(a6), [a7] "=&r"(a7)

#define MLC_OUTER_ON_2 , [on] "r"(on)
#define MLC_OUTER_ON_3 , [on] "r"(on)
#define MLC_OUTER_ON_4 , [on] "r"(on)
#define MLC_OUTER_ON_8
#define MLC_OUTER_END_16
#define MLC_OUTER_END_32
#define MLC_OUTER_END_ANY , [end] "r"(end)

// acc[R, lanes] += lhs[R, depth] * rhs, and on to the rows after them.
#define MLC_OUTER_BLOCK(M, R, DEPTH, ...)                                                  \
  {                                                                                        \
    const float *b = rhs;                                                                  \
    __attribute__((unused)) const float *end = lhs + depth, *a1, *a2, *a3, *a4, *a5, *a6, *a7; \
    __attribute__((unused)) float *p1, *p2, *p3;                                           \
    MLC_OUTER_##R(MLC_OUTER_SUM, M)                                                        \
    __asm__ volatile("vsetvli zero, %[lanes], e32, m" #M ", ta, ma\n\t" MLC_OUTER_IN_##R   \
                     MLC_OUTER_DEPTH_##DEPTH(R, __VA_ARGS__) MLC_OUTER_OUT_##R             \
                     : [b] "+r"(b), [a0] "+r"(lhs), [p0] "+r"(acc),                        \
                       MLC_OUTER_POINTERS_##R MLC_OUTER_##R(MLC_OUTER_OPERAND, )           \
                     : [lanes] "r"(lanes), [step] "r"(step), [ld_a] "r"(ld_lhs * 4),       \
                       [ld_c] "r"(ld_acc * 4)MLC_OUTER_ON_##R MLC_OUTER_END_##DEPTH        \
                     : "memory", "vl", "vtype", "ft0", "ft1", "ft2", "ft3", "ft4", "ft5",  \
                       "ft6", "ft7", "fa0", "fa1", "fa2", "fa3", "fa4", "fa5", "fa6",      \
                       "fa7", "v24", "v25", "v26", "v27", "v28", "v29", "v30", "v31");     \
  }
#define MLC_OUTER_BLOCKS_8(DEPTH, ...)                                                     \
  MLC_OUTER_BLOCK(8, 3, DEPTH, __VA_ARGS__) MLC_OUTER_BLOCK(8, 3, DEPTH, __VA_ARGS__)      \
  MLC_OUTER_BLOCK(8, 2, DEPTH, __VA_ARGS__)
#define MLC_OUTER_BLOCKS_4(DEPTH, ...) \
  MLC_OUTER_BLOCK(4, 4, DEPTH, __VA_ARGS__) MLC_OUTER_BLOCK(4, 4, DEPTH, __VA_ARGS__)
#define MLC_OUTER_BLOCKS_2(DEPTH, ...) MLC_OUTER_BLOCK(2, 8, DEPTH, __VA_ARGS__)
#define MLC_OUTER_BLOCKS_1(DEPTH, ...) MLC_OUTER_BLOCK(1, 8, DEPTH, __VA_ARGS__)
#define MLC_OUTER_DEPTH_GONE_16 0
#define MLC_OUTER_DEPTH_GONE_32 0
#define MLC_OUTER_DEPTH_GONE_ANY depth

// What both kinds of functions below begin with.
#define MLC_OUTER_FUNCTION(NAME, DEPTH)                                                        \
  __attribute__((noinline)) static void NAME(float *acc, const float *lhs, const float *rhs,   \
                                             int64_t ld_acc, int64_t ld_lhs, int64_t ld_rhs,   \
                                             int64_t columns, int64_t depth) {                 \
    __attribute__((unused)) const int64_t on =                                                 \
        (ld_lhs - MLC_OUTER_DEPTH_GONE_##DEPTH) * (int64_t)sizeof(float);                      \
    const int64_t step = ld_rhs * (int64_t)sizeof(float);

// Defines NAME, which does as many columns as an LMUL=M group holds. DEPTH is 16, 32 or ANY; then
// comes a pattern, whose fetches have %[b], the address of the row, and %[step], the distance in
// bytes between rows of rhs as it lies.
#define MLC_OUTER_DEFINE(NAME, M, DEPTH, ...)   \
  MLC_OUTER_FUNCTION(NAME, DEPTH)               \
    const size_t lanes = (size_t)columns;       \
    (void)depth;                                \
    MLC_OUTER_BLOCKS_##M(DEPTH, __VA_ARGS__)    \
  }

// Defines NAME, which does columns in strips of an LMUL=8 group while more of them are left than
// LMUL=4 holds, and those that are left by REST. COLUMN_STEP is the distance in rhs between
// neighbouring columns.
#define MLC_OUTER_DEFINE_STRIPS(NAME, DEPTH, REST, COLUMN_STEP, ...)                \
  MLC_OUTER_FUNCTION(NAME, DEPTH)                                                   \
    float *all_acc = acc;                                                           \
    const float *all_lhs = lhs;                                                     \
    const int64_t spare = (int64_t)__riscv_vlenb();                                 \
    do {                                                                            \
      const size_t lanes = __riscv_vsetvl_e32m8((size_t)columns);                   \
      acc = all_acc;                                                                \
      lhs = all_lhs;                                                                \
      MLC_OUTER_BLOCKS_8(DEPTH, __VA_ARGS__)                                        \
      all_acc += lanes;                                                             \
      rhs += (int64_t)lanes * (COLUMN_STEP);                                        \
      columns -= (int64_t)lanes;                                                    \
    } while (columns > spare);                                                      \
    if (columns > 0) REST(all_acc, all_lhs, rhs, ld_acc, ld_lhs, ld_rhs, columns, depth); \
  }

// Defines NAME, which begins with the LMUL that the columns ask for: vlenb is what LMUL=4 holds.
#define MLC_OUTER_DEFINE_ANY(NAME, M8, M4, M2, M1)                                              \
  static inline __attribute__((always_inline)) void NAME(                                       \
      float *acc, const float *lhs, const float *rhs, int64_t ld_acc, int64_t ld_lhs,           \
      int64_t ld_rhs, int64_t columns, int64_t depth) {                                         \
    const int64_t most = (int64_t)__riscv_vlenb();                                              \
    if (columns > most) {                                                                       \
      M8(acc, lhs, rhs, ld_acc, ld_lhs, ld_rhs, columns, depth);                                \
    } else if (2 * columns > most) {                                                            \
      M4(acc, lhs, rhs, ld_acc, ld_lhs, ld_rhs, columns, depth);                                \
    } else if (4 * columns > most) {                                                            \
      M2(acc, lhs, rhs, ld_acc, ld_lhs, ld_rhs, columns, depth);                                \
    } else {                                                                                    \
      M1(acc, lhs, rhs, ld_acc, ld_lhs, ld_rhs, columns, depth);                                \
    }                                                                                           \
  }

#endif  // MLC_RVV_OUTER_PRODUCT_H_
