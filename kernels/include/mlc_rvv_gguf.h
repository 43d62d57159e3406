// SPDX-License-Identifier: Apache-2.0
//
// The ABI of linear-layer kernels for the formats of GGUF files, shared by the RVV and the portable
// sources. Activations are int8. A layer is c[m, n] = a[m, k] * transpose(b[n, k]).
//
// A format (packages/crosslab/src/crosslab/models/gguf_formats.toml, from which mlc_rvv_kernel_list.h is
// generated) has blocks of 32 or 256 neighbouring inputs. k is a multiple of the block. A weight is
//   (value - zero) * d           formats of 32: the group is the block
//   value * d + m                the same with minimums
//   (value - zero) * s * d       formats of 256: a group of 16 or 32 has a whole number s
//   value * s * d - t * e        the same with minimums: a group has s and t, a block d and e
// `value` has `low` and `high` bits. A value of 8 bits is signed, and so is s without minimums.
//
// b is up to four dense matrices of n rows, in tiles as mlc_rvv_linear.h says; the ones that a
// format lacks may be any pointer:
//   quants   uint8 [n, k * low / 8]: the low bits of two neighbouring inputs, the first in the low
//            nibble, or a whole value
//   high     uint8 [n, k * high / 8]: the high bits of 8 / high neighbouring inputs, the first lowest
//   scales   uint8 [n, k / group], or with minimums [n, 2 * k / group]: of each block s of all
//            groups, then t of all groups
//   factors  halves [n, k / block], or with minimums [n, 2 * k / block]: of each block d, then m or
//            e. They are finite.
//
// quantize_blocks: activations x[m, k] as int8 into `ready`, block by block those of all `rows`
//   (it writes m of them, from the one that `ready` points to), MLC_RVV_GGUF_BLOCK(block) bytes
//   for each: values of int8, x = value * scale, |value| <= 127; the scale, float32, which is the
//   largest |x| / 127; and int16 sums of eight neighbouring values each. A block whose largest is
//   not above MLC_RVV_INT8_LEAST is zeros. NaN and infinity in x give NaN or
//   infinity.
// gemm_gguf_<format>: c from `ready`. The sum over a block is computed in integers, and is exact.
// take_gguf_<format>: out[count, k] = b[rows[count], k], the weights as float32 as ggml defines
//   them.
#ifndef MLC_RVV_GGUF_H_
#define MLC_RVV_GGUF_H_

#include <stdint.h>

#include "mlc_rvv_kernel_list.h"

#define MLC_RVV_GGUF_BLOCK(block) ((block) + 4 + (block) / 8 * 2)

void mlc_rvv_quantize_blocks(void *ready, const float *x, int64_t m, int64_t k, int64_t ld_x,
                             int64_t rows, int64_t block);

typedef void mlc_rvv_gemm_gguf(float *c, const void *ready, const uint8_t *quants,
                               const uint8_t *high, const uint8_t *scales, const uint16_t *factors,
                               int64_t m, int64_t n, int64_t k, int64_t ld_c, int64_t tile);
typedef void mlc_rvv_take_gguf(float *out, const int32_t *rows, const uint8_t *quants,
                               const uint8_t *high, const uint8_t *scales, const uint16_t *factors,
                               int64_t count, int64_t n, int64_t k, int64_t tile);

#define MLC_RVV_DECLARE(name, low, high, block, group, zero, minimums) \
  mlc_rvv_gemm_gguf mlc_rvv_gemm_gguf_##name;                          \
  mlc_rvv_take_gguf mlc_rvv_take_gguf_##name;
MLC_RVV_GGUF(MLC_RVV_DECLARE)
#undef MLC_RVV_DECLARE

#endif  // MLC_RVV_GGUF_H_
