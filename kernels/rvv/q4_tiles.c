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
// Two rows share what a byte becomes, up to six are done so (gemm). Outputs lie in lanes, a byte of
// each holds the weights of two neighbouring inputs. A byte b = 16 * high + low becomes a float
// without a conversion, which costs twice an addition on real cores: 0x7f00 + b in 16 bits, times
// 2^15 in 32, is the float 1 + b/256; of 16 * low, taken from the byte by a multiplication that
// overflows, it is 1 + low/16. What is added for a pair of inputs u, v is
//
//   (1 + b/256) * 16 v + (1 + low/16) * (16 u - v)   =   high * v + low * u + 15 v + 16 u
//
// so that a group's sum begins with minus what is too much of it, zero points as well:
// -(23 u + 22 v) for all pairs (prepare_pairs). A result rounds like a sum of |55 x|. A group's sums
// take the registers that a row's did, and are added to it in memory. Of more rows, a part of a tile
// is unpacked to float32 once and multiplied as any panel is.

#include "gemm_rows.h"
#include "mlc_rvv_linear.h"
#include "mlc_rvv_loops.h"

// Bytes of a group that is ready: a block of int8 activations for each place, and some that are left.
enum { DIGITS = 4 * MLC_RVV_READY(MLC_RVV_Q4_GROUP, MLC_RVV_Q4_GROUP), PLACES = 3 };
_Static_assert(DIGITS == 144 && PLACES * MLC_RVV_INT8_BLOCK <= DIGITS,
               "loops/q4.py has the bytes of a group");
// The largest integer, whose digits are 127, 0, 0.
#define FULL (127 * 65536.0f)

// The digits of a group at LMUL M, which holds 32 floats; H and Q are a half and a quarter of it.
#define DIGITS_DEFINE(M, H, Q)                                                                     \
  __attribute__((noinline)) static void digits_m##M(uint8_t *ready, const float *x, int64_t k) {   \
    const size_t lanes = MLC_RVV_Q4_GROUP;                                                         \
    const vfloat32m##M##_t pad = __riscv_vfmv_v_f_f32m##M(0.0f, lanes);                            \
    const vuint32m1_t none = __riscv_vmv_s_x_u32m1(0, 1);                                          \
    const vint16m1_t zero = __riscv_vmv_s_x_i16m1(0, 1);                                           \
    for (; k > 0; k -= MLC_RVV_Q4_GROUP, x += MLC_RVV_Q4_GROUP, ready += DIGITS) {                 \
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

void mlc_rvv_gemv_q4_prepare_tiles(float *ready, const float *x, int64_t k) {
  const size_t words = __riscv_vsetvlmax_e32m1();
  (words >= 32   ? digits_m1
   : words == 16 ? digits_m2
   : words == 8  ? digits_m4
                 : digits_m8)((uint8_t *)ready, x, k);
}

// Floats of a group that is ready: 16 pairs (16 u - v, 16 v), and what the sum begins with.
enum { MLC_TILES_READY = 36 };

// LANES of a group at a time: so many that what the loop keeps stays in registers.
#define MLC_TILES_PREPARE_DEFINE(NAME, M, LANES)                                                  \
  __attribute__((noinline)) static void NAME(float *ready, const float *x, int64_t k) {           \
    const size_t lanes = LANES;                                                                   \
    const vfloat32m##M##_t pad = __riscv_vfmv_v_f_f32m##M(0.0f, lanes);                           \
    const vfloat32m1_t zero = __riscv_vfmv_s_f_f32m1(0.0f, 1);                                    \
    const vuint32m##M##_t odd =                                                                   \
        __riscv_vand_vx_u32m##M(__riscv_vid_v_u32m##M(lanes), 1, lanes);                          \
    /* -1 in the first of a pair, 0 in the second; and -23, -22. */                               \
    const vfloat32m##M##_t less = __riscv_vfcvt_f_x_v_f32m##M(                                    \
        __riscv_vadd_vx_i32m##M(__riscv_vreinterpret_v_u32m##M##_i32m##M(odd), -1, lanes), lanes);\
    const vfloat32m##M##_t begin = __riscv_vfadd_vf_f32m##M(                                      \
        __riscv_vfcvt_f_xu_v_f32m##M(odd, lanes), -23.0f, lanes);                                 \
    for (; k > 0; ready += MLC_TILES_READY - MLC_RVV_Q4_GROUP) {                                  \
      float sum = 0.0f;                                                                           \
      for (int part = 0; part < MLC_RVV_Q4_GROUP / LANES;                                         \
           ++part, k -= LANES, x += LANES, ready += LANES) {                                      \
        const vfloat32m##M##_t group =                                                            \
            k >= LANES ? __riscv_vle32_v_f32m##M(x, lanes)                                        \
                       : __riscv_vle32_v_f32m##M##_tu(pad, x, k > 0 ? (size_t)k : 0);             \
        const vfloat32m##M##_t next = __riscv_vfslide1down_vf_f32m##M(group, 0.0f, lanes);        \
        __riscv_vse32_v_f32m##M(                                                                  \
            ready,                                                                                \
            __riscv_vfmacc_vv_f32m##M(__riscv_vfmul_vf_f32m##M(group, 16.0f, lanes), next, less,  \
                                      lanes),                                                     \
            lanes);                                                                               \
        sum += __riscv_vfmv_f_s_f32m1_f32(__riscv_vfredusum_vs_f32m##M##_f32m1(                   \
            __riscv_vfmul_vv_f32m##M(group, begin, lanes), zero, lanes));                         \
      }                                                                                           \
      *ready = sum;                                                                               \
    }                                                                                             \
  }
MLC_TILES_PREPARE_DEFINE(mlc_q4_ready_half_m4, 4, 16)
MLC_TILES_PREPARE_DEFINE(mlc_q4_ready_m4, 4, 32)
MLC_TILES_PREPARE_DEFINE(mlc_q4_ready_m2, 2, 32)
MLC_TILES_PREPARE_DEFINE(mlc_q4_ready_m1, 1, 32)

static void prepare_pairs(float *ready, const float *x, int64_t k) {
  const size_t words = __riscv_vsetvlmax_e32m1();
  (words >= 32   ? mlc_q4_ready_m1
   : words == 16 ? mlc_q4_ready_m2
   : words == 8  ? mlc_q4_ready_m4
                 : mlc_q4_ready_half_m4)(ready, x, k);
}

// Bytes of a pair of inputs for two rows, whose factors lie at `at` bytes: v0 takes 16 bits of each
// low nibble, v28 of the byte, v24 floats; a group's sums are v8 and v16, the constant v4 and v2
// bytes, fetched for the next pair (NEXT) when they are used.
#define MLC_TILES_FETCH "vle8.v v2, (%[q])\n\tadd %[q], %[q], %[step]\n\t"
#define MLC_TILES_PAIR_OF_2(at, E8, E16, E32, NEXT)                                               \
  "flw ft0, " #at "(%[r0])\n\tflw ft1, " #at "+4(%[r0])\n\t"                                      \
  "flw ft2, " #at "(%[r1])\n\tflw ft3, " #at "+4(%[r1])\n\t"                                      \
  "vsetvli zero, zero, e8, " E8 ", ta, ma\n\t"                                                    \
  "vwaddu.wv v28, v4, v2\n\tvmul.vx v2, v2, %[c16]\n\tvwaddu.wv v0, v4, v2\n\t"                   \
  "vsetvli zero, zero, e16, " E16 ", ta, ma\n\tvwmulu.vx v24, v28, %[high]\n\t"                   \
  "vsetvli zero, zero, e32, " E32 ", ta, ma\n\t"                                                  \
  "vfmacc.vf v8, ft1, v24\n\tvfmacc.vf v16, ft3, v24\n\t"                                         \
  "vsetvli zero, zero, e16, " E16 ", ta, ma\n\tvwmulu.vx v24, v0, %[high]\n\t" NEXT               \
  "vsetvli zero, zero, e32, " E32 ", ta, ma\n\t"                                                  \
  "vfmacc.vf v8, ft0, v24\n\tvfmacc.vf v16, ft2, v24\n\t"
#define MLC_TILES_FOUR_OF_2(at, E8, E16, E32, LAST)                                               \
  MLC_TILES_PAIR_OF_2(at, E8, E16, E32, MLC_TILES_FETCH)                                          \
  MLC_TILES_PAIR_OF_2(at + 8, E8, E16, E32, MLC_TILES_FETCH)                                      \
  MLC_TILES_PAIR_OF_2(at + 16, E8, E16, E32, MLC_TILES_FETCH)                                     \
  MLC_TILES_PAIR_OF_2(at + 24, E8, E16, E32, LAST)
#define MLC_TILES_ADD(sum, c)                                                                     \
  "vle32.v v0, (" c ")\n\tvfmacc.vv v0, " sum ", v24\n\tvse32.v v0, (" c ")\n\t"

// y0[lanes] and y1[lanes] of a tile of `step` lanes, from rows that are ready at r0 and r1.
#define MLC_TILES_DOTS_DEFINE(M, E8, E16)                                                         \
  __attribute__((noinline)) static void mlc_q4_dots_m##M(float *y0, float *y1, const float *r0,   \
                                                         const float *r1, const uint8_t *q,       \
                                                         const float *s, int64_t groups,          \
                                                         int64_t step) {                          \
    const float *end = s + groups * step;                                                         \
    __asm__ volatile(                                                                             \
        "vsetvli zero, %[step], e32, m" #M ", ta, ma\n\tvmv.v.i v8, 0\n\t"                        \
        "vse32.v v8, (%[y0])\n\tvse32.v v8, (%[y1])\n"                                            \
        "1:\n\t" MLC_TILES_FETCH "flw ft0, 128(%[r0])\n\tflw ft1, 128(%[r1])\n\t"                 \
        "vfmv.v.f v8, ft0\n\tvfmv.v.f v16, ft1\n\t"                                              \
        "vsetvli zero, zero, e16, " E16 ", ta, ma\n\tvmv.v.x v4, %[one]\n\t"                      \
        MLC_TILES_FOUR_OF_2(0, E8, E16, "m" #M, MLC_TILES_FETCH)                                  \
        MLC_TILES_FOUR_OF_2(32, E8, E16, "m" #M, MLC_TILES_FETCH)                                 \
        MLC_TILES_FOUR_OF_2(64, E8, E16, "m" #M, MLC_TILES_FETCH)                                 \
        MLC_TILES_FOUR_OF_2(96, E8, E16, "m" #M, )                                                \
        "vle32.v v24, (%[s])\n\tadd %[s], %[s], %[scale_step]\n\t"                                \
        "addi %[r0], %[r0], 144\n\taddi %[r1], %[r1], 144\n\t"                                    \
        MLC_TILES_ADD("v8", "%[y0]") MLC_TILES_ADD("v16", "%[y1]")                                \
        "bne %[s], %[end], 1b\n\t"                                                                \
        : [q] "+r"(q), [s] "+r"(s), [r0] "+r"(r0), [r1] "+r"(r1)                                  \
        : [y0] "r"(y0), [y1] "r"(y1), [step] "r"(step), [scale_step] "r"(step * 4),               \
          [end] "r"(end), [one] "r"(0x7f00l), [high] "r"(0x8000l), [c16] "r"(16l)                 \
        : "memory", "vl", "vtype", "ft0", "ft1", "ft2", "ft3", "v0", "v1", "v2", "v3", "v4",      \
          "v5", "v6", "v7", "v8", "v9", "v10", "v11", "v12", "v13", "v14", "v15", "v16", "v17",   \
          "v18", "v19", "v20", "v21", "v22", "v23", "v24", "v25", "v26", "v27", "v28", "v29",     \
          "v30", "v31");                                                                          \
  }
MLC_TILES_DOTS_DEFINE(8, "m2", "m4")
MLC_TILES_DOTS_DEFINE(4, "m1", "m2")
MLC_TILES_DOTS_DEFINE(2, "mf2", "m1")
MLC_TILES_DOTS_DEFINE(1, "mf4", "mf2")

// Two rows of c, from rows that are ready one after the other.
static void mlc_q4_two_rows(float *c, int64_t ld_c, const float *ready, const uint8_t *q,
                            const float *scales, int64_t n, int64_t groups, int64_t tile) {
  const float *next = ready + groups * MLC_TILES_READY;
  while (n > 0) {
    const int64_t step = n < tile ? n : tile;
    const size_t lanes = (size_t)step;
    (lanes > __riscv_vsetvlmax_e32m4()   ? mlc_q4_dots_m8
     : lanes > __riscv_vsetvlmax_e32m2() ? mlc_q4_dots_m4
     : lanes > __riscv_vsetvlmax_e32m1()
         ? mlc_q4_dots_m2
         : mlc_q4_dots_m1)(c, c + ld_c, ready, next, q, scales, groups, step);
    c += step;
    q += step * groups * (MLC_RVV_Q4_GROUP / 2);
    scales += step * groups;
    n -= step;
  }
}

void mlc_rvv_gemv_q4_tiles(float *y, const float *ready, const uint32_t *quants,
                           const float *scales, int64_t n, int64_t k, int64_t tile) {
  const int64_t groups = MLC_RVV_GROUPS(k, MLC_RVV_Q4_GROUP);
  const uint8_t *q = (const uint8_t *)quants;
  while (n > 0) {
    const int64_t step = n < tile ? n : tile;
    const size_t lanes = (size_t)step;
    // What is left at the end of a matrix is done at the smallest LMUL that holds it.
    (lanes > __riscv_vsetvlmax_e32m4()   ? mlc_q4_row_m8
     : lanes > __riscv_vsetvlmax_e32m2() ? mlc_q4_row_m4
     : lanes > __riscv_vsetvlmax_e32m1()
         ? mlc_q4_row_m2
         : mlc_q4_row_m1)(y, (const uint8_t *)ready, q, scales, step, step * 4, lanes, groups);
    y += step;
    q += step * groups * (MLC_RVV_Q4_GROUP / 2);
    scales += step * groups;
    n -= step;
  }
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
  const int64_t ready = MLC_RVV_READY(k, MLC_RVV_Q4_GROUP), room = panel_rows * tile;
  const uint8_t *q = (const uint8_t *)quants;
  // For a few rows, unpacking in registers takes fewer instructions than writing a panel; the
  // panel's memory holds prepared rows, if they fit.
  if (m <= (2 * ready <= room ? MLC_RVV_Q4_FEW_ROWS : 3) && ready <= room) {
    for (; m > 1 && 2 * ready <= room; m -= 2, a += 2 * ld_a, c += 2 * ld_c) {
      prepare_pairs(panel, a, k);
      prepare_pairs(panel + ready, a + ld_a, k);
      mlc_q4_two_rows(c, ld_c, panel, q, scales, n, groups, tile);
    }
    for (; m > 0; --m, a += ld_a, c += ld_c) {
      mlc_rvv_gemv_q4_prepare_tiles(panel, a, k);
      mlc_rvv_gemv_q4_tiles(c, panel, quants, scales, n, k, tile);
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
