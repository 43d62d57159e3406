// SPDX-License-Identifier: Apache-2.0
//
// Runs calls of the linear-layer kernels that it reads from standard input and writes each call's
// output buffer, whole, to standard output.

#define _GNU_SOURCE
#include <stdint.h>

#include "guarded.h"

#define BEGIN
#define END
#include "linear_call.h"

// Then come n_c, n_a, n_b and n_scales words of four bytes: c, a, b or quants, scales.
struct call {
  char kind[16];
  struct linear_sizes sizes;
  int64_t n_c, n_a, n_b, n_scales;
};

static void *read_words(int64_t count) {
  void *data = place((size_t)count * 4);
  if (fread(data, 4, (size_t)count, stdin) != (size_t)count) fail("input ends early");
  return data;
}

int main(void) {
  struct call call;
  while (fread(&call, sizeof(call), 1, stdin) == 1) {
    float *c = read_words(call.n_c);
    float *a = read_words(call.n_a);
    void *b = read_words(call.n_b);
    float *scales = read_words(call.n_scales);
    const size_t extra = (size_t)linear_scratch(call.kind, &call.sizes) * sizeof(float);
    float *scratch = place(extra);
    if (!call_linear(call.kind, &call.sizes, c, a, b, scales, scratch)) fail("no such kernel");
    release(scratch, extra);
    fwrite(c, sizeof(float), (size_t)call.n_c, stdout);
    release(c, (size_t)call.n_c * 4);
    release(a, (size_t)call.n_a * 4);
    release(b, (size_t)call.n_b * 4);
    release(scales, (size_t)call.n_scales * 4);
  }
  return fflush(stdout) == 0 ? 0 : 1;
}
