// SPDX-License-Identifier: Apache-2.0
//
// Products of int8 activations with weights in the formats of GGUF files (mlc_rvv_gguf.h). Outputs
// lie in lanes. The formats differ in constants alone, and the compiler makes a function for each.
//
// Products are summed in 16 bits over a span of inputs, as long as the result fits (gguf_span). For
// a format with a zero, the sum is of stored values, and the activations' sum times the zero is
// taken off: what is in between may wrap around, which is exact modulo 2^16. Sums of spans, times
// the group's scale, add up in 32 bits over a block, and blocks in float32.
//
// Here one row unpacks weights in registers, of Q4_0, Q4_K and Q6_K by loops of loops/q4.py;
// gguf_prompt.h is for several rows.

#include <riscv_vector.h>
#include <stddef.h>

#include "gguf_prompt.h"
#include "ime.h"

// Values of at most seven bits are the same with a sign.
MLC_RVV_INLINE vint8m2_t gguf_signed(vuint8m2_t values) {
  return __riscv_vreinterpret_v_u8m2_i8m2(values);
}

// The sum over a span of one row's products, from input `from` of a block on.
MLC_RVV_INLINE vint16m4_t gguf_span_sum(gguf_activations x, gguf_weights w, gguf_format f, int from,
                                        size_t lanes) {
  const int span = gguf_span(f), together = f.high == 0 ? 2 : 8 / f.high;
  const int8_t *values = x.values + from;
  vint16m4_t sum = __riscv_vmv_v_x_i16m4(gguf_zero(), lanes);
  if (f.low == 8) {
    for (int i = 0; i < span; ++i) {
      const int8_t *column = (const int8_t *)w.quants + (size_t)(from + i) * lanes;
      sum = __riscv_vwmacc_vx_i16m4(sum, values[i], __riscv_vle8_v_i8m2(column, lanes), lanes);
    }
    return sum;
  }
  for (int i = 0; i < span; i += together) {
    vuint8m2_t high = __riscv_vmv_v_x_u8m2(0, lanes);
    if (f.high) high = __riscv_vle8_v_u8m2(w.high + (size_t)((from + i) / together) * lanes, lanes);
    for (int j = 0; j < together; j += 2) {
      const uint8_t *column = w.quants + (size_t)((from + i + j) / 2) * lanes;
      const vuint8m2_t pair = __riscv_vle8_v_u8m2(column, lanes);
      vuint8m2_t second = __riscv_vmulhu_vx_u8m2(pair, 16, lanes);
      vuint8m2_t first = __riscv_vnmsac_vx_u8m2(pair, 16, second, lanes);
      first = gguf_with_high_m2(first, high, j, f, lanes);
      second = gguf_with_high_m2(second, high, j + 1, f, lanes);
      sum = __riscv_vwmacc_vx_i16m4(sum, values[i + j], gguf_signed(first), lanes);
      sum = __riscv_vwmacc_vx_i16m4(sum, values[i + j + 1], gguf_signed(second), lanes);
    }
  }
  if (f.zero == 0) return sum;
  return __riscv_vadd_vx_i16m4(sum, (int16_t)(-f.zero * gguf_sum(x, from, span)), lanes);
}

MLC_RVV_INLINE int gguf_is_q4_k(gguf_format f) {
  return f.low == 4 && f.high == 0 && f.zero == 0 && f.block == 256 && f.group == 32;
}

MLC_RVV_INLINE int gguf_is_q6_k(gguf_format f) {
  return f.low == 4 && f.high == 2 && f.zero == 32 && f.block == 256 && f.group == 16;
}

// The sum over a block of one row's products, in units of the block's factor.
MLC_RVV_INLINE vfloat32m8_t gguf_block_sum(gguf_activations x, gguf_weights w, gguf_format f,
                                           size_t lanes) {
  const int span = gguf_span(f);
  if (span == f.block) {
    return __riscv_vfwcvt_f_x_v_f32m8(gguf_span_sum(x, w, f, 0, lanes), lanes);
  }
  const int groups = f.block / f.group;
  if (gguf_is_q4_k(f) || gguf_is_q6_k(f)) {
    int32_t sums[lanes];
    const uint8_t *values = (const uint8_t *)x.values;
    if (gguf_is_q4_k(f)) {
      mlc_q4_k_row_m8(sums, values, w.quants, w.scales, (int64_t)lanes, lanes, groups);
    } else {
      mlc_q6_k_row_m8(sums, values, (const uint8_t *)x.sums, w.quants, w.high, w.scales,
                      (int64_t)lanes, lanes, groups);
    }
    return __riscv_vfcvt_f_x_v_f32m8(__riscv_vle32_v_i32m8(sums, lanes), lanes);
  }
  vint32m8_t sum = __riscv_vmv_v_x_i32m8(gguf_zero(), lanes);
  for (int group = 0; group < groups; ++group) {
    vint16m4_t scale = __riscv_vmv_v_x_i16m4(1, lanes);
    if (gguf_has_scales(f)) {
      const int8_t *scales = (const int8_t *)w.scales + (size_t)group * lanes;
      scale = __riscv_vwcvt_x_x_v_i16m4(__riscv_vle8_v_i8m2(scales, lanes), lanes);
    }
#pragma clang loop unroll_count(2)
    for (int from = group * f.group; from < (group + 1) * f.group; from += span) {
      const vint16m4_t part = gguf_span_sum(x, w, f, from, lanes);
      sum = gguf_has_scales(f) ? __riscv_vwmacc_vv_i32m8(sum, part, scale, lanes)
                               : __riscv_vwadd_wv_i32m8(sum, part, lanes);
    }
  }
  return __riscv_vfcvt_f_x_v_f32m8(sum, lanes);
}

// What minimums add to a row over a block, in units of the second factor: less than nothing in
// formats with scales.
MLC_RVV_INLINE vfloat32m8_t gguf_least_sum(gguf_activations x, gguf_weights w, gguf_format f,
                                           size_t lanes) {
  const int groups = f.block / f.group;
  vint32m8_t sum = __riscv_vmv_v_x_i32m8(gguf_zero(), lanes);
  for (int group = 0; group < groups; ++group) {
    const uint8_t *least = w.scales + (size_t)(groups + group) * lanes;
    const vuint16m4_t wide = __riscv_vwcvtu_x_x_v_u16m4(__riscv_vle8_v_u8m2(least, lanes), lanes);
    const vint16m4_t words = __riscv_vreinterpret_v_u16m4_i16m4(wide);
    // A zero for reductions that is kept over the call of a loop would be spilled.
    const int16_t values = (int16_t)(gguf_zero() - gguf_sum(x, group * f.group, f.group));
    sum = __riscv_vwmacc_vx_i32m8(sum, values, words, lanes);
  }
  return __riscv_vfcvt_f_x_v_f32m8(sum, lanes);
}

// Where a block takes all registers, as a loop's call does, a row's sum waits in memory.
MLC_RVV_INLINE int gguf_sum_in_memory(gguf_format f) {
  return f.high > 0 || f.low == 8 || gguf_is_q4_k(f);
}

// sum + factor * part
MLC_RVV_INLINE vfloat32m8_t gguf_add_part(vfloat32m8_t sum, float *c, float factor,
                                          vfloat32m8_t part, size_t lanes, gguf_format f) {
  if (gguf_sum_in_memory(f)) sum = __riscv_vle32_v_f32m8(c, lanes);
  sum = __riscv_vfmacc_vf_f32m8(sum, factor, part, lanes);
  if (gguf_sum_in_memory(f)) __riscv_vse32_v_f32m8(c, sum, lanes);
  // What comes next would take more registers here.
  __asm__ volatile("" ::: "memory");
  return sum;
}

MLC_RVV_INLINE int gguf_is_q4_0(gguf_format f) {
  return f.low == 4 && f.high == 0 && f.zero == 8 && f.block == 32 && !f.minimums;
}

// One row and one tile.
MLC_RVV_INLINE void gguf_row(float *c, const uint8_t *ready, gguf_weights w, int64_t k,
                             int64_t next_block, size_t lanes, gguf_format f) {
  if (gguf_is_q4_0(f)) {
    const int64_t step = (int64_t)lanes;
    mlc_q4_0_row_m8(c, ready, w.quants, w.factors, next_block, step, 2 * step, lanes, k / f.block);
    return;
  }
  vfloat32m8_t sum = __riscv_vreinterpret_v_i32m8_f32m8(__riscv_vmv_v_x_i32m8(gguf_zero(), lanes));
  __riscv_vse32_v_f32m8(c, sum, lanes);
  for (int64_t input = 0; input < k; input += f.block) {
    const gguf_activations x = gguf_block(ready, f);
    vfloat32m8_t part = gguf_block_sum(x, w, f, lanes);
    part = __riscv_vfmul_vv_f32m8(part, gguf_halves_m8(w.factors, lanes), lanes);
    sum = gguf_add_part(sum, c, x.scale, part, lanes, f);
    if (f.minimums) {
      part = gguf_halves_m8(w.factors + lanes, lanes);
      float factor = x.scale;
      if (gguf_has_scales(f)) {
        part = __riscv_vfmul_vv_f32m8(part, gguf_least_sum(x, w, f, lanes), lanes);
      } else {
        factor *= (float)gguf_sum(x, 0, f.block);
      }
      sum = gguf_add_part(sum, c, factor, part, lanes, f);
    }
    ready += next_block;
    w = gguf_after(w, f, (int64_t)lanes, f.block);
  }
  if (!gguf_sum_in_memory(f)) __riscv_vse32_v_f32m8(c, sum, lanes);
}

// Fewer rows than these are done one by one.
enum { MLC_GGUF_MANY = GGUF_FOUR };

MLC_RVV_INLINE void gguf_gemm(float *c, const uint8_t *ready, gguf_weights w, int64_t m, int64_t n,
                              int64_t k, int64_t ld_c, int64_t tile, gguf_format f) {
  for (int64_t first = 0; first < n; first += tile) {
    const int64_t step = n - first < tile ? n - first : tile;
    if (m >= MLC_GGUF_MANY && ime_serves(step) && ime_has_format(f)) {
      const int64_t block = MLC_RVV_GGUF_BLOCK(f.block);
      ime_many_rows(c + first, ready, w, NULL, m, m * block, k, ld_c, block, f);
    } else if (m >= MLC_GGUF_MANY) {
      gguf_many_rows(c + first, ready, w, m, k, step, ld_c, f);
    } else {
      for (int64_t row = 0; row < m; ++row) {
        const int64_t block = MLC_RVV_GGUF_BLOCK(f.block);
        gguf_row(c + row * ld_c + first, ready + row * block, w, k, m * block, (size_t)step, f);
      }
    }
    w = gguf_after(w, f, step, k);
  }
}

MLC_RVV_GGUF(MLC_GEMM_GGUF_DEFINE)

// Sums of eight neighbouring bytes: of two in the halves of words, of four, of eight.
MLC_RVV_INLINE void gguf_sums(int16_t *sums, const int8_t *values, int64_t count) {
  for (int64_t i = 0; i < count;) {
    const size_t eights = __riscv_vsetvl_e64m4((size_t)(count - i) / 8);
    const vint64m4_t bytes =
        __riscv_vreinterpret_v_i8m4_i64m4(__riscv_vle8_v_i8m4(values + i, 8 * eights));
    const size_t pairs = 4 * eights, fours = 2 * eights;
    const vint16m4_t two = __riscv_vreinterpret_v_i64m4_i16m4(bytes);
    const vint16m4_t twos =
        __riscv_vadd_vv_i16m4(__riscv_vsra_vx_i16m4(__riscv_vsll_vx_i16m4(two, 8, pairs), 8, pairs),
                              __riscv_vsra_vx_i16m4(two, 8, pairs), pairs);
    const vint32m4_t four = __riscv_vreinterpret_v_i16m4_i32m4(twos);
    const vint32m4_t sum4 = __riscv_vadd_vv_i32m4(
        __riscv_vsra_vx_i32m4(__riscv_vsll_vx_i32m4(four, 16, fours), 16, fours),
        __riscv_vsra_vx_i32m4(four, 16, fours), fours);
    const vint64m4_t eight = __riscv_vreinterpret_v_i32m4_i64m4(sum4);
    const vint64m4_t sum8 = __riscv_vadd_vv_i64m4(
        __riscv_vsra_vx_i64m4(__riscv_vsll_vx_i64m4(eight, 32, eights), 32, eights),
        __riscv_vsra_vx_i64m4(eight, 32, eights), eights);
    const vint32m2_t words = __riscv_vncvt_x_x_w_i32m2(sum8, eights);
    __riscv_vse16_v_i16m1(sums + i / 8, __riscv_vncvt_x_x_w_i16m1(words, eights), eights);
    i += 8 * (int64_t)eights;
  }
}

// The largest size in a block. Its bits are compared without the sign: those of NaN are larger than
// those of infinity, so that both stay.
MLC_RVV_INLINE float gguf_largest(const float *x, int64_t block) {
  vuint32m1_t most = __riscv_vmv_s_x_u32m1(0, 1);
  for (int64_t i = 0; i < block;) {
    const size_t lanes = __riscv_vsetvl_e32m8((size_t)(block - i));
    const vuint32m8_t bits =
        __riscv_vreinterpret_v_f32m8_u32m8(__riscv_vle32_v_f32m8(x + i, lanes));
    const vuint32m8_t doubled = __riscv_vadd_vv_u32m8(bits, bits, lanes);
    most = __riscv_vredmaxu_vs_u32m8_u32m1(doubled, most, lanes);
    i += (int64_t)lanes;
  }
  const uint32_t bits = __riscv_vmv_x_s_u32m1_u32(most) >> 1;
  float largest;
  __builtin_memcpy(&largest, &bits, sizeof(largest));
  return largest;
}

MLC_RVV_INLINE void gguf_quantize_block(uint8_t *ready, const float *x, int64_t block) {
  const float largest = gguf_largest(x, block);
  const float factor = largest > MLC_RVV_INT8_LEAST ? 127.0f / largest : 0.0f;
  for (int64_t i = 0; i < block;) {
    const size_t lanes = __riscv_vsetvl_e32m8((size_t)(block - i));
    const vfloat32m8_t scaled =
        __riscv_vfmul_vf_f32m8(__riscv_vle32_v_f32m8(x + i, lanes), factor, lanes);
    const vint16m4_t words = __riscv_vfncvt_x_f_w_i16m4(scaled, lanes);
    __riscv_vse8_v_i8m2((int8_t *)ready + i, __riscv_vncvt_x_x_w_i8m2(words, lanes), lanes);
    i += (int64_t)lanes;
  }
  const float scale = largest * (1.0f / 127.0f);
  __builtin_memcpy(ready + block, &scale, sizeof(scale));
  gguf_sums((int16_t *)(ready + block + 4), (const int8_t *)ready, block);
}

void mlc_rvv_quantize_blocks(void *ready, const float *x, int64_t m, int64_t k, int64_t ld_x,
                             int64_t rows, int64_t block) {
  const int64_t bytes = MLC_RVV_GGUF_BLOCK(block);
  for (int64_t row = 0; row < m; ++row) {
    uint8_t *out = (uint8_t *)ready + row * bytes;
    for (int64_t i = 0; i < k; i += block, out += rows * bytes) {
      gguf_quantize_block(out, x + row * ld_x + i, block);
    }
  }
  if (mlc_rvv_on_rounding) mlc_rvv_on_rounding(ready, x, m, k, rows, block, bytes);
}
