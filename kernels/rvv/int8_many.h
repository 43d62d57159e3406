// SPDX-License-Identifier: Apache-2.0
//
// Products of int8 activations and q4 weights with many rows, in two passes. Sums of a group take half
// the registers that those of a row take besides: alone, they leave room for 14 rows that share what
// a byte is unpacked to, rather than four. They are written down, in 16 bits, for so many groups as
// fit in the buffer; then up to five rows share a group's scales. Writing and reading costs an X60 9
// cycles a row, group and 32 outputs, and unpacking 13 less.
#ifndef MLC_RVV_INT8_MANY_H_
#define MLC_RVV_INT8_MANY_H_

#include "int8_group.h"

enum { MLC_I8_MANY_ROWS = 14, MLC_I8_PARTS = 10240 };

// Sums of a group. Two rows are written down at once, as the words that fill their registers.
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
#define MLC_I8_PUT(v) "vse32.v " v ", (%[p])\n\tadd %[p], %[p], %[pair]\n\t"
#define MLC_I8_PUT_8 MLC_I8_PUT("v4") MLC_I8_PUT("v8") MLC_I8_PUT("v12") MLC_I8_PUT("v16")
#define MLC_I8_PUT_7 MLC_I8_PUT_8
#define MLC_I8_PUT_10 MLC_I8_PUT_8 MLC_I8_PUT("v20")
#define MLC_I8_PUT_9 MLC_I8_PUT_10
#define MLC_I8_PUT_12 MLC_I8_PUT_10 MLC_I8_PUT("v24")
#define MLC_I8_PUT_11 MLC_I8_PUT_12
#define MLC_I8_PUT_14 MLC_I8_PUT_12 MLC_I8_PUT("v28")
#define MLC_I8_PUT_13 MLC_I8_PUT_14

typedef void mlc_i8_parts(int16_t *p, const uint8_t *x, const uint8_t *q, int64_t groups,
                          const mlc_i8_by *by);

#define MLC_I8_DEFINE_PARTS(R)                                                                    \
  __attribute__((noinline)) static void mlc_i8_parts_##R(int16_t *p, const uint8_t *x,            \
                                                         const uint8_t *q, int64_t groups,        \
                                                         const mlc_i8_by *by) {                   \
    const uint8_t *end = x + groups * by->ld_x;                                                   \
    __asm__ volatile("vsetvli zero, %[lanes], e8, m1, ta, ma\n"                                   \
                     "1:\n\t" MLC_I8_EXPAND(MLC_I8_GROUP, MLC_I8_##R, MANY, "v0", "v1", "v2", "v3") \
                     "add %[x], %[x], %[ld_x]\n\t" MLC_I8_PUT_##R "bne %[x], %[end], 1b\n\t"      \
                     : [p] "+r"(p), [x] "+r"(x), [q] "+r"(q)                                      \
                     : [ld_x] "r"(by->ld_x), [lanes] "r"(by->lanes), [step] "r"(by->step),        \
                       [pair] "r"(4 * __riscv_vsetvlmax_e8m1()), [end] "r"(end), [c16] "r"(16l)   \
                     : "memory", "vl", "vtype", "t0", "t1", "t2", "t3", "t4", "t5", "t6", "s2",   \
                       "s3", "s4", "s5", "s6", "s7", "s8", "v0", "v1", "v2", "v3", "v4", "v5",    \
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

// The second pass: v12 to v31 are sums of rows, v8 scales, v0 and v2 two rows of a group.
#define MLC_I8_SCALED_0 "v12"
#define MLC_I8_SCALED_1 "v16"
#define MLC_I8_SCALED_2 "v20"
#define MLC_I8_SCALED_3 "v24"
#define MLC_I8_SCALED_4 "v28"
#define MLC_I8_OF_ROW(r) \
  "lw " MLC_I8_X_##r ", 40*" #r "+36(%[x])\n\tflw ft" #r ", 40*" #r "+32(%[x])\n\t"
#define MLC_I8_TAKE_BIAS(r, v) "vadd.vx " v ", " v ", " MLC_I8_X_##r "\n\t"
// A row's sum begins with a product (FIRST), and goes on with multiply-adds (NEXT).
#define MLC_I8_SCALE_FIRST(r, v) "vfmul.vf " MLC_I8_SCALED_##r ", " v ", ft" #r "\n\t"
#define MLC_I8_SCALE_NEXT(r, v) "vfmacc.vf " MLC_I8_SCALED_##r ", ft" #r ", " v "\n\t"
#define MLC_I8_SCALE_ROW(r, v, HOW) "vfmul.vv " v ", " v ", v8\n\t" MLC_I8_SCALE_##HOW(r, v)
#define MLC_I8_SCALE_ONE(r, HOW)                                                                  \
  "vle16.v v0, (%[p])\n\tadd %[p], %[p], %[pair]\n\t" MLC_I8_OF_ROW(r)                            \
  MLC_I8_TYPE("e16", "m2") MLC_I8_TAKE_BIAS(r, "v0") "vfwcvt.f.x.v v4, v0\n\t"                    \
  MLC_I8_TYPE("e32", "m4") MLC_I8_SCALE_ROW(r, "v4", HOW)
#define MLC_I8_SCALE_TWO(r, r2, HOW)                                                              \
  "vle32.v v0, (%[p])\n\tadd %[p], %[p], %[pair]\n\t" MLC_I8_OF_ROW(r) MLC_I8_OF_ROW(r2)          \
  MLC_I8_TYPE("e16", "m2") MLC_I8_TAKE_BIAS(r, "v0") MLC_I8_TAKE_BIAS(r2, "v2")                   \
  "vfwcvt.f.x.v v4, v0\n\tvfwcvt.f.x.v v0, v2\n\t"                                                \
  MLC_I8_TYPE("e32", "m4") MLC_I8_SCALE_ROW(r, "v4", HOW) MLC_I8_SCALE_ROW(r2, "v0", HOW)
#define MLC_I8_SCALE_3(HOW) MLC_I8_SCALE_TWO(0, 1, HOW) MLC_I8_SCALE_ONE(2, HOW)
#define MLC_I8_SCALE_4(HOW) MLC_I8_SCALE_TWO(0, 1, HOW) MLC_I8_SCALE_TWO(2, 3, HOW)
#define MLC_I8_SCALE_5(HOW) MLC_I8_SCALE_4(HOW) MLC_I8_SCALE_ONE(4, HOW)
#define MLC_I8_SCALE_GROUP(R, HOW)                                                                \
  "vle32.v v8, (%[s])\n\tadd %[s], %[s], %[scale_step]\n\t" MLC_I8_SCALE_##R(HOW)                 \
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
    const int64_t pair = 4 * (int64_t)__riscv_vsetvlmax_e8m1();                                   \
    float *from = c;                                                                              \
    __asm__ volatile(                                                                             \
        "vsetvli zero, %[lanes], e32, m4, ta, ma\n\tbnez %[more], 2f\n\t"                         \
        MLC_I8_SCALE_GROUP(R, FIRST) "beq %[x], %[end], 3f\n\tj 1f\n"                             \
        "2:\n\t" MLC_I8_##R(MLC_I8_SCALED_LOAD, ) "1:\n\t" MLC_I8_SCALE_GROUP(R, NEXT)            \
        "bne %[x], %[end], 1b\n3:\n\t" MLC_I8_##R(MLC_I8_SCALED_STORE, )                          \
        : [c] "+r"(c), [from] "+r"(from), [p] "+r"(p), [x] "+r"(x), [s] "+r"(s)                   \
        : [ld_c] "r"(by->ld_c * 4), [ld_x] "r"(by->ld_x), [lanes] "r"(by->lanes),                 \
          [scale_step] "r"(by->step * 4), [pair] "r"(pair), [end] "r"(end), [more] "r"(more),     \
          [rest] "r"(group - (R + 1) / 2 * pair)                                                  \
        : "memory", "vl", "vtype", "t0", "t1", "t2", "t3", "t4", "ft0", "ft1", "ft2", "ft3",      \
          "ft4", "v0", "v1", "v2", "v3", "v4", "v5", "v6", "v7", "v8", "v9", "v10", "v11", "v12", \
          "v13", "v14", "v15", "v16", "v17", "v18", "v19", "v20", "v21", "v22", "v23", "v24",     \
          "v25", "v26", "v27", "v28", "v29", "v30", "v31");                                       \
  }
MLC_I8_DEFINE_SCALE(3)
MLC_I8_DEFINE_SCALE(4)
MLC_I8_DEFINE_SCALE(5)

// `rows` of c, 7 to 14 of them, in as many columns as LMUL 4 has floats; `most` groups fit in the
// buffer. Nothing here divides, which would cost a percent of the whole.
static void mlc_i8_block(float *c, const uint8_t *x, const uint8_t *q, const float *s, int64_t rows,
                         int64_t most, const mlc_i8_by *by) {
  static mlc_i8_parts *const parts[] = {mlc_i8_parts_7,  mlc_i8_parts_8,  mlc_i8_parts_9,
                                        mlc_i8_parts_10, mlc_i8_parts_11, mlc_i8_parts_12,
                                        mlc_i8_parts_13, mlc_i8_parts_14};
  static mlc_i8_scale *const scale[] = {mlc_i8_scale_3, mlc_i8_scale_4, mlc_i8_scale_5};
  static const uint8_t some[][3] = {{4, 3},    {4, 4},    {5, 4},    {5, 5},
                                    {4, 4, 3}, {4, 4, 4}, {5, 4, 4}, {5, 5, 4}};
  int16_t buffer[MLC_I8_PARTS];
  const int64_t row = (int64_t)__riscv_vsetvlmax_e16m2(), group = (rows + 1) / 2 * 4 * row;
  for (int64_t first = 0; first < by->groups;) {
    const int64_t groups = by->groups - first < most ? by->groups - first : most;
    parts[rows - 7](buffer, x, q, groups, by);
    for (int64_t i = 0, part = 0; i < rows; i += some[rows - 7][part++]) {
      scale[some[rows - 7][part] - 3](c + i * by->ld_c, buffer + i * row,
                                      x + i * MLC_RVV_INT8_BLOCK, s, groups, group, first, by);
    }
    first += groups;
    x += groups * by->ld_x;
    q += groups * by->step * (MLC_RVV_Q4_GROUP / 2);
    s += groups * by->step;
  }
}

// The same for m rows, 7 or more, in blocks of like sizes, even ones but the last.
static void mlc_i8_many(float *c, const uint8_t *x, const uint8_t *q, const float *s, int64_t m,
                        const mlc_i8_by *by) {
  const int64_t row = (int64_t)__riscv_vsetvlmax_e16m2();
  const int64_t most = MLC_I8_PARTS / (MLC_I8_MANY_ROWS * row);
  for (int64_t left = (m + MLC_I8_MANY_ROWS - 1) / MLC_I8_MANY_ROWS; left > 0; --left) {
    int64_t rows = left > 1 ? 8 : m;
    while (rows * left < m) rows += 2;
    mlc_i8_block(c, x, q, s, rows, most, by);
    c += rows * by->ld_c;
    x += rows * MLC_RVV_INT8_BLOCK;
    m -= rows;
  }
}

#endif  // MLC_RVV_INT8_MANY_H_
