// SPDX-License-Identifier: Apache-2.0
//
// The ABI of the linear-layer kernels, shared by the RVV and the portable sources. Sizes are
// run-time arguments; matrices are row-major, and ld_* is the distance between rows in elements.
// A weight lies as it is stored, [outputs, inputs], so a layer is c = a * transpose(b).
//
// q4 weights are group-quantized (MLC-LLM's q4f32_1): `quants` [n, 4 * groups] holds eight values
// a word, the first in the lowest four bits, `scales` [n, groups] one factor for every 32 inputs,
// groups = ceil(k / 32), and a weight is (value - 7) * scale. Both are dense.
//
// gemm, gemm_q4: c[m, n] = a[m, k] * transpose(b[n, k]). They copy b, transposed and unpacked,
//   by panels of up to panel_columns of its rows into `panel`, panel_rows * panel_columns floats
//   which nobody else uses meanwhile. panel_rows is a positive multiple of 32. The RVV kernels do
//   best with panel_columns = VLEN / 4, a group of eight vector registers.
// gemv: y[n] = b[n, k] * x[k].
// gemv_q4: the same for q4 weights and an x that gemv_q4_prepare has put into `ready`,
//   36 * groups floats.
//
// No output overlaps an input. Sums are float32; their order and whether a multiply-add is fused
// are the implementation's.
#ifndef MLC_RVV_LINEAR_H_
#define MLC_RVV_LINEAR_H_

#include <stdint.h>

#define MLC_RVV_Q4_GROUP 32
#define MLC_RVV_Q4_GROUPS(k) (((k) + MLC_RVV_Q4_GROUP - 1) / MLC_RVV_Q4_GROUP)

void mlc_rvv_gemm_f32(float *c, const float *a, const float *b, int64_t m, int64_t n, int64_t k,
                      int64_t ld_c, int64_t ld_a, int64_t ld_b, float *panel, int64_t panel_rows,
                      int64_t panel_columns);

void mlc_rvv_gemm_q4(float *c, const float *a, const uint32_t *quants, const float *scales,
                     int64_t m, int64_t n, int64_t k, int64_t ld_c, int64_t ld_a, float *panel,
                     int64_t panel_rows, int64_t panel_columns);

void mlc_rvv_gemv_f32(float *y, const float *x, const float *b, int64_t n, int64_t k,
                      int64_t ld_b);

void mlc_rvv_gemv_q4_prepare(float *ready, const float *x, int64_t k);

void mlc_rvv_gemv_q4(float *y, const float *ready, const uint32_t *quants, const float *scales,
                     int64_t n, int64_t k);

#endif  // MLC_RVV_LINEAR_H_
