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
// One row unpacks weights in registers. Several rows share weights that are unpacked to memory, a
// byte each, 256 inputs of half a tile at a time.

#include <riscv_vector.h>
#include <stddef.h>

#include "gguf_weights.h"

enum { MLC_GGUF_PANEL = 256 };

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

// Values of at most seven bits are the same with a sign.
MLC_RVV_INLINE vint8m2_t gguf_signed(vuint8m2_t values) {
  return __riscv_vreinterpret_v_u8m2_i8m2(values);
}

// Value j of eight neighbouring inputs, or of four with two high bits: its low bits, and its high
// ones from a byte of those. Multiplication shifts them, which some cores do faster than shifts.
#define MLC_GGUF_WITH_HIGH_DEFINE(M)                                                              \
  MLC_RVV_INLINE vuint8m##M##_t gguf_with_high_m##M(vuint8m##M##_t low, vuint8m##M##_t high, int j, \
                                                    gguf_format f, size_t vl) {                   \
    if (f.high == 0) return low;                                                                  \
    if (f.high == 1) {                                                                            \
      if (j >= 4) high = __riscv_vsrl_vx_u8m##M(high, 4, vl);                                     \
      high = __riscv_vand_vx_u8m##M(high, (uint8_t)(1 << (j & 3)), vl);                           \
      return __riscv_vmacc_vx_u8m##M(low, (uint8_t)(16 >> (j & 3)), high, vl);                    \
    }                                                                                             \
    if (j == 3) high = __riscv_vsrl_vx_u8m##M(high, 2, vl);                                       \
    high = __riscv_vand_vx_u8m##M(high, (uint8_t)(3 << (j == 3 ? 4 : 2 * j)), vl);                \
    if (j >= 2) return __riscv_vadd_vv_u8m##M(low, high, vl);                                     \
    return __riscv_vmacc_vx_u8m##M(low, (uint8_t)(j == 0 ? 16 : 4), high, vl);                    \
  }
MLC_GGUF_WITH_HIGH_DEFINE(1)
MLC_GGUF_WITH_HIGH_DEFINE(2)

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

// The sum over a block of one row's products, in units of the block's factor.
MLC_RVV_INLINE vfloat32m8_t gguf_block_sum(gguf_activations x, gguf_weights w, gguf_format f,
                                           size_t lanes) {
  const int span = gguf_span(f);
  if (span == f.block) {
    return __riscv_vfwcvt_f_x_v_f32m8(gguf_span_sum(x, w, f, 0, lanes), lanes);
  }
  vint32m8_t sum = __riscv_vmv_v_x_i32m8(gguf_zero(), lanes);
  for (int group = 0; group < f.block / f.group; ++group) {
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
    const int16_t values = (int16_t)-gguf_sum(x, group * f.group, f.group);
    sum = __riscv_vwmacc_vx_i32m8(sum, values, words, lanes);
  }
  return __riscv_vfcvt_f_x_v_f32m8(sum, lanes);
}

// Where a block takes all registers, a row's sum waits in memory.
MLC_RVV_INLINE int gguf_sum_in_memory(gguf_format f) { return f.high > 0 || f.low == 8; }

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

// One row and one tile.
MLC_RVV_INLINE void gguf_row(float *c, const uint8_t *ready, gguf_weights w, int64_t k,
                             int64_t next_block, size_t lanes, gguf_format f) {
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

// Weights of `inputs` inputs of `lanes` of a tile's `step` columns, unpacked.
typedef struct {
  int8_t *values;  // [inputs, lanes]: where the format has a zero, it is not taken off
  float *factors;  // [columns of factors, lanes]
  const uint8_t *scales;
  int64_t step;
  size_t lanes;
} gguf_panel;

MLC_RVV_INLINE void gguf_unpack(const gguf_panel *to, gguf_weights w, int inputs, gguf_format f) {
  const int together = f.high == 0 ? 2 : 8 / f.high;
  const size_t lanes = to->lanes;
  uint8_t *out = (uint8_t *)to->values;
  for (int i = 0; i < inputs; i += together) {
    vuint8m1_t high = __riscv_vmv_v_x_u8m1(0, lanes);
    if (f.high) high = __riscv_vle8_v_u8m1(w.high + i / together * to->step, lanes);
    for (int j = 0; j < together; j += 2, out += 2 * lanes) {
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
      __riscv_vse8_v_u8m1(out, first, lanes);
      __riscv_vse8_v_u8m1(out + lanes, second, lanes);
    }
  }
  const int factors = (int)gguf_factors(f, inputs);
  for (int i = 0; i < factors; ++i) {
    const vfloat32m8_t wide = gguf_halves_m8(w.factors + i * to->step, lanes);
    __riscv_vse32_v_f32m8(to->factors + (size_t)i * lanes, wide, lanes);
  }
}

// Four rows: their activations' blocks, and where their results lie.
typedef struct {
  const uint8_t *ready[4];
  float *c[4];
} gguf_four;

// The sums of four rows over a span that begins at input `from` of a block, as gguf_span_sum's.
MLC_RVV_INLINE void gguf_four_span(vint16m2_t *sum0, vint16m2_t *sum1, vint16m2_t *sum2,
                                   vint16m2_t *sum3, const gguf_activations x[4],
                                   const int8_t *values, gguf_format f, int from, size_t lanes) {
  const int span = gguf_span(f);
  vint16m2_t s0 = __riscv_vmv_v_x_i16m2(gguf_zero(), lanes), s1 = s0, s2 = s0, s3 = s0;
#pragma clang loop unroll_count(4)
  for (int i = from; i < from + span; ++i) {
    const vint8m1_t column = __riscv_vle8_v_i8m1(values + (size_t)i * lanes, lanes);
    s0 = __riscv_vwmacc_vx_i16m2(s0, x[0].values[i], column, lanes);
    s1 = __riscv_vwmacc_vx_i16m2(s1, x[1].values[i], column, lanes);
    s2 = __riscv_vwmacc_vx_i16m2(s2, x[2].values[i], column, lanes);
    s3 = __riscv_vwmacc_vx_i16m2(s3, x[3].values[i], column, lanes);
  }
  *sum0 = s0, *sum1 = s1, *sum2 = s2, *sum3 = s3;
  if (f.zero == 0) return;
  const int zero = -f.zero;
  *sum0 = __riscv_vadd_vx_i16m2(*sum0, (int16_t)(zero * gguf_sum(x[0], from, span)), lanes);
  *sum1 = __riscv_vadd_vx_i16m2(*sum1, (int16_t)(zero * gguf_sum(x[1], from, span)), lanes);
  *sum2 = __riscv_vadd_vx_i16m2(*sum2, (int16_t)(zero * gguf_sum(x[2], from, span)), lanes);
  *sum3 = __riscv_vadd_vx_i16m2(*sum3, (int16_t)(zero * gguf_sum(x[3], from, span)), lanes);
}

// c += scale * (sum * factors)
MLC_RVV_INLINE void gguf_add(float *c, float scale, vfloat32m4_t sum, const float *factors,
                             size_t lanes) {
  const vfloat32m4_t factor = __riscv_vle32_v_f32m4(factors, lanes);
  const vfloat32m4_t scaled = __riscv_vfmul_vv_f32m4(sum, factor, lanes);
  const vfloat32m4_t before = __riscv_vle32_v_f32m4(c, lanes);
  __riscv_vse32_v_f32m4(c, __riscv_vfmacc_vf_f32m4(before, scale, scaled, lanes), lanes);
}

// Adds a block's products to four rows, without minimums.
MLC_RVV_INLINE void gguf_four_block(const gguf_four *rows, const gguf_activations x[4],
                                    const gguf_panel *w, gguf_format f) {
  const size_t lanes = w->lanes;
  const int span = gguf_span(f);
  vint16m2_t s0, s1, s2, s3;
  if (span == f.block) {
    gguf_four_span(&s0, &s1, &s2, &s3, x, w->values, f, 0, lanes);
    gguf_add(rows->c[0], x[0].scale, __riscv_vfwcvt_f_x_v_f32m4(s0, lanes), w->factors, lanes);
    gguf_add(rows->c[1], x[1].scale, __riscv_vfwcvt_f_x_v_f32m4(s1, lanes), w->factors, lanes);
    gguf_add(rows->c[2], x[2].scale, __riscv_vfwcvt_f_x_v_f32m4(s2, lanes), w->factors, lanes);
    gguf_add(rows->c[3], x[3].scale, __riscv_vfwcvt_f_x_v_f32m4(s3, lanes), w->factors, lanes);
    return;
  }
  vint32m4_t t0 = __riscv_vmv_v_x_i32m4(gguf_zero(), lanes), t1 = t0, t2 = t0, t3 = t0;
  for (int group = 0; group < f.block / f.group; ++group) {
    vint16m2_t scale = __riscv_vmv_v_x_i16m2(1, lanes);
    if (gguf_has_scales(f)) {
      const int8_t *scales = (const int8_t *)w->scales + group * w->step;
      scale = __riscv_vwcvt_x_x_v_i16m2(__riscv_vle8_v_i8m1(scales, lanes), lanes);
    }
    for (int from = group * f.group; from < (group + 1) * f.group; from += span) {
      gguf_four_span(&s0, &s1, &s2, &s3, x, w->values, f, from, lanes);
      if (gguf_has_scales(f)) {
        t0 = __riscv_vwmacc_vv_i32m4(t0, s0, scale, lanes);
        t1 = __riscv_vwmacc_vv_i32m4(t1, s1, scale, lanes);
        t2 = __riscv_vwmacc_vv_i32m4(t2, s2, scale, lanes);
        t3 = __riscv_vwmacc_vv_i32m4(t3, s3, scale, lanes);
      } else {
        t0 = __riscv_vwadd_wv_i32m4(t0, s0, lanes);
        t1 = __riscv_vwadd_wv_i32m4(t1, s1, lanes);
        t2 = __riscv_vwadd_wv_i32m4(t2, s2, lanes);
        t3 = __riscv_vwadd_wv_i32m4(t3, s3, lanes);
      }
    }
  }
  gguf_add(rows->c[0], x[0].scale, __riscv_vfcvt_f_x_v_f32m4(t0, lanes), w->factors, lanes);
  gguf_add(rows->c[1], x[1].scale, __riscv_vfcvt_f_x_v_f32m4(t1, lanes), w->factors, lanes);
  gguf_add(rows->c[2], x[2].scale, __riscv_vfcvt_f_x_v_f32m4(t2, lanes), w->factors, lanes);
  gguf_add(rows->c[3], x[3].scale, __riscv_vfcvt_f_x_v_f32m4(t3, lanes), w->factors, lanes);
}

// Adds what a block's minimums add to one row.
MLC_RVV_INLINE void gguf_add_least(float *c, gguf_activations x, const gguf_panel *w,
                                   gguf_format f) {
  const size_t lanes = w->lanes;
  const float *factors = w->factors + lanes;
  if (!gguf_has_scales(f)) {
    const vfloat32m4_t sum = __riscv_vfmv_v_f_f32m4((float)gguf_sum(x, 0, f.block), lanes);
    gguf_add(c, x.scale, sum, factors, lanes);
    return;
  }
  const int groups = f.block / f.group;
  vint32m4_t sum = __riscv_vmv_v_x_i32m4(gguf_zero(), lanes);
  for (int group = 0; group < groups; ++group) {
    const vuint8m1_t least = __riscv_vle8_v_u8m1(w->scales + (groups + group) * w->step, lanes);
    const vint16m2_t words =
        __riscv_vreinterpret_v_u16m2_i16m2(__riscv_vwcvtu_x_x_v_u16m2(least, lanes));
    const int16_t values = (int16_t)-gguf_sum(x, group * f.group, f.group);
    sum = __riscv_vwmacc_vx_i32m4(sum, values, words, lanes);
  }
  gguf_add(c, x.scale, __riscv_vfcvt_f_x_v_f32m4(sum, lanes), factors, lanes);
}

// Adds the products with unpacked weights to four rows.
MLC_RVV_INLINE void gguf_four_rows(gguf_four rows, gguf_panel w, int inputs, int64_t next_block,
                                   gguf_format f) {
  for (int input = 0; input < inputs; input += f.block) {
    const gguf_activations x[4] = {gguf_block(rows.ready[0], f), gguf_block(rows.ready[1], f),
                                   gguf_block(rows.ready[2], f), gguf_block(rows.ready[3], f)};
    gguf_four_block(&rows, x, &w, f);
    for (int r = 0; f.minimums && r < 4; ++r) gguf_add_least(rows.c[r], x[r], &w, f);
    for (int r = 0; r < 4; ++r) rows.ready[r] += next_block;
    w.values += (size_t)f.block * w.lanes;
    w.factors += (size_t)gguf_factors(f, f.block) * w.lanes;
    w.scales += gguf_scales(f, f.block) * w.step;
  }
}

// m rows and one tile of `step` columns, by way of unpacked weights.
MLC_RVV_INLINE void gguf_many_rows(float *c, const uint8_t *ready, gguf_weights tile, int64_t m,
                                   int64_t k, int64_t step, int64_t ld_c, gguf_format f) {
  const int64_t most = (int64_t)__riscv_vsetvlmax_e32m4(), block = MLC_RVV_GGUF_BLOCK(f.block);
  int8_t values[MLC_GGUF_PANEL * most];
  float factors[gguf_factors(f, MLC_GGUF_PANEL) * most], unused[most];
  const vint32m8_t none = __riscv_vmv_v_x_i32m8(gguf_zero(), (size_t)step);
  for (int64_t row = 0; row < m; ++row)
    __riscv_vse32_v_i32m8((int32_t *)c + row * ld_c, none, (size_t)step);
  for (int64_t column = 0; column < step; column += most) {
    const size_t lanes = (size_t)(step - column < most ? step - column : most);
    for (int64_t input = 0; input < k; input += MLC_GGUF_PANEL) {
      const int inputs = (int)(k - input < MLC_GGUF_PANEL ? k - input : MLC_GGUF_PANEL);
      const gguf_weights part = gguf_after(tile, f, step, input);
      const gguf_weights here = {part.quants + column, part.high + column, part.scales + column,
                                 part.factors + column};
      const gguf_panel panel = {values, factors, here.scales, step, lanes};
      gguf_unpack(&panel, here, inputs, f);
      const uint8_t *first = ready + input / f.block * m * block;
      for (int64_t row = 0; row < m; row += 4) {
        gguf_four rows;
        for (int64_t r = 0; r < 4; ++r) {
          const int64_t at = row + r < m ? row + r : m - 1;
          rows.ready[r] = first + at * block;
          rows.c[r] = row + r < m ? c + at * ld_c + column : unused;
        }
        gguf_four_rows(rows, panel, inputs, m * block, f);
      }
    }
  }
}

// Fewer rows than these are done one by one.
enum { MLC_GGUF_MANY = 3 };

MLC_RVV_INLINE void gguf_gemm(float *c, const uint8_t *ready, gguf_weights w, int64_t m, int64_t n,
                              int64_t k, int64_t ld_c, int64_t tile, gguf_format f) {
  for (int64_t first = 0; first < n; first += tile) {
    const int64_t step = n - first < tile ? n - first : tile;
    if (m >= MLC_GGUF_MANY) {
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
}
