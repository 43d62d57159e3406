// SPDX-License-Identifier: Apache-2.0
//
// Vectors of eight floats in the dialect that clang and gcc share. Where a machine's are shorter the
// compiler takes several.
#ifndef MLC_RVV_PORTABLE_VECTORS_H_
#define MLC_RVV_PORTABLE_VECTORS_H_

#include <stdint.h>

// Vectors are passed between inlined functions only, so it does not matter how a call would.
#pragma GCC diagnostic ignored "-Wpsabi"

enum { LANES = 8 };

typedef float vec __attribute__((vector_size(4 * LANES)));
typedef float unaligned_vec __attribute__((vector_size(4 * LANES), aligned(4), may_alias));

static inline vec load(const float *from) { return *(const unaligned_vec *)from; }

static inline void store(float *to, vec value) { *(unaligned_vec *)to = value; }

static inline vec all(float value) {
  return (vec){value, value, value, value, value, value, value, value};
}

// The sums of eight vectors' elements: element i is that of parts[i].
static inline vec sums(const vec parts[LANES]) {
  vec pair[4], four[2];
  for (int i = 0; i < 4; ++i) {  // elements 0, 1 of each half: parts 2i, those 2, 3: parts 2i + 1
    const vec a = parts[2 * i], b = parts[2 * i + 1];
    pair[i] = __builtin_shufflevector(a, b, 0, 1, 8, 9, 4, 5, 12, 13) +
              __builtin_shufflevector(a, b, 2, 3, 10, 11, 6, 7, 14, 15);
  }
  for (int i = 0; i < 2; ++i) {
    const vec a = pair[2 * i], b = pair[2 * i + 1];
    four[i] = __builtin_shufflevector(a, b, 0, 2, 8, 10, 4, 6, 12, 14) +
              __builtin_shufflevector(a, b, 1, 3, 9, 11, 5, 7, 13, 15);
  }
  return __builtin_shufflevector(four[0], four[1], 0, 1, 2, 3, 8, 9, 10, 11) +
         __builtin_shufflevector(four[0], four[1], 4, 5, 6, 7, 12, 13, 14, 15);
}

// Rows of eight elements become columns.
static inline void transpose(vec rows[LANES]) {
  vec pair[LANES], four[LANES];
  for (int i = 0; i < LANES; i += 2) {
    pair[i] = __builtin_shufflevector(rows[i], rows[i + 1], 0, 8, 1, 9, 4, 12, 5, 13);
    pair[i + 1] = __builtin_shufflevector(rows[i], rows[i + 1], 2, 10, 3, 11, 6, 14, 7, 15);
  }
  for (int i = 0; i < LANES; i += 4) {
    for (int j = 0; j < 2; ++j) {
      const vec a = pair[i + j], b = pair[i + j + 2];
      four[i + 2 * j] = __builtin_shufflevector(a, b, 0, 1, 8, 9, 4, 5, 12, 13);
      four[i + 2 * j + 1] = __builtin_shufflevector(a, b, 2, 3, 10, 11, 6, 7, 14, 15);
    }
  }
  for (int i = 0; i < 4; ++i) {
    rows[i] = __builtin_shufflevector(four[i], four[i + 4], 0, 1, 2, 3, 8, 9, 10, 11);
    rows[i + 4] = __builtin_shufflevector(four[i], four[i + 4], 4, 5, 6, 7, 12, 13, 14, 15);
  }
}

#endif  // MLC_RVV_PORTABLE_VECTORS_H_
