// SPDX-License-Identifier: Apache-2.0
//
// A format of packed weights as constants, and its stored values, for code that the table of formats
// makes for each of them.
#ifndef MLC_RVV_PACKED_WEIGHTS_H_
#define MLC_RVV_PACKED_WEIGHTS_H_

#include "mlc_rvv_linear.h"

#define MLC_RVV_INLINE static inline __attribute__((always_inline))

// The fields are as in packages/crosslab/src/crosslab/models/formats.toml.
typedef struct {
  int bits, group, zero_point;
} packed_format;

// Values of a word, and of an element of a tile.
MLC_RVV_INLINE int values_of_word(packed_format f) { return 32 / f.bits; }

MLC_RVV_INLINE int values_of_item(packed_format f) {
  return 8 * MLC_RVV_TILE_ITEM(f.bits) / f.bits;
}

// Value `i` of a word or element, its zero point taken off.
MLC_RVV_INLINE int unpacked_value(uint32_t element, int i, packed_format f) {
  return (int)(element >> (f.bits * i) & ((1u << f.bits) - 1)) - f.zero_point;
}

// Elements of tiles from number `first` on, and one of them.
MLC_RVV_INLINE const void *items_from(const void *items, int64_t first, packed_format f) {
  return (const uint8_t *)items + first * MLC_RVV_TILE_ITEM(f.bits);
}

MLC_RVV_INLINE uint32_t item_at(const void *items, int64_t at, packed_format f) {
  return MLC_RVV_TILE_ITEM(f.bits) == 1 ? ((const uint8_t *)items)[at]
                                        : ((const uint32_t *)items)[at];
}

#endif  // MLC_RVV_PACKED_WEIGHTS_H_
