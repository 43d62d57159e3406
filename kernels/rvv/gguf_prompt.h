// SPDX-License-Identifier: Apache-2.0
//
// Several rows of int8 activations times weights in the formats of GGUF files. Weights of 256 inputs
// of half a tile are unpacked to bytes. Then up to twelve rows share each load of weights: the loops
// of loops/gguf.py write sums of spans down, which fit 16 bits, and four rows at a time they are
// scaled and added. Sums of spans, times the group's scale, add up in 32 bits over a block, and
// blocks in float32.
#ifndef MLC_RVV_GGUF_PROMPT_H_
#define MLC_RVV_GGUF_PROMPT_H_

#include "gguf_panel.h"
#include "mlc_rvv_loops.h"

_Static_assert(MLC_RVV_GGUF_BLOCK(32) == 44 && MLC_RVV_GGUF_BLOCK(256) == 324,
               "loops/gguf.py has the bytes of blocks");

enum { GGUF_MOST_ROWS = 12, GGUF_FOUR = 4 };

// Sums of spans of neighbouring rows: [spans, rows, lanes].
typedef struct {
  const int16_t *spans;
  int rows;
  int64_t lanes;  // of a whole vector
} gguf_sums_of_rows;

// Four rows: their activations' blocks, and where their results lie.
typedef struct {
  const uint8_t *ready[GGUF_FOUR];
  float *c[GGUF_FOUR];
} gguf_four;

#define GGUF_EACH_ROW(X) X(0) X(1) X(2) X(3)

typedef void gguf_loop(int16_t *p, const uint8_t *x, const uint8_t *y, const int8_t *w,
                       int64_t ld_x, int64_t step, int64_t pair_step, size_t lanes, int64_t times);

#define GGUF_LOOPS(name) {name##_4_m4, name##_8_m4, name##_12_m4}

// The loop for 4, 8 or 12 rows.
MLC_RVV_INLINE gguf_loop *gguf_loop_of(gguf_format f, int rows) {
  static gguf_loop *const small_32[] = GGUF_LOOPS(mlc_bytes_small_32);
  static gguf_loop *const small_16[] = GGUF_LOOPS(mlc_bytes_small_16);
  static gguf_loop *const small_8[] = GGUF_LOOPS(mlc_bytes_small_8);
  static gguf_loop *const large_16[] = GGUF_LOOPS(mlc_bytes_large_16);
  static gguf_loop *const large_8[] = GGUF_LOOPS(mlc_bytes_large_8);
  const int span = gguf_span(f), at = rows / 4 - 1;
  if (gguf_has_scales(f)) return span == 16 ? large_16[at] : large_8[at];
  return span == 32 ? small_32[at] : span == 16 ? small_16[at] : small_8[at];
}

// Values of eight bits: a sum of more than two products does not fit 16.
MLC_RVV_INLINE int gguf_is_wide(gguf_format f) { return f.low == 8; }

// Writes the sums of `rows` rows and a panel; `next` bytes lie between blocks of a row.
MLC_RVV_INLINE void gguf_sum_spans(int16_t *p, const uint8_t *ready, const gguf_panel *w, int rows,
                                   int inputs, int64_t next, gguf_format f) {
  const int64_t lanes = w->stride;
  const uint8_t *other = ready + rows / 2 * MLC_RVV_GGUF_BLOCK(f.block);
  if (gguf_is_wide(f)) {
    mlc_bytes_wide_4_m4((int32_t *)p, ready, other, w->values, next, lanes, 4 * lanes,
                        (size_t)lanes, inputs / f.block);
    return;
  }
  const int scaled = gguf_has_scales(f), each = scaled ? gguf_span(f) : f.block;
  gguf_loop_of(f, rows)(p, ready, other, w->values, scaled ? each : next, lanes, 4 * lanes,
                        (size_t)lanes, inputs / each);
}

// The compiler moves no load before this point: there are no registers for what comes later.
MLC_RVV_INLINE void gguf_in_order(void) { __asm__ volatile("" ::: "memory"); }

// The sum over a block of 32 of row `row`, as floats.
MLC_RVV_INLINE vfloat32m4_t gguf_number(gguf_sums_of_rows p, int block, int row, size_t vl,
                                        gguf_format f) {
  const int spans = f.block / gguf_span(f);
  if (gguf_is_wide(f)) {
    const int32_t *sums = (const int32_t *)p.spans + (block * p.rows + row) * p.lanes;
    return __riscv_vfcvt_f_x_v_f32m4(__riscv_vle32_v_i32m4(sums, vl), vl);
  }
  const int16_t *sums = p.spans + (block * spans * p.rows + row) * p.lanes;
  const int64_t next = p.rows * p.lanes;
  const vint16m2_t first = __riscv_vle16_v_i16m2(sums, vl);
  if (spans == 1) return __riscv_vfwcvt_f_x_v_f32m4(first, vl);
  vint32m4_t sum = __riscv_vwadd_vv_i32m4(first, __riscv_vle16_v_i16m2(sums + next, vl), vl);
  for (int span = 2; span < spans; ++span) {
    sum = __riscv_vwadd_wv_i32m4(sum, __riscv_vle16_v_i16m2(sums + span * next, vl), vl);
  }
  return __riscv_vfcvt_f_x_v_f32m4(sum, vl);
}

// Adds a panel's products to four rows, of which the sums begin at row `first`; for blocks that have
// no scales of groups.
MLC_RVV_INLINE void gguf_add_plain(gguf_four rows, gguf_sums_of_rows p, int first,
                                   const gguf_panel *w, int blocks, int64_t next, gguf_format f) {
  const size_t vl = w->lanes;
#define GGUF_LOAD(i) vfloat32m4_t c##i = __riscv_vle32_v_f32m4(rows.c[i], vl);
  GGUF_EACH_ROW(GGUF_LOAD)
  const float *factors = w->factors;
  for (int block = 0; block < blocks; ++block, factors += (1 + f.minimums) * w->stride) {
    const vfloat32m4_t factor = __riscv_vle32_v_f32m4(factors, vl);
#define GGUF_ADD(i)                                                                       \
  {                                                                                       \
    gguf_in_order();                                                                      \
    const gguf_activations x = gguf_block(rows.ready[i] + block * next, f);               \
    const vfloat32m4_t number = gguf_number(p, block, first + i, vl, f);                  \
    const vfloat32m4_t part = __riscv_vfmul_vv_f32m4(number, factor, vl);                 \
    c##i = __riscv_vfmacc_vf_f32m4(c##i, x.scale, part, vl);                              \
    if (f.minimums) {                                                                     \
      const vfloat32m4_t least = __riscv_vle32_v_f32m4(factors + w->stride, vl);          \
      const float sum = (float)gguf_sum(x, 0, f.block);                                   \
      const vfloat32m4_t more = __riscv_vfmul_vf_f32m4(least, sum, vl);                   \
      c##i = __riscv_vfmacc_vf_f32m4(c##i, x.scale, more, vl);                            \
    }                                                                                     \
  }
    GGUF_EACH_ROW(GGUF_ADD)
  }
#define GGUF_STORE(i) __riscv_vse32_v_f32m4(rows.c[i], c##i, vl);
  GGUF_EACH_ROW(GGUF_STORE)
}

// c += scale * (sum * factors)
MLC_RVV_INLINE void gguf_add(float *c, float scale, vint32m4_t sum, const float *factors,
                             size_t vl) {
  gguf_in_order();
  const vfloat32m4_t factor = __riscv_vle32_v_f32m4(factors, vl);
  const vfloat32m4_t scaled =
      __riscv_vfmul_vv_f32m4(__riscv_vfcvt_f_x_v_f32m4(sum, vl), factor, vl);
  const vfloat32m4_t before = __riscv_vle32_v_f32m4(c, vl);
  __riscv_vse32_v_f32m4(c, __riscv_vfmacc_vf_f32m4(before, scale, scaled, vl), vl);
}

// Takes off four rows what minimums of a block's groups add.
MLC_RVV_INLINE void gguf_add_least(gguf_four rows, const gguf_activations x[GGUF_FOUR],
                                   const gguf_panel *w, gguf_format f) {
  const size_t vl = w->lanes;
  const int groups = f.block / f.group;
  vint32m4_t t0 = __riscv_vmv_v_x_i32m4(gguf_zero(), vl), t1 = t0, t2 = t0, t3 = t0;
  for (int group = 0; group < groups; ++group) {
    gguf_in_order();
    const vuint8m1_t least = __riscv_vle8_v_u8m1(w->scales + (groups + group) * w->step, vl);
    const vint16m2_t words =
        __riscv_vreinterpret_v_u16m2_i16m2(__riscv_vwcvtu_x_x_v_u16m2(least, vl));
#define GGUF_LEAST(i) \
  t##i = __riscv_vwmacc_vx_i32m4(t##i, (int16_t)-gguf_sum(x[i], group * f.group, f.group), words, vl);
    GGUF_EACH_ROW(GGUF_LEAST)
  }
#define GGUF_ADD_LEAST(i) gguf_add(rows.c[i], x[i].scale, t##i, w->factors + w->stride, vl);
  GGUF_EACH_ROW(GGUF_ADD_LEAST)
}

// The same as gguf_add_plain for a panel of one block whose groups have scales.
MLC_RVV_INLINE void gguf_add_scaled(gguf_four rows, gguf_sums_of_rows p, int first,
                                    const gguf_panel *w, gguf_format f) {
  const size_t vl = w->lanes;
  const gguf_activations x[GGUF_FOUR] = {gguf_block(rows.ready[0], f), gguf_block(rows.ready[1], f),
                                         gguf_block(rows.ready[2], f),
                                         gguf_block(rows.ready[3], f)};
  const int64_t row = 2 * p.lanes;  // bytes of a row of sums
  const int spans = f.group / gguf_span(f);
  int32_t totals[GGUF_FOUR * p.lanes];
  (spans == 2 ? mlc_bytes_scaled_2_m4 : mlc_bytes_scaled_4_m4)(
      totals, p.spans + first * p.lanes, (const int8_t *)w->scales, 2 * row, w->step, row,
      (p.rows - GGUF_FOUR) * row, vl, f.block / f.group);
#define GGUF_ADD_SCALED(i)                                                     \
  gguf_add(rows.c[i], x[i].scale, __riscv_vle32_v_i32m4(totals + i * p.lanes, vl), w->factors, vl);
  GGUF_EACH_ROW(GGUF_ADD_SCALED)
  if (f.minimums) gguf_add_least(rows, x, w, f);
}

// Adds a panel's products to m rows, at least four. `first` are the activations of its first block,
// and `unused` has room for a row.
MLC_RVV_INLINE void gguf_add_panel(float *c, const uint8_t *first, const gguf_panel *w, int64_t m,
                                   int inputs, int64_t ld_c, float *unused, gguf_format f) {
  const int64_t bytes = MLC_RVV_GGUF_BLOCK(f.block), next = m * bytes;
  const int most = gguf_is_wide(f) ? GGUF_FOUR : GGUF_MOST_ROWS;
  int16_t spans[MLC_GGUF_PANEL / (gguf_is_wide(f) ? f.block / 2 : gguf_span(f)) * most * w->stride];
  for (int64_t row = 0, rows; row < m; row += rows) {
    const int64_t left = m - row;
    rows = left >= most ? most : left >= 8 && most > 8 ? 8 : GGUF_FOUR;
    // Of the last four, rows before this one are there already.
    const int64_t start = left < GGUF_FOUR ? m - GGUF_FOUR : row;
    gguf_sum_spans(spans, first + start * bytes, w, (int)rows, inputs, next, f);
    const gguf_sums_of_rows sums = {spans, (int)rows, w->stride};
    for (int i = 0; i < rows; i += GGUF_FOUR) {
      gguf_four four;
      for (int r = 0; r < GGUF_FOUR; ++r) {
        const int64_t at = start + i + r;
        four.ready[r] = first + at * bytes;
        four.c[r] = at >= row ? c + at * ld_c : unused;
      }
      if (gguf_has_scales(f)) {
        gguf_add_scaled(four, sums, i, w, f);
      } else {
        gguf_add_plain(four, sums, i, w, inputs / f.block, next, f);
      }
    }
  }
}

// m rows, at least four, and one tile of `step` columns.
MLC_RVV_INLINE void gguf_many_rows(float *c, const uint8_t *ready, gguf_weights tile, int64_t m,
                                   int64_t k, int64_t step, int64_t ld_c, gguf_format f) {
  const int64_t most = (int64_t)__riscv_vsetvlmax_e32m4();
  int8_t values[MLC_GGUF_PANEL * most];
  float factors[gguf_factors(f, MLC_GGUF_PANEL) * most], unused[most];
  const vint32m8_t none = __riscv_vmv_v_x_i32m8(gguf_zero(), (size_t)step);
  for (int64_t row = 0; row < m; ++row)
    __riscv_vse32_v_i32m8((int32_t *)c + row * ld_c, none, (size_t)step);
  for (int64_t column = 0; column < step; column += most) {
    const size_t lanes = (size_t)(step - column < most ? step - column : most);
    for (int64_t input = 0; input < k; input += MLC_GGUF_PANEL) {
      const int inputs = (int)(k - input < MLC_GGUF_PANEL ? k - input : MLC_GGUF_PANEL);
      const gguf_weights here = gguf_lanes_from(gguf_after(tile, f, step, input), column);
      const gguf_panel panel = {values, factors, here.scales, step, lanes, most};
      gguf_unpack(&panel, here, inputs, f);
      gguf_unpack_factors(&panel, here, inputs, f);
      const uint8_t *first = ready + input / f.block * m * MLC_RVV_GGUF_BLOCK(f.block);
      gguf_add_panel(c + column, first, &panel, m, inputs, ld_c, unused, f);
    }
  }
}

#endif  // MLC_RVV_GGUF_PROMPT_H_
