// SPDX-License-Identifier: Apache-2.0
//
// acc[q, d] += lhs[q, kv] * rhs[kv, d]: rows of V are rows of rhs and are loaded as they lie.

#include "mlc_rvv_kernels.h"
#include "outer_product.h"

#define PV_STEPS(M, ROWS)                                            \
  _Pragma("clang loop unroll(full)")                                 \
  for (int k = 0; k < MLC_RVV_UNROLL; ++k) {                         \
    const vfloat32m##M##_t row = __riscv_vle32_v_f32m##M(row_of_rhs, lanes); \
    row_of_rhs += ld_rhs;                                                   \
    ROWS(MLC_RVV_STEP, M)                                            \
  }

MLC_RVV_DEFINE_STRIPS(pv_by_m4, 4, 4, PV_STEPS, 1)
MLC_RVV_DEFINE_STRIPS(pv_by_m2, 2, 8, PV_STEPS, 1)
MLC_RVV_DEFINE_STRIPS(pv_by_m1, 1, 8, PV_STEPS, 1)

#define PV_KERNEL(symbol, q_tile, kv_tile, d)                                                  \
  _Static_assert((q_tile) % MLC_RVV_ROWS == 0, "q_tile is not a whole number of row blocks");  \
  _Static_assert((kv_tile) % MLC_RVV_UNROLL == 0, "kv_tile is not a whole number of steps");   \
  void symbol(float *acc, const float *lhs, const float *rhs, int64_t ld_acc, int64_t ld_lhs,  \
              int64_t ld_rhs) {                                                                \
    for (int row = 0; row < (q_tile); row += MLC_RVV_ROWS) {                                   \
      mlc_rvv_row_block(acc + row * ld_acc, lhs + row * ld_lhs, rhs, ld_acc, ld_lhs, ld_rhs,   \
                        d, kv_tile, 1, pv_by_m4, pv_by_m2, pv_by_m1);                 \
    }                                                                                          \
  }

MLC_RVV_PV_FLOAT32(PV_KERNEL)
