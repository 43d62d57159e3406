// SPDX-License-Identifier: Apache-2.0
//
// Rows of matrices in the formats of GGUF files, as the embedding of tokens takes them.

#include "gguf_weights.h"

// Input `p` of the row that `w` begins at, in a tile of `lanes` rows; its zero is not taken off.
MLC_RVV_INLINE int gguf_value(gguf_weights w, gguf_format f, int64_t p, int64_t lanes) {
  if (f.low == 8) return (int8_t)w.quants[p * lanes];
  const int low = w.quants[p / 2 * lanes] >> (4 * (p % 2)) & 15;
  if (f.high == 0) return low;
  const int inputs = 8 / f.high;
  const int bits = w.high[p / inputs * lanes] >> (p % inputs * f.high) & ((1 << f.high) - 1);
  return low | bits << 4;
}

// One row. The order of operations is ggml's, and none is fused, so that the floats are the same.
MLC_RVV_INLINE void take_row(float *out, gguf_weights w, gguf_format f, int64_t k, int64_t lanes) {
#pragma STDC FP_CONTRACT OFF
  const int groups = f.block / f.group;
  for (int64_t block = 0; block < k; block += f.block) {
    const float d = gguf_half(w.factors[0]);
    const float least = f.minimums ? gguf_half(w.factors[lanes]) : 0.0f;
    for (int i = 0; i < f.block; ++i) {
      const float value = (float)(gguf_value(w, f, i, lanes) - f.zero);
      if (!gguf_has_scales(f)) {
        out[i] = f.minimums ? value * d + least : value * d;
      } else if (f.minimums) {
        const uint8_t *scale = w.scales + i / f.group * lanes;
        out[i] = d * (float)scale[0] * value - least * (float)scale[groups * lanes];
      } else {
        out[i] = d * (float)(int8_t)w.scales[i / f.group * lanes] * value;
      }
    }
    out += f.block;
    w = gguf_after(w, f, lanes, f.block);
  }
}

MLC_RVV_INLINE void take_gguf(float *out, const int32_t *rows, gguf_weights all, int64_t count,
                              int64_t n, int64_t k, int64_t tile, gguf_format f) {
  for (int64_t i = 0; i < count; ++i) {
    const int64_t row = rows[i], first = row / tile * tile, lane = row - first;
    const gguf_weights w = gguf_after(all, f, first, k);
    const gguf_weights here = {w.quants + lane, w.high + lane, w.scales + lane, w.factors + lane};
    take_row(out + i * k, here, f, k, n - first < tile ? n - first : tile);
  }
}

#define MLC_TAKE_GGUF_DEFINE(name, ...)                                                       \
  void mlc_rvv_take_gguf_##name(float *out, const int32_t *rows, const uint8_t *quants,       \
                                const uint8_t *high, const uint8_t *scales,                   \
                                const uint16_t *factors, int64_t count, int64_t n, int64_t k, \
                                int64_t tile) {                                               \
    take_gguf(out, rows, (gguf_weights){quants, high, scales, factors}, count, n, k, tile,    \
              (gguf_format){__VA_ARGS__});                                                    \
  }
MLC_RVV_GGUF(MLC_TAKE_GGUF_DEFINE)
