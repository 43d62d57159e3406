// SPDX-License-Identifier: Apache-2.0
//
// c[m, n] = a[m, k] * transpose(b[n, k]) for q4 weights: as in float32, but a panel is unpacked
// where there it is copied, once for all rows of a. Words of 64 rows of b (at VLEN 256) lie in
// lanes; each gives eight rows of the panel.

#include "gemm_rows.h"
#include "mlc_rvv_linear.h"

// rows[8, lanes], or as many of them as are wanted, from one word a lane.
static inline float *mlc_q4_unpack_word(float *panel, vuint32m8_t word, vfloat32m8_t scale,
                                        int64_t rows, size_t lanes) {
  for (int64_t j = 0; j < rows; ++j) {
    vint32m8_t value = __riscv_vreinterpret_v_u32m8_i32m8(__riscv_vand_vx_u32m8(word, 15, lanes));
    value = __riscv_vadd_vx_i32m8(value, -7, lanes);
    const vfloat32m8_t weight =
        __riscv_vfmul_vv_f32m8(__riscv_vfcvt_f_x_v_f32m8(value, lanes), scale, lanes);
    __riscv_vse32_v_f32m8(panel, weight, lanes);
    word = __riscv_vsrl_vx_u32m8(word, 4, lanes);
    panel += lanes;
  }
  return panel;
}

// panel[k, lanes] = transpose(b[lanes, first .. first + k]), first being a multiple of a group.
static void mlc_q4_unpack(float *panel, const uint32_t *quants, const float *scales, int64_t first,
                          int64_t k, int64_t groups, size_t lanes) {
  const ptrdiff_t scale_stride = (ptrdiff_t)(groups * (int64_t)sizeof(float));
  const ptrdiff_t word_stride = 4 * scale_stride;
  quants += first / 8;
  scales += first / MLC_RVV_Q4_GROUP;
  for (int64_t i = 0; i < k; i += MLC_RVV_Q4_GROUP) {
    const vfloat32m8_t scale = __riscv_vlse32_v_f32m8(scales++, scale_stride, lanes);
    for (int64_t j = i; j < i + MLC_RVV_Q4_GROUP && j < k; j += 8) {
      const vuint32m8_t word = __riscv_vlse32_v_u32m8(quants + j / 8, word_stride, lanes);
      panel = mlc_q4_unpack_word(panel, word, scale, k - j < 8 ? k - j : 8, lanes);
    }
  }
}

void mlc_rvv_gemm_q4(float *c, const float *a, const uint32_t *quants, const float *scales,
                     int64_t m, int64_t n, int64_t k, int64_t ld_c, int64_t ld_a, float *panel,
                     int64_t panel_rows, int64_t panel_columns) {
  const int64_t groups = MLC_RVV_Q4_GROUPS(k);
  while (m > 0 && n > 0) {
    const size_t lanes = __riscv_vsetvl_e32m8((size_t)(n < panel_columns ? n : panel_columns));
    for (int64_t first = 0; first < k; first += panel_rows) {
      const int64_t depth = k - first < panel_rows ? k - first : panel_rows;
      mlc_q4_unpack(panel, quants, scales, first, depth, groups, lanes);
      mlc_gemm_panel(c, a + first, panel, m, depth, ld_c, ld_a, lanes, first == 0);
    }
    c += lanes;
    quants += (int64_t)lanes * 4 * groups;
    scales += (int64_t)lanes * groups;
    n -= (int64_t)lanes;
  }
}
