// SPDX-License-Identifier: Apache-2.0
//
// One call of a linear-layer kernel between the counter's marks:
//   bench gemm_f32|gemm_q4|gemv_f32|gemv_q4 ROWS OUTPUTS INPUTS PANEL_COLUMNS
// Contents do not matter: the number of instructions does not depend on them.

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "mlc_rvv_linear.h"

#define PANEL_ROWS 256
#define BEGIN __asm__ volatile(".word 0x7c102013" ::: "memory")
#define END __asm__ volatile(".word 0x7c202013" ::: "memory")

static void *room(int64_t words) {
  void *data = calloc((size_t)words, 4);
  if (data == NULL) exit(1);
  return data;
}

int main(int count, char **argument) {
  if (count != 6) return 2;
  const char *kind = argument[1];
  const int64_t m = atol(argument[2]), n = atol(argument[3]), k = atol(argument[4]);
  const int64_t columns = atol(argument[5]), groups = MLC_RVV_Q4_GROUPS(k);
  float *c = room(m * n), *a = room(m * k), *b = room(n * k), *scales = room(n * groups);
  float *scratch = room(PANEL_ROWS * columns + 36 * groups);
  uint32_t *quants = room(n * groups * 4);
  BEGIN;
  if (strcmp(kind, "gemm_f32") == 0) {
    mlc_rvv_gemm_f32(c, a, b, m, n, k, n, k, k, scratch, PANEL_ROWS, columns);
  } else if (strcmp(kind, "gemm_q4") == 0) {
    mlc_rvv_gemm_q4(c, a, quants, scales, m, n, k, n, k, scratch, PANEL_ROWS, columns);
  } else if (strcmp(kind, "gemv_f32") == 0) {
    mlc_rvv_gemv_f32(c, a, b, n, k, k);
  } else if (strcmp(kind, "gemv_q4") == 0) {
    mlc_rvv_gemv_q4_prepare(scratch, a, k);
    mlc_rvv_gemv_q4(c, scratch, quants, scales, n, k);
  } else {
    return 2;
  }
  END;
  return 0;
}
