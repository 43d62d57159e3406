// SPDX-License-Identifier: Apache-2.0
//
// y[n] = b[n, k] * x[k] for the host.

#include "packed_weights.h"

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
static void prepare_packed(float *ready, const float *x, int64_t k, int64_t group) {
  for (int64_t p = 0; p < MLC_RVV_GROUPS(k, group) * group; ++p) ready[p] = p < k ? x[p] : 0.0f;
}

MLC_RVV_INLINE void gemv_packed(float *y, const float *ready, const uint32_t *quants,
                                const float *scales, int64_t n, int64_t k, packed_format f) {
  const int64_t groups = MLC_RVV_GROUPS(k, f.group);
  const int values = values_of_word(f), words = f.group / values;
  for (int64_t i = 0; i < n; ++i) {
    float sum = 0.0f;
    for (int64_t group = 0; group < groups; ++group) {
      const float *x = ready + group * f.group;
      float part[32] = {0};
      for (int word = 0; word < words; ++word) {
        const uint32_t bits = quants[(i * groups + group) * words + word];
        for (int j = 0; j < values; ++j) {
          part[j] += (float)unpacked_value(bits, j, f) * x[values * word + j];
        }
      }
      float dot = 0.0f;
      for (int j = 0; j < values; ++j) dot += part[j];
      sum += dot * scales[i * groups + group];
    }
    y[i] = sum;
  }
}

#define MLC_GEMV_DEFINE(name, bits, group, zero_point)                                            \
  void mlc_rvv_gemv_##name##_prepare(float *ready, const float *x, int64_t k) {                   \
    prepare_packed(ready, x, k, group);                                                           \
  }                                                                                               \
  void mlc_rvv_gemv_##name(float *y, const float *ready, const uint32_t *quants,                  \
                           const float *scales, int64_t n, int64_t k) {                           \
    gemv_packed(y, ready, quants, scales, n, k, (packed_format){bits, group, zero_point});        \
  }
MLC_RVV_PACKED(MLC_GEMV_DEFINE)
