// SPDX-License-Identifier: Apache-2.0
//
// acc[q, d] += lhs[q, kv] * rhs[kv, d], in plain C for the host.

#include "mlc_rvv_kernels.h"

static void pv(float *restrict acc, const float *restrict lhs, const float *restrict rhs,
               int64_t ld_acc, int64_t ld_lhs, int64_t ld_rhs, int q_tile, int kv_tile, int d) {
  for (int q = 0; q < q_tile; ++q) {
    for (int kv = 0; kv < kv_tile; ++kv) {
      const float weight = lhs[q * ld_lhs + kv];
      for (int c = 0; c < d; ++c) {
        acc[q * ld_acc + c] += weight * rhs[kv * ld_rhs + c];
      }
    }
  }
}

#define PV_KERNEL(symbol, q_tile, kv_tile, d)                                                 \
  void symbol(float *acc, const float *lhs, const float *rhs, int64_t ld_acc, int64_t ld_lhs, \
              int64_t ld_rhs) {                                                               \
    pv(acc, lhs, rhs, ld_acc, ld_lhs, ld_rhs, q_tile, kv_tile, d);                            \
  }

MLC_RVV_PV_FLOAT32(PV_KERNEL)
