// SPDX-License-Identifier: Apache-2.0
//
// y[n] = b[n, k] * x[k], float32: dot products at LMUL=8, so that rows are read in the order of
// memory. k is split into as few groups of lanes as hold it; x, a row and two sums are the 32
// registers, so that two rows share a group of x:
//
//   vle32.v x        vle32.v row   add   vfmacc.vv sum0     vle32.v row   add   vfmacc.vv sum1
//
// 7 instructions for 128 multiply-adds at VLEN 256, 0.055 each, weighted by LMUL 42/128 = 0.328;
// where the addresses of x do not fit into registers (more than 12 groups) it is one more. A pair
// of rows ends in the seed of its reductions and two times a reduction, a move and a store. Up to
// two groups of x stay in registers for all rows. (Six rows at LMUL=4: 0.104 and 0.307. Columns
// of b by strided loads: 0.052 and 0.271, and no reduction; but a strided load is paid by the
// element where a unit-stride one is paid by the cache line, and decoding lives on the speed at
// which weights are read.)
//
// Groups are of equal length. Where k is no multiple, the last one begins early, so that it ends
// with the row, and meets zeros in place of the x that have been used: nothing is read past a row,
// and the vector length never changes. (So a weight that is infinite gives NaN.)

#include <riscv_vector.h>
#include <stddef.h>

#include "mlc_rvv_linear.h"

enum { GEMV_ROWS = 4 };

// Keeps what is in one function's registers from being spilled around another.
#define MLC_GEMV_ALONE __attribute__((noinline))

// One group of two rows, whose x is at register `at`, and on by register `step`.
#define MLC_GEMV_GROUP(op, at, step)          \
  "vle32.v %[x], (%[" at "])\n\t" MLC_GEMV_ROWS(op, step)
#define MLC_GEMV_ROWS(op, step)               \
  "vle32.v %[row], (%[b0])\n\t"               \
  "add %[b0], %[b0], %[" step "]\n\t"         \
  op " %[sum0], %[row], %[x]\n\t"             \
  "vle32.v %[row], (%[b1])\n\t"               \
  "add %[b1], %[b1], %[" step "]\n\t"         \
  op " %[sum1], %[row], %[x]\n\t"
#define MLC_GEMV_FIRST MLC_GEMV_GROUP("vfmul.vv", "x0", "bytes")
#define MLC_GEMV_MORE(j) MLC_GEMV_GROUP("vfmacc.vv", "x" #j, "bytes")
#define MLC_GEMV_LAST(j) \
  MLC_GEMV_GROUP("vfmacc.vv", "x" #j, "back") MLC_GEMV_GROUP("vfmacc.vv", "last", "skip")

// The sums of two rows to memory. One element is stored rather than moved to a scalar register:
// no core has to wait for its vector unit.
#define MLC_GEMV_END                                    \
  "vmv.s.x %[x], zero\n\t"                              \
  "vfredusum.vs %[sum0], %[sum0], %[x]\n\t"             \
  "vfredusum.vs %[sum1], %[sum1], %[x]\n\t"             \
  "vsetivli zero, 1, e32, m1, ta, ma\n\t"               \
  "vse32.v %[sum0], (%[y])\n\taddi %[y], %[y], 4\n\t"   \
  "vse32.v %[sum1], (%[y])\n\taddi %[y], %[y], 4\n\t"   \
  "vsetvli zero, %[lanes], e32, m8, ta, ma\n\t"

// y[n] for n a positive multiple of four. b has k columns and rows `ld` elements apart; `lanes` of
// a group, x from its beginning, and what the last group meets of it.
typedef void mlc_gemv_rows(float *y, const float *x, const float *last, const float *b0, int64_t n,
                           int64_t k, int64_t ld, int64_t lanes);

// PAIR walks two of the rows, in GROUPS groups.
#define MLC_GEMV_RUN(GROUPS, PAIR, ...)                                                          \
  vfloat32m8_t sum0, sum1, x_group, row;                                                         \
  const float *b1 = b0 + ld, *end = y + n;                                                       \
  const int64_t back = k - ((GROUPS) - 1) * lanes;         /* last but one to last group */      \
  const int64_t skip = 2 * ld - ((GROUPS) - 2) * lanes - back; /* last group to the next row */  \
  __asm__ volatile(                                                                              \
      "vsetvli zero, %[lanes], e32, m8, ta, ma\n"                                                \
      "1:\n\t" PAIR MLC_GEMV_END PAIR MLC_GEMV_END "bne %[y], %[end], 1b\n\t"                    \
      : [sum0] "=&vr"(sum0), [sum1] "=&vr"(sum1), [x] "=&vr"(x_group), [row] "=&vr"(row),        \
        [y] "+r"(y), [b0] "+r"(b0), [b1] "+r"(b1)                                                \
      : [end] "r"(end), [lanes] "r"(lanes), [bytes] "r"(lanes * 4), [back] "r"(back * 4),        \
        [skip] "r"(skip * 4), [last] "r"(last), __VA_ARGS__                                      \
      : "memory", "vl", "vtype", "t0");

#define MLC_GEMV_X(j) [x##j] "r"(x + (j) * lanes)
#define MLC_GEMV_X2 MLC_GEMV_X(0), MLC_GEMV_X(1)
#define MLC_GEMV_X3 MLC_GEMV_X2, MLC_GEMV_X(2)
#define MLC_GEMV_X4 MLC_GEMV_X3, MLC_GEMV_X(3)
#define MLC_GEMV_X5 MLC_GEMV_X4, MLC_GEMV_X(4)
#define MLC_GEMV_X6 MLC_GEMV_X5, MLC_GEMV_X(5)
#define MLC_GEMV_X7 MLC_GEMV_X6, MLC_GEMV_X(6)
#define MLC_GEMV_X8 MLC_GEMV_X7, MLC_GEMV_X(7)
#define MLC_GEMV_X9 MLC_GEMV_X8, MLC_GEMV_X(8)
#define MLC_GEMV_X10 MLC_GEMV_X9, MLC_GEMV_X(9)
#define MLC_GEMV_X11 MLC_GEMV_X10, MLC_GEMV_X(10)

#define MLC_GEMV_2
#define MLC_GEMV_3 MLC_GEMV_MORE(1)
#define MLC_GEMV_4 MLC_GEMV_3 MLC_GEMV_MORE(2)
#define MLC_GEMV_5 MLC_GEMV_4 MLC_GEMV_MORE(3)
#define MLC_GEMV_6 MLC_GEMV_5 MLC_GEMV_MORE(4)
#define MLC_GEMV_7 MLC_GEMV_6 MLC_GEMV_MORE(5)
#define MLC_GEMV_8 MLC_GEMV_7 MLC_GEMV_MORE(6)
#define MLC_GEMV_9 MLC_GEMV_8 MLC_GEMV_MORE(7)
#define MLC_GEMV_10 MLC_GEMV_9 MLC_GEMV_MORE(8)
#define MLC_GEMV_11 MLC_GEMV_10 MLC_GEMV_MORE(9)

// Rows of G groups: J = G - 1 addresses of x besides `last`, of which number I = J - 1 is the last.
#define MLC_GEMV_DEFINE(G, J, I)                                                                \
  MLC_GEMV_ALONE static void mlc_gemv_##G(float *y, const float *x, const float *last,           \
                                           const float *b0, int64_t n, int64_t k, int64_t ld,   \
                                           int64_t lanes) {                                     \
    MLC_GEMV_RUN(G, MLC_GEMV_FIRST MLC_GEMV_##J MLC_GEMV_LAST(I), MLC_GEMV_X##J)                \
  }
MLC_GEMV_DEFINE(3, 2, 1)
MLC_GEMV_DEFINE(4, 3, 2)
MLC_GEMV_DEFINE(5, 4, 3)
MLC_GEMV_DEFINE(6, 5, 4)
MLC_GEMV_DEFINE(7, 6, 5)
MLC_GEMV_DEFINE(8, 7, 6)
MLC_GEMV_DEFINE(9, 8, 7)
MLC_GEMV_DEFINE(10, 9, 8)
MLC_GEMV_DEFINE(11, 10, 9)
MLC_GEMV_DEFINE(12, 11, 10)

// More groups than that: x is walked as rows are, in t0, four groups an iteration after the first
// and MORE, for which (groups - 3) is a multiple of four beyond MORE.
#define MLC_GEMV_NEXT(op)                                  \
  "vle32.v %[x], (t0)\n\tadd t0, t0, %[bytes]\n\t"         \
  MLC_GEMV_ROWS(op, "bytes")
#define MLC_GEMV_NEXT_0
#define MLC_GEMV_NEXT_1 MLC_GEMV_NEXT("vfmacc.vv")
#define MLC_GEMV_NEXT_2 MLC_GEMV_NEXT_1 MLC_GEMV_NEXT_1
#define MLC_GEMV_NEXT_3 MLC_GEMV_NEXT_2 MLC_GEMV_NEXT_1
#define MLC_GEMV_WALK(MORE)                                                                    \
  "mv t0, %[x0]\n\t" MLC_GEMV_NEXT("vfmul.vv") MLC_GEMV_NEXT_##MORE                            \
  "2:\n\t" MLC_GEMV_NEXT_2 MLC_GEMV_NEXT_2 "bne t0, %[stop], 2b\n\t"                           \
  "vle32.v %[x], (t0)\n\t" MLC_GEMV_ROWS("vfmacc.vv", "back")                                  \
  MLC_GEMV_GROUP("vfmacc.vv", "last", "skip")
#define MLC_GEMV_DEFINE_MANY(MORE)                                                              \
  MLC_GEMV_ALONE static void mlc_gemv_many_##MORE(                                              \
      float *y, const float *x, const float *last, const float *b0, int64_t n, int64_t k,       \
      int64_t ld, int64_t lanes) {                                                              \
    const int64_t groups = (k + lanes - 1) / lanes;                                             \
    const float *stop = x + (groups - 2) * lanes;                                               \
    MLC_GEMV_RUN(groups, MLC_GEMV_WALK(MORE), MLC_GEMV_X(0), [stop] "r"(stop))                  \
  }
MLC_GEMV_DEFINE_MANY(0)
MLC_GEMV_DEFINE_MANY(1)
MLC_GEMV_DEFINE_MANY(2)
MLC_GEMV_DEFINE_MANY(3)

// One or two groups: x stays in registers. Here few vectors make a sum, so that its way to memory
// is kept short: it is moved to a scalar register, and the vector length never changes.
#define MLC_GEMV_OUT(at) "vfmv.f.s ft0, %[sum]\n\tfsw ft0, " #at "(%[y])\n\t"
#define MLC_GEMV_ONE(at)                                                                       \
  "vle32.v %[sum], (%[b])\n\tadd %[b], %[b], %[ld]\n\t"                                        \
  "vfmul.vv %[sum], %[sum], %[x0]\n\tvfredusum.vs %[sum], %[sum], %[zero]\n\t" MLC_GEMV_OUT(at)
#define MLC_GEMV_TWO(at)                                                                       \
  "vle32.v %[sum], (%[b])\n\tadd %[b], %[b], %[back]\n\tvfmul.vv %[sum], %[sum], %[x0]\n\t"    \
  "vle32.v %[row], (%[b])\n\tadd %[b], %[b], %[skip]\n\tvfmacc.vv %[sum], %[row], %[x1]\n\t"   \
  "vmv.s.x %[row], zero\n\tvfredusum.vs %[sum], %[sum], %[row]\n\t" MLC_GEMV_OUT(at)
#define MLC_GEMV_FOUR(ROW)                                                                     \
  "vsetvli zero, %[lanes], e32, m8, ta, ma\n"                                                  \
  "1:\n\t" ROW(0) ROW(4) ROW(8) ROW(12) "addi %[y], %[y], 16\n\tbne %[y], %[end], 1b\n\t"

MLC_GEMV_ALONE static void mlc_gemv_1(float *y, const float *x, const float *last, const float *b,
                                      int64_t n, int64_t k, int64_t ld, int64_t lanes) {
  const vfloat32m8_t x0 = __riscv_vle32_v_f32m8(last, (size_t)lanes);
  const vfloat32m1_t zero = __riscv_vfmv_s_f_f32m1(0.0f, 1);
  vfloat32m8_t sum;
  (void)x, (void)k;
  __asm__ volatile(
      MLC_GEMV_FOUR(MLC_GEMV_ONE)
      : [sum] "=&vr"(sum), [y] "+r"(y), [b] "+r"(b)
      : [x0] "vr"(x0), [zero] "vr"(zero), [end] "r"(y + n), [lanes] "r"(lanes), [ld] "r"(ld * 4)
      : "memory", "vl", "vtype", "ft0");
}

MLC_GEMV_ALONE static void mlc_gemv_2(float *y, const float *x, const float *last, const float *b,
                                      int64_t n, int64_t k, int64_t ld, int64_t lanes) {
  const vfloat32m8_t x0 = __riscv_vle32_v_f32m8(x, (size_t)lanes);
  const vfloat32m8_t x1 = __riscv_vle32_v_f32m8(last, (size_t)lanes);
  const int64_t back = k - lanes;
  vfloat32m8_t sum, row;
  __asm__ volatile(MLC_GEMV_FOUR(MLC_GEMV_TWO)
                   : [sum] "=&vr"(sum), [row] "=&vr"(row), [y] "+r"(y), [b] "+r"(b)
                   : [x0] "vr"(x0), [x1] "vr"(x1), [end] "r"(y + n), [lanes] "r"(lanes),
                     [back] "r"(back * 4), [skip] "r"((ld - back) * 4)
                   : "memory", "vl", "vtype", "ft0");
}

static mlc_gemv_rows *mlc_gemv_for(int64_t groups) {
  switch (groups) {
    case 1: return mlc_gemv_1;
    case 2: return mlc_gemv_2;
    case 3: return mlc_gemv_3;
    case 4: return mlc_gemv_4;
    case 5: return mlc_gemv_5;
    case 6: return mlc_gemv_6;
    case 7: return mlc_gemv_7;
    case 8: return mlc_gemv_8;
    case 9: return mlc_gemv_9;
    case 10: return mlc_gemv_10;
    case 11: return mlc_gemv_11;
    case 12: return mlc_gemv_12;
  }
  switch ((groups - 3) % 4) {
    case 0: return mlc_gemv_many_0;
    case 1: return mlc_gemv_many_1;
    case 2: return mlc_gemv_many_2;
    default: return mlc_gemv_many_3;
  }
}

// The dot product of one row, for what is left of n.
MLC_GEMV_ALONE static float mlc_gemv_row(const float *x, const float *b, int64_t k) {
  vfloat32m8_t sum = __riscv_vfmv_v_f_f32m8(0.0f, __riscv_vsetvlmax_e32m8());
  for (int64_t i = 0; i < k;) {
    const size_t lanes = __riscv_vsetvl_e32m8((size_t)(k - i));
    const vfloat32m8_t row = __riscv_vle32_v_f32m8(b + i, lanes);
    sum = __riscv_vfmacc_vv_f32m8_tu(sum, row, __riscv_vle32_v_f32m8(x + i, lanes), lanes);
    i += (int64_t)lanes;
  }
  const vfloat32m1_t zero = __riscv_vfmv_s_f_f32m1(0.0f, 1);
  return __riscv_vfmv_f_s_f32m1_f32(
      __riscv_vfredusum_vs_f32m8_f32m1(sum, zero, __riscv_vsetvlmax_e32m8()));
}

// mlc_gemv_rows where the last group has `used` lanes that the last but one has done.
MLC_GEMV_ALONE static void mlc_gemv_padded(float *y, const float *x, const float *last,
                                           const float *b, int64_t n, int64_t k, int64_t ld,
                                           int64_t lanes, int64_t used, mlc_gemv_rows *run) {
  const size_t all = (size_t)lanes, rest = (size_t)(lanes - used);
  float padded[all];
  __riscv_vse32_v_f32m8(padded, __riscv_vfmv_v_f_f32m8(0.0f, all), all);
  __riscv_vse32_v_f32m8(padded + used, __riscv_vle32_v_f32m8(last, rest), rest);
  run(y, x, padded, b, n, k, ld, lanes);
}

void mlc_rvv_gemv_f32(float *y, const float *x, const float *b, int64_t n, int64_t k,
                      int64_t ld_b) {
  const int64_t most = (int64_t)__riscv_vsetvlmax_e32m8();
  for (; n % GEMV_ROWS != 0; --n) y[n - 1] = mlc_gemv_row(x, b + (n - 1) * ld_b, k);
  if (n == 0) return;
  const int64_t groups = (k + most - 1) / most, lanes = (k + groups - 1) / groups;
  const int64_t used = groups * lanes - k;
  const float *last = x + (groups - 1) * lanes;
  mlc_gemv_rows *run = mlc_gemv_for(groups);
  if (used > 0) {
    mlc_gemv_padded(y, x, last, b, n, k, ld_b, lanes, used, run);
  } else {
    run(y, x, last, b, n, k, ld_b, lanes);
  }
}
