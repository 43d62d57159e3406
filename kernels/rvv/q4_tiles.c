// SPDX-License-Identifier: Apache-2.0
//
// Products of float32 activations with q4 weights in tiles.
//
// One row (gemv): the activations of a group become integers of 24 bits, x = integer * scale with
// scale = largest / FULL, each of three digits from -128 to 127 to the base 256. The digits of one
// place are multiplied like int8 activations (int8_q4.c has that arithmetic), and the sums of the
// places are added with their weights. A multiply-add of float32 takes as long as two of int8, and a
// byte's way to floats as long as four. The error of an activation is that of a float32 as large as
// the group's largest. A group whose largest is not above MLC_RVV_INT8_LEAST is zeros; NaN and infinity stay.
//
// Up to MLC_RVV_Q4_FEW_ROWS rows are done so, two of them together. Of more rows, a part of a tile is unpacked to
// float32 once and multiplied as any panel is.

#include "gemm_rows.h"
#include "mlc_rvv_linear.h"
#include "mlc_rvv_loops.h"

// Bytes of a group that is ready: a block of int8 activations for each place, and some that are left.
enum { DIGITS = 4 * MLC_RVV_READY(MLC_RVV_Q4_GROUP, MLC_RVV_Q4_GROUP), PLACES = 3 };
_Static_assert(DIGITS == 144 && PLACES * MLC_RVV_INT8_BLOCK <= DIGITS,
               "loops/q4.py has the bytes of a group");
// The largest integer, whose digits are 127, 0, 0.
#define FULL (127 * 65536.0f)

// The digits of groups, `distance` bytes apart, at LMUL M, which holds 32 floats; H and Q are a half and a quarter of it.
#define DIGITS_DEFINE(M, H, Q)                                                                     \
  __attribute__((noinline)) static void digits_m##M(uint8_t *ready, const float *x, int64_t k, int64_t distance) {   \
    const size_t lanes = MLC_RVV_Q4_GROUP;                                                         \
    const vfloat32m##M##_t pad = __riscv_vfmv_v_f_f32m##M(0.0f, lanes);                            \
    const vuint32m1_t none = __riscv_vmv_s_x_u32m1(0, 1);                                          \
    const vint16m1_t zero = __riscv_vmv_s_x_i16m1(0, 1);                                           \
    for (; k > 0; k -= MLC_RVV_Q4_GROUP, x += MLC_RVV_Q4_GROUP, ready += distance) {                 \
      const size_t some = k < MLC_RVV_Q4_GROUP ? (size_t)k : lanes;                                \
      const vfloat32m##M##_t group = __riscv_vle32_v_f32m##M##_tu(pad, x, some);                   \
      const float scale = group_scale(__riscv_vmv_x_s_u32m1_u32(__riscv_vredmaxu_vs_u32m##M##_u32m1( \
          __riscv_vsll_vx_u32m##M(__riscv_vreinterpret_v_f32m##M##_u32m##M(group), 1, lanes), none, \
          lanes)));                                                                                \
      const float factor = scale > MLC_RVV_INT8_LEAST / FULL ? 1.0f / scale : 0.0f;                \
      vint32m##M##_t number =                                                                      \
          __riscv_vfcvt_x_f_v_i32m##M(__riscv_vfmul_vf_f32m##M(group, factor, lanes), lanes);      \
      uint8_t *block = ready;                                                                      \
      for (int place = 0; place < PLACES; ++place, block += MLC_RVV_INT8_BLOCK) {                  \
        const vint8##Q##_t digits =                                                                \
            __riscv_vncvt_x_x_w_i8##Q(__riscv_vncvt_x_x_w_i16##H(number, lanes), lanes);           \
        __riscv_vse8_v_i8##Q((int8_t *)block, digits, lanes);                                      \
        const int sum = (int16_t)__riscv_vmv_x_s_i16m1_i16(                                        \
            __riscv_vwredsum_vs_i8##Q##_i16m1(digits, zero, lanes));                               \
        *(float *)(block + 32) = scale;                                                            \
        *(int32_t *)(block + 36) = -MLC_RVV_Q4_ZERO_POINT * sum;                                   \
        number = __riscv_vsra_vx_i32m##M(                                                          \
            __riscv_vsub_vv_i32m##M(number, __riscv_vsext_vf4_i32m##M(digits, lanes), lanes), 8,   \
            lanes);                                                                                \
      }                                                                                            \
    }                                                                                              \
  }

// The scale of a group from the bits of its largest |x|, doubled to lose the sign: those of NaN are
// larger than infinity's, so that neither is lost in silence.
static inline float group_scale(uint32_t doubled) {
  const uint32_t bits = doubled >> 1;
  float largest;
  __builtin_memcpy(&largest, &bits, sizeof(largest));
  return largest / FULL;
}

DIGITS_DEFINE(8, m4, m2)
DIGITS_DEFINE(4, m2, m1)
DIGITS_DEFINE(2, m1, mf2)
DIGITS_DEFINE(1, mf2, mf4)

static void digits(uint8_t *ready, const float *x, int64_t k, int64_t distance) {
  const size_t words = __riscv_vsetvlmax_e32m1();
  (words >= 32   ? digits_m1
   : words == 16 ? digits_m2
   : words == 8  ? digits_m4
                 : digits_m8)(ready, x, k, distance);
}

void mlc_rvv_gemv_q4_prepare_tiles(float *ready, const float *x, int64_t k) {
  digits((uint8_t *)ready, x, k, DIGITS);
}

typedef void row_loop(float *y, const uint8_t *x, const uint8_t *q, const float *s, int64_t ld_y,
                      int64_t step, int64_t scale_step, size_t lanes, int64_t groups);

// What is left at the end of a matrix is done at the smallest LMUL that holds it.
static row_loop *row_of(size_t lanes) {
  return lanes > __riscv_vsetvlmax_e32m4()   ? mlc_q4_row_1_m8
         : lanes > __riscv_vsetvlmax_e32m2() ? mlc_q4_row_1_m4
         : lanes > __riscv_vsetvlmax_e32m1() ? mlc_q4_row_1_m2
                                             : mlc_q4_row_1_m1;
}

static row_loop *two_rows_of(size_t lanes) {
  return lanes > __riscv_vsetvlmax_e32m2()   ? mlc_q4_row_2_m4
         : lanes > __riscv_vsetvlmax_e32m1() ? mlc_q4_row_2_m2
                                             : mlc_q4_row_2_m1;
}

// One or two rows of c, whose digits are ready. Two are done in parts of LMUL 4.
static void few_rows(float *c, int64_t ld_c, const uint8_t *ready, const uint8_t *q,
                     const float *scales, int64_t rows, int64_t n, int64_t groups, int64_t tile) {
  const int64_t most = rows == 1 ? tile : (int64_t)__riscv_vsetvlmax_e32m4();
  for (int64_t step; n > 0; n -= step) {
    step = n < tile ? n : tile;
    for (int64_t column = 0; column < step; column += most) {
      const size_t lanes = (size_t)(step - column < most ? step - column : most);
      (rows == 1 ? row_of : two_rows_of)(lanes)(c + column, ready, q + column, scales + column,
                                                ld_c * 4, step, step * 4, lanes, groups);
    }
    c += step;
    q += step * groups * (MLC_RVV_Q4_GROUP / 2);
    scales += step * groups;
  }
}

void mlc_rvv_gemv_q4_tiles(float *y, const float *ready, const uint32_t *quants,
                           const float *scales, int64_t n, int64_t k, int64_t tile) {
  few_rows(y, n, (const uint8_t *)ready, (const uint8_t *)quants, scales, 1, n,
           MLC_RVV_GROUPS(k, MLC_RVV_Q4_GROUP), tile);
}

// panel[depth, lanes] of a tile's inputs, which begin and end with groups or with the last of them.
static void mlc_q4_unpack_tile(float *panel, const uint8_t *q, const float *s, int64_t depth,
                               size_t lanes) {
  vfloat32m8_t scale = __riscv_vundefined_f32m8();
  for (int64_t i = 0; i < depth; i += 2, q += lanes) {
    if (i % MLC_RVV_Q4_GROUP == 0) {
      scale = __riscv_vle32_v_f32m8(s, lanes);
      s += lanes;
    }
    const vuint8m2_t bytes = __riscv_vle8_v_u8m2(q, lanes);
    for (int j = 0; j < 2 && i + j < depth; ++j, panel += lanes) {
      const vuint8m2_t nibble =
          j == 0 ? __riscv_vand_vx_u8m2(bytes, 15, lanes) : __riscv_vsrl_vx_u8m2(bytes, 4, lanes);
      const vint16m4_t value = __riscv_vadd_vx_i16m4(
          __riscv_vreinterpret_v_u16m4_i16m4(__riscv_vzext_vf2_u16m4(nibble, lanes)),
          -MLC_RVV_Q4_ZERO_POINT, lanes);
      __riscv_vse32_v_f32m8(
          panel, __riscv_vfmul_vv_f32m8(__riscv_vfwcvt_f_x_v_f32m8(value, lanes), scale, lanes),
          lanes);
    }
  }
}

void mlc_rvv_gemm_q4_tiles(float *c, const float *a, const uint32_t *quants, const float *scales,
                           int64_t m, int64_t n, int64_t k, int64_t ld_c, int64_t ld_a,
                           float *panel, int64_t panel_rows, int64_t tile) {
  const int64_t groups = MLC_RVV_GROUPS(k, MLC_RVV_Q4_GROUP);
  const uint8_t *q = (const uint8_t *)quants;
  const int64_t ready = MLC_RVV_READY(k, MLC_RVV_Q4_GROUP), room = panel_rows * tile / ready;
  // For a few rows, unpacking in registers takes less than writing a panel; the panel's memory holds
  // the digits of two rows, if they fit.
  if (m <= MLC_RVV_Q4_FEW_ROWS && room > 0) {
    for (int64_t rows; m > 0; m -= rows, a += rows * ld_a, c += rows * ld_c) {
      rows = m > 1 && room > 1 ? 2 : 1;
      for (int64_t row = 0; row < rows; ++row) {
        digits((uint8_t *)panel + row * DIGITS, a + row * ld_a, k, rows * DIGITS);
      }
      few_rows(c, ld_c, (const uint8_t *)panel, q, scales, rows, n, groups, tile);
    }
    return;
  }
  while (n > 0) {
    const int64_t step = n < tile ? n : tile;
    for (int64_t first = 0; first < k; first += panel_rows) {
      const int64_t depth = k - first < panel_rows ? k - first : panel_rows;
      const mlc_gemm_by by = {depth, ld_c, ld_a, step * 4, (size_t)step, first == 0, NULL};
      mlc_q4_unpack_tile(panel, q + first / 2 * step, scales + first / MLC_RVV_Q4_GROUP * step,
                         depth, (size_t)step);
      mlc_gemm_tile(c, a + first, panel, m, &by);
    }
    c += step;
    q += step * groups * (MLC_RVV_Q4_GROUP / 2);
    scales += step * groups;
    n -= step;
  }
}
