// SPDX-License-Identifier: Apache-2.0
//
// c[m, n] = a[m, k] * transpose(b[n, k]) for the host, by the same panels as on RVV.

#include "gemm_tile.h"
#include "packed_weights.h"

// So few rows do not make up for writing a panel: they take the weights as they lie.
enum { FEW_ROWS = 4 };

static int64_t at_most(int64_t value, int64_t most) { return value < most ? value : most; }

// panel[depth, columns] = transpose(b[columns, depth]).
static void transpose_panel(float *panel, const float *b, int64_t columns, int64_t depth,
                            int64_t ld_b) {
  const int64_t whole_columns = columns - columns % LANES, whole_depth = depth - depth % LANES;
  for (int64_t j = 0; j < whole_columns; j += LANES) {
    for (int64_t p = 0; p < whole_depth; p += LANES) {
      vec rows[LANES];
      for (int i = 0; i < LANES; ++i) rows[i] = load(b + (j + i) * ld_b + p);
      transpose(rows);
      for (int i = 0; i < LANES; ++i) store(panel + (p + i) * columns + j, rows[i]);
    }
  }
  for (int64_t j = 0; j < columns; ++j) {
    const int64_t first = j < whole_columns ? whole_depth : 0;
    for (int64_t p = first; p < depth; ++p) panel[p * columns + j] = b[j * ld_b + p];
  }
}

void mlc_rvv_gemm_f32(float *c, const float *a, const float *b, int64_t m, int64_t n, int64_t k,
                      int64_t ld_c, int64_t ld_a, int64_t ld_b, float *panel, int64_t panel_rows,
                      int64_t panel_columns) {
  for (int64_t i = 0; m <= FEW_ROWS && i < m; ++i) {
    mlc_rvv_gemv_f32(c + i * ld_c, a + i * ld_a, b, n, k, ld_b);
  }
  for (int64_t column = 0; m > FEW_ROWS && column < n; column += panel_columns) {
    const int64_t columns = at_most(n - column, panel_columns);
    for (int64_t first = 0; first < k; first += panel_rows) {
      const int64_t depth = at_most(k - first, panel_rows);
      transpose_panel(panel, b + column * ld_b + first, columns, depth, ld_b);
      gemm_panel(c + column, a + first, panel, m, columns, depth, ld_c, ld_a, first == 0);
    }
  }
}

MLC_RVV_INLINE void gemm_packed(float *c, const float *a, const uint32_t *quants,
                                const float *scales, int64_t m, int64_t n, int64_t k, int64_t ld_c,
                                int64_t ld_a, float *panel, int64_t panel_rows,
                                int64_t panel_columns, packed_format f) {
  const int64_t groups = MLC_RVV_GROUPS(k, f.group);
  const int values = values_of_word(f);
  for (int64_t column = 0; column < n; column += panel_columns) {
    const int64_t columns = at_most(n - column, panel_columns);
    for (int64_t first = 0; first < k; first += panel_rows) {
      const int64_t depth = at_most(k - first, panel_rows);
      for (int64_t j = 0; j < columns; ++j) {
        const uint32_t *words = quants + (column + j) * MLC_RVV_WORDS(k, f.bits, f.group);
        const float *factors = scales + (column + j) * groups;
        for (int64_t p = 0; p < depth; ++p) {
          const int64_t at = first + p;
          const int value = unpacked_value(words[at / values], (int)(at % values), f);
          panel[p * columns + j] = (float)value * factors[at / f.group];
        }
      }
      gemm_panel(c + column, a + first, panel, m, columns, depth, ld_c, ld_a, first == 0);
    }
  }
}

#define MLC_GEMM_DEFINE(name, ...)                                                                \
  void mlc_rvv_gemm_##name(float *c, const float *a, const uint32_t *quants, const float *scales, \
                           int64_t m, int64_t n, int64_t k, int64_t ld_c, int64_t ld_a,           \
                           float *panel, int64_t panel_rows, int64_t panel_columns) {             \
    gemm_packed(c, a, quants, scales, m, n, k, ld_c, ld_a, panel, panel_rows, panel_columns,      \
                (packed_format){__VA_ARGS__});                                                    \
  }
MLC_RVV_PACKED(MLC_GEMM_DEFINE)
