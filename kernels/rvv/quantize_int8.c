// SPDX-License-Identifier: Apache-2.0
//
// Activations as int8, a scale for each group (mlc_rvv_linear.h has the layout).

#include <riscv_vector.h>
#include <stddef.h>

#include "mlc_rvv_linear.h"

_Static_assert(MLC_RVV_INT8_GROUP == 32, "groups of 32 are what the widths below hold");

// One group of activations at LMUL M, which holds 32 floats; H is a half of it, in words as well as
// in sums. The largest is found in the bits, doubled to lose the sign: those of NaN are larger than
// infinity's, so that neither is lost in silence.
#define MLC_I8_QUANTIZE_DEFINE(M, H, HALVE)                                                      \
  __attribute__((noinline)) static void mlc_i8_quantize_m##M(uint8_t *ready, const float *x,     \
                                                             int64_t m, int64_t k, int64_t ld,   \
                                                             int64_t step) {                     \
    const size_t lanes = MLC_RVV_INT8_GROUP;                                                       \
    const vuint32m1_t none = __riscv_vmv_s_x_u32m1(0, 1);                                        \
    const vint16m1_t zero = __riscv_vmv_s_x_i16m1(0, 1);                                         \
    const vfloat32m##M##_t pad = __riscv_vfmv_v_f_f32m##M(0.0f, lanes);                          \
    for (; m > 0; --m, x += ld, ready += MLC_RVV_INT8_BLOCK) {                                   \
      uint8_t *out = ready;                                                                      \
      for (int64_t i = 0; i < k; i += (int64_t)lanes, out += step) {                             \
        const vfloat32m##M##_t group =                                                           \
            k - i >= (int64_t)lanes ? __riscv_vle32_v_f32m##M(x + i, lanes)                      \
                                    : __riscv_vle32_v_f32m##M##_tu(pad, x + i, (size_t)(k - i)); \
        const vuint32m##M##_t bits = __riscv_vreinterpret_v_f32m##M##_u32m##M(group);            \
        const vuint32m##M##_t doubled = __riscv_vadd_vv_u32m##M(bits, bits, lanes);              \
        HALVE                                                                                    \
        const uint32_t word = __riscv_vmv_x_s_u32m1_u32(most) >> 1;                              \
        float largest;                                                                           \
        __builtin_memcpy(&largest, &word, sizeof(largest));                                      \
        const float factor = largest > MLC_RVV_INT8_LEAST ? 127.0f / largest : 0.0f;             \
        const vint16m##H##_t wide = __riscv_vfncvt_x_f_w_i16m##H(                                \
            __riscv_vfmul_vf_f32m##M(group, factor, lanes), lanes);                              \
        MLC_I8_NARROW_##M                                                                        \
        *(float *)(out + 32) = largest * (1.0f / 127.0f);                                        \
        *(int32_t *)(out + 36) = -MLC_RVV_Q4_ZERO_POINT * sum;                                   \
      }                                                                                          \
    }                                                                                            \
  }
// The values, and their sum.
#define MLC_I8_NARROW(to)                                                                        \
  const vint8##to##_t bytes = __riscv_vncvt_x_x_w_i8##to(wide, lanes);                           \
  __riscv_vse8_v_i8##to((int8_t *)out, bytes, lanes);                                            \
  const int sum = (int16_t)__riscv_vmv_x_s_i16m1_i16(                                            \
      __riscv_vwredsum_vs_i8##to##_i16m1(bytes, zero, lanes));
#define MLC_I8_NARROW_8 MLC_I8_NARROW(m2)
#define MLC_I8_NARROW_4 MLC_I8_NARROW(m1)
#define MLC_I8_NARROW_2 MLC_I8_NARROW(mf2)
#define MLC_I8_NARROW_1 MLC_I8_NARROW(mf4)
#define MLC_I8_MAX(to, of, from)                                                                 \
  const vuint32m##to##_t of = __riscv_vmaxu_vv_u32m##to(                                         \
      __riscv_vget_v_u32m##from##_u32m##to(of##_2, 0),                                           \
      __riscv_vget_v_u32m##from##_u32m##to(of##_2, 1), __riscv_vsetvlmax_e32m##to());
#define MLC_I8_HALVE_1 \
  const vuint32m1_t most = __riscv_vredmaxu_vs_u32m1_u32m1(one, none, __riscv_vsetvl_e32m1(32));
#define MLC_I8_HALVE_2 const vuint32m2_t one_2 = two; MLC_I8_MAX(1, one, 2) MLC_I8_HALVE_1
#define MLC_I8_HALVE_4 const vuint32m4_t two_2 = four; MLC_I8_MAX(2, two, 4) MLC_I8_HALVE_2
#define MLC_I8_HALVE_8 const vuint32m8_t four_2 = doubled; MLC_I8_MAX(4, four, 8) MLC_I8_HALVE_4

MLC_I8_QUANTIZE_DEFINE(8, 4, MLC_I8_HALVE_8)
MLC_I8_QUANTIZE_DEFINE(4, 2, const vuint32m4_t four = doubled; MLC_I8_HALVE_4)
MLC_I8_QUANTIZE_DEFINE(2, 1, const vuint32m2_t two = doubled; MLC_I8_HALVE_2)
MLC_I8_QUANTIZE_DEFINE(1, f2, const vuint32m1_t one = doubled; MLC_I8_HALVE_1)

void mlc_rvv_quantize_int8(void *ready, const float *x, int64_t m, int64_t k, int64_t ld_x,
                           int64_t rows) {
  const size_t words = __riscv_vsetvlmax_e32m1();
  (words >= 32   ? mlc_i8_quantize_m1
   : words == 16 ? mlc_i8_quantize_m2
   : words == 8  ? mlc_i8_quantize_m4
                 : mlc_i8_quantize_m8)(ready, x, m, k, ld_x, rows * MLC_RVV_INT8_BLOCK);
  if (mlc_rvv_on_rounding) {
    mlc_rvv_on_rounding(ready, x, m, k, rows, MLC_RVV_INT8_GROUP, MLC_RVV_INT8_BLOCK);
  }
}
