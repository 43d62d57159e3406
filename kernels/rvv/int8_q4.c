// SPDX-License-Identifier: Apache-2.0
//
// Products of int8 activations with q4 weights in tiles. Outputs lie in lanes; a row of a tile has
// a byte of each, which holds the weights of two neighbouring inputs. Nibbles are split by
// multiplication (high = byte * 16 >> 8, low = byte - 16 * high), which cores do at least as fast as
// shifts and masks: SpacemiT's X60 at twice their speed. The loops are in loops/q4.py.
//
// A group of 32 inputs is summed in 16 bits: products with stored values, 0 to 15, and at the end -7
// times the sum of the activations, which makes the weights -7 to 8 of them. That result fits, as
// |activation| <= 127: 32 * 127 * 8 = 32512 < 32768. Sums before it may wrap around, which does not
// matter: addition in 16 bits is exact modulo 2^16, and of all numbers that are equal to the result
// modulo 2^16 there is only one that fits. Once a group, sums become floats and meet the scales.
//
// How many rows share what a byte is unpacked to depends on where their sums are:
//
//   one_row      registers, as wide as eight
//   some_rows    registers, as wide as four: up to four rows of a narrow tile
//   wide_rows    memory, as wide as eight: up to MLC_RVV_INT8_FEW_ROWS rows, the answers of a batch
//   sums_of_rows sums of groups alone, in 16 bits, written down for as many groups as a buffer
//                holds; then scaled_rows makes floats of them: a prompt
//
// scaled_rows converts without a conversion, which costs an X60 as much as two additions: the bits
// of MAGIC, whose lowest one is worth 1, plus a sum are the float MAGIC + sum. Times the scale and
// less MAGIC times the scale, in one rounding, it is the sum times the scale, provided that MAGIC
// times the scale is exact. Hence scales are rounded to 22 bits, which changes them by less than 2^-22.

#include <riscv_vector.h>
#include <stddef.h>

#include "ime.h"
#include "mlc_rvv_linear.h"
#include "mlc_rvv_loops.h"

_Static_assert(MLC_RVV_Q4_GROUP == 32 && MLC_RVV_Q4_ZERO_POINT == 7,
               "sums of 16 bits fit q4 alone");
_Static_assert(MLC_RVV_INT8_BLOCK == 40, "loops/q4.py has the offsets of a block of 40");

// What is the same for all rows.
typedef struct {
  int64_t groups;  // of inputs, at least one
  int64_t ld_c;    // distance between rows of c, in floats
  int64_t ld_x;    // distance between groups of x, in bytes
  int64_t step;    // lanes of the tile: distance between its rows of bytes, and of scales in floats
} tile_shape;

typedef void some_rows(float *c, const uint8_t *x, const uint8_t *q, const float *s, int64_t ld_c,
                       int64_t ld_x, int64_t step, int64_t scale_step, size_t lanes,
                       int64_t groups);

// Kernels of one LMUL for one to four rows.
#define ROWS_DEFINE(M)                                                                           \
  static void one_of_some_##M(float *c, const uint8_t *x, const uint8_t *q, const float *s,      \
                              int64_t ld_c, int64_t ld_x, int64_t step, int64_t scale_step,      \
                              size_t lanes, int64_t groups) {                                    \
    (void)ld_c;                                                                                  \
    mlc_i8_row_##M(c, x, q, s, ld_x, step, scale_step, lanes, groups);                           \
  }                                                                                              \
  static some_rows *const rows_##M[4] = {one_of_some_##M, mlc_i8_rows_2_##M, mlc_i8_rows_3_##M,  \
                                         mlc_i8_rows_4_##M};
ROWS_DEFINE(m4)
ROWS_DEFINE(m2)
ROWS_DEFINE(m1)

// m rows and at most as many columns as LMUL 4 has floats.
static void narrow_rows(float *c, const uint8_t *x, const uint8_t *q, const float *s, int64_t m,
                        size_t lanes, const tile_shape *by) {
  some_rows *const *run = lanes > __riscv_vsetvlmax_e32m2()   ? rows_m4
                          : lanes > __riscv_vsetvlmax_e32m1() ? rows_m2
                                                              : rows_m1;
  for (int64_t rows; m > 0; m -= rows) {
    rows = m < 4 ? m : 4;
    run[rows - 1](c, x, q, s, by->ld_c * 4, by->ld_x, by->step, by->step * 4, lanes, by->groups);
    c += rows * by->ld_c;
    x += rows * MLC_RVV_INT8_BLOCK;
  }
}

// Vectors must not be kept over calls.
#define APART __attribute__((noinline)) static

static inline void clear(float *c, int64_t m, int64_t ld_c, size_t lanes) {
  const vfloat32m8_t zero = __riscv_vfmv_v_f_f32m8(0.0f, lanes);
  for (; m > 0; --m, c += ld_c) __riscv_vse32_v_f32m8(c, zero, lanes);
}

// m rows of a whole tile that is wider than LMUL 4.
APART void wide_rows(float *c, const uint8_t *x, const uint8_t *q, const float *s, int64_t m,
                     const tile_shape *by) {
  typedef void kernel(float *, const uint8_t *, const uint8_t *, const float *, int64_t, int64_t,
                      int64_t, int64_t, int64_t, int64_t, int64_t, size_t, size_t, size_t, int64_t);
  static kernel *const kernels[] = {mlc_i8_wide_2_m8, mlc_i8_wide_3_m8, mlc_i8_wide_4_m8};
  const size_t lanes = (size_t)by->step, half = __riscv_vsetvlmax_e32m4();
  const int64_t half_step = (int64_t)half * 4, ld_c = by->ld_c * 4;
  if (m > 1) clear(c, m, by->ld_c, lanes);
  for (int64_t rows; m > 0; m -= rows) {
    rows = m < 4 ? m : 4;
    if (rows == 1) {
      mlc_i8_row_m8(c, x, q, s, by->ld_x, by->step, by->step * 4, lanes, by->groups);
      return;
    }
    kernels[rows - 2](c, x, q, s, ld_c, by->ld_x, by->step, half_step, by->step * 4 - half_step,
                      half_step - (rows - 1) * ld_c, -half_step - (rows - 1) * ld_c, lanes, half,
                      lanes - half, by->groups);
    c += rows * by->ld_c;
    x += rows * MLC_RVV_INT8_BLOCK;
  }
}

// The buffer of sums, in 16 bits, and how many rows share the unpacked weights.
enum { BUFFER = 11264, MOST_ROWS = 14, LEAST_ROWS = 8 };

// `rows` of c, an even number from 8 to 14, in as many columns as LMUL 4 has floats, for groups whose
// sums fit in the buffer.
static void many_rows(float *c, const uint8_t *x, const uint8_t *q, const float *s, int64_t rows,
                      int64_t groups, const tile_shape *by) {
  typedef void sums_kernel(int16_t *, const uint8_t *, const uint8_t *, int64_t, int64_t, int64_t,
                           size_t, int64_t);
  static sums_kernel *const sums[] = {mlc_i8_sums_8_m4, mlc_i8_sums_10_m4, mlc_i8_sums_12_m4,
                                      mlc_i8_sums_14_m4};
  int16_t buffer[BUFFER];
  const size_t lanes = __riscv_vsetvlmax_e32m4();
  const int64_t row = 2 * (int64_t)lanes;
  sums[(rows - LEAST_ROWS) / 2](buffer, x, q, by->ld_x, by->step, 2 * row, lanes, groups);
  for (int64_t i = 0, some; i < rows; i += some) {
    some = rows - i == 4 || rows - i == 2 ? 2 : 3;
    (some == 3 ? mlc_i8_scaled_3_m4 : mlc_i8_scaled_2_m4)(
        c + i * by->ld_c, c + i * by->ld_c, buffer + i * (int64_t)lanes, x + i * MLC_RVV_INT8_BLOCK,
        s, by->ld_c * 4, by->ld_x, 2 * row, row, (rows - some) * row, lanes, lanes / 2, groups);
  }
}

// m rows, an even number of at least LEAST_ROWS, and as many columns as LMUL 4 has floats: in as few
// blocks as can be.
APART void prompt_rows(float *c, const uint8_t *x, const uint8_t *q, const float *s, int64_t m,
                       const tile_shape *by) {
  float scales[BUFFER / MOST_ROWS];
  const size_t lanes = __riscv_vsetvlmax_e32m4();
  const int64_t most = BUFFER / (MOST_ROWS * (int64_t)lanes);
  clear(c, m, by->ld_c, lanes);
  for (int64_t first = 0, groups; first < by->groups; first += groups) {
    groups = by->groups - first < most ? by->groups - first : most;
    round_scales(scales, s + first * by->step, groups, by->step, lanes);
    const uint8_t *bytes = q + first * by->step * (MLC_RVV_Q4_GROUP / 2);
    for (int64_t row = 0, rows; row < m; row += rows) {
      rows = m - row < MOST_ROWS ? m - row : MOST_ROWS;
      // What is left is a block, too.
      if (m - row > rows && m - row - rows < LEAST_ROWS) rows = m - row - LEAST_ROWS;
      many_rows(c + row * by->ld_c, x + row * MLC_RVV_INT8_BLOCK + first * by->ld_x, bytes, scales,
                rows, groups, by);
    }
  }
}

// The same for a whole tile, by the matrix unit.
APART void ime_rows_of_q4(float *c, const uint8_t *x, const uint8_t *q, const float *s, int64_t m,
                          const tile_shape *by) {
  const gguf_format f = {4, 0, MLC_RVV_Q4_GROUP, MLC_RVV_Q4_GROUP, MLC_RVV_Q4_ZERO_POINT, 0};
  // The other parts of weights in blocks are not there.
  const gguf_weights w = {q, q, q, (const uint16_t *)s};
  ime_many_rows(c, x, w, s, m, by->ld_x, by->groups * MLC_RVV_Q4_GROUP, by->ld_c,
                MLC_RVV_INT8_BLOCK, f);
}

// One tile of `by->step` columns.
static void int8_tile(float *c, const uint8_t *x, const uint8_t *q, const float *s, int64_t m,
                      const tile_shape *by) {
  const int64_t most = (int64_t)__riscv_vsetvlmax_e32m4();
  if (by->step > most && (m == 1 || m <= MLC_RVV_INT8_FEW_ROWS)) {
    wide_rows(c, x, q, s, m, by);
    return;
  }
  const int by_ime = ime_serves(by->step) && m >= LEAST_ROWS;
  if (by_ime) ime_rows_of_q4(c, x, q, s, m / 2 * 2, by);
  for (int64_t column = 0; column < by->step; column += most) {
    const int64_t lanes = by->step - column < most ? by->step - column : most;
    int64_t done = 0;
    if (m > MLC_RVV_INT8_FEW_ROWS && m >= LEAST_ROWS && lanes == most) {
      done = m / 2 * 2;
      if (!by_ime) prompt_rows(c + column, x, q + column, s + column, done, by);
    }
    narrow_rows(c + done * by->ld_c + column, x + done * MLC_RVV_INT8_BLOCK, q + column, s + column,
                m - done, (size_t)lanes, by);
  }
}

void mlc_rvv_gemm_q4_int8(float *c, const void *ready, const uint32_t *quants, const float *scales,
                          int64_t m, int64_t n, int64_t k, int64_t ld_c, int64_t tile) {
  const uint8_t *q = (const uint8_t *)quants;
  tile_shape by = {MLC_RVV_GROUPS(k, MLC_RVV_Q4_GROUP), ld_c, m * MLC_RVV_INT8_BLOCK, 0};
  for (; n > 0; n -= by.step) {
    by.step = n < tile ? n : tile;
    int8_tile(c, ready, q, scales, m, &by);
    c += by.step;
    q += by.step * by.groups * (MLC_RVV_Q4_GROUP / 2);
    scales += by.step * by.groups;
  }
}
