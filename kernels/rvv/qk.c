// SPDX-License-Identifier: Apache-2.0
//
// acc[q, kv] += lhs[q, d] * transpose(rhs[kv, d]): the row of the outer product is a column of
// K. Strided segment loads fetch several neighbouring columns at once, transposed into as many
// register groups: one address and one instruction for F steps, and each row of K is touched
// once for F elements instead of F times. F is as large as a segment load may be at the LMUL
// (F * LMUL <= 8 registers).

#include "mlc_rvv_kernels.h"
#include "outer_product.h"

#define QK_STEP(M, F, ROWS, i)                                                     \
  {                                                                                \
    const int k = first + (i);                                                     \
    const vfloat32m##M##_t row = __riscv_vget_v_f32m##M##x##F##_f32m##M(steps, i); \
    ROWS(MLC_RVV_STEP, M)                                                          \
  }
#define QK_STEP2(M, F, ROWS, i) QK_STEP(M, F, ROWS, i) QK_STEP(M, F, ROWS, (i) + 1)
#define QK_STEP4(M, F, ROWS, i) QK_STEP2(M, F, ROWS, i) QK_STEP2(M, F, ROWS, (i) + 2)
#define QK_STEP8(M, F, ROWS, i) QK_STEP4(M, F, ROWS, i) QK_STEP4(M, F, ROWS, (i) + 4)

#define QK_STEPS(M, F, ROWS)                                              \
  _Pragma("clang loop unroll(full)")                                      \
  for (int first = 0; first < MLC_RVV_UNROLL; first += F) {               \
    const vfloat32m##M##x##F##_t steps = __riscv_vlsseg##F##e32_v_f32m##M##x##F( \
        row_of_rhs + first, ld_rhs * (int64_t)sizeof(float), lanes);             \
    QK_STEP##F(M, F, ROWS, 0)                                             \
  }                                                                       \
  row_of_rhs += MLC_RVV_UNROLL;
#define QK_STEPS_BY2(M, ROWS) QK_STEPS(M, 2, ROWS)
#define QK_STEPS_BY4(M, ROWS) QK_STEPS(M, 4, ROWS)
#define QK_STEPS_BY8(M, ROWS) QK_STEPS(M, 8, ROWS)

MLC_RVV_DEFINE_STRIPS(qk_by_m4, 4, 4, QK_STEPS_BY2, ld_rhs)
MLC_RVV_DEFINE_STRIPS(qk_by_m2, 2, 8, QK_STEPS_BY4, ld_rhs)
MLC_RVV_DEFINE_STRIPS(qk_by_m1, 1, 8, QK_STEPS_BY8, ld_rhs)

#define QK_KERNEL(symbol, q_tile, kv_tile, d)                                                  \
  _Static_assert((q_tile) % MLC_RVV_ROWS == 0, "q_tile is not a whole number of row blocks");  \
  _Static_assert((d) % MLC_RVV_UNROLL == 0, "d is not a whole number of steps");               \
  void symbol(float *acc, const float *lhs, const float *rhs, int64_t ld_acc, int64_t ld_lhs,  \
              int64_t ld_rhs) {                                                                \
    for (int row = 0; row < (q_tile); row += MLC_RVV_ROWS) {                                   \
      mlc_rvv_row_block(acc + row * ld_acc, lhs + row * ld_lhs, rhs, ld_acc, ld_lhs, ld_rhs,   \
                        kv_tile, d, ld_rhs, qk_by_m4, qk_by_m2, qk_by_m1);            \
    }                                                                                          \
  }

MLC_RVV_QK_FLOAT32(QK_KERNEL)
