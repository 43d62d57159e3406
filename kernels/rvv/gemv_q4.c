// SPDX-License-Identifier: Apache-2.0
//
// y[n] = b[n, k] * x[k] for q4 weights, unpacked in registers. Rows of b lie in lanes and one word
// of each is loaded at a time, so that a sum never crosses lanes, x comes as scalars, and nothing
// depends on how k divides. A nibble costs four instructions: it is masked where it stands,
// converted to float, which is exact (value * 16^j), and multiplied into the sum of its group by
// x * 16^-j, exact too while |x| > 2^-98 (gemv_q4_prepare). The 7 that is taken off every value
// comes in at the start of a group's sum, as -7 * (the sum of its x); the scale at its end. So a
// result rounds like a sum of |x * value| + |7 x|.
//
// Words are loaded by strides, which are paid by the element; but one element is eight weights,
// and the 24 vector instructions which they take are as long again as the load. A group of 32
// inputs for 64 rows (VLEN 256) takes 141 instructions and the loop's two: 0.070 a weight, weighted
// by LMUL 0.42. (Words of one row in lanes, two rows sharing x at LMUL=4: 0.125 and 0.42 before
// scales, which must be spread over the lanes, and before the reduction.)

#include <riscv_vector.h>
#include <stddef.h>

#include "mlc_rvv_linear.h"

// ready[36 * group + i] = x[32 * group + i] * 16^-(i % 8) for i < 32, and -7 times their sum at 32.
enum { READY_GROUP = 36 };

__attribute__((noinline)) void mlc_rvv_gemv_q4_prepare(float *ready, const float *x, int64_t k) {
  const size_t lanes = MLC_RVV_Q4_GROUP;
  const vuint32m8_t nibble = __riscv_vand_vx_u32m8(__riscv_vid_v_u32m8(lanes), 7, lanes);
  // 16^-j: an exponent that is less by 4 j.
  const vfloat32m8_t factor = __riscv_vreinterpret_v_u32m8_f32m8(
      __riscv_vrsub_vx_u32m8(__riscv_vsll_vx_u32m8(nibble, 25, lanes), 127u << 23, lanes));
  const vfloat32m1_t zero = __riscv_vfmv_s_f_f32m1(0.0f, 1);
#define MLC_Q4_READY                                                                     \
  __riscv_vse32_v_f32m8(ready, __riscv_vfmul_vv_f32m8(group, factor, lanes), lanes);     \
  ready[MLC_RVV_Q4_GROUP] = -7.0f * __riscv_vfmv_f_s_f32m1_f32(                          \
                                        __riscv_vfredusum_vs_f32m8_f32m1(group, zero, lanes));
  for (; k >= MLC_RVV_Q4_GROUP; k -= MLC_RVV_Q4_GROUP) {
    const vfloat32m8_t group = __riscv_vle32_v_f32m8(x, lanes);
    MLC_Q4_READY
    x += MLC_RVV_Q4_GROUP;
    ready += READY_GROUP;
  }
  if (k > 0) {
    const vfloat32m8_t none = __riscv_vfmv_v_f_f32m8(0.0f, lanes);
    const vfloat32m8_t group = __riscv_vle32_v_f32m8_tu(none, x, (size_t)k);
    MLC_Q4_READY
  }
}

// One nibble of every word, from a mask; x at `at` bytes of the group's.
#define MLC_Q4_NIBBLE(at, mask)                     \
  "flw ft0, " #at "(%[ready])\n\t" mask             \
  "vfcvt.f.xu.v %[t], %[t]\n\t"                     \
  "vfmacc.vf %[sum], ft0, %[t]\n\t"
#define MLC_Q4_MASK(j) "vand.vx %[t], %[w], %[mask" #j "]\n\t"
#define MLC_Q4_DOT_WORD(at)                                                               \
  "vlse32.v %[w], (%[quants]), %[stride]\n\t"                                         \
  "addi %[quants], %[quants], 4\n\t"                                                  \
  MLC_Q4_NIBBLE(at + 0, "vand.vi %[t], %[w], 15\n\t")                                 \
  MLC_Q4_NIBBLE(at + 4, MLC_Q4_MASK(1)) MLC_Q4_NIBBLE(at + 8, MLC_Q4_MASK(2))         \
  MLC_Q4_NIBBLE(at + 12, MLC_Q4_MASK(3)) MLC_Q4_NIBBLE(at + 16, MLC_Q4_MASK(4))       \
  MLC_Q4_NIBBLE(at + 20, MLC_Q4_MASK(5)) MLC_Q4_NIBBLE(at + 24, MLC_Q4_MASK(6))       \
  MLC_Q4_NIBBLE(at + 28, MLC_Q4_MASK(7))

// y[lanes], lanes being at most a group of M registers.
#define MLC_Q4_DOT_DEFINE(NAME, M)                                                               \
  __attribute__((noinline)) static void NAME(float *y, const float *ready,                   \
                                             const uint32_t *quants, const float *scales,    \
                                             int64_t groups, size_t lanes) {                 \
    const int64_t scale_stride = groups * (int64_t)sizeof(float), stride = 4 * scale_stride; \
    const float *end = scales + groups;                                                      \
    vfloat32m##M##_t total = __riscv_vfmv_v_f_f32m##M(0.0f, lanes), sum, t;                  \
    vuint32m##M##_t w;                                                                       \
    __asm__ volatile(                                                                        \
        "vsetvli zero, %[lanes], e32, m" #M ", ta, ma\n"                                     \
        "1:\n\t"                                                                             \
        "flw ft0, 128(%[ready])\n\t"                                                         \
        "vfmv.v.f %[sum], ft0\n\t"                                                           \
        MLC_Q4_DOT_WORD(0) MLC_Q4_DOT_WORD(32) MLC_Q4_DOT_WORD(64) MLC_Q4_DOT_WORD(96)       \
        "addi %[ready], %[ready], 144\n\t"                                                   \
        "vlse32.v %[t], (%[scales]), %[scale_stride]\n\t"                                    \
        "addi %[scales], %[scales], 4\n\t"                                                   \
        "vfmacc.vv %[total], %[sum], %[t]\n\t"                                               \
        "bne %[scales], %[end], 1b\n\t"                                                      \
        : [total] "+vr"(total), [sum] "=&vr"(sum), [t] "=&vr"(t), [w] "=&vr"(w),             \
          [ready] "+r"(ready), [quants] "+r"(quants), [scales] "+r"(scales)                  \
        : [lanes] "r"(lanes), [stride] "r"(stride), [scale_stride] "r"(scale_stride),        \
          [end] "r"(end), [mask1] "r"(15u << 4), [mask2] "r"(15u << 8), [mask3] "r"(15u << 12), \
          [mask4] "r"(15u << 16), [mask5] "r"(15u << 20), [mask6] "r"(15u << 24),            \
          [mask7] "r"(15u << 28)                                                             \
        : "memory", "vl", "vtype", "ft0");                                                   \
    __riscv_vse32_v_f32m##M(y, total, lanes);                                                \
  }

MLC_Q4_DOT_DEFINE(mlc_gemv_q4_m8, 8)
MLC_Q4_DOT_DEFINE(mlc_gemv_q4_m4, 4)
MLC_Q4_DOT_DEFINE(mlc_gemv_q4_m2, 2)
MLC_Q4_DOT_DEFINE(mlc_gemv_q4_m1, 1)

void mlc_rvv_gemv_q4(float *y, const float *ready, const uint32_t *quants, const float *scales,
                     int64_t n, int64_t k) {
  const int64_t groups = MLC_RVV_GROUPS(k, MLC_RVV_Q4_GROUP);
  while (n > 0) {
    const size_t lanes = __riscv_vsetvl_e32m8((size_t)n);
    // What is left at the end of a matrix is done at the smallest LMUL that holds it.
    if (lanes > __riscv_vsetvlmax_e32m4()) {
      mlc_gemv_q4_m8(y, ready, quants, scales, groups, lanes);
    } else if (lanes > __riscv_vsetvlmax_e32m2()) {
      mlc_gemv_q4_m4(y, ready, quants, scales, groups, lanes);
    } else if (lanes > __riscv_vsetvlmax_e32m1()) {
      mlc_gemv_q4_m2(y, ready, quants, scales, groups, lanes);
    } else {
      mlc_gemv_q4_m1(y, ready, quants, scales, groups, lanes);
    }
    y += lanes;
    quants += (int64_t)lanes * 4 * groups;
    scales += (int64_t)lanes * groups;
    n -= (int64_t)lanes;
  }
}
