// SPDX-License-Identifier: Apache-2.0
//
// Weights in tiles: their order is changed when they are loaded, and rows are taken from them where
// a matrix is the embedding of tokens as well. Both are memory's work, the same on every machine.

#include "packed_weights.h"

static int64_t lanes_of(int64_t row, int64_t n, int64_t tile) {
  const int64_t left = n - row / tile * tile;
  return left < tile ? left : tile;
}

#define MLC_PACK_DEFINE(BITS)                                                                  \
  static void pack_##BITS(uint##BITS##_t *data, int64_t n, int64_t columns, int64_t tile,      \
                          uint##BITS##_t *scratch) {                                           \
    for (int64_t row = 0; row < n; row += tile) {                                              \
      const int64_t lanes = lanes_of(row, n, tile);                                            \
      for (int64_t i = 0; i < columns; ++i) {                                                  \
        for (int64_t j = 0; j < lanes; ++j) scratch[i * lanes + j] = data[j * columns + i];    \
      }                                                                                        \
      for (int64_t i = 0; i < lanes * columns; ++i) data[i] = scratch[i];                      \
      data += lanes * columns;                                                                 \
    }                                                                                          \
  }
MLC_PACK_DEFINE(8)
MLC_PACK_DEFINE(16)
MLC_PACK_DEFINE(32)

void mlc_rvv_pack_tiles(void *data, int64_t item, int64_t n, int64_t columns, int64_t tile,
                        void *scratch) {
  if (item == 1) pack_8(data, n, columns, tile, scratch);
  if (item == 2) pack_16(data, n, columns, tile, scratch);
  if (item == 4) pack_32(data, n, columns, tile, scratch);
}

void mlc_rvv_take_f32(float *out, const int32_t *rows, const float *b, int64_t count, int64_t n,
                      int64_t k, int64_t tile) {
  for (int64_t i = 0; i < count; ++i) {
    const int64_t row = rows[i], lanes = lanes_of(row, n, tile);
    const float *first = b + row / tile * tile * k + row % tile;
    for (int64_t p = 0; p < k; ++p) out[i * k + p] = first[p * lanes];
  }
}

MLC_RVV_INLINE void take_packed(float *out, const int32_t *rows, const uint32_t *quants,
                                const float *scales, int64_t count, int64_t n, int64_t k,
                                int64_t tile, packed_format f) {
  const int64_t groups = MLC_RVV_GROUPS(k, f.group);
  const int values = values_of_item(f);
  for (int64_t i = 0; i < count; ++i) {
    const int64_t row = rows[i], lanes = lanes_of(row, n, tile), whole = row / tile * tile * groups;
    const void *items = items_from(quants, whole * (f.group / values) + row % tile, f);
    const float *factors = scales + whole + row % tile;
    for (int64_t p = 0; p < k; ++p) {
      const uint32_t item = item_at(items, p / values * lanes, f);
      const int value = unpacked_value(item, (int)(p % values), f);
      out[i * k + p] = (float)value * factors[p / f.group * lanes];
    }
  }
}

#define MLC_TAKE_DEFINE(name, ...)                                                               \
  void mlc_rvv_take_##name(float *out, const int32_t *rows, const uint32_t *quants,              \
                           const float *scales, int64_t count, int64_t n, int64_t k,             \
                           int64_t tile) {                                                       \
    take_packed(out, rows, quants, scales, count, n, k, tile, (packed_format){__VA_ARGS__});     \
  }
MLC_RVV_PACKED(MLC_TAKE_DEFINE)
