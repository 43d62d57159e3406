// SPDX-License-Identifier: Apache-2.0
//
// acc[q, d] += lhs[q, kv] * rhs[kv, d]: rows of V are rows of rhs and are loaded as they lie.

#include "mlc_rvv_kernels.h"
#include "outer_product.h"

#define PV_KERNEL(symbol, q_tile, kv_tile, d)                                                  \
  _Static_assert((q_tile) % MLC_RVV_ROWS == 0, "q_tile is not a whole number of row blocks");  \
  _Static_assert((kv_tile) % MLC_RVV_STEPS == 0, "kv_tile is not a whole number of steps");   \
  void symbol(float *acc, const float *lhs, const float *rhs, int64_t ld_acc, int64_t ld_lhs,  \
              int64_t ld_rhs) {                                                                \
    for (int row = 0; row < (q_tile); row += MLC_RVV_ROWS) {                                   \
      mlc_outer_product(acc + row * ld_acc, lhs + row * ld_lhs, rhs, ld_acc, ld_lhs, ld_rhs,   \
                        d, kv_tile);                                                           \
    }                                                                                          \
  }

MLC_RVV_PV_FLOAT32(PV_KERNEL)
