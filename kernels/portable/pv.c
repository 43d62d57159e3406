// SPDX-License-Identifier: Apache-2.0
//
// acc[q, d] += lhs[q, kv] * rhs[kv, d] for the host, in tiles whose sums stay in registers.

#include "mlc_rvv_kernels.h"

#include "gemm_tile.h"

static void pv(float *acc, const float *lhs, const float *rhs, int64_t ld_acc, int64_t ld_lhs,
               int64_t ld_rhs, int q_tile, int kv_tile, int d) {
  for (int c = 0; c < d; c += TILE_COLUMNS) {
    int q = 0;
    for (; q + 4 <= q_tile && TILE_ROWS >= 4; q += 4) {
      gemm_tile(acc + q * ld_acc + c, lhs + q * ld_lhs, rhs + c, TILE_ROWS >= 4 ? 4 : 2, kv_tile,
                ld_acc, ld_lhs, ld_rhs, 0);
    }
    for (; q < q_tile; q += 2) {
      gemm_tile(acc + q * ld_acc + c, lhs + q * ld_lhs, rhs + c, 2, kv_tile, ld_acc, ld_lhs, ld_rhs,
                0);
    }
  }
}

#define PV_KERNEL(symbol, q_tile, kv_tile, d)                                                    \
  _Static_assert((d) % TILE_COLUMNS == 0 && (q_tile) % 2 == 0, "a tile is not of whole vectors"); \
  void symbol(float *acc, const float *lhs, const float *rhs, int64_t ld_acc, int64_t ld_lhs,    \
              int64_t ld_rhs) {                                                                  \
    pv(acc, lhs, rhs, ld_acc, ld_lhs, ld_rhs, q_tile, kv_tile, d);                               \
  }

MLC_RVV_PV_FLOAT32(PV_KERNEL)
