// SPDX-License-Identifier: Apache-2.0
//
// y[n] = b[n, k] * x[k] for q4 weights, unpacked in registers. Words lie in lanes, so lane i of
// nibble j is input 8 i + j, and x is put into that order once (gemv_q4_prepare). Then a nibble
// costs three instructions: it is masked where it stands, converted to float, which is exact
// (value * 16^j), and multiplied into the sum by x * 16^-j, exact too. The 7 that is taken off
// every value comes in at the start of a sum, as -7 * (the sum of its eight x): so a result
// rounds like a sum of |x * value| + |7 x|. (x * 16^-j is exact while |x| > 2^-98.)
//
// Two rows of b share the loads of x. At LMUL=4 this takes 26 registers, and at VLEN 256 for two
// rows and 256 inputs about 90 instructions: 0.18 a weight.

#include <riscv_vector.h>
#include <stddef.h>

#include "mlc_rvv_linear.h"

enum { NIBBLES = 8, WORDS_PER_GROUP = MLC_RVV_Q4_GROUP / NIBBLES };

// What of x lies at nibble j of word i: ready[j * words + i], j = 8 being -7 times the sum.
static void mlc_q4_ready_word(float *ready, const float *x, int64_t words, int64_t left) {
  float sum = 0.0f, scale = 1.0f;
  for (int64_t j = 0; j < NIBBLES; ++j) {
    const float value = j < left ? x[j] : 0.0f;
    ready[j * words] = value * scale;
    sum += value;
    scale *= 0.0625f;
  }
  ready[NIBBLES * words] = -7.0f * sum;
}

void mlc_rvv_gemv_q4_prepare(float *ready, const float *x, int64_t k) {
  const int64_t words = MLC_RVV_Q4_GROUPS(k) * WORDS_PER_GROUP;
  int64_t i = 0;
  while (i < k / NIBBLES) {
    const size_t lanes = __riscv_vsetvl_e32m1((size_t)(k / NIBBLES - i));
    const vfloat32m1x8_t x8 = __riscv_vlseg8e32_v_f32m1x8(x + NIBBLES * i, lanes);
    float *out = ready + i;
#define MLC_Q4_NIBBLE(j) __riscv_vget_v_f32m1x8_f32m1(x8, j)
#define MLC_Q4_PUT(j) \
  __riscv_vse32_v_f32m1(out + (j) * words, \
                        __riscv_vfmul_vf_f32m1(MLC_Q4_NIBBLE(j), 1.0f / (float)(1 << 4 * (j)), lanes), lanes);
#define MLC_Q4_ADD(a, b) __riscv_vfadd_vv_f32m1(a, b, lanes)
#define MLC_Q4_ADD2(j) MLC_Q4_ADD(MLC_Q4_NIBBLE(j), MLC_Q4_NIBBLE((j) + 1))
    MLC_Q4_PUT(0) MLC_Q4_PUT(1) MLC_Q4_PUT(2) MLC_Q4_PUT(3)
    MLC_Q4_PUT(4) MLC_Q4_PUT(5) MLC_Q4_PUT(6) MLC_Q4_PUT(7)
    const vfloat32m1_t sum =
        MLC_Q4_ADD(MLC_Q4_ADD(MLC_Q4_ADD2(0), MLC_Q4_ADD2(2)), MLC_Q4_ADD(MLC_Q4_ADD2(4), MLC_Q4_ADD2(6)));
    __riscv_vse32_v_f32m1(out + NIBBLES * words, __riscv_vfmul_vf_f32m1(sum, -7.0f, lanes), lanes);
    i += (int64_t)lanes;
  }
  for (; i < words; ++i) mlc_q4_ready_word(ready + i, x + NIBBLES * i, words, k - NIBBLES * i);
}

// Nibble j of both rows' words; the mask comes in a register, or is what is left of a shift.
#define MLC_Q4_MACC(s) \
  "vfcvt.f.xu.v %[t], %[t]\n\tvfmacc.vv %[sum" #s "], %[t], %[x]\n\t"
#define MLC_Q4_STEP(extract)                                                  \
  "vle32.v %[x], (%[ready])\n\tadd %[ready], %[ready], %[step]\n\t"           \
  extract(0) MLC_Q4_MACC(0) extract(1) MLC_Q4_MACC(1)
#define MLC_Q4_LOWEST(s) "vand.vi %[t], %[w" #s "], 15\n\t"
#define MLC_Q4_MASK(s) "vand.vx %[t], %[w" #s "], %[mask]\n\t"
#define MLC_Q4_STEP_NEXT "slli %[mask], %[mask], 4\n\t" MLC_Q4_STEP(MLC_Q4_MASK)

// One row's sum over lanes [lanes], each times the scale of its group, plus the scalar `before`.
static inline vfloat32m1_t mlc_q4_scaled(vfloat32m4_t sum, const float *scales, vuint16m2_t group,
                                         vfloat32m1_t before, size_t lanes) {
  const vfloat32m1_t few = __riscv_vle32_v_f32m1(scales, lanes / WORDS_PER_GROUP);
  const vfloat32m4_t scale = __riscv_vrgatherei16_vv_f32m4(__riscv_vlmul_ext_v_f32m1_f32m4(few), group, lanes);
  return __riscv_vfredusum_vs_f32m4_f32m1(__riscv_vfmul_vv_f32m4(sum, scale, lanes), before, lanes);
}

static inline void mlc_q4_two_rows(float *y0, float *y1, const float *ready, const uint32_t *quants0,
                                   const uint32_t *quants1, const float *scales0,
                                   const float *scales1, int64_t words, vuint16m2_t group) {
  vfloat32m1_t total0 = __riscv_vfmv_s_f_f32m1(0.0f, 1), total1 = total0;
  const int64_t step = words * (int64_t)sizeof(float);
  for (int64_t i = 0; i < words;) {
    const size_t lanes = __riscv_vsetvl_e32m4((size_t)(words - i));
    const vuint32m4_t w0 = __riscv_vle32_v_u32m4(quants0 + i, lanes);
    const vuint32m4_t w1 = __riscv_vle32_v_u32m4(quants1 + i, lanes);
    vfloat32m4_t sum0 = __riscv_vle32_v_f32m4(ready + NIBBLES * words + i, lanes);
    vfloat32m4_t sum1 = sum0, x, t;
    const float *next = ready + i;
    int64_t mask = 15;
    __asm__ volatile(
        "vsetvli zero, %[lanes], e32, m4, ta, ma\n\t"
        MLC_Q4_STEP(MLC_Q4_LOWEST) MLC_Q4_STEP_NEXT MLC_Q4_STEP_NEXT MLC_Q4_STEP_NEXT
        MLC_Q4_STEP_NEXT MLC_Q4_STEP_NEXT MLC_Q4_STEP_NEXT MLC_Q4_STEP_NEXT
        : [sum0] "+vr"(sum0), [sum1] "+vr"(sum1), [x] "=&vr"(x), [t] "=&vr"(t),
          [ready] "+r"(next), [mask] "+r"(mask)
        : [w0] "vr"(w0), [w1] "vr"(w1), [lanes] "r"(lanes), [step] "r"(step)
        : "memory", "vl", "vtype");
    total0 = mlc_q4_scaled(sum0, scales0 + i / WORDS_PER_GROUP, group, total0, lanes);
    total1 = mlc_q4_scaled(sum1, scales1 + i / WORDS_PER_GROUP, group, total1, lanes);
    i += (int64_t)lanes;
  }
  __riscv_vse32_v_f32m1(y1, total1, 1);
  __riscv_vse32_v_f32m1(y0, total0, 1);
}

void mlc_rvv_gemv_q4(float *y, const float *ready, const uint32_t *quants, const float *scales,
                     int64_t n, int64_t k) {
  const int64_t groups = MLC_RVV_Q4_GROUPS(k), words = groups * WORDS_PER_GROUP;
  // The group, within a run of words, that the scale of each lane belongs to.
  const size_t most = __riscv_vsetvlmax_e16m2();
  const vuint16m2_t group = __riscv_vsrl_vx_u16m2(__riscv_vid_v_u16m2(most), 2, most);
  for (int64_t i = 0; i < n; i += 2) {
    const int64_t j = i + 1 < n ? i + 1 : i;  // an odd row is done twice
    mlc_q4_two_rows(y + i, y + j, ready, quants + i * words, quants + j * words,
                    scales + i * groups, scales + j * groups, words, group);
  }
}
