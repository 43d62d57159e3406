// SPDX-License-Identifier: Apache-2.0
//
// Products with weights in tiles for the host. A tile of float32 weights is a panel as it lies.

#include "gemm_tile.h"
#include "packed_weights.h"

// Sums of a tile at most: what is wider is done in parts.
enum { MOST_LANES = 64 };

static int64_t fewer(int64_t value, int64_t most) { return value < most ? value : most; }

void mlc_rvv_gemm_f32_tiles(float *c, const float *a, const float *b, int64_t m, int64_t n,
                            int64_t k, int64_t ld_c, int64_t ld_a, int64_t tile) {
  for (int64_t first = 0; first < n; first += tile) {
    gemm_panel(c + first, a, b + first * k, m, fewer(n - first, tile), k, ld_c, ld_a, 1);
  }
}

// panel[depth, lanes] of a tile of so many lanes, whose inputs begin with an element and with one of
// `phase` of the group whose factors come first.
MLC_RVV_INLINE void unpack_tile(float *panel, const void *items, const float *factors,
                                int64_t phase, int64_t depth, int64_t lanes, packed_format f) {
  const int values = values_of_item(f);
  for (int64_t p = 0; p < depth; ++p) {
    const void *row = items_from(items, p / values * lanes, f);
    const float *of_group = factors + (phase + p) / f.group * lanes;
    const int at = (int)(p % values);
    for (int64_t j = 0; j < lanes; ++j) {
      panel[p * lanes + j] = (float)unpacked_value(item_at(row, j, f), at, f) * of_group[j];
    }
  }
}

MLC_RVV_INLINE void gemv_packed_tiles(float *y, const float *ready, const uint32_t *quants,
                                      const float *scales, int64_t n, int64_t k, int64_t tile,
                                      packed_format f) {
  const int64_t groups = MLC_RVV_GROUPS(k, f.group);
  const int values = values_of_item(f), rows = f.group / values;
  for (int64_t first = 0; first < n; first += tile) {
    const int64_t step = fewer(n - first, tile);
    const void *items = items_from(quants, first * groups * rows, f);
    for (int64_t column = 0; column < step; column += MOST_LANES) {
      const int64_t lanes = fewer(step - column, MOST_LANES);
      float total[MOST_LANES], sum[MOST_LANES];
      for (int64_t j = 0; j < lanes; ++j) total[j] = 0.0f;
      for (int64_t group = 0; group < groups; ++group) {
        const float *x = ready + group * f.group;
        const float *factors = scales + (first * groups + group * step) + column;
        for (int64_t j = 0; j < lanes; ++j) sum[j] = 0.0f;
        for (int64_t p = 0; p < rows; ++p) {
          const void *row = items_from(items, (group * rows + p) * step + column, f);
          for (int64_t j = 0; j < lanes; ++j) {
            float dot = 0.0f;
            for (int i = 0; i < values; ++i) {
              dot += x[values * p + i] * (float)unpacked_value(item_at(row, j, f), i, f);
            }
            sum[j] += dot;
          }
        }
        for (int64_t j = 0; j < lanes; ++j) total[j] += sum[j] * factors[j];
      }
      for (int64_t j = 0; j < lanes; ++j) y[first + column + j] = total[j];
    }
  }
}

MLC_RVV_INLINE void gemm_packed_tiles(float *c, const float *a, const uint32_t *quants,
                                      const float *scales, int64_t m, int64_t n, int64_t k,
                                      int64_t ld_c, int64_t ld_a, float *panel, int64_t panel_rows,
                                      int64_t tile, packed_format f) {
  const int64_t groups = MLC_RVV_GROUPS(k, f.group);
  const int values = values_of_item(f);
  const int64_t most = panel_rows - panel_rows % values;
  for (int64_t column = 0; column < n; column += tile) {
    const int64_t step = fewer(n - column, tile);
    const void *items = items_from(quants, column * groups * (f.group / values), f);
    for (int64_t first = 0; first < k; first += most) {
      const int64_t depth = fewer(k - first, most);
      unpack_tile(panel, items_from(items, first / values * step, f),
                  scales + (column * groups + first / f.group * step), first % f.group, depth, step,
                  f);
      gemm_panel(c + column, a + first, panel, m, step, depth, ld_c, ld_a, first == 0);
    }
  }
}

#define MLC_TILES_DEFINE(name, ...)                                                               \
  void mlc_rvv_gemv_##name##_prepare_tiles(float *ready, const float *x, int64_t k) {             \
    mlc_rvv_gemv_##name##_prepare(ready, x, k);                                                   \
  }                                                                                               \
  void mlc_rvv_gemv_##name##_tiles(float *y, const float *ready, const uint32_t *quants,          \
                                   const float *scales, int64_t n, int64_t k, int64_t tile) {     \
    gemv_packed_tiles(y, ready, quants, scales, n, k, tile, (packed_format){__VA_ARGS__});        \
  }                                                                                               \
  void mlc_rvv_gemm_##name##_tiles(float *c, const float *a, const uint32_t *quants,              \
                                   const float *scales, int64_t m, int64_t n, int64_t k,          \
                                   int64_t ld_c, int64_t ld_a, float *panel, int64_t panel_rows,  \
                                   int64_t tile) {                                                \
    gemm_packed_tiles(c, a, quants, scales, m, n, k, ld_c, ld_a, panel, panel_rows, tile,         \
                      (packed_format){__VA_ARGS__});                                              \
  }
MLC_RVV_PACKED(MLC_TILES_DEFINE)

// The values of a group, its scale and its sum.
typedef struct {
  int8_t values[MLC_RVV_INT8_GROUP];
  float scale;
  int32_t bias;
} int8_block;

_Static_assert(sizeof(int8_block) == MLC_RVV_INT8_BLOCK, "a block has gaps");

void mlc_rvv_quantize_int8(void *ready, const float *x, int64_t m, int64_t k, int64_t ld_x,
                           int64_t rows) {
  for (int64_t i = 0; i < m; ++i) {
    int8_block *block = (int8_block *)ready + i;
    for (int64_t first = 0; first < k; first += MLC_RVV_INT8_GROUP, block += rows) {
      const float *group = x + i * ld_x + first;
      const int64_t count = fewer(k - first, MLC_RVV_INT8_GROUP);
      float largest = 0.0f;
      for (int64_t p = 0; p < count; ++p) {
        const float size = __builtin_fabsf(group[p]);
        // NaN is larger than all, and stays.
        if (!(size <= largest) && largest == largest) largest = size;
      }
      const float factor = largest > MLC_RVV_INT8_LEAST ? 127.0f / largest : 0.0f;
      int32_t sum = 0;
      for (int64_t p = 0; p < MLC_RVV_INT8_GROUP; ++p) {
        // To the nearest, ties to even, by an addition that leaves no room for a fraction.
        const float scaled = p < count && factor > 0.0f ? group[p] * factor : 0.0f;
        const float rounded = (scaled + 0x1.8p23f) - 0x1.8p23f;
        block->values[p] = (int8_t)rounded;
        sum += (int32_t)rounded;
      }
      block->scale = largest * (1.0f / 127.0f);
      block->bias = -MLC_RVV_Q4_ZERO_POINT * sum;
    }
  }
  if (mlc_rvv_on_rounding) {
    mlc_rvv_on_rounding(ready, x, m, k, rows, MLC_RVV_INT8_GROUP, MLC_RVV_INT8_BLOCK);
  }
}

// Rows of activations that share the weights which are unpacked.
enum { INT8_ROWS = 4 };

static inline __attribute__((always_inline)) void int8_rows(
    float *c, const int8_block *x, const uint8_t *bytes, const float *scales, int rows,
    int64_t ld_x, int64_t groups, int64_t lanes, int64_t step, int64_t ld_c) {
  enum { HALF = MLC_RVV_Q4_GROUP / 2 };
  float total[INT8_ROWS][MOST_LANES];
  int32_t sum[INT8_ROWS][MOST_LANES];
  for (int i = 0; i < rows; ++i) {
    for (int64_t j = 0; j < lanes; ++j) total[i][j] = 0.0f;
  }
  for (int64_t group = 0; group < groups; ++group, bytes += HALF * step, scales += step) {
    for (int i = 0; i < rows; ++i) {
      for (int64_t j = 0; j < lanes; ++j) sum[i][j] = x[i + group * ld_x].bias;
    }
    for (int p = 0; p < HALF; ++p) {
      for (int i = 0; i < rows; ++i) {
        const int8_t *values = x[i + group * ld_x].values + 2 * p;
        const int low = values[0], high = values[1];
        for (int64_t j = 0; j < lanes; ++j) {
          const int byte = bytes[p * step + j];
          sum[i][j] += low * (byte & 15) + high * (byte >> 4);
        }
      }
    }
    for (int i = 0; i < rows; ++i) {
      const int8_block *block = x + i + group * ld_x;
      for (int64_t j = 0; j < lanes; ++j) {
        total[i][j] += (float)sum[i][j] * block->scale * scales[j];
      }
    }
  }
  for (int i = 0; i < rows; ++i) {
    for (int64_t j = 0; j < lanes; ++j) c[i * ld_c + j] = total[i][j];
  }
}

void mlc_rvv_gemm_q4_int8(float *c, const void *ready, const uint32_t *quants, const float *scales,
                          int64_t m, int64_t n, int64_t k, int64_t ld_c, int64_t tile) {
  const int64_t groups = MLC_RVV_GROUPS(k, MLC_RVV_Q4_GROUP);
  for (int64_t first = 0; first < n; first += tile) {
    const int64_t step = fewer(n - first, tile);
    const uint8_t *bytes = (const uint8_t *)quants + first * groups * (MLC_RVV_Q4_GROUP / 2);
    for (int64_t column = 0; column < step; column += MOST_LANES) {
      const int64_t lanes = fewer(step - column, MOST_LANES);
      const float *factors = scales + first * groups + column;
      float *out = c + first + column;
      const int8_block *x = ready;
      int64_t i = 0;
      for (; i + INT8_ROWS <= m; i += INT8_ROWS) {
        int8_rows(out + i * ld_c, x + i, bytes + column, factors, INT8_ROWS, m, groups, lanes, step,
                  ld_c);
      }
      for (; i < m; ++i) {
        int8_rows(out + i * ld_c, x + i, bytes + column, factors, 1, m, groups, lanes, step, ld_c);
      }
    }
  }
}
