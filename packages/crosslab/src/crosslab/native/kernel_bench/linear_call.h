// SPDX-License-Identifier: Apache-2.0
//
// Calls of the linear-layer kernels by name, gemm_FORMAT or gemv_FORMAT, between BEGIN and END of
// the including file. A gemv of packed weights includes its preparation. For names that end in
// _tiles, or in _int8 for int8 activations, the weights are reordered before BEGIN.
#ifndef LINEAR_CALL_H_
#define LINEAR_CALL_H_

#include <string.h>

#include "mlc_rvv_gguf.h"
#include "mlc_rvv_linear.h"

struct linear_sizes {
  int64_t m, n, k, ld_c, ld_a, ld_b, panel_rows, panel_columns;
};

// Returns the floats of scratch memory for a call: for a panel, or for x prepared.
static int64_t linear_scratch(const char *kind, const struct linear_sizes *s) {
  if (strstr(kind, "_gguf_")) return s->m * s->k / 32 * MLC_RVV_GGUF_BLOCK(32) / 4;
  if (strstr(kind, "_tiles") || strstr(kind, "_int8")) {
    const int64_t blocks = s->m * MLC_RVV_GROUPS(s->k, MLC_RVV_INT8_GROUP);
    return s->panel_columns * (s->k + 64) + s->panel_rows * s->panel_columns +
           blocks * MLC_RVV_INT8_BLOCK / (int64_t)sizeof(float);
  }
  if (strncmp(kind, "gemm", 4) == 0) return s->panel_rows * s->panel_columns;
#define READY(name, bits, group, zero_point) \
  if (strcmp(kind, "gemv_" #name) == 0) return MLC_RVV_READY(s->k, group);
  MLC_RVV_PACKED(READY)
#undef READY
  return 0;
}

#define CALL(name, ...)            \
  if (strcmp(kind, name) == 0) {   \
    BEGIN;                         \
    __VA_ARGS__;                   \
    END;                           \
    return 1;                      \
  }
#define CALL_PACKED(name, bits, group, zero_point)                                              \
  CALL("gemm_" #name, mlc_rvv_gemm_##name(c, a, b, scales, s.m, s.n, s.k, s.ld_c, s.ld_a,       \
                                          scratch, s.panel_rows, s.panel_columns))              \
  CALL("gemv_" #name, mlc_rvv_gemv_##name##_prepare(scratch, a, s.k);                           \
       mlc_rvv_gemv_##name(c, scratch, b, scales, s.n, s.k))                                    \
  REORDERED("gemm_" #name "_tiles", bits, group,                                                \
            mlc_rvv_gemm_##name##_tiles(c, a, b, scales, s.m, s.n, s.k, s.ld_c, s.ld_a, scratch, \
                                        s.panel_rows, s.panel_columns))                         \
  REORDERED("gemv_" #name "_tiles", bits, group,                                                \
            mlc_rvv_gemv_##name##_prepare_tiles(scratch, a, s.k);                               \
            mlc_rvv_gemv_##name##_tiles(c, scratch, b, scales, s.n, s.k, s.panel_columns))
#define CALL_INT8(name, bits, group, zero_point)                                                \
  REORDERED("gemm_" #name "_int8", bits, group,                                                 \
            mlc_rvv_quantize_int8(scratch, a, s.m, s.k, s.ld_a, s.m);                            \
            mlc_rvv_gemm_##name##_int8(c, scratch, b, scales, s.m, s.n, s.k, s.ld_c,            \
                                       s.panel_columns))
#define REORDERED(name, bits, group, ...)                                                       \
  if (strcmp(kind, name) == 0) {                                                                \
    const int64_t groups = MLC_RVV_GROUPS(s.k, group), item = MLC_RVV_TILE_ITEM(bits);          \
    mlc_rvv_pack_tiles(b, item, s.n, MLC_RVV_WORDS(s.k, bits, group) * 4 / item,                \
                       s.panel_columns, scratch);                                               \
    mlc_rvv_pack_tiles(scales, 4, s.n, groups, s.panel_columns, scratch);                       \
  }                                                                                             \
  CALL(name, __VA_ARGS__)

// Weights in blocks, already in tiles; all parts except the first are at the address of scales.
#define CALL_GGUF(name, low, high, block, ...)                                                   \
  CALL("gemm_gguf_" #name, mlc_rvv_quantize_blocks(scratch, a, s.m, s.k, s.ld_a, s.m, block);    \
       mlc_rvv_gemm_gguf_##name(c, scratch, b, (const uint8_t *)scales, (const uint8_t *)scales, \
                                (const uint16_t *)scales, s.m, s.n, s.k, s.ld_c,                 \
                                s.panel_columns))

// Calls the kernel `kind`; returns 0 if the kernel does not exist.
static int call_linear(const char *kind, const struct linear_sizes *sizes, float *c, const float *a,
                       void *b, float *scales, float *scratch) {
  const struct linear_sizes s = *sizes;
  CALL("gemm_f32", mlc_rvv_gemm_f32(c, a, b, s.m, s.n, s.k, s.ld_c, s.ld_a, s.ld_b, scratch,
                                    s.panel_rows, s.panel_columns))
  if (strcmp(kind, "gemm_f32_tiles") == 0) {
    mlc_rvv_pack_tiles(b, 4, s.n, s.k, s.panel_columns, scratch);
  }
  CALL("gemm_f32_tiles",
       mlc_rvv_gemm_f32_tiles(c, a, b, s.m, s.n, s.k, s.ld_c, s.ld_a, s.panel_columns))
  CALL("gemv_f32", mlc_rvv_gemv_f32(c, a, b, s.n, s.k, s.ld_b))
  MLC_RVV_PACKED(CALL_PACKED)
  MLC_RVV_PACKED_INT8(CALL_INT8)
  MLC_RVV_GGUF(CALL_GGUF)
  return 0;
}

#endif  // LINEAR_CALL_H_
