// SPDX-License-Identifier: Apache-2.0
//
// Products of int8 activations with weights in the formats of GGUF files for the host. A column of a
// tile is unpacked once for all rows.

#include "gguf_weights.h"

enum { GGUF_LANES = 64 };

// Column `p` of up to 64 rows of a tile of `step`, the zero taken off.
MLC_RVV_INLINE void gguf_column(int *values, gguf_weights w, gguf_format f, int64_t p, int64_t step,
                                int lanes) {
  const uint8_t *quants = w.quants + p * f.low / 8 * step;
  const int shift = 4 * (int)(p % 2), inputs = f.high ? 8 / f.high : 1;
  for (int i = 0; i < lanes; ++i) {
    values[i] = f.low == 8 ? (int8_t)quants[i] : (quants[i] >> shift & 15) - f.zero;
  }
  if (f.high == 0) return;
  const uint8_t *high = w.high + p / inputs * step;
  const int place = (int)(p % inputs) * f.high;
  for (int i = 0; i < lanes; ++i) values[i] += (high[i] >> place & ((1 << f.high) - 1)) << 4;
}

// The sums over a block of one row, and of what its minimums add.
MLC_RVV_INLINE void gguf_block_sums(int32_t *sums, int32_t *least, const int8_t *x,
                                    const int16_t *eights, gguf_weights w, gguf_format f,
                                    int64_t step, int lanes) {
  for (int i = 0; i < lanes; ++i) sums[i] = least[i] = 0;
  const int groups = f.block / f.group;
  for (int group = 0; group < groups; ++group) {
    int32_t part[GGUF_LANES] = {0};
    int values[GGUF_LANES], total = 0;
    for (int p = group * f.group; p < (group + 1) * f.group; ++p) {
      gguf_column(values, w, f, p, step, lanes);
      for (int i = 0; i < lanes; ++i) part[i] += values[i] * x[p];
    }
    for (int i = 0; i < f.group / 8; ++i) total += eights[group * (f.group / 8) + i];
    const int8_t *scale = (const int8_t *)w.scales + group * step;
    const uint8_t *minimum = w.scales + (groups + group) * step;
    for (int i = 0; i < lanes; ++i) {
      sums[i] += gguf_has_scales(f) ? part[i] * scale[i] : part[i];
      if (f.minimums) least[i] += gguf_has_scales(f) ? -total * minimum[i] : total;
    }
  }
}

// Up to 64 columns of one row.
MLC_RVV_INLINE void gguf_lanes(float *c, const uint8_t *ready, int64_t next_block, gguf_weights w,
                               int64_t k, int64_t step, int lanes, gguf_format f) {
  for (int i = 0; i < lanes; ++i) c[i] = 0.0f;
  for (int64_t input = 0; input < k; input += f.block, ready += next_block) {
    int32_t sums[GGUF_LANES], least[GGUF_LANES];
    float scale;
    __builtin_memcpy(&scale, ready + f.block, sizeof(scale));
    gguf_block_sums(sums, least, (const int8_t *)ready, (const int16_t *)(ready + f.block + 4), w,
                    f, step, lanes);
    for (int i = 0; i < lanes; ++i) {
      c[i] += scale * ((float)sums[i] * gguf_half(w.factors[i]));
      if (f.minimums) c[i] += scale * ((float)least[i] * gguf_half(w.factors[step + i]));
    }
    w = gguf_after(w, f, step, f.block);
  }
}

MLC_RVV_INLINE void gguf_gemm(float *c, const uint8_t *ready, gguf_weights w, int64_t m, int64_t n,
                              int64_t k, int64_t ld_c, int64_t tile, gguf_format f) {
  const int64_t block = MLC_RVV_GGUF_BLOCK(f.block);
  for (int64_t first = 0; first < n; first += tile) {
    const int64_t step = n - first < tile ? n - first : tile;
    for (int64_t column = 0; column < step; column += GGUF_LANES) {
      const int lanes = (int)(step - column < GGUF_LANES ? step - column : GGUF_LANES);
      const gguf_weights here = {w.quants + column, w.high + column, w.scales + column,
                                 w.factors + column};
      for (int64_t row = 0; row < m; ++row) {
        gguf_lanes(c + row * ld_c + first + column, ready + row * block, m * block, here, k, step,
                   lanes, f);
      }
    }
    w = gguf_after(w, f, step, k);
  }
}

MLC_RVV_GGUF(MLC_GEMM_GGUF_DEFINE)

void mlc_rvv_quantize_blocks(void *ready, const float *x, int64_t m, int64_t k, int64_t ld_x,
                             int64_t rows, int64_t block) {
  const int64_t bytes = MLC_RVV_GGUF_BLOCK(block);
  for (int64_t i = 0; i < m; ++i) {
    uint8_t *out = (uint8_t *)ready + i * bytes;
    for (int64_t first = 0; first < k; first += block, out += rows * bytes) {
      const float *group = x + i * ld_x + first;
      float largest = 0.0f;
      for (int64_t p = 0; p < block; ++p) {
        const float size = __builtin_fabsf(group[p]);
        // NaN is larger than all, and stays.
        if (!(size <= largest) && largest == largest) largest = size;
      }
      const float factor = largest > MLC_RVV_INT8_LEAST ? 127.0f / largest : 0.0f;
      int16_t *sums = (int16_t *)(out + block + 4);
      for (int64_t p = 0; p < block; ++p) {
        // To the nearest, ties to even, by an addition that leaves no room for a fraction.
        const float scaled = factor > 0.0f ? group[p] * factor : 0.0f;
        const float rounded = (scaled + 0x1.8p23f) - 0x1.8p23f;
        ((int8_t *)out)[p] = (int8_t)rounded;
        if (p % 8 == 0) sums[p / 8] = 0;
        sums[p / 8] = (int16_t)(sums[p / 8] + (int16_t)rounded);
      }
      const float scale = largest * (1.0f / 127.0f);
      __builtin_memcpy(out + block, &scale, sizeof(scale));
    }
  }
  if (mlc_rvv_on_rounding) mlc_rvv_on_rounding(ready, x, m, k, rows, block, bytes);
}
