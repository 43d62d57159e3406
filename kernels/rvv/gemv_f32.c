// SPDX-License-Identifier: Apache-2.0
//
// y[n] = b[n, k] * x[k], float32: dot products of two rows of b at a time with x, at LMUL=8, so
// that x is loaded once for both and rows are read in the order of memory. All 32 registers are
// in use (two sums, x, a row), hence the inline assembly. Two vectors of multiply-adds take 5
// vector instructions and 3 addresses: 8/128 = 0.063 each at VLEN 256, weighted by LMUL
// 43/128 = 0.336. (Six rows at LMUL=4: 0.104 and 0.307. Columns of b by strided loads: 0.063
// and 0.281, but a strided load is paid by the element where a unit-stride one is paid by the
// cache line, and decoding lives on the speed at which weights are read.)

#include <riscv_vector.h>
#include <stddef.h>

#include "mlc_rvv_linear.h"

// One group of lanes: x and both rows, multiplied by `op` into the sums.
#define MLC_GEMV_GROUP(op)               \
  "vle32.v %[group], (%[x])\n\t"         \
  "vle32.v %[row], (%[b0])\n\t"          \
  "add %[x], %[x], %[bytes]\n\t"         \
  "add %[b0], %[b0], %[bytes]\n\t"       \
  op " %[sum0], %[row], %[group]\n\t"    \
  "vle32.v %[row], (%[b1])\n\t"          \
  "add %[b1], %[b1], %[bytes]\n\t"       \
  op " %[sum1], %[row], %[group]\n\t"

// What is the same for every pair of rows.
typedef struct {
  size_t lanes;   // of a group
  int64_t again;  // whole groups after the first; -1 if there is not even that
  int64_t odd;    // whether `again` is odd
  size_t rest;    // lanes after the last whole group
} mlc_gemv_split;

// *y0 and *y1 = the dot products of b0[k] and b1[k] with x[k].
static inline void mlc_gemv_two_rows(float *y0, float *y1, const float *x, const float *b0,
                                     const float *b1, mlc_gemv_split k) {
  vfloat32m8_t sum0, sum1, group, row;
  __asm__ volatile(
      "vsetvli zero, %[lanes], e32, m8, tu, ma\n\t"
      "bltz %[left], 4f\n\t"
      MLC_GEMV_GROUP("vfmul.vv")
      "beqz %[left], 3f\n\t"
      "bnez %[odd], 2f\n"
      "1:\n\t" MLC_GEMV_GROUP("vfmacc.vv")
      "2:\n\t" MLC_GEMV_GROUP("vfmacc.vv")
      "addi %[left], %[left], -2\n\t"
      "bgtz %[left], 1b\n"
      "3:\n\t"
      "beqz %[rest], 6f\n\t"
      "j 5f\n"
      "4:\n\t"
      "vmv.v.i %[sum0], 0\n\t"
      "vmv.v.i %[sum1], 0\n"
      "5:\n\t"  // Tail undisturbed: lanes past the rest keep their sums.
      "vsetvli zero, %[rest], e32, m8, tu, ma\n\t"
      MLC_GEMV_GROUP("vfmacc.vv")
      "6:\n\t"
      "vsetivli zero, 1, e32, m1, ta, ma\n\t"
      "vmv.s.x %[group], zero\n\t"
      "vsetvli zero, %[lanes], e32, m8, ta, ma\n\t"
      "vfredusum.vs %[sum0], %[sum0], %[group]\n\t"
      "vfredusum.vs %[sum1], %[sum1], %[group]\n\t"
      "vsetivli zero, 1, e32, m1, ta, ma\n\t"
      "vse32.v %[sum1], (%[y1])\n\t"
      "vse32.v %[sum0], (%[y0])\n\t"
      : [sum0] "=&vr"(sum0), [sum1] "=&vr"(sum1), [group] "=&vr"(group), [row] "=&vr"(row),
        [x] "+r"(x), [b0] "+r"(b0), [b1] "+r"(b1), [left] "+r"(k.again)
      : [y0] "r"(y0), [y1] "r"(y1), [lanes] "r"(k.lanes), [odd] "r"(k.odd), [rest] "r"(k.rest),
        [bytes] "r"(k.lanes * sizeof(float))
      : "memory", "vl", "vtype");
}

void mlc_rvv_gemv_f32(float *y, const float *x, const float *b, int64_t n, int64_t k,
                      int64_t ld_b) {
  const size_t lanes = __riscv_vsetvlmax_e32m8();
  const int64_t again = (int64_t)((size_t)k / lanes) - 1;
  const mlc_gemv_split split = {lanes, again, again & 1, (size_t)k % lanes};
  for (; n >= 2; n -= 2) {
    mlc_gemv_two_rows(y, y + 1, x, b, b + ld_b, split);
    y += 2;
    b += 2 * ld_b;
  }
  if (n == 1) mlc_gemv_two_rows(y, y, x, b, b, split);
}
