// SPDX-License-Identifier: Apache-2.0
//
// The product of a panel of weights with rows of activations, in tiles whose sums stay in registers.
#ifndef MLC_RVV_PORTABLE_GEMM_TILE_H_
#define MLC_RVV_PORTABLE_GEMM_TILE_H_

#include "vectors.h"

// Two vectors of columns; as many rows as leave room for a row of the panel and a factor in 16
// registers of eight floats, or in 32 of four.
#if defined(__AVX2__) || defined(__aarch64__)
enum { TILE_ROWS = 6 };
#else
enum { TILE_ROWS = 2 };
#endif
enum { TILE_COLUMNS = 2 * LANES };

// c[rows, TILE_COLUMNS] (+)= a[rows, k] * panel[k, TILE_COLUMNS]; `rows` is a constant.
static inline __attribute__((always_inline)) void gemm_tile(float *c, const float *a,
                                                            const float *panel, int rows, int64_t k,
                                                            int64_t ld_c, int64_t ld_a,
                                                            int64_t ld_panel, int fresh) {
  vec low[TILE_ROWS], high[TILE_ROWS];
  for (int i = 0; i < rows; ++i) {
    low[i] = fresh ? all(0) : load(c + i * ld_c);
    high[i] = fresh ? all(0) : load(c + i * ld_c + LANES);
  }
  for (int64_t p = 0; p < k; ++p) {
    const vec left = load(panel + p * ld_panel), right = load(panel + p * ld_panel + LANES);
    for (int i = 0; i < rows; ++i) {
      const vec factor = all(a[i * ld_a + p]);
      low[i] += factor * left;
      high[i] += factor * right;
    }
  }
  for (int i = 0; i < rows; ++i) {
    store(c + i * ld_c, low[i]);
    store(c + i * ld_c + LANES, high[i]);
  }
}

// c[m, columns] (+)= a[m, k] * panel[k, columns] for any columns, from zero if fresh.
static void gemm_edge(float *c, const float *a, const float *panel, int64_t m, int64_t columns,
                      int64_t k, int64_t ld_c, int64_t ld_a, int64_t ld_panel, int fresh) {
  for (int64_t i = 0; i < m; ++i) {
    for (int64_t j = 0; fresh && j < columns; ++j) c[i * ld_c + j] = 0.0f;
    for (int64_t p = 0; p < k; ++p) {
      for (int64_t j = 0; j < columns; ++j) {
        c[i * ld_c + j] += a[i * ld_a + p] * panel[p * ld_panel + j];
      }
    }
  }
}

// The same for all columns. A tile's columns of the panel stay in the first cache for all rows.
static void gemm_panel(float *c, const float *a, const float *panel, int64_t m, int64_t columns,
                       int64_t k, int64_t ld_c, int64_t ld_a, int fresh) {
  const int64_t whole = columns - columns % TILE_COLUMNS;
  for (int64_t j = 0; j < whole; j += TILE_COLUMNS) {
    int64_t i = 0;
#define MLC_RVV_TILES(rows)                                                                       \
  for (; i + (rows) <= m; i += (rows)) {                                                          \
    gemm_tile(c + i * ld_c + j, a + i * ld_a, panel + j, (rows), k, ld_c, ld_a, columns, fresh);  \
  }
    MLC_RVV_TILES(TILE_ROWS)
    MLC_RVV_TILES(TILE_ROWS > 4 ? 4 : 2)
    MLC_RVV_TILES(2)
    MLC_RVV_TILES(1)
#undef MLC_RVV_TILES
  }
  gemm_edge(c + whole, a, panel + whole, m, columns - whole, k, ld_c, ld_a, columns, fresh);
}

#endif  // MLC_RVV_PORTABLE_GEMM_TILE_H_
