// SPDX-License-Identifier: Apache-2.0
//
// Products of int8 activations and q4 weights with many rows, in two passes. Sums of a group take half
// the registers that those of a row take besides: alone, they leave room for 15 rows that share what
// a byte is unpacked to, rather than four. They are written down, in 16 bits, for so many groups as
// fit in the buffer; then up to four rows share a group's scales. Writing and reading costs an X60 9
// cycles a row, group and 32 outputs, and unpacking 13 less.
//
// A sum becomes a float without a conversion, which costs an X60 as much as two additions: the bits
// of MAGIC, whose lowest one is worth 1, plus the sum are the float MAGIC + sum. Times the scale and
// less MAGIC times the scale, in one rounding, it is the sum times the scale, rounded once, provided
// that MAGIC times the scale is exact. Hence scales are rounded to 22 bits, which changes them by
// less than 2^-22.
#ifndef MLC_RVV_INT8_MANY_H_
#define MLC_RVV_INT8_MANY_H_

#include "int8_group.h"

enum { MLC_I8_MANY_ROWS = 15, MLC_I8_PARTS = 11264 };
#define MLC_I8_MAGIC 0x1.8p23f

// Sums of a group, the zero point taken off. Two rows are written down at once, as the words that fill their registers.
#define MLC_I8_MANY_PART_0 "v4"
#define MLC_I8_MANY_PART_1 "v6"
#define MLC_I8_MANY_PART_2 "v8"
#define MLC_I8_MANY_PART_3 "v10"
#define MLC_I8_MANY_PART_4 "v12"
#define MLC_I8_MANY_PART_5 "v14"
#define MLC_I8_MANY_PART_6 "v16"
#define MLC_I8_MANY_PART_7 "v18"
#define MLC_I8_MANY_PART_8 "v20"
#define MLC_I8_MANY_PART_9 "v22"
#define MLC_I8_MANY_PART_10 "v24"
#define MLC_I8_MANY_PART_11 "v26"
#define MLC_I8_MANY_PART_12 "v28"
#define MLC_I8_MANY_PART_13 "v30"
#define MLC_I8_MANY_PART_14 "v2"
#define MLC_I8_PUT(v) "vse32.v " v ", (%[p])\n\tadd %[p], %[p], %[pair]\n\t"
#define MLC_I8_PUT_8 MLC_I8_PUT("v4") MLC_I8_PUT("v8") MLC_I8_PUT("v12") MLC_I8_PUT("v16")
#define MLC_I8_PUT_7 MLC_I8_PUT_8
#define MLC_I8_PUT_10 MLC_I8_PUT_8 MLC_I8_PUT("v20")
#define MLC_I8_PUT_9 MLC_I8_PUT_10
#define MLC_I8_PUT_12 MLC_I8_PUT_10 MLC_I8_PUT("v24")
#define MLC_I8_PUT_11 MLC_I8_PUT_12
#define MLC_I8_PUT_14 MLC_I8_PUT_12 MLC_I8_PUT("v28")
#define MLC_I8_PUT_13 MLC_I8_PUT_14
#define MLC_I8_PUT_15 MLC_I8_PUT_14 "vse16.v v2, (%[p])\n\tadd %[p], %[p], %[pair]\n\t"

// Two inputs in two registers: while the odd ones of all rows are multiplied, the next two are fetched.
#define MLC_I8_MANY_PAIR(R, FIRST, NEXT)                                                          \
  "vmulhu.vx v1, v0, %[c16]\n\tvnmsac.vx v0, %[c16], v1\n\t" R(FIRST, MANY, "v0")                 \
  R(MLC_I8_SHIFT, ) NEXT R(MLC_I8_MORE, MANY, "v1")
#define MLC_I8_MANY_EIGHT(R, i, FIRST, LAST)                                                      \
  R(MLC_I8_LOAD, i) MLC_I8_MANY_PAIR(R, FIRST, MLC_I8_FETCH("v0")) R(MLC_I8_SHIFT, )              \
  MLC_I8_MANY_PAIR(R, MLC_I8_MORE, MLC_I8_FETCH("v0")) R(MLC_I8_SHIFT, )                          \
  MLC_I8_MANY_PAIR(R, MLC_I8_MORE, MLC_I8_FETCH("v0")) R(MLC_I8_SHIFT, )                          \
  MLC_I8_MANY_PAIR(R, MLC_I8_MORE, LAST)
#define MLC_I8_MANY_GROUP(R)                                                                      \
  MLC_I8_FETCH("v0") MLC_I8_MANY_EIGHT(R, 0, MLC_I8_FIRST, MLC_I8_FETCH("v0"))                    \
  MLC_I8_MANY_EIGHT(R, 4, MLC_I8_MORE, MLC_I8_FETCH("v0"))                                        \
  MLC_I8_MANY_EIGHT(R, 8, MLC_I8_MORE, MLC_I8_FETCH("v0"))                                        \
  MLC_I8_MANY_EIGHT(R, 12, MLC_I8_MORE, )

#define MLC_I8_TAKE_BIAS(r, S)                        \
  "lw " MLC_I8_X_##r ", 40*" #r "+36(%[x])\n\t"       \
  "vadd.vx " MLC_I8_##S##_PART_##r ", " MLC_I8_##S##_PART_##r ", " MLC_I8_X_##r "\n\t"

typedef void mlc_i8_parts(int16_t *p, const uint8_t *x, const uint8_t *q, int64_t groups,
                          const mlc_i8_by *by);

#define MLC_I8_DEFINE_PARTS(R)                                                                    \
  __attribute__((noinline)) static void mlc_i8_parts_##R(int16_t *p, const uint8_t *x,            \
                                                         const uint8_t *q, int64_t groups,        \
                                                         const mlc_i8_by *by) {                   \
    const uint8_t *end = x + groups * by->ld_x;                                                   \
    __asm__ volatile("vsetvli zero, %[lanes], e8, m1, ta, ma\n"                                   \
                     "1:\n\t" MLC_I8_EXPAND(MLC_I8_MANY_GROUP, MLC_I8_##R)                         \
                     MLC_I8_TYPE("e16", "m2") MLC_I8_##R(MLC_I8_TAKE_BIAS, MANY)                  \
                     MLC_I8_TYPE("e8", "m1") "add %[x], %[x], %[ld_x]\n\t" MLC_I8_PUT_##R         \
                     "bne %[x], %[end], 1b\n\t"                                                  \
                     : [p] "+r"(p), [x] "+r"(x), [q] "+r"(q)                                      \
                     : [ld_x] "r"(by->ld_x), [lanes] "r"(by->lanes), [step] "r"(by->step),        \
                       [pair] "r"(4 * __riscv_vsetvlmax_e8m1()), [end] "r"(end), [c16] "r"(16l)   \
                     : "memory", "vl", "vtype", "t0", "t1", "t2", "t3", "t4", "t5", "t6", "s2",   \
                       "s3", "s4", "s5", "s6", "s7", "s8", "s9", "v0", "v1", "v2", "v3", "v4", "v5", \
                       "v6", "v7", "v8", "v9", "v10", "v11", "v12", "v13", "v14", "v15", "v16",   \
                       "v17", "v18", "v19", "v20", "v21", "v22", "v23", "v24", "v25", "v26",      \
                       "v27", "v28", "v29", "v30", "v31");                                        \
  }
MLC_I8_DEFINE_PARTS(7)
MLC_I8_DEFINE_PARTS(8)
MLC_I8_DEFINE_PARTS(9)
MLC_I8_DEFINE_PARTS(10)
MLC_I8_DEFINE_PARTS(11)
MLC_I8_DEFINE_PARTS(12)
MLC_I8_DEFINE_PARTS(13)
MLC_I8_DEFINE_PARTS(14)
MLC_I8_DEFINE_PARTS(15)

// The second pass: v16 to v31 are sums of rows, v12 scales, v8 MAGIC times these, v6 MAGIC, v4 the
// next row of a group, v0 one as float.
#define MLC_I8_SCALED_0 "v16"
#define MLC_I8_SCALED_1 "v20"
#define MLC_I8_SCALED_2 "v24"
#define MLC_I8_SCALED_3 "v28"
#define MLC_I8_NEXT_PART "vle16.v v4, (%[p])\n\tadd %[p], %[p], %[row]\n\t"
// A row's sum begins with a product (FIRST), and goes on with multiply-adds (NEXT).
#define MLC_I8_SCALE_FIRST(r) "vfmul.vf " MLC_I8_SCALED_##r ", v0, ft" #r "\n\t"
#define MLC_I8_SCALE_NEXT(r) "vfmacc.vf " MLC_I8_SCALED_##r ", ft" #r ", v0\n\t"
#define MLC_I8_SCALE_ROW(r, HOW, LOAD)                                                            \
  "flw ft" #r ", 40*" #r "+32(%[x])\n\t" MLC_I8_TYPE_OF("e16", "m1", "half")                      \
  "vwadd.wv v0, v6, v4\n\tvwadd.wv v2, v6, v5\n\t" MLC_I8_TYPE_OF("e32", "m4", "lanes") LOAD      \
  "vfmsub.vv v0, v12, v8\n\t" MLC_I8_SCALE_##HOW(r)
#define MLC_I8_SCALE_3(HOW)                                                                       \
  MLC_I8_SCALE_ROW(0, HOW, MLC_I8_NEXT_PART) MLC_I8_SCALE_ROW(1, HOW, MLC_I8_NEXT_PART)           \
  MLC_I8_SCALE_ROW(2, HOW, )
#define MLC_I8_SCALE_4(HOW)                                                                       \
  MLC_I8_SCALE_ROW(0, HOW, MLC_I8_NEXT_PART) MLC_I8_SCALE_ROW(1, HOW, MLC_I8_NEXT_PART)           \
  MLC_I8_SCALE_ROW(2, HOW, MLC_I8_NEXT_PART) MLC_I8_SCALE_ROW(3, HOW, )
#define MLC_I8_SCALE_GROUP(R, HOW)                                                                \
  "vle32.v v12, (%[s])\n\tadd %[s], %[s], %[scale_step]\n\t" MLC_I8_NEXT_PART                     \
  "vfmul.vf v8, v12, %[magic]\n\t" MLC_I8_SCALE_##R(HOW)                                          \
  "add %[p], %[p], %[rest]\n\tadd %[x], %[x], %[ld_x]\n\t"
#define MLC_I8_SCALED_LOAD(r, _) \
  "vle32.v " MLC_I8_SCALED_##r ", (%[from])\n\tadd %[from], %[from], %[ld_c]\n\t"
#define MLC_I8_SCALED_STORE(r, _) \
  "vse32.v " MLC_I8_SCALED_##r ", (%[c])\n\tadd %[c], %[c], %[ld_c]\n\t"

// `more`: c has sums of other groups. `group`: from one group of p to the next, in bytes.
typedef void mlc_i8_scale(float *c, const int16_t *p, const uint8_t *x, const float *s,
                          int64_t groups, int64_t group, int64_t more, const mlc_i8_by *by);

#define MLC_I8_DEFINE_SCALE(R)                                                                    \
  __attribute__((noinline)) static void mlc_i8_scale_##R(                                         \
      float *c, const int16_t *p, const uint8_t *x, const float *s, int64_t groups,               \
      int64_t group, int64_t more, const mlc_i8_by *by) {                                         \
    const uint8_t *end = x + groups * by->ld_x;                                                   \
    const int64_t row = 2 * (int64_t)by->lanes;                                                   \
    float *from = c;                                                                              \
    __asm__ volatile(                                                                             \
        "vsetvli zero, %[half], e32, m2, ta, ma\n\tvfmv.v.f v6, %[magic]\n\t"                     \
        "vsetvli zero, %[lanes], e32, m4, ta, ma\n\tbnez %[more], 2f\n\t"                         \
        MLC_I8_SCALE_GROUP(R, FIRST) "beq %[x], %[end], 3f\n\tj 1f\n"                             \
        "2:\n\t" MLC_I8_##R(MLC_I8_SCALED_LOAD, ) "1:\n\t" MLC_I8_SCALE_GROUP(R, NEXT)            \
        "bne %[x], %[end], 1b\n3:\n\t" MLC_I8_##R(MLC_I8_SCALED_STORE, )                          \
        : [c] "+r"(c), [from] "+r"(from), [p] "+r"(p), [x] "+r"(x), [s] "+r"(s)                   \
        : [ld_c] "r"(by->ld_c * 4), [ld_x] "r"(by->ld_x), [lanes] "r"(by->lanes),                 \
          [half] "r"(by->lanes / 2), [scale_step] "r"(by->lanes * 4), [row] "r"(row),             \
          [end] "r"(end), [more] "r"(more), [magic] "f"(MLC_I8_MAGIC),                            \
          [rest] "r"(group - R * row)                                                             \
        : "memory", "vl", "vtype", "ft0", "ft1", "ft2", "ft3", "v0", "v1", "v2", "v3", "v4",      \
          "v5", "v6", "v7", "v8", "v9", "v10", "v11", "v12", "v13", "v14", "v15", "v16", "v17",   \
          "v18", "v19", "v20", "v21", "v22", "v23", "v24", "v25", "v26", "v27", "v28", "v29",     \
          "v30", "v31");                                                                          \
  }
MLC_I8_DEFINE_SCALE(3)
MLC_I8_DEFINE_SCALE(4)

// `rows` of c, 7 to 15 of them, in as many columns as LMUL 4 has floats, for groups whose sums fit in
// a buffer. `more`: c has sums of other groups. Nothing here divides, which would cost a percent.
static void mlc_i8_block(float *c, const uint8_t *x, const uint8_t *q, const float *s, int64_t rows,
                         int64_t groups, int64_t more, const mlc_i8_by *by) {
  static mlc_i8_parts *const parts[] = {mlc_i8_parts_7,  mlc_i8_parts_8,  mlc_i8_parts_9,
                                        mlc_i8_parts_10, mlc_i8_parts_11, mlc_i8_parts_12,
                                        mlc_i8_parts_13, mlc_i8_parts_14, mlc_i8_parts_15};
  static mlc_i8_scale *const scale[] = {mlc_i8_scale_3, mlc_i8_scale_4};
  static const uint8_t some[][4] = {{4, 3},    {4, 4},       {3, 3, 3},    {4, 3, 3},   {4, 4, 3},
                                    {4, 4, 4}, {4, 3, 3, 3}, {4, 4, 3, 3}, {4, 4, 4, 3}};
  int16_t buffer[MLC_I8_PARTS];
  const int64_t row = (int64_t)by->lanes, group = (rows + 1) / 2 * 4 * row;
  parts[rows - 7](buffer, x, q, groups, by);
  for (int64_t i = 0, part = 0; i < rows; i += some[rows - 7][part++]) {
    scale[some[rows - 7][part] - 3](c + i * by->ld_c, buffer + i * row, x + i * MLC_RVV_INT8_BLOCK,
                                    s, groups, group, more, by);
  }
}

// Scales in 22 bits: what a product by 2^2 + 1 leaves of them (Veltkamp).
static void mlc_i8_round_scales(float *to, const float *s, int64_t groups, const mlc_i8_by *by) {
  for (; groups > 0; --groups, s += by->step, to += by->lanes) {
    const vfloat32m4_t scale = __riscv_vle32_v_f32m4(s, by->lanes);
    const vfloat32m4_t more = __riscv_vfmul_vf_f32m4(scale, 5.0f, by->lanes);
    const vfloat32m4_t less = __riscv_vfsub_vv_f32m4(more, scale, by->lanes);
    __riscv_vse32_v_f32m4(to, __riscv_vfsub_vv_f32m4(more, less, by->lanes), by->lanes);
  }
}

// The same for m rows, 7 or more, in as few blocks as can be, of 15 or of 12 rows but for the last:
// those make the most of four rows' scales.
static void mlc_i8_many(float *c, const uint8_t *x, const uint8_t *q, const float *s, int64_t m,
                        const mlc_i8_by *by) {
  float scales[MLC_I8_PARTS / (MLC_I8_MANY_ROWS + 1)];
  const int64_t most = MLC_I8_PARTS / ((MLC_I8_MANY_ROWS + 1) * (int64_t)by->lanes);
  for (int64_t first = 0, groups; first < by->groups; first += groups) {
    groups = by->groups - first < most ? by->groups - first : most;
    mlc_i8_round_scales(scales, s + first * by->step, groups, by);
    const uint8_t *bytes = q + first * by->step * (MLC_RVV_Q4_GROUP / 2);
    const uint8_t *block = x + first * by->ld_x;
    float *to = c;
    int64_t left = m;
    for (int64_t blocks = (m + MLC_I8_MANY_ROWS - 1) / MLC_I8_MANY_ROWS; blocks > 0; --blocks) {
      int64_t rows = blocks == 1 ? left : left > 12 * blocks ? MLC_I8_MANY_ROWS : 12;
      while (blocks > 1 && left - rows < 7) rows -= 2;
      mlc_i8_block(to, block, bytes, scales, rows, groups, first, by);
      to += rows * by->ld_c;
      block += rows * MLC_RVV_INT8_BLOCK;
      left -= rows;
    }
  }
}

#endif  // MLC_RVV_INT8_MANY_H_
