// SPDX-License-Identifier: Apache-2.0
//
// acc[q, kv] += lhs[q, d] * transpose(rhs[kv, d]): the row of the outer product is a column of
// K. Strided segment loads fetch several neighbouring columns at once, transposed into as many
// register groups: one address and one instruction for F steps, and each row of K is touched
// once for F elements instead of F times. F is as large as a segment load may be at the LMUL
// (F * LMUL <= 8 registers).

#include "mlc_rvv_kernels.h"
#include "outer_product.h"

#define QK_ON(bytes) "(%[b]), %[step]\n\taddi %[b], %[b], " #bytes "\n\t"

MLC_OUTER_DEFINE(qk_m1, 1, ANY, MLC_OUTER_BY_8("vlsseg8e32.v v24, " QK_ON(32)))
MLC_OUTER_DEFINE(qk_m2, 2, ANY, MLC_OUTER_BY_4("vlsseg4e32.v v24, " QK_ON(16)))
MLC_OUTER_DEFINE(qk_m4, 4, ANY, MLC_OUTER_BY_2("vlsseg2e32.v v24, " QK_ON(8)))
MLC_OUTER_DEFINE_ANY(qk_rest, qk_m4, qk_m4, qk_m2, qk_m1)
MLC_OUTER_DEFINE_STRIPS(qk_m8, ANY, qk_rest, ld_rhs, MLC_OUTER_BY_1("vlse32.v v24, " QK_ON(4)))
MLC_OUTER_DEFINE_ANY(qk, qk_m8, qk_m4, qk_m2, qk_m1)

#define QK_KERNEL(symbol, q_tile, kv_tile, d)                                                  \
  _Static_assert((q_tile) % MLC_RVV_ROWS == 0, "q_tile is not a whole number of row blocks");  \
  _Static_assert((d) % MLC_RVV_UNROLL == 0, "d is not a whole number of steps");               \
  void symbol(float *acc, const float *lhs, const float *rhs, int64_t ld_acc, int64_t ld_lhs,  \
              int64_t ld_rhs) {                                                                \
    for (int row = 0; row < (q_tile); row += MLC_RVV_ROWS) {                                   \
      qk(acc + row * ld_acc, lhs + row * ld_lhs, rhs, ld_acc, ld_lhs, ld_rhs, kv_tile, d);     \
    }                                                                                          \
  }

MLC_RVV_QK_FLOAT32(QK_KERNEL)
