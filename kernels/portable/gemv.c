// SPDX-License-Identifier: Apache-2.0
//
// y[n] = b[n, k] * x[k] for the host.

#include "mlc_rvv_linear.h"

#include "vectors.h"

// Rows that share what is loaded of x, with two sums each, for the latency of an addition.
enum { GEMV_ROWS = 4 };

// y[rows] = b[rows, k] * x[k]; `rows` is a constant.
static inline __attribute__((always_inline)) void gemv_rows(float *y, const float *x,
                                                            const float *b, int rows, int64_t k,
                                                            int64_t ld_b) {
  vec even[GEMV_ROWS], odd[GEMV_ROWS];
  for (int i = 0; i < rows; ++i) even[i] = odd[i] = all(0);
  int64_t p = 0;
  for (; p + 2 * LANES <= k; p += 2 * LANES) {
    const vec first = load(x + p), second = load(x + p + LANES);
    for (int i = 0; i < rows; ++i) {
      even[i] += first * load(b + i * ld_b + p);
      odd[i] += second * load(b + i * ld_b + p + LANES);
    }
  }
  for (int i = 0; i < rows; ++i) {
    const vec part = even[i] + odd[i];
    float sum = 0.0f;
    for (int lane = 0; lane < LANES; ++lane) sum += part[lane];
    for (int64_t q = p; q < k; ++q) sum += b[i * ld_b + q] * x[q];
    y[i] = sum;
  }
}

void mlc_rvv_gemv_f32(float *y, const float *x, const float *b, int64_t n, int64_t k,
                      int64_t ld_b) {
  int64_t i = 0;
  for (; i + GEMV_ROWS <= n; i += GEMV_ROWS) gemv_rows(y + i, x, b + i * ld_b, GEMV_ROWS, k, ld_b);
  for (; i < n; ++i) gemv_rows(y + i, x, b + i * ld_b, 1, k, ld_b);
}

// `ready` begins with x itself, padded with zeros to whole groups.
void mlc_rvv_gemv_q4_prepare(float *ready, const float *x, int64_t k) {
  for (int64_t p = 0; p < MLC_RVV_GROUPS(k, MLC_RVV_Q4_GROUP) * MLC_RVV_Q4_GROUP; ++p) {
    ready[p] = p < k ? x[p] : 0.0f;
  }
}

void mlc_rvv_gemv_q4(float *y, const float *ready, const uint32_t *quants, const float *scales,
                     int64_t n, int64_t k) {
  const int64_t groups = MLC_RVV_GROUPS(k, MLC_RVV_Q4_GROUP);
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
