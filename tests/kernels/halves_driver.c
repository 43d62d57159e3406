// SPDX-License-Identifier: Apache-2.0
//
// One matrix-vector product in halves: n, k and tile, then x and b, from standard input; y to
// standard output.

#define _GNU_SOURCE
#include "guarded.h"
#include "mlc_rvv_linear.h"

static void *read_halves(int64_t count) {
  void *data = place((size_t)count * 2);
  if (fread(data, 2, (size_t)count, stdin) != (size_t)count) fail("input ends early");
  return data;
}

int main(void) {
  int64_t sizes[3];
  if (fread(sizes, sizeof(sizes), 1, stdin) != 1) fail("input ends early");
  const int64_t n = sizes[0], k = sizes[1];
  void *x = read_halves(k), *b = read_halves(n * k);
  float *y = place((size_t)n * sizeof(float));
  mlc_rvv_gemv_f16_tiles(y, x, b, n, k, sizes[2]);
  const int told = fwrite(y, sizeof(float), (size_t)n, stdout) == (size_t)n && fflush(stdout) == 0;
  release(x, (size_t)k * 2);
  release(b, (size_t)(n * k) * 2);
  release(y, (size_t)n * sizeof(float));
  return told ? 0 : 1;
}
