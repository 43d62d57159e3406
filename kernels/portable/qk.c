// SPDX-License-Identifier: Apache-2.0
//
// acc[q, kv] += lhs[q, d] * transpose(rhs[kv, d]) for the host: the products of a query with eight
// keys are eight vectors of partial sums.

#include "mlc_rvv_kernels.h"

#include "vectors.h"

static void qk(float *acc, const float *lhs, const float *rhs, int64_t ld_acc, int64_t ld_lhs,
               int64_t ld_rhs, int q_tile, int kv_tile, int d) {
  for (int kv = 0; kv < kv_tile; kv += LANES) {
    for (int q = 0; q < q_tile; ++q) {
      vec parts[LANES];
      for (int j = 0; j < LANES; ++j) parts[j] = all(0);
      for (int k = 0; k < d; k += LANES) {
        const vec query = load(lhs + q * ld_lhs + k);
        for (int j = 0; j < LANES; ++j) parts[j] += query * load(rhs + (kv + j) * ld_rhs + k);
      }
      float *out = acc + q * ld_acc + kv;
      store(out, load(out) + sums(parts));
    }
  }
}

#define QK_KERNEL(symbol, q_tile, kv_tile, d)                                                   \
  _Static_assert((d) % LANES == 0 && (kv_tile) % LANES == 0, "a tile is not of whole vectors"); \
  void symbol(float *acc, const float *lhs, const float *rhs, int64_t ld_acc, int64_t ld_lhs,   \
              int64_t ld_rhs) {                                                                 \
    qk(acc, lhs, rhs, ld_acc, ld_lhs, ld_rhs, q_tile, kv_tile, d);                              \
  }

MLC_RVV_QK_FLOAT32(QK_KERNEL)
