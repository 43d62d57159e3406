// SPDX-License-Identifier: Apache-2.0
//
// What the kernels of int8 activations and q4 weights share: DO for each of R rows, and the sums of a
// group of 32 inputs (int8_q4.c says how).
#ifndef MLC_RVV_INT8_GROUP_H_
#define MLC_RVV_INT8_GROUP_H_

#include <riscv_vector.h>
#include <stddef.h>

#include "mlc_rvv_linear.h"

_Static_assert(MLC_RVV_Q4_GROUP == 32 && MLC_RVV_Q4_ZERO_POINT == 7,
               "sums of 16 bits fit q4 alone");
_Static_assert(MLC_RVV_INT8_BLOCK == 40,
               "offsets in the assembly below are those of a block of 40");

#define MLC_I8_1(DO, ...) DO(0, __VA_ARGS__)
#define MLC_I8_2(DO, ...) MLC_I8_1(DO, __VA_ARGS__) DO(1, __VA_ARGS__)
#define MLC_I8_3(DO, ...) MLC_I8_2(DO, __VA_ARGS__) DO(2, __VA_ARGS__)
#define MLC_I8_4(DO, ...) MLC_I8_3(DO, __VA_ARGS__) DO(3, __VA_ARGS__)
#define MLC_I8_5(DO, ...) MLC_I8_4(DO, __VA_ARGS__) DO(4, __VA_ARGS__)
#define MLC_I8_6(DO, ...) MLC_I8_5(DO, __VA_ARGS__) DO(5, __VA_ARGS__)
#define MLC_I8_7(DO, ...) MLC_I8_6(DO, __VA_ARGS__) DO(6, __VA_ARGS__)
#define MLC_I8_8(DO, ...) MLC_I8_7(DO, __VA_ARGS__) DO(7, __VA_ARGS__)
#define MLC_I8_9(DO, ...) MLC_I8_8(DO, __VA_ARGS__) DO(8, __VA_ARGS__)
#define MLC_I8_10(DO, ...) MLC_I8_9(DO, __VA_ARGS__) DO(9, __VA_ARGS__)
#define MLC_I8_11(DO, ...) MLC_I8_10(DO, __VA_ARGS__) DO(10, __VA_ARGS__)
#define MLC_I8_12(DO, ...) MLC_I8_11(DO, __VA_ARGS__) DO(11, __VA_ARGS__)
#define MLC_I8_13(DO, ...) MLC_I8_12(DO, __VA_ARGS__) DO(12, __VA_ARGS__)
#define MLC_I8_14(DO, ...) MLC_I8_13(DO, __VA_ARGS__) DO(13, __VA_ARGS__)
#define MLC_I8_15(DO, ...) MLC_I8_14(DO, __VA_ARGS__) DO(14, __VA_ARGS__)

// Activations of a row: eight are loaded at once, and an instruction takes the lowest. They are
// shifted, which cores do two at a time, rather than loaded one by one.
#define MLC_I8_X_0 "t0"
#define MLC_I8_X_1 "t1"
#define MLC_I8_X_2 "t2"
#define MLC_I8_X_3 "t3"
#define MLC_I8_X_4 "t4"
#define MLC_I8_X_5 "t5"
#define MLC_I8_X_6 "t6"
#define MLC_I8_X_7 "s2"
#define MLC_I8_X_8 "s3"
#define MLC_I8_X_9 "s4"
#define MLC_I8_X_10 "s5"
#define MLC_I8_X_11 "s6"
#define MLC_I8_X_12 "s7"
#define MLC_I8_X_13 "s8"
#define MLC_I8_X_14 "s9"

#define MLC_I8_EXPAND(DO, ...) DO(__VA_ARGS__)
#define MLC_I8_TYPE(e, m) "vsetvli zero, zero, " e ", " m ", ta, ma\n\t"
#define MLC_I8_TYPE_OF(e, m, vl) "vsetvli zero, %[" vl "], " e ", " m ", ta, ma\n\t"
#define MLC_I8_FETCH(b) "vle8.v " b ", (%[q])\n\tadd %[q], %[q], %[step]\n\t"
#define MLC_I8_LOAD(r, i) "ld " MLC_I8_X_##r ", 40*" #r "+2*" #i "(%[x])\n\t"
#define MLC_I8_SHIFT(r, _) "srli " MLC_I8_X_##r ", " MLC_I8_X_##r ", 8\n\t"
#define MLC_I8_FIRST(r, S, b) "vwmul.vx " MLC_I8_##S##_PART_##r ", " b ", " MLC_I8_X_##r "\n\t"
#define MLC_I8_MORE(r, S, b) "vwmacc.vx " MLC_I8_##S##_PART_##r ", " MLC_I8_X_##r ", " b "\n\t"

// Two inputs: what comes next is fetched before, then nibbles of b are taken apart into b and h.
#define MLC_I8_PAIR(R, S, FIRST, NEXT, b, h)                                 \
  NEXT "vmulhu.vx " h ", " b ", %[c16]\n\tvnmsac.vx " b ", %[c16], " h "\n\t" \
  R(FIRST, S, b) R(MLC_I8_SHIFT, ) R(MLC_I8_MORE, S, h)
#define MLC_I8_TWO(R, S, FIRST, NEXT, b, h, c, d)                            \
  MLC_I8_PAIR(R, S, FIRST, MLC_I8_FETCH(c), b, h) R(MLC_I8_SHIFT, )          \
  MLC_I8_PAIR(R, S, MLC_I8_MORE, NEXT, c, d)
#define MLC_I8_FOUR(R, S, i, FIRST, LAST, b, h, c, d)                        \
  R(MLC_I8_LOAD, i) MLC_I8_TWO(R, S, FIRST, MLC_I8_FETCH(b), b, h, c, d)     \
  R(MLC_I8_SHIFT, ) MLC_I8_TWO(R, S, MLC_I8_MORE, LAST, b, h, c, d)
#define MLC_I8_GROUP(R, S, b, h, c, d)                                       \
  MLC_I8_FETCH(b) MLC_I8_FOUR(R, S, 0, MLC_I8_FIRST, MLC_I8_FETCH(b), b, h, c, d) \
  MLC_I8_FOUR(R, S, 4, MLC_I8_MORE, MLC_I8_FETCH(b), b, h, c, d)             \
  MLC_I8_FOUR(R, S, 8, MLC_I8_MORE, MLC_I8_FETCH(b), b, h, c, d)             \
  MLC_I8_FOUR(R, S, 12, MLC_I8_MORE, , b, h, c, d)

// What is the same for all rows.
typedef struct {
  int64_t groups;  // of inputs, at least one
  int64_t ld_c;    // distance between rows of c, in floats
  int64_t ld_x;    // distance between groups of x, in bytes
  int64_t step;    // lanes of the tile: distance between its rows of bytes, and of scales in floats
  size_t lanes;    // columns
} mlc_i8_by;

#endif  // MLC_RVV_INT8_GROUP_H_
