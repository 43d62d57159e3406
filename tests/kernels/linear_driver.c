// SPDX-License-Identifier: Apache-2.0
//
// Runs calls of the linear-layer kernels that it reads from standard input and writes each call's
// output buffer, whole, to standard output. gemv_q4 stands for its preparation as well.

#define _GNU_SOURCE
#include <stdint.h>
#include <string.h>

#include "guarded.h"
#include "mlc_rvv_linear.h"

// Then come n_c, n_a, n_b and n_scales words of four bytes: c, a, b or quants, scales.
struct call {
  char kind[16];
  int64_t m, n, k, ld_c, ld_a, ld_b, panel_rows, panel_columns, n_c, n_a, n_b, n_scales;
};

static void *read_words(int64_t count) {
  void *data = place((size_t)count * 4);
  if (fread(data, 4, (size_t)count, stdin) != (size_t)count) fail("input ends early");
  return data;
}

static void run(const struct call *call, float *c, const float *a, const void *b,
                const float *scales) {
  const int is_gemm = strncmp(call->kind, "gemm", 4) == 0;
  const int64_t extra = is_gemm ? call->panel_rows * call->panel_columns
                                : 36 * MLC_RVV_Q4_GROUPS(call->k);
  float *scratch = place((size_t)extra * sizeof(float));
  if (strcmp(call->kind, "gemm_f32") == 0) {
    mlc_rvv_gemm_f32(c, a, b, call->m, call->n, call->k, call->ld_c, call->ld_a, call->ld_b,
                     scratch, call->panel_rows, call->panel_columns);
  } else if (strcmp(call->kind, "gemm_q4") == 0) {
    mlc_rvv_gemm_q4(c, a, b, scales, call->m, call->n, call->k, call->ld_c, call->ld_a, scratch,
                    call->panel_rows, call->panel_columns);
  } else if (strcmp(call->kind, "gemv_f32") == 0) {
    mlc_rvv_gemv_f32(c, a, b, call->n, call->k, call->ld_b);
  } else if (strcmp(call->kind, "gemv_q4") == 0) {
    mlc_rvv_gemv_q4_prepare(scratch, a, call->k);
    mlc_rvv_gemv_q4(c, scratch, b, scales, call->n, call->k);
  } else {
    fail("no such kernel");
  }
  release(scratch, (size_t)extra * sizeof(float));
}

int main(void) {
  struct call call;
  while (fread(&call, sizeof(call), 1, stdin) == 1) {
    float *c = read_words(call.n_c);
    float *a = read_words(call.n_a);
    void *b = read_words(call.n_b);
    float *scales = read_words(call.n_scales);
    run(&call, c, a, b, scales);
    fwrite(c, sizeof(float), (size_t)call.n_c, stdout);
    release(c, (size_t)call.n_c * 4);
    release(a, (size_t)call.n_a * 4);
    release(b, (size_t)call.n_b * 4);
    release(scales, (size_t)call.n_scales * 4);
  }
  return fflush(stdout) == 0 ? 0 : 1;
}
