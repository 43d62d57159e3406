// SPDX-License-Identifier: Apache-2.0
//
// Runs calls of the kernels for GGUF's formats that it reads from standard input, and writes their
// results to standard output: activations as they are ready, the product, and rows of the weights.
// Weights come row by row, and are put in tiles here.

#define _GNU_SOURCE
#include <stdint.h>
#include <string.h>

#include "guarded.h"
#include "mlc_rvv_gguf.h"
#include "mlc_rvv_linear.h"

// Then come a [m, k], the four parts of b by their bytes, and the numbers of `count` rows.
struct call {
  char name[16];
  int64_t m, n, k, ld_c, tile, count, block;
  int64_t columns[4];  // of each part
};

static const int64_t kItem[4] = {1, 1, 1, 2};

static void *read_bytes(int64_t count) {
  void *data = place((size_t)count);
  if (fread(data, 1, (size_t)count, stdin) != (size_t)count) fail("input ends early");
  return data;
}

static void run(const struct call *call, mlc_rvv_gemm_gguf *gemm, mlc_rvv_take_gguf *take) {
  const int64_t m = call->m, n = call->n, k = call->k;
  float *a = read_bytes(m * k * 4);
  void *parts[4];
  for (int i = 0; i < 4; ++i) {
    parts[i] = read_bytes(n * call->columns[i] * kItem[i]);
    const int64_t rows = n < call->tile ? n : call->tile;
    void *scratch = malloc((size_t)(rows * call->columns[i] * kItem[i]) + 1);
    mlc_rvv_pack_tiles(parts[i], kItem[i], n, call->columns[i], call->tile, scratch);
    free(scratch);
  }
  int32_t *rows = read_bytes(call->count * 4);
  const size_t ready_bytes = (size_t)(k / call->block * m * MLC_RVV_GGUF_BLOCK(call->block));
  const size_t c_bytes = (size_t)((m - 1) * call->ld_c + n) * 4;
  const size_t taken_bytes = (size_t)(call->count * k) * 4;
  uint8_t *ready = place(ready_bytes);
  float *c = place(c_bytes), *taken = place(taken_bytes);
  memset(c, 0xff, c_bytes);
  mlc_rvv_quantize_blocks(ready, a, m, k, k, m, call->block);
  gemm(c, ready, parts[0], parts[1], parts[2], parts[3], m, n, k, call->ld_c, call->tile);
  take(taken, rows, parts[0], parts[1], parts[2], parts[3], call->count, n, k, call->tile);
  fwrite(ready, 1, ready_bytes, stdout);
  fwrite(c, 1, c_bytes, stdout);
  fwrite(taken, 1, taken_bytes, stdout);
  release(ready, ready_bytes);
  release(c, c_bytes);
  release(taken, taken_bytes);
  release(a, (size_t)(m * k) * 4);
  release(rows, (size_t)call->count * 4);
  for (int i = 0; i < 4; ++i) release(parts[i], (size_t)(n * call->columns[i] * kItem[i]));
}

int main(void) {
  struct call call;
  while (fread(&call, sizeof(call), 1, stdin) == 1) {
    int found = 0;
#define CALL(format, ...)                                                        \
  if (strcmp(call.name, #format) == 0) {                                         \
    run(&call, mlc_rvv_gemm_gguf_##format, mlc_rvv_take_gguf_##format), found = 1; \
  }
    MLC_RVV_GGUF(CALL)
    if (!found) fail("no such format");
  }
  return fflush(stdout) == 0 ? 0 : 1;
}
