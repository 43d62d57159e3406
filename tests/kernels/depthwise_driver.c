// SPDX-License-Identifier: Apache-2.0
//
// One convolution of a channel: its sizes, then x and w, from standard input; the outputs to standard
// output.

#define _GNU_SOURCE
#include "guarded.h"
#include "mlc_rvv_linear.h"

static float *read_floats(int64_t count) {
  float *data = place((size_t)count * sizeof(float));
  if (fread(data, sizeof(float), (size_t)count, stdin) != (size_t)count) fail("input ends early");
  return data;
}

int main(void) {
  // Rows, columns, those of the kernel, strides, dilations, the width of x.
  int64_t s[9];
  if (fread(s, sizeof(s), 1, stdin) != 1) fail("input ends early");
  const int64_t height = (s[0] - 1) * s[4] + (s[2] - 1) * s[6] + 1;
  const int64_t area = height * s[8], taps = s[2] * s[3], count = s[0] * s[1];
  float *x = read_floats(area), *w = read_floats(taps);
  float *out = place((size_t)count * sizeof(float));
  mlc_rvv_depthwise_f32(out, x, w, s[0], s[1], s[2], s[3], s[4], s[5], s[6], s[7], s[8]);
  const size_t wrote = fwrite(out, sizeof(float), (size_t)count, stdout);
  release(x, (size_t)area * sizeof(float));
  release(w, (size_t)taps * sizeof(float));
  release(out, (size_t)count * sizeof(float));
  return wrote == (size_t)count && fflush(stdout) == 0 ? 0 : 1;
}
