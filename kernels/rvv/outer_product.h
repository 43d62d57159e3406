// SPDX-License-Identifier: Apache-2.0
//
// acc[16, columns] += lhs[16, depth] * rhs[depth, columns] as a sum of outer products: columns lie in
// vector lanes, every step over the depth takes one row of rhs and multiplies it by one scalar of
// each row of lhs. The loops are those of the matrix products (loops/float32.py).
//
// A strip of columns is done at LMUL=4, in blocks of 6, 5 and 5 rows, while more than an LMUL=2 group
// of columns is left; what is left after that at the smallest LMUL that holds it, eight rows at a
// time: nothing is spent on lanes that are not there, at any VLEN.
#ifndef MLC_RVV_OUTER_PRODUCT_H_
#define MLC_RVV_OUTER_PRODUCT_H_

#include <riscv_vector.h>
#include <stddef.h>
#include <stdint.h>

#include "mlc_rvv_loops.h"

enum {
  MLC_RVV_ROWS = 16,  // of a tile
  MLC_RVV_STEPS = 16  // of an iteration
};

typedef void mlc_tile_loop(const float *acc, const float *lhs, const float *rhs, float *to,
                           int64_t ld_acc, int64_t ld_lhs, int64_t step, size_t lanes,
                           int64_t times);

// The depth is a multiple of MLC_RVV_STEPS.
__attribute__((noinline)) static void mlc_outer_product(float *acc, const float *lhs,
                                                        const float *rhs, int64_t ld_acc,
                                                        int64_t ld_lhs, int64_t ld_rhs,
                                                        int64_t columns, int64_t depth) {
  while (columns > 0) {
    const size_t lanes = __riscv_vsetvl_e32m4((size_t)columns);
    const int wide = lanes > __riscv_vsetvlmax_e32m2();
    for (int64_t row = 0, rows; row < MLC_RVV_ROWS; row += rows) {
      rows = !wide ? 8 : row == 0 ? 6 : 5;
      mlc_tile_loop *run = wide ? row == 0 ? mlc_f32_tile_6_m4 : mlc_f32_tile_5_m4
                           : lanes > __riscv_vsetvlmax_e32m1() ? mlc_f32_tile_8_m2
                                                               : mlc_f32_tile_8_m1;
      run(acc + row * ld_acc, lhs + row * ld_lhs, rhs, acc + row * ld_acc, ld_acc * 4, ld_lhs * 4,
          ld_rhs * 4, lanes, depth / MLC_RVV_STEPS);
    }
    acc += lanes;
    rhs += lanes;
    columns -= (int64_t)lanes;
  }
}

#endif  // MLC_RVV_OUTER_PRODUCT_H_
