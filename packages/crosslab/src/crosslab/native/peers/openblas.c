// SPDX-License-Identifier: Apache-2.0
//
// Runs OpenBLAS's products of a model's linear layers, each between the counter's marks:
//   openblas (stored|transposed) ROWS OUTPUTS INPUTS...
//
// c[rows, outputs] = a[rows, inputs] * weights, with weights [outputs, inputs] (stored) or
// [inputs, outputs] (transposed): sgemm, and sgemv for one row. Each product is called once before
// the counted call, for the library's set-up. The numbers are small integers, so that sums are
// exact; some results are checked. Prints the kernels that OpenBLAS chose for this CPU, as JSON.
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BEGIN __asm__ volatile(".word 0x7c102013" ::: "memory")
#define END __asm__ volatile(".word 0x7c202013" ::: "memory")

// CBLAS's enumerations, and its functions under the names of this build of OpenBLAS.
enum { kRowMajor = 101, kNoTrans = 111, kTrans = 112 };
void scipy_cblas_sgemm(int order, int trans_a, int trans_b, int m, int n, int k, float alpha,
                       const float *a, int lda, const float *b, int ldb, float beta, float *c,
                       int ldc);
void scipy_cblas_sgemv(int order, int trans, int m, int n, float alpha, const float *a, int lda,
                       const float *x, int incx, float beta, float *y, int incy);
char *scipy_openblas_get_corename(void);

// The only function that OpenBLAS needs from a glibc newer than 2.36.
long __isoc23_strtol(const char *text, char **end, int base);
long __isoc23_strtol(const char *text, char **end, int base) { return strtol(text, end, base); }

typedef struct {
  int rows, outputs, inputs, transposed;
} Product;

static void Multiply(const Product *p, const float *a, const float *weights, float *c) {
  const int m = p->rows, n = p->outputs, k = p->inputs, ld = p->transposed ? n : k;
  const int trans = p->transposed ? kNoTrans : kTrans;
  if (m > 1) {
    scipy_cblas_sgemm(kRowMajor, kNoTrans, trans, m, n, k, 1, a, k, weights, ld, 0, c, n);
  } else if (p->transposed) {
    scipy_cblas_sgemv(kRowMajor, kTrans, k, n, 1, weights, ld, a, 1, 0, c, 1);
  } else {
    scipy_cblas_sgemv(kRowMajor, kNoTrans, n, k, 1, weights, ld, a, 1, 0, c, 1);
  }
}

// Returns 1 if every 97th result is correct.
static int Right(const Product *p, const float *a, const float *weights, const float *c) {
  const int64_t n = p->outputs, k = p->inputs;
  for (int64_t at = 0; at < p->rows * n; at += 97) {
    const int64_t i = at / n, j = at % n;
    float sum = 0;
    for (int64_t l = 0; l < k; ++l) {
      sum += a[i * k + l] * weights[p->transposed ? l * n + j : j * k + l];
    }
    if (sum != c[at]) return 0;
  }
  return 1;
}

static float *Numbers(int64_t count, int period) {
  float *made = malloc(sizeof(float) * (size_t)count);
  if (made == NULL) exit(1);
  for (int64_t i = 0; i < count; ++i) made[i] = (float)(int)(i % period - period / 2);
  return made;
}

static int Count(const Product *p) {
  const int64_t m = p->rows, n = p->outputs, k = p->inputs;
  float *a = Numbers(m * k, 7), *weights = Numbers(n * k, 5), *c = Numbers(m * n, 3);
  Multiply(p, a, weights, c);
  BEGIN;
  Multiply(p, a, weights, c);
  END;
  const int right = Right(p, a, weights, c);
  free(a), free(weights), free(c);
  return right;
}

int main(int count, char **argument) {
  const int transposed = count > 1 && strcmp(argument[1], "transposed") == 0;
  if (count < 5 || (count - 2) % 3 != 0 || (!transposed && strcmp(argument[1], "stored") != 0)) {
    fprintf(stderr, "usage: openblas (stored|transposed) ROWS OUTPUTS INPUTS...\n");
    return 1;
  }
  for (int i = 2; i < count; i += 3) {
    const Product product = {atoi(argument[i]), atoi(argument[i + 1]), atoi(argument[i + 2]),
                             transposed};
    if (!Count(&product)) {
      fprintf(stderr, "openblas: wrong result of %s x %s x %s\n", argument[i], argument[i + 1],
              argument[i + 2]);
      return 1;
    }
  }
  printf("{\"kernels\": \"%s\"}\n", scipy_openblas_get_corename());
  return 0;
}
