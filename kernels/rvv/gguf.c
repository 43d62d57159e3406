// SPDX-License-Identifier: Apache-2.0
//
// Products of int8 activations with weights in the formats of GGUF files (mlc_rvv_gguf.h). Outputs
// lie in lanes. The formats differ in constants alone, and the compiler makes a function for each.
//
// Products are summed in 16 bits over a span of inputs, as long as the result fits. For
// a format with a zero, the sum is of stored values, and the activations' sum times the zero is
// taken off: what is in between may wrap around, which is exact modulo 2^16. Sums of spans, times
// the group's scale, add up in 32 bits over a block, and blocks in float32.
//
// Here one row unpacks weights in registers, by loops of loops/q4.py; gguf_prompt.h is for several
// rows.

#include <riscv_vector.h>
#include <stddef.h>

#include "gguf_prompt.h"
#include "ime.h"

typedef void gguf_row_of_blocks(float *c, const uint8_t *x, const uint8_t *q, const uint8_t *h,
                                const uint16_t *s, int64_t ld_x, int64_t step, int64_t half_step,
                                size_t lanes, int64_t blocks);
typedef void gguf_row_of_groups(int32_t *t, const uint8_t *x, const uint8_t *y, const uint8_t *q,
                                const uint8_t *h, const uint8_t *s, int64_t step, size_t lanes,
                                int64_t groups);

// The loop of one row for blocks whose groups have no scales.
MLC_RVV_INLINE gguf_row_of_blocks *gguf_loop_of_blocks(gguf_format f) {
  if (f.low == 8) return mlc_q8_0_row_m8;
  if (f.high) return f.minimums ? mlc_q5_1_row_m8 : mlc_q5_0_row_m8;
  return f.minimums ? mlc_q4_1_row_m8 : mlc_q4_0_row_m8;
}

// The loop of one row and one block for groups that have scales.
MLC_RVV_INLINE gguf_row_of_groups *gguf_loop_of_groups(gguf_format f) {
  if (f.high) return f.high == 2 ? mlc_q6_k_row_m8 : mlc_q5_k_row_m8;
  if (f.zero) return mlc_q3_k_row_m8;
  return f.group == 32 ? mlc_q4_k_row_m8 : mlc_q2_k_row_m8;
}

// The sum over a block of one row's products, in units of the block's factor.
MLC_RVV_INLINE vfloat32m8_t gguf_block_sum(gguf_activations x, gguf_weights w, gguf_format f,
                                           size_t lanes) {
  int32_t sums[lanes];
  gguf_loop_of_groups(f)(sums, (const uint8_t *)x.values, (const uint8_t *)x.sums, w.quants, w.high,
                         w.scales, (int64_t)lanes, lanes, f.block / f.group);
  return __riscv_vfcvt_f_x_v_f32m8(__riscv_vle32_v_i32m8(sums, lanes), lanes);
}

// What minimums add to a row over a block, in units of the second factor: less than nothing.
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

// c += factor * part. A row's sum waits in memory, as a loop takes all registers.
MLC_RVV_INLINE void gguf_add_part(float *c, float factor, vfloat32m8_t part, size_t lanes) {
  const vfloat32m8_t sum = __riscv_vle32_v_f32m8(c, lanes);
  __riscv_vse32_v_f32m8(c, __riscv_vfmacc_vf_f32m8(sum, factor, part, lanes), lanes);
  // What comes next would take more registers here.
  __asm__ volatile("" ::: "memory");
}

// One row and one tile.
MLC_RVV_INLINE void gguf_row(float *c, const uint8_t *ready, gguf_weights w, int64_t k,
                             int64_t next_block, size_t lanes, gguf_format f) {
  const int64_t step = (int64_t)lanes;
  if (!gguf_has_scales(f)) {
    gguf_loop_of_blocks(f)(c, ready, w.quants, w.high, w.factors, next_block, step, 2 * step, lanes,
                           k / f.block);
    return;
  }
  const vint32m8_t none = __riscv_vmv_v_x_i32m8(gguf_zero(), lanes);
  __riscv_vse32_v_i32m8((int32_t *)c, none, lanes);
  for (int64_t input = 0; input < k; input += f.block) {
    const gguf_activations x = gguf_block(ready, f);
    vfloat32m8_t part = gguf_block_sum(x, w, f, lanes);
    part = __riscv_vfmul_vv_f32m8(part, gguf_halves_m8(w.factors, lanes), lanes);
    gguf_add_part(c, x.scale, part, lanes);
    if (f.minimums) {
      part = gguf_halves_m8(w.factors + lanes, lanes);
      part = __riscv_vfmul_vv_f32m8(part, gguf_least_sum(x, w, f, lanes), lanes);
      gguf_add_part(c, x.scale, part, lanes);
    }
    ready += next_block;
    w = gguf_after(w, f, step, f.block);
  }
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
