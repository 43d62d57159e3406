// SPDX-License-Identifier: Apache-2.0
//
// The ABI of the linear-layer kernels, shared by the RVV and the portable sources. Sizes are
// run-time arguments; matrices are row-major, and ld_* is the distance between rows in elements.
// A weight is stored as [outputs, inputs], so a layer is c = a * transpose(b).
//
// Packed weights are group-quantized by MLC-LLM: `quants` holds 32 / bits values a word, the first
// in the lowest bits, every row beginning with whole groups of inputs; `scales` [n, groups] one
// factor for every group, and a weight is (value - zero_point) * scale. Both are dense. The formats
// are those of packages/crosslab/src/crosslab/models/formats.toml, from which mlc_rvv_kernel_list.h is generated:
// q4 has 4 bits, groups of 32, zero point 7.
//
// gemm, gemm_<packed>: c[m, n] = a[m, k] * transpose(b[n, k]). They copy b, transposed and unpacked,
//   by panels of up to panel_columns of its rows into `panel`, panel_rows * panel_columns floats
//   which only they use meanwhile. panel_rows is a positive multiple of 32, and not less than a
//   group of packed weights; a kernel may use fewer rows of it, such as whole groups. The RVV
//   kernels do best with panel_columns = VLEN / 4, a group of eight vector registers.
// gemv: y[n] = b[n, k] * x[k].
// gemv_<packed>: the same for packed weights and an x that gemv_<packed>_prepare has put into
//   `ready`, MLC_RVV_READY(k, group) floats.
// depthwise_f32: the convolution of one channel, out[rows, columns], with its own kernel
//   w[kernel_rows, kernel_columns]: out[i, j] is the sum over a and b of w[a, b] *
//   x[i * row_stride + a * row_dilation, j * column_stride + b * column_dilation]. out and w are
//   dense; padding is part of x.
//
// Weights in tiles. Where a library is asked to, it reorders weights when they are loaded, so that
// kernels read them one after the other: tile by tile, `tile` rows of b in each (the last may have
// fewer, and is as wide as those), and in a tile column by column: an element of each row follows
// that of the row before. Elements are floats; of packed words they are bytes where a byte holds
// whole values (MLC_RVV_TILE_ITEM), else words; scales are in tiles likewise. A matrix takes as many
// bytes as before. `tile` is at most a group of eight vector registers, VLEN / 4.
//
// pack_tiles: reorders a matrix [n, columns] of elements of 1, 2 or 4 bytes, in place, by way of
//   `scratch`, min(n, tile) * columns elements.
// take_f32, take_<packed>: out[count, k] = b[rows[count], k], of a matrix of n rows.
// gemm_f32_tiles, gemm_<packed>_tiles, gemv_<packed>_tiles: as those without `_tiles`. The panel is
//   panel_rows * tile floats. What is ready has the same size, and is made by
//   gemv_<packed>_prepare_tiles.
// gemv_f16_tiles: y[n] = b[n, k] * x[k] with b in tiles, both of halves; where the CPU that is compiled
//   for has vectors of them (Zvfh).
// gemm_<packed>_int8, of formats that have it, whose groups are MLC_RVV_INT8_GROUP long and whose
//   zero point is q4's: the same for int8 activations, which quantize_int8 has put into `ready`,
//   MLC_RVV_INT8_BLOCK bytes for each group of MLC_RVV_INT8_GROUP inputs, group by group those of
//   all `rows` (quantize_int8 writes m of them, from the one that `ready` points to): values of
//   int8, x = value * scale, |value| <= 127; the scale, float32, which is the largest |x| / 127;
//   and -zero_point * (the sum of the values), int32. A group whose largest is not above
//   MLC_RVV_INT8_LEAST is zeros. NaN and infinity in x give NaN or infinity.
//
// mlc_rvv_on_rounding: null, or a function of the program that links the kernels. quantize_int8 and
//   quantize_blocks (mlc_rvv_gguf.h) call it, on their own thread, with what they wrote: m of `rows`
//   rows of k activations in blocks of `block`, each of which takes `bytes` and has its scale behind
//   its values; `x` are the activations. A check of the model's answer records roundings by it.
//
// No output overlaps an input. Sums are float32; their order and whether a multiply-add is fused
// are the implementation's.
#ifndef MLC_RVV_LINEAR_H_
#define MLC_RVV_LINEAR_H_

#include <stdint.h>

#include "mlc_rvv_kernel_list.h"

#define MLC_RVV_GROUPS(k, group) (((k) + (group) - 1) / (group))
#define MLC_RVV_READY(k, group) (MLC_RVV_GROUPS(k, group) * ((group) + 4))
// Words of a row, and bytes of an element of a tile.
#define MLC_RVV_WORDS(k, bits, group) (MLC_RVV_GROUPS(k, group) * ((group) / (32 / (bits))))
#define MLC_RVV_TILE_ITEM(bits) (8 % (bits) == 0 ? 1 : 4)

void mlc_rvv_gemm_f32(float *c, const float *a, const float *b, int64_t m, int64_t n, int64_t k,
                      int64_t ld_c, int64_t ld_a, int64_t ld_b, float *panel, int64_t panel_rows,
                      int64_t panel_columns);

void mlc_rvv_gemv_f32(float *y, const float *x, const float *b, int64_t n, int64_t k, int64_t ld_b);

void mlc_rvv_depthwise_f32(float *out, const float *x, const float *w, int64_t rows,
                           int64_t columns, int64_t kernel_rows, int64_t kernel_columns,
                           int64_t row_stride, int64_t column_stride, int64_t row_dilation,
                           int64_t column_dilation, int64_t ld_x);

typedef void mlc_rvv_gemm_packed(float *c, const float *a, const uint32_t *quants,
                                 const float *scales, int64_t m, int64_t n, int64_t k, int64_t ld_c,
                                 int64_t ld_a, float *panel, int64_t panel_rows,
                                 int64_t panel_columns);
typedef void mlc_rvv_gemv_packed(float *y, const float *ready, const uint32_t *quants,
                                 const float *scales, int64_t n, int64_t k);
typedef void mlc_rvv_gemv_prepare(float *ready, const float *x, int64_t k);

#define MLC_RVV_INT8_GROUP 32
#define MLC_RVV_INT8_BLOCK (MLC_RVV_INT8_GROUP + 8)
#define MLC_RVV_INT8_LEAST 0x1p-100f

void mlc_rvv_pack_tiles(void *data, int64_t item, int64_t n, int64_t columns, int64_t tile,
                        void *scratch);

void mlc_rvv_take_f32(float *out, const int32_t *rows, const float *b, int64_t count, int64_t n,
                      int64_t k, int64_t tile);

void mlc_rvv_gemm_f32_tiles(float *c, const float *a, const float *b, int64_t m, int64_t n,
                            int64_t k, int64_t ld_c, int64_t ld_a, int64_t tile);

void mlc_rvv_gemv_f16_tiles(float *y, const void *x, const void *b, int64_t n, int64_t k,
                            int64_t tile);

void mlc_rvv_quantize_int8(void *ready, const float *x, int64_t m, int64_t k, int64_t ld_x,
                           int64_t rows);

typedef void mlc_rvv_rounding(const void *ready, const float *x, int64_t m, int64_t k, int64_t rows,
                              int64_t block, int64_t bytes);
extern mlc_rvv_rounding *mlc_rvv_on_rounding;

typedef void mlc_rvv_take_packed(float *out, const int32_t *rows, const uint32_t *quants,
                                 const float *scales, int64_t count, int64_t n, int64_t k,
                                 int64_t tile);
typedef void mlc_rvv_gemv_packed_tiles(float *y, const float *ready, const uint32_t *quants,
                                       const float *scales, int64_t n, int64_t k, int64_t tile);
typedef void mlc_rvv_gemm_packed_int8(float *c, const void *ready, const uint32_t *quants,
                                      const float *scales, int64_t m, int64_t n, int64_t k,
                                      int64_t ld_c, int64_t tile);

#define MLC_RVV_DECLARE(name, bits, group, zero_point) \
  mlc_rvv_gemm_packed mlc_rvv_gemm_##name;             \
  mlc_rvv_gemv_packed mlc_rvv_gemv_##name;             \
  mlc_rvv_gemv_prepare mlc_rvv_gemv_##name##_prepare;  \
  mlc_rvv_gemm_packed mlc_rvv_gemm_##name##_tiles;     \
  mlc_rvv_gemv_packed_tiles mlc_rvv_gemv_##name##_tiles; \
  mlc_rvv_gemv_prepare mlc_rvv_gemv_##name##_prepare_tiles; \
  mlc_rvv_take_packed mlc_rvv_take_##name;
MLC_RVV_PACKED(MLC_RVV_DECLARE)
#undef MLC_RVV_DECLARE

#define MLC_RVV_DECLARE(name, bits, group, zero_point)  \
  _Static_assert((group) == MLC_RVV_INT8_GROUP && (zero_point) == MLC_RVV_Q4_ZERO_POINT, \
                 "quantize_int8 does not prepare activations for " #name); \
  mlc_rvv_gemm_packed_int8 mlc_rvv_gemm_##name##_int8;
MLC_RVV_PACKED_INT8(MLC_RVV_DECLARE)
#undef MLC_RVV_DECLARE

#endif  // MLC_RVV_LINEAR_H_
