// SPDX-License-Identifier: Apache-2.0
//
// acc[q, kv] += lhs[q, d] * transpose(rhs[kv, d]), in plain C for the host. Partial sums let a
// compiler use vectors without leave to reorder a sum.

#include "mlc_rvv_kernels.h"

enum { LANES = 16 };

static float dot(const float *a, const float *b, int length) {
  float part[LANES] = {0};
  for (int k = 0; k < length; k += LANES) {
    for (int lane = 0; lane < LANES; ++lane) {
      part[lane] += a[k + lane] * b[k + lane];
    }
  }
  float sum = 0;
  for (int lane = 0; lane < LANES; ++lane) {
    sum += part[lane];
  }
  return sum;
}

static void qk(float *acc, const float *lhs, const float *rhs, int64_t ld_acc, int64_t ld_lhs,
               int64_t ld_rhs, int q_tile, int kv_tile, int d) {
  for (int q = 0; q < q_tile; ++q) {
    for (int kv = 0; kv < kv_tile; ++kv) {
      acc[q * ld_acc + kv] += dot(lhs + q * ld_lhs, rhs + kv * ld_rhs, d);
    }
  }
}

#define QK_KERNEL(symbol, q_tile, kv_tile, d)                                                 \
  _Static_assert((d) % LANES == 0, "d is not a whole number of partial sums");                \
  void symbol(float *acc, const float *lhs, const float *rhs, int64_t ld_acc, int64_t ld_lhs, \
              int64_t ld_rhs) {                                                               \
    qk(acc, lhs, rhs, ld_acc, ld_lhs, ld_rhs, q_tile, kv_tile, d);                            \
  }

MLC_RVV_QK_FLOAT32(QK_KERNEL)
