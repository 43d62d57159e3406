// SPDX-License-Identifier: Apache-2.0
//
// The observer of roundings to int8, which the program may set (mlc_rvv_linear.h).

#include "mlc_rvv_linear.h"

mlc_rvv_rounding *mlc_rvv_on_rounding = 0;
