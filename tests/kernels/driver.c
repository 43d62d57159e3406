// SPDX-License-Identifier: Apache-2.0
//
// Runs kernel calls that it reads from standard input and writes each call's accumulator, with
// all elements between the rows, to standard output. One start serves any number of calls.
//
// A call: char symbol[48]; int64_t ld_acc, ld_lhs, ld_rhs, n_acc, n_lhs, n_rhs; then n_acc +
// n_lhs + n_rhs floats.

#define _GNU_SOURCE
#include <stdint.h>
#include <string.h>

#include "guarded.h"
#include "mlc_rvv_kernels.h"

static const struct {
  const char *symbol;
  mlc_rvv_kernel *run;
} kernels[] = {
#define ENTRY(symbol, q_tile, kv_tile, d) {#symbol, symbol},
    MLC_RVV_QK_FLOAT32(ENTRY) MLC_RVV_PV_FLOAT32(ENTRY)
#undef ENTRY
};

struct call {
  char symbol[48];
  int64_t ld_acc, ld_lhs, ld_rhs, n_acc, n_lhs, n_rhs;
};

static mlc_rvv_kernel *find(const char *symbol) {
  for (size_t i = 0; i < sizeof(kernels) / sizeof(kernels[0]); ++i) {
    if (strncmp(kernels[i].symbol, symbol, sizeof(((struct call *)0)->symbol)) == 0) {
      return kernels[i].run;
    }
  }
  fail("no such kernel");
  return NULL;
}

static float *read_floats(int64_t count) {
  float *data = place((size_t)count * sizeof(float));
  if (fread(data, sizeof(float), (size_t)count, stdin) != (size_t)count) fail("input ends early");
  return data;
}

int main(void) {
  struct call call;
  while (fread(&call, sizeof(call), 1, stdin) == 1) {
    mlc_rvv_kernel *run = find(call.symbol);
    float *acc = read_floats(call.n_acc);
    float *lhs = read_floats(call.n_lhs);
    float *rhs = read_floats(call.n_rhs);
    run(acc, lhs, rhs, call.ld_acc, call.ld_lhs, call.ld_rhs);
    fwrite(acc, sizeof(float), (size_t)call.n_acc, stdout);
    release(acc, (size_t)call.n_acc * sizeof(float));
    release(lhs, (size_t)call.n_lhs * sizeof(float));
    release(rhs, (size_t)call.n_rhs * sizeof(float));
  }
  return fflush(stdout) == 0 ? 0 : 1;
}
