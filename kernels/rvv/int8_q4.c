// SPDX-License-Identifier: Apache-2.0
//
// Products of int8 activations with q4 weights in tiles. Outputs lie in lanes; a row of a tile has
// a byte of each, which holds the weights of two neighbouring inputs, and meets two values of each
// row of activations. Nibbles are taken apart by multiplication (high = byte * 16 >> 8,
// low = byte - 16 * high), which cores do at least as fast as shifts and masks: SpacemiT's X60
// at twice their speed.
//
// A group of 32 inputs is summed in 16 bits. What is added are products with stored values, 0 to
// 15, and at the end -7 times the sum of the activations, which makes the weights -7 to 8 of them.
// That result fits, as |activation| <= 127: 32 * 127 * 8 = 32512 < 32768. Sums before it may wrap
// around, which does not matter: addition in 16 bits is exact modulo 2^16, and of all numbers that
// are equal to the result modulo 2^16 there is only one that fits.
//
// Multiply-adds end in a float32 sum of the row once a group: converted, times the weights'
// scale, times the activations' (a scalar, which costs an X60 more in a product than in a
// multiply-add). At VLEN 256, a group of 64 outputs (LMUL 2 for bytes, 8 for sums) of
// one row is 16 loads, 32 instructions to unpack, 32 to multiply, and 5. Several rows share the
// first two kinds. Their sums fill the registers at half the width (TALL); more than eight rows
// write the sums of groups down instead, where that width is whole (int8_many.h).
// Up to eight rows, as when answers are decoded together, keep their sums in memory and take the
// whole width, four at a time (LONG): half as many instructions, and about as many cycles.

#include "int8_group.h"
#include "int8_many.h"

// So many rows, the answers of a batch, keep their sums in memory.
enum { MLC_I8_FEW_ROWS = MLC_RVV_INT8_FEW_ROWS };

// Registers: float sums and those of a group. One row may take groups of eight registers for its
// sum (WIDE); up to four take four each (TALL), or four for a group's sums alone (LONG).
#define MLC_I8_WIDE_SUM_0 "v8"
#define MLC_I8_WIDE_PART_0 "v0"
#define MLC_I8_TALL_SUM_0 "v8"
#define MLC_I8_TALL_SUM_1 "v12"
#define MLC_I8_TALL_SUM_2 "v16"
#define MLC_I8_TALL_SUM_3 "v20"
#define MLC_I8_TALL_PART_0 "v24"
#define MLC_I8_TALL_PART_1 "v26"
#define MLC_I8_TALL_PART_2 "v28"
#define MLC_I8_TALL_PART_3 "v30"
#define MLC_I8_LONG_PART_0 "v16"
#define MLC_I8_LONG_PART_1 "v20"
#define MLC_I8_LONG_PART_2 "v24"
#define MLC_I8_LONG_PART_3 "v28"
// Their halves, of as many lanes as floats of LMUL 4.
#define MLC_I8_LOW_0 "v16"
#define MLC_I8_LOW_1 "v20"
#define MLC_I8_LOW_2 "v24"
#define MLC_I8_LOW_3 "v28"
#define MLC_I8_HIGH_0 "v18"
#define MLC_I8_HIGH_1 "v22"
#define MLC_I8_HIGH_2 "v26"
#define MLC_I8_HIGH_3 "v30"

// The end of a group: what the zero point takes off, and scales. `t` becomes a row's sum as float;
// a second row's overwrites both, which are converted already (or lie at the end of what it takes).
#define MLC_I8_BIAS(r, S)                                                    \
  "lw " MLC_I8_X_##r ", 40*" #r "+36(%[x])\n\tflw ft" #r ", 40*" #r "+32(%[x])\n\t" \
  "vadd.vx " MLC_I8_##S##_PART_##r ", " MLC_I8_##S##_PART_##r ", " MLC_I8_X_##r "\n\t"
#define MLC_I8_FLOAT(r, S, t) "vfwcvt.f.x.v " t ", " MLC_I8_##S##_PART_##r "\n\t"
#define MLC_I8_ADD(r, S, t, s) \
  "vfmul.vv " t ", " t ", " s "\n\tvfmacc.vf " MLC_I8_##S##_SUM_##r ", ft" #r ", " t "\n\t"
#define MLC_I8_END_ONE(r, S, E16, E32, t, s) \
  MLC_I8_TYPE("e16", E16) MLC_I8_FLOAT(r, S, t) MLC_I8_TYPE("e32", E32) MLC_I8_ADD(r, S, t, s)
#define MLC_I8_END_TWO(r, r2, E16, E32, t)                                                    \
  MLC_I8_TYPE("e16", E16) MLC_I8_FLOAT(r, TALL, "v0") MLC_I8_FLOAT(r2, TALL, t)               \
  MLC_I8_TYPE("e32", E32) MLC_I8_ADD(r, TALL, "v0", "v4") MLC_I8_ADD(r2, TALL, t, "v4")
#define MLC_I8_END_1(E16, E32) MLC_I8_END_ONE(0, TALL, E16, E32, "v0", "v4")
#define MLC_I8_END_2(E16, E32) MLC_I8_END_TWO(0, 1, E16, E32, "v24")
#define MLC_I8_END_3(E16, E32) MLC_I8_END_2(E16, E32) MLC_I8_END_ONE(2, TALL, E16, E32, "v0", "v4")
#define MLC_I8_END_4(E16, E32) MLC_I8_END_2(E16, E32) MLC_I8_END_TWO(2, 3, E16, E32, "v28")

#define MLC_I8_ZERO(r, S) "vmv.v.i " MLC_I8_##S##_SUM_##r ", 0\n\t"
#define MLC_I8_STORE(r, S) "vse32.v " MLC_I8_##S##_SUM_##r ", (%[c])\n\tadd %[c], %[c], %[ld_c]\n\t"

typedef void mlc_i8_rows(float *c, const uint8_t *x, const uint8_t *q, const float *s,
                         const mlc_i8_by *by);

// c[R, lanes] = x[R, groups] * transpose(weights).
#define MLC_I8_DEFINE(NAME, R, S, E8, E16, E32, SCALE, REGISTERS, END)                          \
  __attribute__((noinline)) static void NAME(float *c, const uint8_t *x, const uint8_t *q,      \
                                             const float *s, const mlc_i8_by *by) {             \
    const float *end = s + by->groups * by->step;                                               \
    __asm__ volatile(                                                                           \
        "vsetvli zero, %[lanes], e32, " E32 ", ta, ma\n\t" MLC_I8_##R(MLC_I8_ZERO, S)           \
        "1:\n\tvle32.v " SCALE ", (%[s])\n\tadd %[s], %[s], %[scale_step]\n\t"                  \
        MLC_I8_TYPE("e8", E8)                                                                   \
        MLC_I8_EXPAND(MLC_I8_GROUP, MLC_I8_##R, S, REGISTERS)                                   \
        MLC_I8_TYPE("e16", E16) MLC_I8_##R(MLC_I8_BIAS, S) END                                  \
        "add %[x], %[x], %[ld_x]\n\tbne %[s], %[end], 1b\n\t" MLC_I8_##R(MLC_I8_STORE, S)      \
        : [c] "+r"(c), [x] "+r"(x), [q] "+r"(q), [s] "+r"(s)                                    \
        : [ld_x] "r"(by->ld_x), [lanes] "r"(by->lanes), [step] "r"(by->step), [scale_step] "r"(by->step * 4),         \
          [ld_c] "r"(by->ld_c * 4), [end] "r"(end), [c16] "r"(16l)                              \
        : "memory", "vl", "vtype", "t0", "t1", "t2", "t3", "ft0", "ft1",                        \
          "ft2", "ft3", "v0", "v1", "v2", "v3", "v4", "v5", "v6", "v7", "v8", "v9",      \
          "v10", "v11", "v12", "v13", "v14", "v15", "v16", "v17", "v18", "v19", "v20", "v21",   \
          "v22", "v23", "v24", "v25", "v26", "v27", "v28", "v29", "v30", "v31");                \
  }
#define MLC_I8_WIDE_BYTES "v4", "v6", "v16", "v18"
#define MLC_I8_TALL_BYTES "v0", "v1", "v2", "v3"
#define MLC_I8_DEFINE_TALL(R, M, E8, E16, E32)                                              \
  MLC_I8_DEFINE(mlc_i8_##R##xm##M, R, TALL, E8, E16, E32, "v4", MLC_I8_TALL_BYTES,          \
                MLC_I8_END_##R(E16, E32))
#define MLC_I8_DEFINE_ROWS(M, E8, E16, E32)                                                 \
  MLC_I8_DEFINE_TALL(1, M, E8, E16, E32) MLC_I8_DEFINE_TALL(2, M, E8, E16, E32)             \
  MLC_I8_DEFINE_TALL(3, M, E8, E16, E32) MLC_I8_DEFINE_TALL(4, M, E8, E16, E32)             \
  static mlc_i8_rows *const mlc_i8_m##M[4] = {mlc_i8_1xm##M, mlc_i8_2xm##M, mlc_i8_3xm##M,  \
                                              mlc_i8_4xm##M};

MLC_I8_DEFINE(mlc_i8_1xm8, 1, WIDE, "m2", "m4", "m8", "v24", MLC_I8_WIDE_BYTES,
              MLC_I8_END_ONE(0, WIDE, "m4", "m8", "v16", "v24"))
MLC_I8_DEFINE_ROWS(4, "m1", "m2", "m4")
MLC_I8_DEFINE_ROWS(2, "mf2", "m1", "m2")
MLC_I8_DEFINE_ROWS(1, "mf4", "mf2", "m1")

// Kernels of up to four rows for the smallest LMUL that holds the lanes, at most 4.
static mlc_i8_rows *const *mlc_i8_for(size_t lanes) {
  if (lanes > __riscv_vsetvlmax_e32m2()) return mlc_i8_m4;
  return lanes > __riscv_vsetvlmax_e32m1() ? mlc_i8_m2 : mlc_i8_m1;
}

// The end of a group whose float sums are in memory, a half of the lanes at a time: rows' addresses
// are c0 to c3 for the low one, t0 to t3 for the high one. v0 and v4 are two rows' sums of the
// group, v8 scales, v12 a sum.
#define MLC_I8_AT_LOW(r) "%[c" #r "]"
#define MLC_I8_AT_HIGH(r) MLC_I8_X_##r
#define MLC_I8_WIDEN(r, HALF, t) "vfwcvt.f.x.v " t ", " MLC_I8_##HALF##_##r "\n\t"
#define MLC_I8_KEEP(r, HALF, t)                                                                \
  "vle32.v v12, (" MLC_I8_AT_##HALF(r) ")\n\tvfmul.vv " t ", " t ", v8\n\t"                    \
  "vfmacc.vf v12, ft" #r ", " t "\n\tvse32.v v12, (" MLC_I8_AT_##HALF(r) ")\n\t"
#define MLC_I8_KEEP_TWO(r, r2, HALF, vl, SCALES)                                               \
  MLC_I8_TYPE_OF("e16", "m2", vl) MLC_I8_WIDEN(r, HALF, "v0") MLC_I8_WIDEN(r2, HALF, "v4")     \
  MLC_I8_TYPE_OF("e32", "m4", vl) SCALES MLC_I8_KEEP(r, HALF, "v0") MLC_I8_KEEP(r2, HALF, "v4")
#define MLC_I8_KEEP_HALF_2(HALF, vl, SCALES) MLC_I8_KEEP_TWO(0, 1, HALF, vl, SCALES)
#define MLC_I8_KEEP_HALF_3(HALF, vl, SCALES)                                                   \
  MLC_I8_KEEP_HALF_2(HALF, vl, SCALES) MLC_I8_TYPE_OF("e16", "m2", vl)                         \
  MLC_I8_WIDEN(2, HALF, "v0") MLC_I8_TYPE_OF("e32", "m4", vl) MLC_I8_KEEP(2, HALF, "v0")
#define MLC_I8_KEEP_HALF_4(HALF, vl, SCALES) \
  MLC_I8_KEEP_HALF_2(HALF, vl, SCALES) MLC_I8_KEEP_TWO(2, 3, HALF, vl, )
#define MLC_I8_GO_HIGH(r, _) "add " MLC_I8_X_##r ", %[c" #r "], %[half_step]\n\t"
#define MLC_I8_SUM_ROW(r, _) , [c##r] "r"(c + (r) * by->ld_c)
#define MLC_I8_CLEAR(r, _) __riscv_vse32_v_f32m8(c + (r) * by->ld_c, zero, by->lanes);

// c[R, lanes] = x[R, groups] * transpose(weights), for more lanes than LMUL 4 has floats.
#define MLC_I8_DEFINE_LONG(R)                                                                  \
  __attribute__((noinline)) static void mlc_i8_##R##xm8(float *c, const uint8_t *x,            \
                                                        const uint8_t *q, const float *s,      \
                                                        const mlc_i8_by *by) {                 \
    const float *end = s + by->groups * by->step;                                              \
    const size_t half = __riscv_vsetvlmax_e32m4();                                             \
    const vfloat32m8_t zero = __riscv_vfmv_v_f_f32m8(0.0f, by->lanes);                         \
    MLC_I8_##R(MLC_I8_CLEAR, )                                                                 \
    __asm__ volatile(                                                                          \
        "1:\n\t" MLC_I8_TYPE_OF("e8", "m2", "lanes")                                           \
        MLC_I8_EXPAND(MLC_I8_GROUP, MLC_I8_##R, LONG, MLC_I8_LONG_BYTES)                       \
        MLC_I8_TYPE("e16", "m4") MLC_I8_##R(MLC_I8_BIAS, LONG)                                 \
        MLC_I8_KEEP_HALF_##R(LOW, "half", "vle32.v v8, (%[s])\n\t")                            \
        "add t0, %[s], %[half_step]\n\tadd %[s], %[s], %[scale_step]\n\t"                      \
        MLC_I8_TYPE_OF("e32", "m4", "rest") "vle32.v v8, (t0)\n\t"                             \
        MLC_I8_##R(MLC_I8_GO_HIGH, ) MLC_I8_KEEP_HALF_##R(HIGH, "rest", )                      \
        "add %[x], %[x], %[ld_x]\n\tbne %[s], %[end], 1b\n\t"                                 \
        : [x] "+r"(x), [q] "+r"(q), [s] "+r"(s)                                                \
        : [ld_x] "r"(by->ld_x), [lanes] "r"(by->lanes), [step] "r"(by->step), [scale_step] "r"(by->step * 4),        \
          [half] "r"(half), [half_step] "r"(half * 4), [rest] "r"(by->lanes - half),           \
          [end] "r"(end), [c16] "r"(16l)MLC_I8_##R(MLC_I8_SUM_ROW, )                           \
        : "memory", "vl", "vtype", "t0", "t1", "t2", "t3", "ft0", "ft1",                       \
          "ft2", "ft3", "v0", "v1", "v2", "v3", "v4", "v5", "v6", "v7", "v8", "v9",            \
          "v10", "v11", "v12", "v13", "v14", "v15", "v16", "v17", "v18", "v19", "v20", "v21",  \
          "v22", "v23", "v24", "v25", "v26", "v27", "v28", "v29", "v30", "v31");               \
  }
#define MLC_I8_LONG_BYTES "v0", "v2", "v4", "v6"
MLC_I8_DEFINE_LONG(2)
MLC_I8_DEFINE_LONG(3)
MLC_I8_DEFINE_LONG(4)
static mlc_i8_rows *const mlc_i8_m8[4] = {mlc_i8_1xm8, mlc_i8_2xm8, mlc_i8_3xm8, mlc_i8_4xm8};

// One tile of `by->step` columns.
static void mlc_i8_tile(float *c, const uint8_t *x, const uint8_t *q, const float *s, int64_t m,
                        mlc_i8_by *by) {
  const int64_t most = (int64_t)__riscv_vsetvlmax_e32m4();
  if (m <= MLC_I8_FEW_ROWS && by->step > most) {
    by->lanes = (size_t)by->step;
    for (; m > 0; m -= 4, c += 4 * by->ld_c, x += 4 * MLC_RVV_INT8_BLOCK) {
      mlc_i8_m8[m < 4 ? m - 1 : 3](c, x, q, s, by);
    }
    return;
  }
  for (int64_t column = 0; column < by->step; column += most) {
    by->lanes = (size_t)(by->step - column < most ? by->step - column : most);
    if (m > MLC_I8_FEW_ROWS && (int64_t)by->lanes == most) {
      mlc_i8_many(c + column, x, q + column, s + column, m, by);
      continue;
    }
    mlc_i8_rows *const *run = mlc_i8_for(by->lanes);
    for (int64_t row = 0; row < m;) {
      const int64_t rows = m - row < 4 ? m - row : 4;
      run[rows - 1](c + row * by->ld_c + column, x + row * MLC_RVV_INT8_BLOCK, q + column,
                    s + column, by);
      row += rows;
    }
  }
}

void mlc_rvv_gemm_q4_int8(float *c, const void *ready, const uint32_t *quants, const float *scales,
                          int64_t m, int64_t n, int64_t k, int64_t ld_c, int64_t tile) {
  const int64_t groups = MLC_RVV_GROUPS(k, MLC_RVV_Q4_GROUP);
  const uint8_t *q = (const uint8_t *)quants;
  while (n > 0) {
    mlc_i8_by by = {groups, ld_c, m * MLC_RVV_INT8_BLOCK, n < tile ? n : tile, 0};
    mlc_i8_tile(c, ready, q, scales, m, &by);
    c += by.step;
    q += by.step * groups * (MLC_RVV_Q4_GROUP / 2);
    scales += by.step * groups;
    n -= by.step;
  }
}
