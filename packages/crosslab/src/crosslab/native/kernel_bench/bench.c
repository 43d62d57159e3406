// SPDX-License-Identifier: Apache-2.0
//
// Calls kernels, each between the counter's marks:
//   bench PANEL_COLUMNS (gemm_FORMAT|gemv_FORMAT ROWS OUTPUTS INPUTS)...
//   bench PANEL_COLUMNS (SYMBOL Q_TILE KV_TILE D)...
// The operands are zero: the number of instructions does not depend on them. With `-o FILE SEED`,
// the operands are random, and the results are written to FILE.

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BEGIN __asm__ volatile(".word 0x7c102013" ::: "memory")
#define END __asm__ volatile(".word 0x7c202013" ::: "memory")
#include "linear_call.h"
#include "mlc_rvv_kernels.h"

#define PANEL_ROWS 256
#define MOST_GROUP 256

static const struct {
  const char *symbol;
  mlc_rvv_kernel *run;
  int64_t ld_acc, ld_lhs, ld_rhs;
} tiles[] = {
#define QK(symbol, q_tile, kv_tile, d) {#symbol, symbol, kv_tile, d, d},
#define PV(symbol, q_tile, kv_tile, d) {#symbol, symbol, d, kv_tile, d},
    MLC_RVV_QK_FLOAT32(QK) MLC_RVV_PV_FLOAT32(PV)
#undef QK
#undef PV
};

static void *room(int64_t words) {
  void *data = calloc((size_t)words + 1, 4);
  if (data == NULL) exit(1);
  return data;
}

// Runs the attention tile `symbol`; returns 0 if `symbol` is not an attention tile.
static int run_tile(const char *symbol, float *acc, const float *lhs, const float *rhs) {
  for (size_t i = 0; i < sizeof(tiles) / sizeof(tiles[0]); ++i) {
    if (strcmp(symbol, tiles[i].symbol) != 0) continue;
    mlc_rvv_kernel *run = tiles[i].run;
    const int64_t ld_acc = tiles[i].ld_acc, ld_lhs = tiles[i].ld_lhs, ld_rhs = tiles[i].ld_rhs;
    BEGIN;
    run(acc, lhs, rhs, ld_acc, ld_lhs, ld_rhs);
    END;
    return 1;
  }
  return 0;
}

// Random bits by xorshift64, and floats from -1 to 1.
static uint64_t seed = 0;
static uint32_t random_bits(void) {
  seed ^= seed << 13, seed ^= seed >> 7, seed ^= seed << 17;
  return (uint32_t)(seed >> 32);
}
static void fill(float *data, int64_t count) {
  for (int64_t i = 0; i < count; ++i) data[i] = (float)(int32_t)random_bits() * 0x1p-31f;
}

static int run_case(const char *kind, int64_t m, int64_t n, int64_t k, int64_t columns, FILE *out) {
  const struct linear_sizes sizes = {m, n, k, n, k, k, PANEL_ROWS, columns};
  const int64_t whole = k + MOST_GROUP;  // at least the inputs in whole groups
  // Each matrix of a tile fits into c, a or b, or into one of them transposed.
  float *c = room(m * n + m * k), *a = room(m * k + m * n), *b = room(n * whole);
  float *scales = room(n * whole), *scratch = room(linear_scratch(kind, &sizes));
  if (out != NULL) {
    const int floats = strstr(kind, "_f32") != NULL;
    fill(c, m * n), fill(a, m * k), fill(scales, n * whole), fill(b, n * whole);
    for (int64_t i = 0; !floats && i < n * whole; ++i) ((uint32_t *)b)[i] = random_bits();
  }
  const int known = call_linear(kind, &sizes, c, a, b, scales, scratch) || run_tile(kind, c, a, b);
  if (out != NULL && fwrite(c, 4, (size_t)(m * n), out) != (size_t)(m * n)) exit(1);
  free(c), free(a), free(b), free(scales), free(scratch);
  return known;
}

int main(int count, char **argument) {
  FILE *out = NULL;
  if (count > 4 && strcmp(argument[1], "-o") == 0) {
    out = fopen(argument[2], "wb");
    seed = (uint64_t)atoll(argument[3]);
    if (out == NULL || seed == 0) return 2;
    count -= 3, argument += 3;
  }
  if (count < 6 || (count - 2) % 4 != 0) return 2;
  for (int i = 2; i < count; i += 4) {
    const int64_t m = atol(argument[i + 1]), n = atol(argument[i + 2]), k = atol(argument[i + 3]);
    if (!run_case(argument[i], m, n, k, atol(argument[1]), out)) return 2;
  }
  return out != NULL && fclose(out) != 0;
}
