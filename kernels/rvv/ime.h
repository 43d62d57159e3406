// SPDX-License-Identifier: Apache-2.0
//
// Several rows of int8 activations by SpacemiT's matrix unit (IME), which the X60 has on some of its
// CPUs. `vmadot` adds to 4 x 4 sums of 32 bits, in two registers, the products of four rows of eight
// activations with eight weights of each of four outputs. The numbers are those of the kernels
// without it, bit by bit: sums are exact, and floats are computed in the same order.
//
// Weights of 32 outputs are unpacked to bytes (gguf_panel.h), and put in the order in which registers
// take them; so are activations. A scale of a row or an output is stored as often as a register of
// sums has it. Two registers of rows and two of outputs are multiplied together: four pairs of sums.
#ifndef MLC_RVV_IME_H_
#define MLC_RVV_IME_H_

#include "gguf_panel.h"

enum {
  IME_ROWS = 64,   // of activations that share unpacked weights
  IME_LANES = 32,  // whose weights are unpacked at a time
  IME_TILE = 64,   // columns of a whole tile
  IME_SIDE = 8,    // rows, and outputs, that are multiplied together
  IME_STEP = 8,    // inputs of a register
  IME_BYTES = IME_SIDE * IME_STEP,
  IME_FOUR = 16,  // sums of 4 x 4
  IME_PAIR = 2 * IME_FOUR,
  IME_SUMS = 4 * IME_FOUR,
  IME_BLOCKS = MLC_GGUF_PANEL / 32,
};

// Activations: for every eight rows their values by registers, and what their blocks have, as often
// as a register of sums has it.
typedef struct {
  int8_t values[IME_ROWS * MLC_GGUF_PANEL];  // [rows / 8, inputs / 8, 8 rows, 8 inputs]
  float scales[IME_ROWS * IME_BLOCKS * 4];   // [rows / 8, blocks, 8 rows, 4 times]
  float sums[IME_ROWS * IME_BLOCKS * 4];     // the same
} ime_rows;

// Weights, in the same way.
typedef struct {
  int8_t values[IME_LANES * MLC_GGUF_PANEL];  // [lanes / 8, inputs / 8, 8 lanes, 8 inputs]
  float factors[IME_LANES * IME_BLOCKS * 4];  // [lanes / 8, blocks, 2, 4 times, 4 lanes]
  float least_factors[IME_LANES * IME_BLOCKS * 4];
} ime_columns;

// The word of vmadot, but for its registers. Programs that count cycles have vmacc.vv in its place,
// which QEMU and the cores' tables know, and which accumulates in the same way.
#ifdef MLC_RVV_IME_STAND_IN
#define IME_WORD "0xb6002057"
int mlc_rvv_use_ime = 1;
#else
#define IME_WORD "0xe200302b"
#ifdef MLC_RVV_IME
// The runner sets it if all CPUs that this process stays on have the unit.
int mlc_rvv_use_ime = 0;
#else
enum { mlc_rvv_use_ime = 0 };
#endif
#endif

// True if a tile of that many columns is whole, and the unit is there for it.
MLC_RVV_INLINE int ime_serves(int64_t step) {
  return mlc_rvv_use_ime && step == IME_TILE && __riscv_vsetvlmax_e8m1() == IME_LANES;
}

// True if the unit gains: not where groups of a block have scales, so that sums are short.
MLC_RVV_INLINE int ime_has_format(gguf_format f) { return !gguf_has_scales(f); }

// Numbers of registers by their names, for instructions that the assembler does not know.
#define IME_NAME(n) ".set .Lime_v" #n ", " #n "\n"
__asm__(IME_NAME(0) IME_NAME(1) IME_NAME(2) IME_NAME(3) IME_NAME(4) IME_NAME(5) IME_NAME(6)
            IME_NAME(7) IME_NAME(8) IME_NAME(9) IME_NAME(10) IME_NAME(11) IME_NAME(12) IME_NAME(13)
                IME_NAME(14) IME_NAME(15) IME_NAME(16) IME_NAME(17) IME_NAME(18) IME_NAME(19)
                    IME_NAME(20) IME_NAME(21) IME_NAME(22) IME_NAME(23) IME_NAME(24) IME_NAME(25)
                        IME_NAME(26) IME_NAME(27) IME_NAME(28) IME_NAME(29) IME_NAME(30)
                            IME_NAME(31));

// vmadot s<i><j>, a + i, b + j
#define IME_DOT(i, j, a, b)                                                             \
  ".4byte " IME_WORD " + (.Lime_%[s" #i #j "] << 7) + ((.Lime_%[" #a "] + " #i ") << 15)" \
  " + ((.Lime_%[" #b "] + " #j ") << 20)\n\t"
#define IME_DOTS(a, b) IME_DOT(0, 0, a, b) IME_DOT(0, 1, a, b) IME_DOT(1, 0, a, b) IME_DOT(1, 1, a, b)
#define IME_LOAD(a, b)                                                          \
  "vl2re8.v %[" #a "], (%[x])\n\tvl2re8.v %[" #b "], (%[w])\n\taddi %[x], %[x], 64\n\t" \
  "addi %[w], %[w], 64\n\t"

#define IME_RUN(text)                                                                          \
  __asm__ volatile("vsetvli %[n], zero, e8, m1, ta, ma\n\t" text                               \
                   : [s00] "+vr"(*s00), [s01] "+vr"(*s01), [s10] "+vr"(*s10), [s11] "+vr"(*s11), \
                     [a0] "=&vr"(a0), [a1] "=&vr"(a1), [b0] "=&vr"(b0), [b1] "=&vr"(b1),       \
                     [x] "+&r"(*x), [w] "+&r"(*w), [n] "=&r"(n)                                \
                   :                                                                           \
                   : "memory", "vl", "vtype")

// Adds the products of 32 inputs, and moves on by as many. What comes next is loaded before what is
// there is multiplied.
MLC_RVV_INLINE void ime_dots(vint32m2_t *s00, vint32m2_t *s01, vint32m2_t *s10, vint32m2_t *s11,
                             const int8_t **x, const int8_t **w) {
  vint8m2_t a0, a1, b0, b1;
  size_t n;
  IME_RUN(IME_LOAD(a0, b0) IME_LOAD(a1, b1) IME_DOTS(a0, b0) IME_LOAD(a0, b0) IME_DOTS(a1, b1)
              IME_LOAD(a1, b1) IME_DOTS(a0, b0) IME_DOTS(a1, b1));
}

// Calls X(i, j) for each pair of sums.
#define IME_EACH(X) X(0, 0) X(0, 1) X(1, 0) X(1, 1)

// The bits of MAGIC, whose lowest one is worth 1, plus a sum of less than 2^22 are the float MAGIC +
// sum.
#define IME_MAGIC 12582912.0f
#define IME_MAGIC_BITS 0x4b400000

// Adds a panel's products to 8 x 8 results.
MLC_RVV_INLINE void ime_plain(float *c, const int8_t *x, const int8_t *w, const float *of_rows,
                              const float *sums, const float *factors, const float *least,
                              int blocks, gguf_format f) {
  const size_t n = IME_FOUR;
  vfloat32m2_t c00 = __riscv_vle32_v_f32m2(c, n), c01 = __riscv_vle32_v_f32m2(c + 16, n);
  vfloat32m2_t c10 = __riscv_vle32_v_f32m2(c + 32, n), c11 = __riscv_vle32_v_f32m2(c + 48, n);
  for (int block = 0; block < blocks; ++block) {
    vint32m2_t s00 = __riscv_vmv_v_x_i32m2(IME_MAGIC_BITS, n), s01 = s00, s10 = s00, s11 = s00;
    ime_dots(&s00, &s01, &s10, &s11, &x, &w);
#define IME_ADD(i, j)                                                                            \
  {                                                                                              \
    const vfloat32m2_t more = __riscv_vreinterpret_v_i32m2_f32m2(s##i##j);                       \
    const vfloat32m2_t sum = __riscv_vfsub_vf_f32m2(more, IME_MAGIC, n);                         \
    const vfloat32m2_t factor = __riscv_vle32_v_f32m2(factors + IME_FOUR * j, n);                \
    const vfloat32m2_t scale = __riscv_vle32_v_f32m2(of_rows + IME_FOUR * i, n);                 \
    c##i##j = __riscv_vfmacc_vv_f32m2(c##i##j, scale, __riscv_vfmul_vv_f32m2(sum, factor, n), n); \
  }
    IME_EACH(IME_ADD)
#define IME_ADD_LEAST(i, j)                                                                      \
  {                                                                                              \
    const vfloat32m2_t sum = __riscv_vle32_v_f32m2(sums + IME_FOUR * i, n);                      \
    const vfloat32m2_t factor = __riscv_vle32_v_f32m2(least + IME_FOUR * j, n);                  \
    const vfloat32m2_t scale = __riscv_vle32_v_f32m2(of_rows + IME_FOUR * i, n);                 \
    c##i##j = __riscv_vfmacc_vv_f32m2(c##i##j, scale, __riscv_vfmul_vv_f32m2(sum, factor, n), n); \
  }
    if (f.minimums) {
      IME_EACH(IME_ADD_LEAST)
    }
    factors += IME_PAIR, least += IME_PAIR, of_rows += IME_PAIR, sums += IME_PAIR;
  }
#define IME_STORE(i, j) __riscv_vse32_v_f32m2(c + IME_FOUR * (2 * i + j), c##i##j, n);
  IME_EACH(IME_STORE)
}

// Adds a panel's products to `sums` [rows / 8, lanes / 8, 4, 16], of which a row of tiles has eight.
MLC_RVV_INLINE void ime_multiply(float *sums, const ime_rows *x, const ime_columns *w, int rows,
                                 int inputs, gguf_format f) {
  const int blocks = inputs / f.block;
  for (int row = 0; row < rows; row += IME_SIDE) {
    for (int lane = 0; lane < IME_LANES; lane += IME_SIDE) {
      float *c = sums + (row / IME_SIDE * (IME_TILE / IME_SIDE) + lane / IME_SIDE) * IME_SUMS;
      const int8_t *values = x->values + row * inputs, *weights = w->values + lane * inputs;
      const float *scales = x->scales + row * blocks * 4, *of_x = x->sums + row * blocks * 4;
      const float *factors = w->factors + lane * blocks * 4;
      const float *least = w->least_factors + lane * blocks * 4;
      ime_plain(c, values, weights, scales, of_x, factors, least, blocks, f);
    }
  }
}

// Bytes of eight columns of 32 lanes, each lane's together; eight lanes are `stride` bytes behind
// those before.
MLC_RVV_INLINE void ime_interleave(int8_t *to, int64_t stride, const uint8_t *from, int64_t step) {
  const size_t n = IME_LANES;
#define IME_COLUMN(i) __riscv_vle8_v_u8m1(from + i * step, n)
  // a + 2^bits * b, which is (a + b) + (2^bits - 1) * b
#define IME_ZIP8(a, b) __riscv_vwmaccu_vx_u16m2(__riscv_vwaddu_vv_u16m2(a, b, n), 0xff, b, n)
#define IME_ZIP16(a, b) __riscv_vwmaccu_vx_u32m4(__riscv_vwaddu_vv_u32m4(a, b, n), 0xffff, b, n)
#define IME_ZIP32(a, b) __riscv_vwmaccu_vx_u64m8(__riscv_vwaddu_vv_u64m8(a, b, n), ~0u, b, n)
  vuint8m1_t even = IME_COLUMN(0), odd = IME_COLUMN(1);
  vuint16m2_t first = IME_ZIP8(even, odd);
  even = IME_COLUMN(2), odd = IME_COLUMN(3);
  vuint16m2_t second = IME_ZIP8(even, odd);
  const vuint32m4_t low = IME_ZIP16(first, second);
  even = IME_COLUMN(4), odd = IME_COLUMN(5);
  first = IME_ZIP8(even, odd);
  even = IME_COLUMN(6), odd = IME_COLUMN(7);
  second = IME_ZIP8(even, odd);
  const vuint32m4_t high = IME_ZIP16(first, second);
  const vuint64m8_t lanes = IME_ZIP32(low, high);
#define IME_LANES_OF(i) \
  __riscv_vse64_v_u64m2((uint64_t *)(to + i * stride), __riscv_vget_v_u64m8_u64m2(lanes, i), 8)
  IME_LANES_OF(0), IME_LANES_OF(1), IME_LANES_OF(2), IME_LANES_OF(3);
}

// Four of an output's numbers, four times.
MLC_RVV_INLINE void ime_four_times(float *to, const float *from) {
  const vfloat32m1_t four = __riscv_vle32_v_f32m1(from, 4);
  for (int i = 0; i < 4; ++i) __riscv_vse32_v_f32m1(to + 4 * i, four, 4);
}

// Factors [blocks, lanes], of which every `each`-th row counts.
MLC_RVV_INLINE void ime_take_factors(float *to, const float *from, int each, int blocks) {
  for (int lane = 0; lane < IME_LANES; lane += IME_SIDE) {
    for (int block = 0; block < blocks; ++block, to += IME_PAIR) {
      const float *here = from + block * each * IME_LANES + lane;
      ime_four_times(to, here);
      ime_four_times(to + IME_FOUR, here + 4);
    }
  }
}

// Four bytes that lie at a multiple of four.
MLC_RVV_INLINE void ime_copy_word(int8_t *to, const uint8_t *from) {
  __builtin_memcpy(__builtin_assume_aligned(to, 4), __builtin_assume_aligned(from, 4), 4);
}

// The sum of a block's activations, whose sums by eights follow its values and scale.
MLC_RVV_INLINE float ime_sum(const uint8_t *block, gguf_format f) {
  int sum = 0;
  for (int i = 0; i < f.block / 8; ++i) {
    int16_t eight;
    __builtin_memcpy(&eight, block + f.block + 4 + 2 * i, sizeof(eight));
    sum += eight;
  }
  return (float)sum;
}

// `rows` of activations, whose blocks of `bytes` follow each other; those of the next inputs are
// `next` behind them. Rows up to a multiple of eight are whatever was there.
MLC_RVV_INLINE void ime_take_rows(ime_rows *to, const uint8_t *ready, int rows, int inputs,
                                  int64_t bytes, int64_t next, gguf_format f) {
  const int blocks = inputs / f.block;
  for (int row = 0; row < rows; ++row) {
    const int first = row / IME_SIDE * IME_SIDE, in = row % IME_SIDE;
    int8_t *values = to->values + first * inputs + in * IME_STEP;
    for (int block = 0; block < blocks; ++block) {
      const uint8_t *from = ready + row * bytes + block * next;
      const int64_t place = (int64_t)(first * blocks + block * IME_SIDE + in) * 4;
      float scale;
      __builtin_memcpy(&scale, from + f.block, sizeof(scale));
      for (int i = 0; i < 4; ++i) to->scales[place + i] = scale;
      if (f.minimums) {
        const float sum = ime_sum(from, f);
        for (int i = 0; i < 4; ++i) to->sums[place + i] = sum;
      }
      for (int i = 0; i < f.block; i += IME_STEP, values += IME_BYTES) {
        ime_copy_word(values, from + i);
        ime_copy_word(values + 4, from + i + 4);
      }
    }
  }
}

// Weights of 32 lanes; `scales` are those of q4, rounded, or null.
MLC_RVV_INLINE void ime_take_columns(ime_columns *to, gguf_weights w, const float *scales,
                                     int inputs, gguf_format f) {
  int8_t values[MLC_GGUF_PANEL * IME_LANES];
  float factors[2 * IME_BLOCKS * IME_LANES];
  const gguf_panel panel = {values, factors, w.scales, IME_TILE, IME_LANES, IME_LANES};
  const int blocks = inputs / f.block, each = 1 + f.minimums;
  gguf_unpack(&panel, w, inputs, f);
  for (int i = 0; i < inputs; i += IME_STEP) {
    ime_interleave(to->values + i * IME_SIDE, inputs * IME_SIDE, (uint8_t *)values + i * IME_LANES,
                   IME_LANES);
  }
  if (scales == NULL) gguf_unpack_factors(&panel, w, inputs, f);
  ime_take_factors(to->factors, scales == NULL ? factors : scales, each, blocks);
  if (f.minimums) ime_take_factors(to->least_factors, factors + IME_LANES, each, blocks);
}

// Rows of a whole tile from their sums.
MLC_RVV_INLINE void ime_give_rows(float *c, const float *sums, int rows, int64_t ld_c) {
  for (int row = 0; row < rows; ++row, c += ld_c) {
    const int in = row % IME_SIDE;
    const float *from =
        sums + row / IME_SIDE * (IME_TILE / IME_SIDE) * IME_SUMS + in / 4 * IME_PAIR + in % 4 * 4;
    for (int lane = 0; lane < IME_TILE; lane += 4) {
      const float *four = from + lane / IME_SIDE * IME_SUMS + lane / 4 % 2 * IME_FOUR;
      __riscv_vse32_v_f32m1(c + lane, __riscv_vle32_v_f32m1(four, 4), 4);
    }
  }
}

// m rows and one whole tile. `bytes` are those of a row's block of activations; `scales`
// [k / 32, lanes] those of q4, or null.
MLC_RVV_INLINE void ime_many_rows(float *c, const uint8_t *ready, gguf_weights tile,
                                  const float *scales, int64_t m, int64_t next, int64_t k,
                                  int64_t ld_c, int64_t bytes, gguf_format f) {
  ime_rows x;
  ime_columns w;
  float sums[IME_ROWS * IME_TILE], rounded[IME_BLOCKS * IME_LANES];
  for (int64_t row = 0; row < m; row += IME_ROWS) {
    const int rows = (int)(m - row < IME_ROWS ? m - row : IME_ROWS);
    for (int i = 0; i < IME_ROWS * IME_TILE; ++i) sums[i] = 0.0f;
    for (int64_t input = 0; input < k; input += MLC_GGUF_PANEL) {
      const int inputs = (int)(k - input < MLC_GGUF_PANEL ? k - input : MLC_GGUF_PANEL);
      const gguf_weights part = gguf_after(tile, f, IME_TILE, input);
      const uint8_t *from = ready + input / f.block * next + row * bytes;
      ime_take_rows(&x, from, rows, inputs, bytes, next, f);
      for (int lane = 0; lane < IME_TILE; lane += IME_LANES) {
        const float *here = NULL;
        if (scales != NULL) {
          const float *first = scales + input / f.block * IME_TILE + lane;
          round_scales(rounded, first, inputs / f.block, IME_TILE, IME_LANES);
          here = rounded;
        }
        ime_take_columns(&w, gguf_lanes_from(part, lane), here, inputs, f);
        float *to = sums + lane / IME_SIDE * IME_SUMS;
        ime_multiply(to, &x, &w, rows, inputs, f);
      }
    }
    ime_give_rows(c + row * ld_c, sums, rows, ld_c);
  }
}

#endif  // MLC_RVV_IME_H_
