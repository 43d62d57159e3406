// SPDX-License-Identifier: Apache-2.0
//
// y[n] = b[n, k] * x[k] in plain C for the host. Partial sums let a compiler use vectors without
// leave to reorder a sum.

#include "mlc_rvv_linear.h"

enum { GEMV_LANES = 16 };

void mlc_rvv_gemv_f32(float *y, const float *x, const float *b, int64_t n, int64_t k,
                      int64_t ld_b) {
  const int64_t whole = k - k % GEMV_LANES;
  for (int64_t i = 0; i < n; ++i) {
    const float *row = b + i * ld_b;
    float part[GEMV_LANES] = {0};
    for (int64_t p = 0; p < whole; p += GEMV_LANES) {
      for (int lane = 0; lane < GEMV_LANES; ++lane) part[lane] += row[p + lane] * x[p + lane];
    }
    float sum = 0.0f;
    for (int64_t p = whole; p < k; ++p) sum += row[p] * x[p];
    for (int lane = 0; lane < GEMV_LANES; ++lane) sum += part[lane];
    y[i] = sum;
  }
}

// `ready` begins with x itself, padded with zeros to whole groups.
void mlc_rvv_gemv_q4_prepare(float *ready, const float *x, int64_t k) {
  for (int64_t p = 0; p < MLC_RVV_Q4_GROUPS(k) * MLC_RVV_Q4_GROUP; ++p) {
    ready[p] = p < k ? x[p] : 0.0f;
  }
}

void mlc_rvv_gemv_q4(float *y, const float *ready, const uint32_t *quants, const float *scales,
                     int64_t n, int64_t k) {
  const int64_t groups = MLC_RVV_Q4_GROUPS(k);
  for (int64_t i = 0; i < n; ++i) {
    float sum = 0.0f;
    for (int64_t group = 0; group < groups; ++group) {
      const float *x = ready + group * MLC_RVV_Q4_GROUP;
      float part[8] = {0};
      for (int word = 0; word < MLC_RVV_Q4_GROUP / 8; ++word) {
        const uint32_t bits = quants[(i * groups + group) * 4 + word];
        for (int j = 0; j < 8; ++j) part[j] += (float)((int)(bits >> (4 * j) & 15) - 7) * x[8 * word + j];
      }
      float dot = 0.0f;
      for (int j = 0; j < 8; ++j) dot += part[j];
      sum += dot * scales[i * groups + group];
    }
    y[i] = sum;
  }
}
