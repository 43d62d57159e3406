// SPDX-License-Identifier: Apache-2.0
//
// acc[q, kv] += lhs[q, d] * transpose(rhs[kv, d]): the row of the outer product is a column of
// K. K is transposed once for all rows of the tile: four of its rows are loaded as they lie and
// stored side by side, by strided segments. Cores do those by the element or slower, and slower as
// loads than as stores (SpacemiT's X60: 60 cycles to 32 for 64 floats).

#include "mlc_rvv_kernels.h"
#include "outer_product.h"

// out[d, kv] = transpose(rhs[kv, d]), for a multiple of four keys.
static inline __attribute__((always_inline)) void qk_transpose(float *out, const float *rhs,
                                                               int64_t ld_rhs, int64_t kv,
                                                               int64_t d) {
  size_t lanes;
  for (int64_t i = 0; i < d; i += (int64_t)lanes) {
    lanes = __riscv_vsetvl_e32m2((size_t)(d - i));
    const float *row = rhs + i;
    for (float *to = out + i * kv, *end = to + kv; to < end; to += 4, row += ld_rhs) {
      const vfloat32m2_t first = __riscv_vle32_v_f32m2(row, lanes);
      const vfloat32m2_t second = __riscv_vle32_v_f32m2(row += ld_rhs, lanes);
      const vfloat32m2_t third = __riscv_vle32_v_f32m2(row += ld_rhs, lanes);
      const vfloat32m2_t fourth = __riscv_vle32_v_f32m2(row += ld_rhs, lanes);
      __riscv_vssseg4e32_v_f32m2x4(to, kv * (int64_t)sizeof(float),
                                   __riscv_vcreate_v_f32m2x4(first, second, third, fourth), lanes);
    }
  }
}

#define QK_KERNEL(symbol, q_tile, kv_tile, d)                                                  \
  _Static_assert((q_tile) % MLC_RVV_ROWS == 0, "q_tile is not a whole number of row blocks");  \
  _Static_assert((d) % MLC_RVV_STEPS == 0, "d is not a whole number of steps");               \
  _Static_assert((kv_tile) % 4 == 0, "K is transposed by four rows");                          \
  void symbol(float *acc, const float *lhs, const float *rhs, int64_t ld_acc, int64_t ld_lhs,  \
              int64_t ld_rhs) {                                                                \
    float columns[(d) * (kv_tile)];                                                            \
    qk_transpose(columns, rhs, ld_rhs, kv_tile, d);                                            \
    for (int row = 0; row < (q_tile); row += MLC_RVV_ROWS) {                                   \
      mlc_outer_product(acc + row * ld_acc, lhs + row * ld_lhs, columns, ld_acc, ld_lhs,       \
                        kv_tile, kv_tile, d);                                                  \
    }                                                                                          \
  }

MLC_RVV_QK_FLOAT32(QK_KERNEL)
