// SPDX-License-Identifier: Apache-2.0
//
// c[m, n] = a[m, k] * transpose(b[n, k]) in plain C for the host, by the same panels as on RVV.
// Sums of a tile of rows and columns stay in registers where a compiler vectorizes the innermost
// loop, which has a constant number of steps.

#include "mlc_rvv_linear.h"

enum { TILE_ROWS = 2, TILE_COLUMNS = 16, LINE = 16 };

// c[rows, columns] += a[rows, k] * panel[k, columns] for any rows and columns.
static void gemm_edge(float *c, const float *a, const float *panel, int64_t rows, int64_t columns,
                      int64_t k, int64_t ld_c, int64_t ld_a, int64_t ld_panel) {
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t p = 0; p < k; ++p) {
      for (int64_t j = 0; j < columns; ++j) {
        c[i * ld_c + j] += a[i * ld_a + p] * panel[p * ld_panel + j];
      }
    }
  }
}

// The same for a whole tile.
static void gemm_tile(float *restrict c, const float *restrict a, const float *restrict panel,
                      int64_t k, int64_t ld_c, int64_t ld_a, int64_t ld_panel) {
  float sum[TILE_ROWS][TILE_COLUMNS];
  for (int i = 0; i < TILE_ROWS; ++i) {
    for (int j = 0; j < TILE_COLUMNS; ++j) sum[i][j] = c[i * ld_c + j];
  }
  for (int64_t p = 0; p < k; ++p) {
    for (int i = 0; i < TILE_ROWS; ++i) {
      const float factor = a[i * ld_a + p];
      for (int j = 0; j < TILE_COLUMNS; ++j) sum[i][j] += factor * panel[p * ld_panel + j];
    }
  }
  for (int i = 0; i < TILE_ROWS; ++i) {
    for (int j = 0; j < TILE_COLUMNS; ++j) c[i * ld_c + j] = sum[i][j];
  }
}

// c[m, columns] (+)= a[m, k] * panel[k, columns], from zero if fresh.
static void gemm_panel(float *c, const float *a, const float *panel, int64_t m, int64_t columns,
                       int64_t k, int64_t ld_c, int64_t ld_a, int fresh) {
  const int64_t whole_rows = m - m % TILE_ROWS, whole_columns = columns - columns % TILE_COLUMNS;
  for (int64_t i = 0; fresh && i < m; ++i) {
    for (int64_t j = 0; j < columns; ++j) c[i * ld_c + j] = 0.0f;
  }
  for (int64_t i = 0; i < whole_rows; i += TILE_ROWS) {
    for (int64_t j = 0; j < whole_columns; j += TILE_COLUMNS) {
      gemm_tile(c + i * ld_c + j, a + i * ld_a, panel + j, k, ld_c, ld_a, columns);
    }
  }
  gemm_edge(c + whole_columns, a, panel + whole_columns, whole_rows, columns - whole_columns, k,
            ld_c, ld_a, columns);
  gemm_edge(c + whole_rows * ld_c, a + whole_rows * ld_a, panel, m - whole_rows, columns, k, ld_c,
            ld_a, columns);
}

static int64_t at_most(int64_t value, int64_t most) { return value < most ? value : most; }

void mlc_rvv_gemm_f32(float *c, const float *a, const float *b, int64_t m, int64_t n, int64_t k,
                      int64_t ld_c, int64_t ld_a, int64_t ld_b, float *panel, int64_t panel_rows,
                      int64_t panel_columns) {
  for (int64_t column = 0; column < n; column += panel_columns) {
    const int64_t columns = at_most(n - column, panel_columns);
    for (int64_t first = 0; first < k; first += panel_rows) {
      const int64_t depth = at_most(k - first, panel_rows);
      for (int64_t line = 0; line < depth; line += LINE) {  // b is read by whole cache lines
        const int64_t end = at_most(line + LINE, depth);
        for (int64_t j = 0; j < columns; ++j) {
          const float *row = b + (column + j) * ld_b + first;
          for (int64_t p = line; p < end; ++p) panel[p * columns + j] = row[p];
        }
      }
      gemm_panel(c + column, a + first, panel, m, columns, depth, ld_c, ld_a, first == 0);
    }
  }
}

void mlc_rvv_gemm_q4(float *c, const float *a, const uint32_t *quants, const float *scales,
                     int64_t m, int64_t n, int64_t k, int64_t ld_c, int64_t ld_a, float *panel,
                     int64_t panel_rows, int64_t panel_columns) {
  const int64_t groups = MLC_RVV_Q4_GROUPS(k);
  for (int64_t column = 0; column < n; column += panel_columns) {
    const int64_t columns = at_most(n - column, panel_columns);
    for (int64_t first = 0; first < k; first += panel_rows) {
      const int64_t depth = at_most(k - first, panel_rows);
      for (int64_t j = 0; j < columns; ++j) {
        const uint32_t *words = quants + (column + j) * 4 * groups;
        const float *factors = scales + (column + j) * groups;
        for (int64_t p = 0; p < depth; ++p) {
          const int64_t at = first + p;
          const int value = (int)(words[at / 8] >> (4 * (at % 8)) & 15) - 7;
          panel[p * columns + j] = (float)value * factors[at / MLC_RVV_Q4_GROUP];
        }
      }
      gemm_panel(c + column, a + first, panel, m, columns, depth, ld_c, ld_a, first == 0);
    }
  }
}
