// SPDX-License-Identifier: Apache-2.0
//
// A format of GGUF files as constants, and where its parts lie, for code that the table of formats
// makes for each of them.
#ifndef MLC_RVV_GGUF_WEIGHTS_H_
#define MLC_RVV_GGUF_WEIGHTS_H_

#include "mlc_rvv_gguf.h"
#include "mlc_rvv_linear.h"
#include "packed_weights.h"

// The fields are as in packages/crosslab/src/crosslab/models/gguf_formats.toml.
typedef struct {
  int low, high, block, group, zero, minimums;
} gguf_format;

// A matrix of weights, or a part of one that begins with a tile.
typedef struct {
  const uint8_t *quants, *high, *scales;
  const uint16_t *factors;
} gguf_weights;

MLC_RVV_INLINE int gguf_has_scales(gguf_format f) { return f.group < f.block; }

// Columns of each part for this many inputs, whole blocks.
MLC_RVV_INLINE int64_t gguf_quants(gguf_format f, int64_t inputs) { return inputs * f.low / 8; }
MLC_RVV_INLINE int64_t gguf_high(gguf_format f, int64_t inputs) { return inputs * f.high / 8; }
MLC_RVV_INLINE int64_t gguf_scales(gguf_format f, int64_t inputs) {
  return gguf_has_scales(f) ? inputs / f.group * (1 + f.minimums) : 0;
}
MLC_RVV_INLINE int64_t gguf_factors(gguf_format f, int64_t inputs) {
  return inputs / f.block * (1 + f.minimums);
}

// The weights `rows` * `inputs` further on: whole tiles, or the columns of `rows` lanes of one.
MLC_RVV_INLINE gguf_weights gguf_after(gguf_weights w, gguf_format f, int64_t rows,
                                       int64_t inputs) {
  return (gguf_weights){
      w.quants + rows * gguf_quants(f, inputs), w.high + rows * gguf_high(f, inputs),
      w.scales + rows * gguf_scales(f, inputs), w.factors + rows * gguf_factors(f, inputs)};
}

// Inputs whose products with int8 activations have a sum that fits 16 bits: the largest power of
// two, at most a group, or half of one that has a scale (gguf_prompt.h adds two spans or four).
MLC_RVV_INLINE int gguf_span(gguf_format f) {
  const int bits = f.low + f.high;
  const int largest = f.low == 8 ? 128 : f.zero ? f.zero : (1 << bits) - 1;
  int span = gguf_has_scales(f) ? f.group / 2 : f.group;
  while (span * largest * 127 > 32767) span /= 2;
  return span;
}

// A half as float, exactly; not for infinity and NaN.
MLC_RVV_INLINE float gguf_half(uint16_t half) {
  const uint32_t bits = (uint32_t)(half & 0x8000) << 16 | (uint32_t)(half & 0x7fff) << 13;
  float value;
  __builtin_memcpy(&value, &bits, sizeof(value));
  return value * 0x1p112f;
}

// A format's kernel: gguf_gemm of the including file, with the format as constants.
#define MLC_GEMM_GGUF_DEFINE(name, ...)                                                           \
  void mlc_rvv_gemm_gguf_##name(float *c, const void *ready, const uint8_t *quants,               \
                                const uint8_t *high, const uint8_t *scales,                       \
                                const uint16_t *factors, int64_t m, int64_t n, int64_t k,         \
                                int64_t ld_c, int64_t tile) {                                     \
    gguf_gemm(c, ready, (gguf_weights){quants, high, scales, factors}, m, n, k, ld_c, tile,       \
              (gguf_format){__VA_ARGS__});                                                        \
  }

#endif  // MLC_RVV_GGUF_WEIGHTS_H_
