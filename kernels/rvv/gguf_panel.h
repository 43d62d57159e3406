// SPDX-License-Identifier: Apache-2.0
//
// Weights of a part of a tile, unpacked to a byte each, for several rows of activations.
#ifndef MLC_RVV_GGUF_PANEL_H_
#define MLC_RVV_GGUF_PANEL_H_

#include <riscv_vector.h>
#include <stddef.h>

#include "gguf_weights.h"

// Activations of one block.
typedef struct {
  const int8_t *values;
  float scale;
  const int16_t *sums;  // of eight values each
} gguf_activations;

MLC_RVV_INLINE gguf_activations gguf_block(const uint8_t *ready, gguf_format f) {
  gguf_activations x = {(const int8_t *)ready, 0.0f, (const int16_t *)(ready + f.block + 4)};
  __builtin_memcpy(&x.scale, ready + f.block, sizeof(x.scale));
  return x;
}

// The sum of the values from input `from` on, of `count` inputs.
MLC_RVV_INLINE int gguf_sum(gguf_activations x, int from, int count) {
  int sum = 0;
  for (int i = from / 8; i < (from + count) / 8; ++i) sum += x.sums[i];
  return sum;
}

// Zero, which the compiler does not know: a vector of zeros that is kept for later takes registers.
MLC_RVV_INLINE int gguf_zero(void) {
  int zero;
  __asm__ volatile("li %0, 0" : "=r"(zero));
  return zero;
}

// Value j of eight neighbouring inputs, or of four with two high bits: its low bits, and its high
// ones from a byte of those. Multiplication shifts them, which some cores do faster than shifts.
MLC_RVV_INLINE vuint8m1_t gguf_with_high_m1(vuint8m1_t low, vuint8m1_t high, int j, gguf_format f,
                                            size_t vl) {
  if (f.high == 0) return low;
  if (f.high == 1) {
    if (j >= 4) high = __riscv_vsrl_vx_u8m1(high, 4, vl);
    high = __riscv_vand_vx_u8m1(high, (uint8_t)(1 << (j & 3)), vl);
    return __riscv_vmacc_vx_u8m1(low, (uint8_t)(16 >> (j & 3)), high, vl);
  }
  if (j == 3) high = __riscv_vsrl_vx_u8m1(high, 2, vl);
  high = __riscv_vand_vx_u8m1(high, (uint8_t)(3 << (j == 3 ? 4 : 2 * j)), vl);
  if (j >= 2) return __riscv_vadd_vv_u8m1(low, high, vl);
  return __riscv_vmacc_vx_u8m1(low, (uint8_t)(j == 0 ? 16 : 4), high, vl);
}

// Halves as floats, exactly; not infinity and NaN.
MLC_RVV_INLINE vfloat32m8_t gguf_halves_m8(const uint16_t *halves, size_t vl) {
#ifdef __riscv_zvfh
  return __riscv_vfwcvt_f_f_v_f32m8(__riscv_vle16_v_f16m4((const _Float16 *)halves, vl), vl);
#else
  const vint16m4_t words = __riscv_vle16_v_i16m4((const int16_t *)halves, vl);
  // The sign lands in the four highest bits, of which it keeps the first.
  const vint32m8_t shifted = __riscv_vwmul_vx_i32m8(words, 1 << 13, vl);
  const vint32m8_t bits = __riscv_vand_vx_i32m8(shifted, (int32_t)0x8fffffff, vl);
  return __riscv_vfmul_vf_f32m8(__riscv_vreinterpret_v_i32m8_f32m8(bits), 0x1p112f, vl);
#endif
}

// Inputs whose weights are unpacked at a time; a multiple of every block.
enum { MLC_GGUF_PANEL = 256 };

// Weights of some inputs of `lanes` of a tile's `step` columns, unpacked.
typedef struct {
  int8_t *values;         // [inputs, stride]
  float *factors;         // [columns of factors, stride]
  const uint8_t *scales;  // in the tile
  int64_t step;
  size_t lanes;
  int64_t stride;  // at least `lanes`
} gguf_panel;

MLC_RVV_INLINE void gguf_unpack(const gguf_panel *to, gguf_weights w, int inputs, gguf_format f) {
  const int together = f.high == 0 ? 2 : 8 / f.high;
  const size_t lanes = to->lanes;
  uint8_t *out = (uint8_t *)to->values;
  for (int i = 0; i < inputs; i += together) {
    vuint8m1_t high = __riscv_vmv_v_x_u8m1(0, lanes);
    if (f.high) high = __riscv_vle8_v_u8m1(w.high + i / together * to->step, lanes);
    for (int j = 0; j < together; j += 2, out += 2 * to->stride) {
      const uint8_t *column = w.quants + (i + j) * f.low / 8 * to->step;
      vuint8m1_t first = __riscv_vle8_v_u8m1(column, lanes), second;
      if (f.low == 8) {
        second = __riscv_vle8_v_u8m1(column + to->step, lanes);
      } else {
        second = __riscv_vmulhu_vx_u8m1(first, 16, lanes);
        first = __riscv_vnmsac_vx_u8m1(first, 16, second, lanes);
        first = gguf_with_high_m1(first, high, j, f, lanes);
        second = gguf_with_high_m1(second, high, j + 1, f, lanes);
      }
      if (f.zero) {
        first = __riscv_vsub_vx_u8m1(first, (uint8_t)f.zero, lanes);
        second = __riscv_vsub_vx_u8m1(second, (uint8_t)f.zero, lanes);
      }
      __riscv_vse8_v_u8m1(out, first, lanes);
      __riscv_vse8_v_u8m1(out + to->stride, second, lanes);
    }
  }
}

// The factors of as many inputs, as floats.
MLC_RVV_INLINE void gguf_unpack_factors(const gguf_panel *to, gguf_weights w, int inputs,
                                        gguf_format f) {
  const int factors = (int)gguf_factors(f, inputs);
  for (int i = 0; i < factors; ++i) {
    const vfloat32m8_t wide = gguf_halves_m8(w.factors + i * to->step, to->lanes);
    __riscv_vse32_v_f32m8(to->factors + i * to->stride, wide, to->lanes);
  }
}

// Weights from a lane of the same tile on.
MLC_RVV_INLINE gguf_weights gguf_lanes_from(gguf_weights w, int64_t lane) {
  return (gguf_weights){w.quants + lane, w.high + lane, w.scales + lane, w.factors + lane};
}

// Scales of q4 in 22 bits: what a product by 2^2 + 1 leaves of them (Veltkamp).
MLC_RVV_INLINE void round_scales(float *to, const float *s, int64_t groups, int64_t step,
                                 size_t lanes) {
  for (; groups > 0; --groups, s += step, to += lanes) {
    const vfloat32m4_t scale = __riscv_vle32_v_f32m4(s, lanes);
    const vfloat32m4_t more = __riscv_vfmul_vf_f32m4(scale, 5.0f, lanes);
    const vfloat32m4_t less = __riscv_vfsub_vv_f32m4(more, scale, lanes);
    __riscv_vse32_v_f32m4(to, __riscv_vfsub_vv_f32m4(more, less, lanes), lanes);
  }
}

#endif  // MLC_RVV_GGUF_PANEL_H_
