// SPDX-License-Identifier: Apache-2.0
//
// c[m, n] = a[m, k] * transpose(b[n, k]) for q4 weights: as gemm_f32.c does, but rows of b are
// unpacked to float32 when they are written to the panel, once for all rows of a. A word of each of
// 64 rows of b (at VLEN 256) lies in a lane, and gives eight rows of the panel. A word, a scale, a
// weight and one sum fill the registers, so that one row of a is multiplied while the panel is
// written, and the other rows read the panel.

#include "gemm_rows.h"
#include "mlc_rvv_linear.h"

// The weight of one nibble, which `take` gets from the word, into the panel and the sum; a lies at
// `at` bytes.
#define MLC_Q4_WEIGHT(at, take)                                                   \
  take "vadd.vi %[t], %[t], -7\n\t"                                               \
  "flw ft0, " #at "(%[a])\n\t"                                                    \
  "vfcvt.f.x.v %[t], %[t]\n\tvfmul.vv %[t], %[t], %[scale]\n\t"                   \
  "vse32.v %[t], (%[panel])\n\tadd %[panel], %[panel], %[width]\n\t"              \
  "vfmacc.vf %[sum], ft0, %[t]\n\t"
#define MLC_Q4_SHIFT(by) "vsrl.vi %[t], %[w], " #by "\n\t"
#define MLC_Q4_AND(from) "vand.vi %[t], " from ", 15\n\t"
#define MLC_Q4_UNPACK(at, by) MLC_Q4_WEIGHT(at, MLC_Q4_SHIFT(by) MLC_Q4_AND("%[t]"))
#define MLC_Q4_UNPACK_WORD(at)                                                           \
  "vlse32.v %[w], (%[quants]), %[stride]\n\taddi %[quants], %[quants], 4\n\t"     \
  MLC_Q4_WEIGHT(at + 0, MLC_Q4_AND("%[w]")) MLC_Q4_UNPACK(at + 4, 4)              \
  MLC_Q4_UNPACK(at + 8, 8) MLC_Q4_UNPACK(at + 12, 12) MLC_Q4_UNPACK(at + 16, 16)  \
  MLC_Q4_UNPACK(at + 20, 20) MLC_Q4_UNPACK(at + 24, 24)                           \
  MLC_Q4_WEIGHT(at + 28, MLC_Q4_SHIFT(28))

// The panel's [by->k, lanes] weights from group `first` on, and row 0 of c, for groups of
// weights whose words and scales are given by their first row's.
#define MLC_Q4_UNPACK_DEFINE(NAME, M)                                                          \
  __attribute__((noinline)) static void NAME(float *c, const float *a, const uint32_t *quants, \
                                             const float *scales, int64_t groups,              \
                                             const mlc_gemm_by *by) {                          \
    const size_t lanes = by->lanes, width = lanes * sizeof(float);                             \
    const int64_t scale_stride = groups * (int64_t)sizeof(float), stride = 4 * scale_stride;   \
    float *panel = by->panel;                                                                  \
    vfloat32m##M##_t sum = by->fresh ? __riscv_vfmv_v_f_f32m##M(0.0f, lanes)                   \
                                     : __riscv_vle32_v_f32m##M(c, lanes);                      \
    if (by->k >= MLC_RVV_Q4_GROUP) {                                                           \
      const float *end = scales + by->k / MLC_RVV_Q4_GROUP;                                    \
      vfloat32m##M##_t scale, t;                                                               \
      vuint32m##M##_t w;                                                                       \
      __asm__ volatile(                                                                        \
          "vsetvli zero, %[lanes], e32, m" #M ", ta, ma\n"                                     \
          "1:\n\t"                                                                             \
          "vlse32.v %[scale], (%[scales]), %[scale_stride]\n\taddi %[scales], %[scales], 4\n\t" \
          MLC_Q4_UNPACK_WORD(0) MLC_Q4_UNPACK_WORD(32)                                         \
          MLC_Q4_UNPACK_WORD(64) MLC_Q4_UNPACK_WORD(96)                                        \
          "addi %[a], %[a], 128\n\tbne %[scales], %[end], 1b\n\t"                              \
          : [sum] "+vr"(sum), [scale] "=&vr"(scale), [t] "=&vr"(t), [w] "=&vr"(w), [a] "+r"(a), \
            [quants] "+r"(quants), [scales] "+r"(scales), [panel] "+r"(panel)                  \
          : [lanes] "r"(lanes), [stride] "r"(stride), [scale_stride] "r"(scale_stride),        \
            [width] "r"(width), [end] "r"(end)                                                 \
          : "memory", "vl", "vtype", "ft0");                                                   \
    }                                                                                          \
    for (int64_t i = 0; i < by->k % MLC_RVV_Q4_GROUP; ++i) {                                   \
      const vuint32m##M##_t word = __riscv_vlse32_v_u32m##M(quants + i / 8, stride, lanes);    \
      const vuint32m##M##_t nibble = __riscv_vand_vx_u32m##M(                                  \
          __riscv_vsrl_vx_u32m##M(word, (size_t)(i % 8 * 4), lanes), 15, lanes);               \
      const vint32m##M##_t value = __riscv_vadd_vx_i32m##M(                                    \
          __riscv_vreinterpret_v_u32m##M##_i32m##M(nibble), -7, lanes);                        \
      const vfloat32m##M##_t weight =                                                          \
          __riscv_vfmul_vv_f32m##M(__riscv_vfcvt_f_x_v_f32m##M(value, lanes),                  \
                                   __riscv_vlse32_v_f32m##M(scales, scale_stride, lanes), lanes); \
      __riscv_vse32_v_f32m##M(panel, weight, lanes);                                           \
      sum = __riscv_vfmacc_vf_f32m##M(sum, *a++, weight, lanes);                               \
      panel += lanes;                                                                          \
    }                                                                                          \
    __riscv_vse32_v_f32m##M(c, sum, lanes);                                                    \
  }

MLC_Q4_UNPACK_DEFINE(mlc_q4_unpack_m8, 8)
MLC_Q4_UNPACK_DEFINE(mlc_q4_unpack_m4, 4)
MLC_Q4_UNPACK_DEFINE(mlc_q4_unpack_m2, 2)

void mlc_rvv_gemm_q4(float *c, const float *a, const uint32_t *quants, const float *scales,
                     int64_t m, int64_t n, int64_t k, int64_t ld_c, int64_t ld_a, float *panel,
                     int64_t panel_rows, int64_t panel_columns) {
  const int64_t groups = MLC_RVV_GROUPS(k, MLC_RVV_Q4_GROUP);
  // For up to three rows, unpacking in registers takes fewer instructions than writing a panel; the
  // panel's memory holds the prepared row, if that fits.
  if (m <= 3 && MLC_RVV_READY(k, MLC_RVV_Q4_GROUP) <= panel_rows * panel_columns) {
    for (int64_t i = 0; i < m; ++i) {
      mlc_rvv_gemv_q4_prepare(panel, a + i * ld_a, k);
      mlc_rvv_gemv_q4(c + i * ld_c, panel, quants, scales, n, k);
    }
    return;
  }
  const int64_t width = mlc_gemm_width(panel_columns, m);
  while (m > 0 && n > 0) {
    const size_t lanes = __riscv_vsetvl_e32m8((size_t)(n < width ? n : width));
    for (int64_t first = 0; first < k; first += panel_rows) {
      const int64_t depth = k - first < panel_rows ? k - first : panel_rows;
      const mlc_gemm_by by = {depth, ld_c,       ld_a, (int64_t)(lanes * sizeof(float)),
                              lanes, first == 0, panel};
      const uint32_t *words = quants + first / 8;
      const float *factors = scales + first / MLC_RVV_Q4_GROUP;
      if (lanes > __riscv_vsetvlmax_e32m4()) {
        mlc_q4_unpack_m8(c, a + first, words, factors, groups, &by);
      } else if (lanes > __riscv_vsetvlmax_e32m2()) {
        mlc_q4_unpack_m4(c, a + first, words, factors, groups, &by);
      } else {
        mlc_q4_unpack_m2(c, a + first, words, factors, groups, &by);
      }
      mlc_gemm_panel(c + ld_c, a + ld_a + first, panel, m - 1, &by);
    }
    c += lanes;
    quants += (int64_t)lanes * 4 * groups;
    scales += (int64_t)lanes * groups;
    n -= (int64_t)lanes;
  }
}
