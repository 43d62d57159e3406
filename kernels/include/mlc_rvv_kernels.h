// SPDX-License-Identifier: Apache-2.0
//
// The ABI of the attention micro-kernels, shared by the RVV and the portable sources.
//
//   qk: acc[q_tile, kv_tile] += lhs[q_tile, d] * transpose(rhs[kv_tile, d])
//   pv: acc[q_tile, d]       += lhs[q_tile, kv_tile] * rhs[kv_tile, d]
//
// Matrices are row-major; ld_* is the distance between rows in elements, at least the row's
// length. acc overlaps neither lhs nor rhs. Elements of acc's rows past the tile's width are
// neither read nor written. Sums are float32; their order and whether a multiply-add is fused
// are the implementation's.
//
// mlc_rvv_kernel_list.h is generated from kernels.toml and holds one X(symbol, q_tile,
// kv_tile, d) for every instance, in MLC_RVV_QK_FLOAT32(X) and MLC_RVV_PV_FLOAT32(X).
#ifndef MLC_RVV_KERNELS_H_
#define MLC_RVV_KERNELS_H_

#include <stdint.h>

#include "mlc_rvv_kernel_list.h"

typedef void mlc_rvv_kernel(float *acc, const float *lhs, const float *rhs, int64_t ld_acc,
                            int64_t ld_lhs, int64_t ld_rhs);

#define MLC_RVV_DECLARE(symbol, q_tile, kv_tile, d) mlc_rvv_kernel symbol;
MLC_RVV_QK_FLOAT32(MLC_RVV_DECLARE)
MLC_RVV_PV_FLOAT32(MLC_RVV_DECLARE)
#undef MLC_RVV_DECLARE

#endif  // MLC_RVV_KERNELS_H_
